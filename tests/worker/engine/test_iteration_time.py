"""What counts as an iteration's time, on a device where launching is not ending: a fake clock, and a device that is
late.
"""

from collections.abc import Iterable

import pytest

from services.worker.engine import engine as engine_module
from services.worker.engine import prefill_clock
from services.worker.engine.engine import Engine
from services.worker.engine.prefill_clock import PrefillClock
from services.worker.kv.copier import CpuCopier, Ticket
from services.worker.kv.pools import KvPools
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.tiny_engine import prompt_of, sampling, tiny_model, tiny_pools


class FakeClock:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(engine_module, "time", made)
    monkeypatch.setattr(prefill_clock, "time", made)
    return made


class LateUploads(CpuCopier):
    """The host waits for a while, then the device, while the host launches kernels and waits for them."""

    def __init__(self, pools: KvPools, clock: FakeClock, host_s: float, device_s: float) -> None:
        super().__init__(pools)
        self.clock, self.host_s, self.device_s = clock, host_s, device_s

    def wait(self, tickets: Iterable[Ticket]) -> None:
        self.clock.now_s += self.host_s

    def launched(self) -> None:
        self.clock.now_s += self.device_s

    def take_stall_s(self) -> float:
        return self.host_s + self.device_s


@pytest.mark.parametrize(("host_s", "device_s"), [(0.0, 0.0), (2.0, 0.0), (0.0, 5.0), (2.0, 5.0)])
def test_a_wait_for_uploads_is_stall_and_not_compute_wherever_it_falls(
    clock: FakeClock, host_s: float, device_s: float
) -> None:
    pools = tiny_pools()
    engine = Engine(tiny_model(), pools, LateUploads(pools, clock, host_s, device_s))
    hook = tiny_model().layers[0].register_forward_hook(lambda *_: setattr(clock, "now_s", clock.now_s + 1.0))
    try:
        runner = FakeSchedulerPlans(FakeKvCommands(engine))
        job_id = runner.add("a/0", prompt_of(1, 10), sampling())
        result = runner.run(runner.entry(job_id))
    finally:
        hook.remove()
        engine.close()
    assert result.result.duration_s == 1.0
    assert engine.counters().busy_s == 1.0
    assert engine.counters().stall_s == host_s + device_s


class FakeMark:
    """A moment at which a device comes somewhere."""

    def __init__(self, clock: FakeClock, at_s: float) -> None:
        self.clock, self.at_s = clock, at_s

    def synchronize(self) -> None:
        self.clock.now_s = max(self.clock.now_s, self.at_s)


class FakeDevice:
    """Works for `busy_s` seconds in all on what was launched. The host launches in no time."""

    def __init__(self, clock: FakeClock, busy_s: float) -> None:
        self.clock, self.busy_s = clock, busy_s

    def mark(self) -> FakeMark:
        return FakeMark(self.clock, self.busy_s)


def test_a_prefill_is_cut_by_the_time_of_the_device_and_not_by_that_of_launching(clock: FakeClock) -> None:
    device = FakeDevice(clock, busy_s=10.0)  # with the jobs of the same iteration
    in_time = PrefillClock(2.5, device.mark)
    layers = 0
    while in_time():
        device.busy_s += 1.0
        layers += 1
        assert layers < 100, "it is never cut"
    # Three layers have ended, the device is in the fourth.
    assert clock.now_s == 13.0
    assert layers == 4


def test_where_launching_is_ending_the_clock_is_all(clock: FakeClock) -> None:
    in_time = PrefillClock(2.5, None)
    assert in_time()
    clock.now_s = 2.5
    assert not in_time()
