"""The model of a worker group: pipeline stages, copies in parallel with compute, and what it refuses."""

import pytest

from services.domain.copying import LinkSpeed
from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Applied,
    Assign,
    BlockMove,
    Done,
    IterationResult,
    Offload,
    PlanEntry,
    ReleaseBlocks,
    Upload,
    WorkerToKv,
)
from services.scheduler.machine.scheduler_events import SendPlan
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulated_worker import SimulatedProgress, SimulatedWorker
from tests.builders.block_moves import block_moves
from tests.builders.cost_profiles import proportional_cost
from tests.simulator.simulated_servers import server

EPOCH = Epoch(1)
COST = proportional_cost(0.00625, 0.1, least_tokens=16)
BLOCK_S = 0.5
"""A copy of one block of 16 tokens of 1,000 bytes."""
SLOW_LINK = LinkSpeed(bytes_per_s=16_000 / BLOCK_S, latency_s=0.0)


class Bench:
    """A worker without peers: the messages that it would send, with their times."""

    def __init__(self, setup: ServerSetup, *jobs: SimulatedJob) -> None:
        self.results: list[tuple[float, IterationResult]] = []
        self.answers: list[tuple[float, WorkerToKv]] = []
        self.worker = SimulatedWorker(
            setup,
            EPOCH,
            lambda at_s, result: self.results.append((at_s, result)),
            lambda at_s, answers: self.answers.extend((at_s, answer) for answer in answers),
        )
        self.worker.jobs = {JobId(job.job_id): SimulatedProgress(job) for job in jobs}
        self._plans = self._commands = 0

    def plan(self, now_s: float, *entries: tuple[str, int, int], limits_s: dict[str, float] | None = None) -> float:
        """A plan arrives. Returns when its result leaves."""
        self._plans += 1
        made = tuple(PlanEntry(JobId(job), start, stop) for job, start, stop in entries)
        cuts = tuple((JobId(job), limit_s) for job, limit_s in (limits_s or {}).items())
        self.worker.run(SendPlan(EPOCH, PlanNumber(self._plans), made, cuts), now_s)
        return self.results[-1][0]

    def sampled(self) -> list[str]:
        """Jobs that got a token from the last plan."""
        return [token.job_id for token in self.results[-1][1].tokens]

    def number(self) -> CommandNumber:
        self._commands += 1
        return CommandNumber(self._commands)

    def assign(self, job: str, blocks: int) -> None:
        given = tuple(BlockId(number) for number in range(blocks))
        self.worker.apply([Assign(self.number(), JobId(job), given)], 0.0)

    def offload(self, now_s: float, job: str, tokens: int) -> None:
        self.worker.apply([Offload(self.number(), JobId(job), moves(tokens), tokens)], now_s)

    def upload(self, now_s: float, job: str, tokens: int, blocks: int) -> None:
        given = tuple(BlockId(number) for number in range(blocks))
        self.worker.apply([Upload(self.number(), JobId(job), given, moves(tokens), tokens)], now_s)


def moves(tokens: int) -> tuple[BlockMove, ...]:
    """All blocks of so many tokens."""
    return block_moves(*((number, number) for number in range(-(-tokens // 16))))


def bench(*jobs: SimulatedJob, stages: int = 1, link: LinkSpeed = SLOW_LINK) -> Bench:
    """Every job has blocks for 160 tokens."""
    made = Bench(server(cost=COST, link=link, stages=stages), *jobs)
    for job in jobs:
        made.assign(job.job_id, 10)
    made.answers.clear()
    return made


A, B = SimulatedJob("a", 0.0, 32, 4), SimulatedJob("b", 0.0, 48, 4)


def test_plans_run_one_after_another_and_waiting_for_one_is_counted() -> None:
    """0.2 s and 0.1 s, the second queued; the third comes 0.4 s after the second ended."""
    made = bench(A)
    ends_s = [made.plan(0.0, ("a", 0, 32)), made.plan(0.1, ("a", 32, 33)), made.plan(0.7, ("a", 33, 34))]
    assert ends_s == pytest.approx([0.2, 0.3, 0.8])
    assert made.worker.plan_wait_s == pytest.approx(0.4)
    assert made.worker.busy_s == pytest.approx(0.4)


def test_nobody_waits_for_a_plan_when_all_jobs_have_ended_or_were_released() -> None:
    made = bench(SimulatedJob("a", 0.0, 32, 1), B)
    made.plan(0.0, ("a", 0, 32), ("b", 0, 48))
    made.worker.apply([ReleaseBlocks(made.number(), JobId("b"))], 0.6)
    made.assign("b", 10)
    made.plan(5.0, ("b", 0, 48))
    assert made.worker.plan_wait_s == 0.0


def test_a_stage_starts_a_plan_when_the_one_before_ended_it_and_itself_ended_its_last() -> None:
    """Two stages of 0.1 s and 0.15 s: the second plan waits only for stage 0."""
    made = bench(A, B, stages=2)
    assert made.plan(0.0, ("a", 0, 32)) == pytest.approx(0.2)
    assert made.plan(0.0, ("b", 0, 48)) == pytest.approx(0.1 + 2 * 0.15)
    assert made.worker.busy_s == pytest.approx(0.25), "the mean of both stages"


def test_the_first_stage_needs_the_last_ones_token_of_a_job_that_decodes() -> None:
    made = bench(A, stages=2)
    made.plan(0.0, ("a", 0, 32))
    assert made.plan(0.0, ("a", 32, 33)) == pytest.approx(0.3), "not 0.1 + 2 x 0.05"


def test_chunks_of_a_prompt_follow_each_other_through_the_stages() -> None:
    made = bench(A, stages=2)
    made.plan(0.0, ("a", 0, 16))
    assert made.sampled() == []
    assert made.plan(0.0, ("a", 16, 32)) == pytest.approx(0.15), "its first stage runs while the second has the other"
    assert made.sampled() == ["a"]


def test_an_iteration_waits_for_the_uploads_of_its_own_jobs_and_no_others() -> None:
    """Two blocks come back until 1.0 + 2 x 0.5 s."""
    made = bench(A, B)
    made.plan(0.0, ("a", 0, 32))
    made.plan(0.0, ("b", 0, 48))
    made.offload(0.5, "a", 32)
    made.worker.apply([Upload(made.number(), JobId("a"), tuple(map(BlockId, range(3))), moves(32), 32)], 1.0)
    assert made.plan(1.0, ("b", 48, 49)) == pytest.approx(1.1)
    assert made.worker.stall_s == 0.0
    assert made.plan(1.2, ("a", 32, 33)) == pytest.approx(2.0 + 0.1)
    assert made.worker.stall_s == pytest.approx(0.8)


def test_a_copy_is_applied_at_once_and_done_when_it_ended_on_every_stage() -> None:
    """Each of two stages moves its half of the block's bytes."""
    made = bench(A, stages=2)
    made.plan(0.0, ("a", 0, 32))
    made.offload(1.0, "a", 32)
    command_number = CommandNumber(2)
    assert made.answers == [
        (1.0, Applied(command_number)),
        (1.0 + BLOCK_S, Done(command_number)),
    ]


@pytest.mark.parametrize(("duplex", "end_s"), [(True, 3.0), (False, 4.0)])
def test_a_direction_moves_one_copy_after_another(duplex: bool, end_s: float) -> None:
    """Both are offloaded, then one is uploaded: in parallel with the other's offload if the link is duplex."""
    made = bench(A, B, link=LinkSpeed(SLOW_LINK.bytes_per_s, 0.25, duplex))
    made.plan(0.0, ("a", 0, 32), ("b", 0, 48))
    made.answers.clear()
    made.offload(0.5, "a", 32)  # until 1.75
    made.offload(0.5, "b", 48)  # until 3.5
    made.upload(1.75, "a", 32, 3)  # 1.25 s
    done_s = [at_s for at_s, answer in made.answers if isinstance(answer, Done)]
    assert done_s == pytest.approx([1.75, 3.5, end_s if duplex else 3.5 + 1.25])
    waited_s = [made.worker.jobs[JobId(name)].uploading_s for name in "ab"]
    assert waited_s == pytest.approx([done_s[-1] - 1.75, 0.0]), "from the command on, the link's other copies included"


def test_an_entry_of_a_job_that_a_stop_token_ended_is_passed_over() -> None:
    """The plan after it was made before its last token was known."""
    made = bench(SimulatedJob("a", 0.0, 32, 2, max_tokens=9), B)
    made.plan(0.0, ("a", 0, 32))
    made.plan(0.0, ("a", 32, 33))
    assert [token.end_of_sequence for token in made.results[-1][1].tokens] == [True]
    made.plan(0.0, ("a", 33, 34), ("b", 0, 48))
    assert made.sampled() == ["b"]
    assert made.results[-1][1].duration_s == pytest.approx(COST.prefill_s(48))


def test_a_prefill_with_a_limit_runs_by_itself_and_nothing_of_it_is_kept_when_it_is_cut() -> None:
    """0.1 s of decode, 0.05 of 0.3 s of the prefill; then whole beside another's."""
    made = bench(A, B)
    made.plan(0.0, ("a", 0, 32))
    assert made.plan(0.2, ("a", 32, 33), ("b", 0, 48), limits_s={"b": 0.05}) == pytest.approx(0.35)
    assert (made.results[-1][1].cut_job_ids, made.sampled()) == (("b",), ["a"])
    assert made.plan(0.35, ("b", 0, 48), limits_s={"b": 0.31}) == pytest.approx(0.65)
    assert (made.results[-1][1].cut_job_ids, made.sampled()) == ((), ["b"])


def test_a_chunk_that_is_cut_leaves_the_chunks_before_it() -> None:
    made = bench(A)
    made.plan(0.0, ("a", 0, 16))
    made.plan(0.0, ("a", 16, 32), limits_s={"a": 0.01})
    made.plan(0.2, ("a", 16, 32))
    assert made.sampled() == ["a"]


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (("a", 0, 33), "32 tokens"),
        (("a", 16, 32), "0 are valid"),
        (("c", 0, 1), "never arrived"),
        (("long", 0, 161), "10 blocks of 16"),
    ],
)
def test_a_plan_that_can_not_be_right_is_refused(entry: tuple[str, int, int], what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        bench(A, SimulatedJob("long", 0.0, 161, 1)).plan(0.0, entry)


def test_a_copy_of_tokens_that_are_not_there_is_refused() -> None:
    made = bench(A)
    with pytest.raises(ProtocolError, match="0 are valid"):
        made.offload(0.0, "a", 32)
    made.plan(0.0, ("a", 0, 32))
    made.offload(1.0, "a", 32)
    with pytest.raises(ProtocolError, match="of job a in 1 blocks"):
        made.worker.apply([Upload(made.number(), JobId("a"), (BlockId(0), BlockId(1)), moves(16), 32)], 2.0)
