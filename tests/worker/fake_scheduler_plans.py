"""The plans of a scheduler for an engine, without streams."""

from collections.abc import Sequence

from services.domain.ids import JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork, WorkerResult
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import KnownPromptLogprobs
from services.worker.step import guided_starts
from tests.worker.fake_kv_commands import FakeKvCommands

GUIDE_LIMIT_S = 60.0


class FakeSchedulerPlans:
    """Jobs as a scheduler sees them, on one engine: makes plans, remembers outputs."""

    def __init__(self, kv: FakeKvCommands) -> None:
        self.kv = kv
        self.prompts: dict[JobId, tuple[int, ...]] = {}
        self.samplings: dict[JobId, JobSampling] = {}
        self.outputs: dict[JobId, list[int]] = {}
        self.planned: dict[JobId, int] = {}
        self.prefill_ends: dict[JobId, int] = {}
        self.ended: set[JobId] = set()
        self.scores: dict[JobId, KnownPromptLogprobs] = {}
        """Log probabilities of the prompts that asked for them."""
        self._plan = 0

    def add(self, name: str, prompt: Sequence[int], how: JobSampling) -> JobId:
        job_id = JobId(name)
        self.prompts[job_id], self.samplings[job_id], self.outputs[job_id] = tuple(prompt), how, []
        self.planned[job_id] = 0
        return job_id

    def known(self, job_id: JobId) -> int:
        return len(self.prompts[job_id]) + len(self.outputs[job_id])

    def entry(self, job_id: JobId, to_token: int | None = None, cut_after_s: float | None = None) -> PlanWork:
        """The next entry of a job: its prefill (up to `to_token`), or a decode; speculative if a plan is in flight."""
        done = self.planned[job_id]
        if done == 0:
            self.prefill_ends[job_id] = self.known(job_id)
        if done < self.prefill_ends[job_id]:
            tokens = (*self.prompts[job_id], *self.outputs[job_id])
            end = self.prefill_ends[job_id] if to_token is None else to_token
            spec = JobSpec(len(self.prompts[job_id]), len(tokens), self.samplings[job_id]) if done == 0 else None
            is_scored = self.samplings[job_id].prompt_logprobs is not None and end < len(self.prompts[job_id])
            work = PlanWork(job_id, done, end, tokens[done:end], spec, cut_after_s, tokens[end] if is_scored else None)
        else:
            work = PlanWork(job_id, done, done + 1, (), None, cut_after_s)
        self.planned[job_id] = work.to_token
        self.kv.grow(job_id, work.to_token)
        return work

    def run(self, *entries: PlanWork) -> WorkerResult:
        """Runs a plan, once the guides of the jobs that it starts are ready."""
        plan, guides = self.plan(*entries), self.kv.engine.guides
        self.kv.engine.prepare_guides(plan)
        for entry, _ in guided_starts(plan):
            guides.wait_any((entry.job_id,), GUIDE_LIMIT_S)
        result = self.kv.engine.run(plan)
        self.take(result)
        return result

    def plan(self, *entries: PlanWork) -> Plan:
        self._plan += 1
        return Plan(self.kv.engine.epoch, PlanNumber(self._plan), tuple(entries))

    def take(self, result: WorkerResult) -> None:
        for job_id, part in result.scored:
            scores = self.scores.setdefault(job_id, KnownPromptLogprobs(len(self.prompts[job_id])))
            known_end = min(scores.end, part.first_token + part.token_count)
            if part.first_token < known_end:
                again, known = (one.between(part.first_token, known_end) for one in (part, scores.known))
                assert again == known, "what is computed again is the same"
            scores.add(part)
        for job_id, token_id, end_of_sequence in result.result.tokens:
            self.outputs[job_id].append(token_id)
            if end_of_sequence or len(self.outputs[job_id]) == self.samplings[job_id].max_tokens:
                self.ended.add(job_id)

    def finish(self, *jobs: JobId) -> None:
        """Runs the jobs to their ends, all in each plan."""
        while left := [job_id for job_id in jobs if job_id not in self.ended]:
            self.run(*(self.entry(job_id) for job_id in left))
