"""A copy that fails, as all do after an error of the GPU, keeps nobody waiting: whoever comes next is told."""

import threading
from collections.abc import Callable, Iterator

import pytest

from services.domain.copying import CopyDirection
from services.domain.errors import FastServeError
from services.domain.ids import BlockId
from services.domain.protocol import BlockMove
from services.worker.engine.engine import Engine
from services.worker.kv.copier import Copier, CopyFailedError, CpuCopier
from services.worker.kv.cuda_copier import CudaCopier
from services.worker.kv.pools import KvPools
from tests.worker.fake_kv_commands import WAIT_LIMIT_S, FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.kv import fake_cuda
from tests.worker.tiny_engine import prompt_of, sampling, tiny_model, tiny_pools

GOOD = (BlockMove(0, BlockId(0), BlockId(0)),)
BAD = tuple(BlockMove(number, BlockId(number), BlockId(10**6 + number)) for number in range(2))
"""There are no such host blocks: the copy itself fails, in the copier's thread."""


@pytest.fixture(params=[CpuCopier, CudaCopier])
def copier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copier]:
    fake_cuda.install(monkeypatch)
    made: Copier = request.param(tiny_pools())
    yield made
    in_time(made.close)


def in_time(work: Callable[[], object]) -> None:
    """Does the work in a thread of its own, and raises what it raises; fails if it does not end."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # raised below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_LIMIT_S)
    assert not thread.is_alive(), "it waits for ever"
    if raised:
        raise raised[0]


def test_copies_end_and_are_reported_in_both_directions(copier: Copier) -> None:
    reported: list[CopyDirection] = []
    for direction in CopyDirection:
        copier.start(direction, GOOD, None, lambda direction=direction: reported.append(direction))  # type: ignore[misc]
        in_time(copier.drain)
    assert reported == list(CopyDirection)
    assert copier.take_stall_s() == 0.0


def test_what_waits_for_a_copy_that_failed_is_told_and_no_copy_is_reported_as_done(copier: Copier) -> None:
    reported: list[str] = []
    bad = copier.start(CopyDirection.UPLOAD, BAD, None, lambda: reported.append("bad"))
    with pytest.raises(CopyFailedError, match="a copy between the pools failed"):
        in_time(lambda: copier.wait([bad]))
    with pytest.raises(CopyFailedError):
        in_time(copier.drain)
    assert reported == []


def test_after_a_failure_no_copy_is_taken_and_no_iteration_goes_on(copier: Copier) -> None:
    copier.start(CopyDirection.OFFLOAD, BAD, None, lambda: None)
    with pytest.raises(CopyFailedError):
        in_time(copier.drain)
    with pytest.raises(CopyFailedError):
        copier.start(CopyDirection.OFFLOAD, GOOD, None, lambda: None)
    with pytest.raises(CopyFailedError):
        copier.launched()


def test_copies_that_were_handed_over_before_the_failure_are_passed_over() -> None:
    entered, opened = threading.Event(), threading.Event()
    reported: list[str] = []

    def gate(_: CopyDirection) -> None:
        entered.set()
        assert opened.wait(WAIT_LIMIT_S)

    copier = CpuCopier(tiny_pools(), gate)
    copier.start(CopyDirection.UPLOAD, BAD, None, lambda: reported.append("bad"))
    behind = copier.start(CopyDirection.UPLOAD, GOOD, None, lambda: reported.append("behind"))
    assert entered.wait(WAIT_LIMIT_S)
    opened.set()
    with pytest.raises(CopyFailedError):
        in_time(lambda: copier.wait([behind]))
    in_time(copier.close)
    assert reported == []


def test_it_is_no_error_that_dialling_again_could_mend() -> None:
    assert not issubclass(CopyFailedError, FastServeError)


class BrokenOnUpload(CpuCopier):
    def __init__(self, pools: KvPools) -> None:
        super().__init__(pools, self.refuse)

    @staticmethod
    def refuse(direction: CopyDirection) -> None:
        if direction is CopyDirection.UPLOAD:
            raise RuntimeError("an error of the device")


def test_an_iteration_that_needs_an_upload_that_failed_raises_instead_of_waiting() -> None:
    pools = tiny_pools()
    engine = Engine(tiny_model(), pools, BrokenOnUpload(pools))
    runner = FakeSchedulerPlans(FakeKvCommands(engine))
    job_id = runner.add("a/0", prompt_of(1, 10), sampling())
    runner.run(runner.entry(job_id))
    runner.kv.offload(job_id, runner.planned[job_id])
    runner.kv.settle_one()
    runner.kv.upload(job_id, runner.planned[job_id])
    with pytest.raises(CopyFailedError, match="an error of the device"):
        in_time(lambda: runner.run(runner.entry(job_id)))
    with pytest.raises(CopyFailedError):
        in_time(lambda: FakeKvCommands(engine, epoch=2))
    in_time(engine.close)
