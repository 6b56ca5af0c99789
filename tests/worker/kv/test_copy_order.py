"""Copies and compute overlap only where they may. Each case is run once as it is, and once with the rule broken on
purpose, to see that it shows.
"""

import threading
from collections.abc import Callable, Iterable

import pytest

from services.domain.copying import CopyDirection
from services.domain.ids import JobId
from services.worker.engine.engine import Engine
from services.worker.kv.copier import CpuCopier, Ticket
from services.worker.kv.pools import KvPools
from tests.worker.fake_kv_commands import WAIT_LIMIT_S, FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.tiny_engine import alone, prompt_of, sampling, tiny_model, tiny_pools

PROMPT = prompt_of(1, 10)


class Gate:
    """Holds copies of one direction until opened, and writes down when each passed."""

    def __init__(self, holds: CopyDirection) -> None:
        self.holds = holds
        self.story: list[str] = []
        self._opened = threading.Event()

    def __call__(self, direction: CopyDirection) -> None:
        if direction is self.holds:
            assert self._opened.wait(WAIT_LIMIT_S), "the gate was never opened"
        self.story.append(direction.name.lower())

    def open(self) -> None:
        self._opened.set()


class WatchedCopier(CpuCopier):
    """Opens the gate only when compute has come to wait for it."""

    def __init__(self, pools: KvPools, gate: Gate) -> None:
        super().__init__(pools, gate)
        self.gate = gate

    def wait(self, tickets: Iterable[Ticket]) -> None:
        waited_for = [ticket for ticket in tickets if not ticket.ended()]
        if waited_for:
            self.gate.open()
        super().wait(waited_for)

    def launched(self) -> None:
        self.gate.story.append("compute")


class CarelessCopier(WatchedCopier):
    """Broken on purpose: compute does not wait for uploads."""

    def wait(self, tickets: Iterable[Ticket]) -> None:
        """Waits for nothing."""


def swapped_out_and_coming_back(engine: Engine) -> tuple[FakeSchedulerPlans, JobId]:
    """A job that was offloaded after two tokens, and whose upload is held by the gate."""
    runner = FakeSchedulerPlans(FakeKvCommands(engine))
    job_id = runner.add("a/0", PROMPT, sampling(max_tokens=8))
    runner.run(runner.entry(job_id))
    runner.run(runner.entry(job_id))
    runner.kv.offload(job_id, runner.planned[job_id])
    runner.kv.settle_one()
    runner.kv.upload(job_id, runner.planned[job_id])
    return runner, job_id


def run_with(make_copier: Callable[[KvPools, Gate], CpuCopier]) -> tuple[list[str], list[int]]:
    gate, pools = Gate(CopyDirection.UPLOAD), tiny_pools()
    engine = Engine(tiny_model(), pools, make_copier(pools, gate))
    try:
        runner, job_id = swapped_out_and_coming_back(engine)
        runner.run(runner.entry(job_id))
        story = list(gate.story)
        gate.open()
        runner.finish(job_id)
        return story, runner.outputs[job_id]
    finally:
        gate.open()
        engine.close()


def test_an_iteration_starts_after_the_uploads_of_its_jobs() -> None:
    story, output = run_with(WatchedCopier)
    assert story == ["compute", "compute", "offload", "upload", "compute"]
    assert output == alone(PROMPT, sampling(max_tokens=8))


def test_and_with_the_wait_broken_it_reads_what_is_not_there_yet() -> None:
    story, output = run_with(CarelessCopier)
    assert story == ["compute", "compute", "offload", "compute"]
    assert output != alone(PROMPT, sampling(max_tokens=8))


def test_an_iteration_does_not_wait_for_the_uploads_of_other_jobs() -> None:
    gate, pools = Gate(CopyDirection.UPLOAD), tiny_pools()
    engine = Engine(tiny_model(), pools, CpuCopier(pools, gate))
    runner, _ = swapped_out_and_coming_back(engine)
    other = runner.add("b/0", prompt_of(2, 5), sampling(max_tokens=8))
    runner.finish(other)
    assert "upload" not in gate.story
    assert runner.outputs[other] == alone(prompt_of(2, 5), sampling(max_tokens=8))
    gate.open()
    engine.close()


def test_time_spent_waiting_for_an_upload_is_counted_as_stall() -> None:
    gate, pools = Gate(CopyDirection.UPLOAD), tiny_pools()
    engine = Engine(tiny_model(), pools, WatchedCopier(pools, gate))
    runner, job_id = swapped_out_and_coming_back(engine)
    assert engine.counters().stall_s == 0.0
    runner.run(runner.entry(job_id))
    assert engine.counters().stall_s > 0.0
    engine.close()


@pytest.mark.parametrize("direction", list(CopyDirection))
def test_done_is_reported_after_the_copy_and_also_after_a_release_in_between(direction: CopyDirection) -> None:
    gate, pools = Gate(direction), tiny_pools(device_blocks=8)
    engine = Engine(tiny_model(), pools, CpuCopier(pools, gate))
    kv = FakeKvCommands(engine)
    runner = FakeSchedulerPlans(kv)
    job_id = runner.add("a/0", PROMPT, sampling(max_tokens=8))
    runner.run(runner.entry(job_id))
    command_number = kv.offload(job_id, 10)
    if direction is CopyDirection.UPLOAD:
        kv.settle_one()
        command_number = kv.upload(job_id, 10)
    kv.copying.clear()
    kv.release(job_id)
    assert not kv.is_done(command_number)
    gate.open()
    kv.wait_done(command_number)
    engine.check()
    engine.close()


def test_a_new_epoch_begins_after_the_copies_of_the_old_one() -> None:
    gate, pools = Gate(CopyDirection.UPLOAD), tiny_pools()
    engine = Engine(tiny_model(), pools, CpuCopier(pools, gate))
    swapped_out_and_coming_back(engine)
    begun = threading.Event()

    def begin() -> None:
        FakeKvCommands(engine, epoch=2)
        gate.story.append("new epoch")
        begun.set()

    threading.Thread(target=begin, daemon=True).start()
    gate.open()
    assert begun.wait(WAIT_LIMIT_S)
    assert gate.story.index("upload") < gate.story.index("new epoch")
    engine.close()
