"""When would a group end a job? Its measured cost model, its jobs, and the room in its device pool say.

Theory of operation. A group runs a batch of jobs at a time, the best ones that have KV on the device. How many that
are follows from the batch's limit and from the pool: `slots` is the number of jobs of the present size that fit. A job
with fewer than `slots` others ahead of it begins at once. With more, it begins when the work ahead has shrunk to its
last `slots` jobs. The group works through that at the pace of a full batch. From then on it is prefilled, and makes a
token in each iteration of a batch that all jobs of the group fill, also those behind it.

Seconds are those of the profile, times the ratio of measured to predicted durations of recent iterations: a group that
is slower in service than on the idle machine on which it was profiled gets less. A worker that has just joined is taken
to be as far off its profile as those of the other groups.
"""

from services.domain.cost import CostProfile
from services.domain.protocol import PlanEntry, Rank
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.routing.work_order import Load, RoutedJob, WorkOrder

RATIO_WEIGHT = 0.25
"""Weight of the newest measured iteration in the ratio of measured to predicted durations."""
LEAST_RATIO, MOST_RATIO = 0.1, 100.0
MEASURED_PLANS = 8
"""One in so many plans is compared with the cost model."""


class GroupForecast:
    """The jobs of one worker group, and what is known of its worker."""

    def __init__(self, number: int, batch: BatchLimit) -> None:
        self.number = number
        self.order = WorkOrder()
        self.pool_tokens = 0
        self.max_model_len = 0
        self.ratio = 1.0
        """Measured by predicted duration of recent iterations."""
        self.is_measured = False
        """Whether some iteration of the present worker has been compared."""
        self._batch = batch
        self._stage_count = 1
        self._profile: CostProfile | None = None
        self._predicted_s: dict[int, float] = {}
        """Of the plans under way that are compared."""

    @property
    def most_tokens(self) -> int:
        """Most tokens, prompt and longest output, of a job that this group can run; 0 before its first worker."""
        return min(self.pool_tokens, self.max_model_len)

    @property
    def batch_slots(self) -> int:
        """Jobs in iterations at a time, at most."""
        return self._batch.jobs * self._stage_count

    def joined(
        self, profile: CostProfile, pool_tokens: int, max_model_len: int, stage_count: int, ratio: float
    ) -> None:
        """A worker joined, with empty pools. Until it is measured, `ratio` holds."""
        self._profile, self._stage_count = profile, stage_count
        self.pool_tokens, self.max_model_len = pool_tokens, max_model_len
        self.ratio, self.is_measured = ratio, False
        self._predicted_s.clear()

    # --- the pace ----------------------------------------------------------------------------------------------------

    def planned(self, plan_number: int, entries: tuple[PlanEntry, ...]) -> None:
        """A plan was made; some are compared with the cost model."""
        if plan_number % MEASURED_PLANS or self._profile is None:
            return
        decodes = [to_token for _, from_token, to_token in entries if to_token - from_token == 1]
        prefills = [(from_token, to_token) for _, from_token, to_token in entries if to_token - from_token > 1]
        context_tokens = sum(decodes) / len(decodes) if decodes else 0.0
        self._predicted_s[plan_number] = self._profile.iteration_s(prefills, len(decodes), context_tokens)

    def took(self, plan_number: int, duration_s: float) -> None:
        """A plan has a result."""
        predicted_s = self._predicted_s.pop(plan_number, None)
        if predicted_s is not None:
            ratio = min(max(duration_s / predicted_s, LEAST_RATIO), MOST_RATIO)
            self.ratio += RATIO_WEIGHT * (ratio - self.ratio)
            self.is_measured = True

    def forget(self, first_plan_number: int) -> None:
        """Plans from this number on will have no result."""
        for number in [number for number in self._predicted_s if number >= first_plan_number]:
            del self._predicted_s[number]

    # --- forecasts ---------------------------------------------------------------------------------------------------

    def finish_s(self, job: RoutedJob, rank: Rank) -> float:
        """Seconds until the job would end, at this rank of this group, where it is already or would come to."""
        assert self._profile is not None, "a group without a worker so far was asked"
        ahead = self.order.ahead_of(rank)
        others = len(self.order) - (job.group == self.number)
        slots, kv_tokens = self._slots(ahead, job)
        ahead_prefill_s = self._prefill_s(ahead)
        ahead_s = ahead_prefill_s + self._decode_s(slots, slots, kv_tokens) / slots * ahead.rest_tokens
        waits = 1.0 - (slots - 1) / ahead.jobs if ahead.jobs >= slots else 0.0
        own_s = self._one_prefill_s(job.prefill_tokens) + job.rest_tokens * self._decode_s(slots, others + 1, kv_tokens)
        return self.ratio * (waits * ahead_s + (1.0 - waits) * ahead_prefill_s + own_s)

    @property
    def backlog_s(self) -> float:
        """Seconds of the group's work that are left in all its jobs."""
        whole = self.order.whole
        if self._profile is None or not whole.jobs:
            return 0.0
        slots, kv_tokens = self._slots(whole, None)
        token_s = self._decode_s(slots, slots, kv_tokens) / slots
        return self.ratio * (self._prefill_s(whole) + token_s * whole.rest_tokens)

    def _slots(self, load: Load, job: RoutedJob | None) -> tuple[float, float]:
        """How many jobs like these run at a time, as the pool has room for, and their mean KV in tokens."""
        jobs = load.jobs
        tokens = load.known_tokens + load.rest_tokens / 2
        if job is not None:
            jobs += 1
            tokens += job.known_tokens + job.rest_tokens / 2
        kv_tokens = tokens / jobs
        return max(1.0, min(self.batch_slots, self.pool_tokens / kv_tokens)), kv_tokens

    def _decode_s(self, slots: float, jobs: float, kv_tokens: float) -> float:
        """Seconds of an iteration that decodes, while `jobs` jobs share the group."""
        assert self._profile is not None
        batch = min(slots, jobs) / self._stage_count
        return self._profile.decode_s(max(1, round(batch)), kv_tokens)

    def _one_prefill_s(self, tokens: float) -> float:
        """What a prefill adds to an iteration of a full batch."""
        assert self._profile is not None
        if not tokens:
            return 0.0
        return self._profile.prefill_beside_s(round(tokens), self._batch.jobs)

    def _prefill_s(self, load: Load) -> float:
        if not load.unstarted:
            return 0.0
        return load.unstarted * self._one_prefill_s(load.prefill_tokens / load.unstarted) / self._stage_count
