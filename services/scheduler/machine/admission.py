"""Admission of jobs: bounded in jobs and in tokens; a job that can never fit is refused."""

from services.scheduler.machine.scheduler_events import Reject, RejectKind, Submit
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.scheduler_config import SchedulerConfig

SHORTEST_RETRY_S = 0.1
LONGEST_RETRY_S = 30.0
NOT_READY_RETRY_S = 1.0
END_INTERVAL_WEIGHT = 0.1


class Admission:
    """Counts queued jobs and tokens, and checks that a job fits."""

    def __init__(self, config: SchedulerConfig, batch: BatchLimit) -> None:
        self._config = config
        self._batch = batch
        self._max_model_len: int | None = None
        self._device_pool_tokens = 0
        self._last_end_s: float | None = None
        self._end_interval_s = NOT_READY_RETRY_S
        self.queued_jobs = 0
        self.queued_tokens = 0

    def set_limits(self, max_model_len: int, device_pool_tokens: int) -> None:
        """A worker joined. Jobs are admitted once the first worker has joined."""
        self._max_model_len = max_model_len
        self._device_pool_tokens = device_pool_tokens

    def refusal(self, submit: Submit) -> Reject | None:
        """Why the job can't be admitted; None if it can."""
        if self._max_model_len is None:
            return Reject(submit.job_id, RejectKind.NOT_READY, "", "no worker group has joined yet", NOT_READY_RETRY_S)
        if (misfit := self.misfit(submit)) is not None:
            return misfit
        config = self._config
        if self.queued_jobs >= config.max_queued_jobs:
            return self._full(submit, f"{config.max_queued_jobs} jobs are already queued, which is the maximum")
        if self.queued_tokens + submit.prompt_tokens + submit.max_tokens > config.max_queued_tokens:
            return self._full(
                submit, f"the limit of {config.max_queued_tokens} queued tokens (prompts plus max_tokens) is reached"
            )
        return None

    def misfit(self, submit: Submit) -> Reject | None:
        """Why the job can never run; None if it can."""
        invalid = None if self._max_model_len is None else self._unfit(submit, self._max_model_len)
        return None if invalid is None else Reject(submit.job_id, RejectKind.INVALID, *invalid, 0.0)

    def fits_pool(self, prompt_tokens: int, max_tokens: int) -> bool:
        """Whether the job on its own fits the device pool and the model's context."""
        return prompt_tokens + max_tokens <= min(self._max_model_len or 0, self._device_pool_tokens)

    def enter(self, prompt_tokens: int, max_tokens: int) -> None:
        self.queued_jobs += 1
        self.queued_tokens += prompt_tokens + max_tokens

    def leave(self, prompt_tokens: int, max_tokens: int, now_s: float) -> None:
        self.moved_away(prompt_tokens, max_tokens)
        if self._last_end_s is not None:
            self._end_interval_s += END_INTERVAL_WEIGHT * (now_s - self._last_end_s - self._end_interval_s)
        self._last_end_s = now_s

    def moved_away(self, prompt_tokens: int, max_tokens: int) -> None:
        """The job goes on elsewhere."""
        self.queued_jobs -= 1
        self.queued_tokens -= prompt_tokens + max_tokens

    def _unfit(self, submit: Submit, max_model_len: int) -> tuple[str, str] | None:
        """The offending field and its limit, if the job can never run."""
        if submit.prompt_tokens < 1:
            return "prompt", "must hold at least one token"
        if submit.max_tokens < 1:
            return "sampling.max_tokens", "must be at least 1"
        whole = submit.prompt_tokens + submit.max_tokens
        for limit, name in ((max_model_len, "the model's context"), (self._device_pool_tokens, "the device's KV pool")):
            if submit.prompt_tokens >= limit:
                return "prompt", f"has {submit.prompt_tokens} tokens, but {name} holds only {limit}, output included"
            if whole > limit:
                parts = f"prompt ({submit.prompt_tokens}) + max_tokens ({submit.max_tokens})"
                return "sampling.max_tokens", f"{parts} must be at most {limit}, the size of {name}"
        return None

    def _full(self, submit: Submit, message: str) -> Reject:
        """The retry delay is the time in which a full batch of jobs should end, at the recent pace."""
        retry_after_s = min(max(self._end_interval_s * self._batch.jobs, SHORTEST_RETRY_S), LONGEST_RETRY_S)
        return Reject(submit.job_id, RejectKind.FULL, "", message, retry_after_s)
