"""What a leader hands to every rank of its group for one iteration, and what comes back. No torch here.

A plan says what to compute but for two things, which follow from tokens that only the worker knows: an entry of a job
that has ended is passed over, and a decode goes on from the job's last token. One place decides both, so that all ranks
compute the same rows: the leader, by its `OutputLedger`. A group of one rank decides and computes in the same call.
Passed over is also an entry that starts a job whose guide is not compiled; to the scheduler its prefill was cut.

The ledger follows the jobs' tokens, not their KV. A plan can be turned into a step once the tokens that its jobs were
to sample in earlier plans have come back (`waits`); other plans of the pipeline may still be under way.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from services.domain.generation import TokenLogprob
from services.domain.guide import Guide
from services.domain.ids import JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.prompt_logprobs import ScoredPrompt
from services.domain.protocol import SampledToken


@dataclass(frozen=True, slots=True)
class Step:
    """A plan and the leader's decisions about it: the jobs whose entries are passed over, because they have ended or
    their guides are not ready, and the token from which each decode of the others goes on.
    """

    plan: Plan
    passed_over_job_ids: frozenset[JobId]
    input_token_ids: Mapping[JobId, int]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a rank says about a step. Tokens and log probabilities come from the rank that samples, others have none.

    `compute_s`: seconds of computing, sums over ranks included, waits for copies and for the stage before excluded;
    `stall_s`: seconds that the compute waited for uploads of its jobs. `failures`: jobs whose guide could not be
    followed any further, and why; they end with this step. `scored`: log probabilities of prompts, part by part.
    """

    tokens: tuple[SampledToken, ...]
    logprobs: Mapping[JobId, TokenLogprob]
    cut_job_ids: tuple[JobId, ...]
    compute_s: float
    stall_s: float
    failures: Mapping[JobId, str] = field(default_factory=dict)
    scored: Sequence[ScoredPrompt] = ()


def guided_starts(plan: Plan) -> Iterator[tuple[PlanWork, Guide]]:
    """The entries that start a job with a guide, at position 0."""
    for entry in plan.entries:
        if entry.spec is not None and entry.spec.sampling.guide is not None:
            yield entry, entry.spec.sampling.guide


def output_of(entry: PlanWork) -> Sequence[int]:
    """The earlier output that an entry at position 0 brings: all of it, unless the prefill comes in chunks."""
    assert entry.spec is not None
    return entry.token_ids[entry.spec.prompt_tokens :]


@dataclass(slots=True)
class _JobTokens:
    """`known_tokens` counts one that is being sampled; `awaited_plan_number` is the plan that samples it."""

    known_tokens: int
    most_tokens: int
    last_token: int | None = None
    awaited_plan_number: PlanNumber | None = None
    ended: bool = False

    @classmethod
    def of(cls, spec: JobSpec) -> "_JobTokens":
        return cls(spec.known_tokens, spec.prompt_tokens + spec.sampling.max_tokens)


@dataclass(slots=True)
class OutputLedger:
    """How far the output of each job has come, as its leader knows. Made anew for every epoch."""

    _jobs: dict[JobId, _JobTokens] = field(default_factory=dict)

    def waits(self, plan: Plan) -> bool:
        """Whether the plan goes on from a token that an earlier step is still to sample."""
        return any(
            entry.from_token > 0
            and (job := self._jobs.get(entry.job_id)) is not None
            and job.awaited_plan_number is not None
            for entry in plan.entries
        )

    def step_of(self, plan: Plan, unready: Collection[JobId] = ()) -> Step:
        """The plan with what is to be passed over and where its decodes go on. It must not wait (`waits`). `unready`:
        jobs that it starts before their guides are ready.

        Nothing is checked: an entry that can't be right is refused by the rank that has its blocks.
        """
        passed_over, input_tokens = set(), {}
        for entry in plan.entries:
            job_id = entry.job_id
            if job_id in unready:
                passed_over.add(job_id)
                continue
            if entry.from_token == 0 and entry.spec is not None:
                job = self._jobs[job_id] = _JobTokens.of(entry.spec)
            elif (known := self._jobs.get(job_id)) is None:
                continue
            elif known.ended:
                passed_over.add(job_id)
                continue
            else:
                job = known
            if not entry.token_ids and job.last_token is not None:
                input_tokens[job_id] = job.last_token
            if entry.to_token == job.known_tokens:
                job.known_tokens += 1
                job.awaited_plan_number = plan.plan_number
        return Step(plan, frozenset(passed_over), input_tokens)

    def take(self, plan_number: PlanNumber, tokens: Iterable[SampledToken], cut_job_ids: Iterable[JobId] = ()) -> None:
        """What a step sampled, and which of its prefills were given up. News of a job's earlier stay are dropped."""
        for job_id, token_id, end_of_sequence in tokens:
            job = self._jobs.get(job_id)
            if job is not None and job.awaited_plan_number == plan_number:
                job.awaited_plan_number, job.last_token = None, token_id
                job.ended = end_of_sequence or job.known_tokens >= job.most_tokens
        for job_id in cut_job_ids:
            job = self._jobs.get(job_id)
            if job is not None and job.awaited_plan_number == plan_number:
                job.awaited_plan_number = None
                job.known_tokens -= 1

    def forget(self, job_id: JobId) -> None:
        """The job's blocks are released."""
        self._jobs.pop(job_id, None)

    def has_unfinished_jobs(self) -> bool:
        """Whether some job can still make tokens."""
        return any(not job.ended for job in self._jobs.values())
