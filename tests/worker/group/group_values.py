"""Short names for the values of a group's tests."""

from array import array

from services.domain.guide import Guide, GuideKind
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork, WorkerCounters
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import PromptLogprobs, ScoredPrompt
from services.domain.protocol import Assign, BlockMove, Offload, ReleaseBlocks, SampledToken
from services.worker.group.messages import Begin, Ran
from services.worker.step import StepOutcome

EPOCH = Epoch(7)
BEGIN = Begin(EPOCH, 4000, 3.0)
JOB, OTHER = JobId("a/0"), JobId("b/0")
GUIDE = Guide(GuideKind.REGEX, "[0-9]+")


def prefill(
    tokens: int = 2,
    cut_after_s: float | None = None,
    *,
    output: int = 0,
    guide: Guide | None = None,
    job_id: JobId = JOB,
) -> PlanWork:
    """The start of a job. `output`: how many of the tokens are earlier output."""
    spec = JobSpec(tokens - output, tokens, JobSampling(max_tokens=4, seed=0, guide=guide))
    return PlanWork(job_id, 0, tokens, tuple(range(tokens)), spec, cut_after_s)


def decode(position: int) -> PlanWork:
    return PlanWork(JOB, position, position + 1, (), None, None)


def plan(number: int, *entries: PlanWork, epoch: Epoch = EPOCH) -> Plan:
    return Plan(epoch, PlanNumber(number), entries)


def assign(number: int) -> Assign:
    return Assign(CommandNumber(number), JOB, (BlockId(0),))


def offload(number: int) -> Offload:
    return Offload(CommandNumber(number), JOB, (BlockMove(0, BlockId(0), BlockId(0)),), 1)


def release(number: int) -> ReleaseBlocks:
    return ReleaseBlocks(CommandNumber(number), JOB)


def outcome(*tokens: SampledToken, compute_s: float = 1.0) -> StepOutcome:
    return StepOutcome(tokens, {}, (), compute_s, 0.0)


SCORED = ScoredPrompt(JOB, PromptLogprobs(1, array("f", [-0.5]), array("I", [7]), array("f", [-0.25])))


def ran(number: int, *tokens: SampledToken, compute_s: float = 1.0) -> Ran:
    return Ran(EPOCH, PlanNumber(number), outcome(*tokens, compute_s=compute_s), WorkerCounters(offloaded_bytes=10))


def token(token_id: int, end: bool = False) -> SampledToken:
    return SampledToken(JOB, token_id, end)
