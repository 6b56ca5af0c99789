"""What FCFS in its best form sustains on a server."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from services.domain.copying import LinkSpeed
from services.domain.errors import InvalidFieldError
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from services.simulator.fcfs_capacity import FCFS_FORMS, fcfs_capacity_per_s, fcfs_setup
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import Simulation, StuckError, simulate
from tests.builders.cost_profiles import flat_cost, proportional_cost

ITERATION_S = 0.1
SETUP = ServerSetup(
    scheduler=SchedulerConfig(max_batch=4, plans_in_flight=2),
    kv=KvConfig(kv_policy_named("proactive")),
    cost=flat_cost(ITERATION_S),
    kv_bytes_per_token=1024,
    device_tokens=16_384,
    host_tokens=16_384,
    max_model_len=512,
    link=LinkSpeed(1e9, 0.0),
    hop_s=0.0,
)


def jobs(count: int, output_tokens: int = 10) -> list[SimulatedJob]:
    return [SimulatedJob(str(number), number * 7.0, 8, output_tokens) for number in range(count)]


def test_it_is_the_batch_by_the_time_of_a_job_when_every_iteration_takes_the_same() -> None:
    # Prefills run with decodes at no cost here, so each place in the batch makes a token per iteration.
    assert fcfs_capacity_per_s(SETUP, jobs(400)) == pytest.approx(4 / (10 * ITERATION_S), rel=0.05)


def test_it_does_not_depend_on_arrivals_policies_or_admission() -> None:
    capacity = fcfs_capacity_per_s(SETUP, jobs(100))
    at_once = [replace(job, arrival_s=0.0) for job in jobs(100)]
    other = replace(
        SETUP,
        scheduler=replace(SETUP.scheduler, policy=PolicyName.SRPT, max_queued_jobs=5, max_queued_tokens=50),
        kv=KvConfig(kv_policy_named("recompute")),
    )
    assert fcfs_capacity_per_s(SETUP, at_once) == capacity == fcfs_capacity_per_s(other, at_once)


def test_longer_jobs_and_smaller_pools_lower_it() -> None:
    capacity = fcfs_capacity_per_s(SETUP, jobs(100))
    assert fcfs_capacity_per_s(SETUP, jobs(100, output_tokens=20)) == pytest.approx(capacity / 2, rel=0.1)
    # Prompts of two blocks, which outputs do not outgrow: a pool of four has room for two jobs in every form.
    of_two_blocks = [replace(job, prompt_tokens=20) for job in jobs(100)]
    assert fcfs_capacity_per_s(replace(SETUP, device_tokens=64), of_two_blocks) == pytest.approx(capacity / 2, rel=0.1)


def test_jobs_that_can_never_fit_are_left_out_and_if_none_fits_it_says_so() -> None:
    long = [SimulatedJob(f"long{number}", 0.0, 400, 400) for number in range(50)]
    assert fcfs_capacity_per_s(SETUP, [*jobs(100), *long]) == pytest.approx(fcfs_capacity_per_s(SETUP, jobs(100)))
    with pytest.raises(InvalidFieldError, match="no job fits"):
        fcfs_capacity_per_s(SETUP, long)


@pytest.mark.parametrize("form", FCFS_FORMS)
def test_the_server_is_otherwise_the_same_one(form: str) -> None:
    assert fcfs_setup(SETUP, (), form) == replace(
        SETUP,
        scheduler=replace(SETUP.scheduler, policy=PolicyName.FCFS),
        kv=replace(SETUP.kv, policy=kv_policy_named(form)),
    )


class Simulated:
    """Stands in for `simulate`: remembers which forms ran, and some get stuck."""

    def __init__(self, *stuck: str) -> None:
        self.forms: list[str] = []
        self._stuck = stuck

    def __call__(
        self, setup: ServerSetup, jobs: Sequence[SimulatedJob], on_progress: Callable[[int], None] | None = None
    ) -> Simulation:
        self.forms.append(setup.kv.policy.name)
        if self.forms[-1] in self._stuck:
            raise StuckError(f"{self.forms[-1]} is stuck")
        return simulate(setup, jobs, on_progress)


def simulated(monkeypatch: pytest.MonkeyPatch, *stuck: str) -> Simulated:
    made = Simulated(*stuck)
    monkeypatch.setattr("services.simulator.fcfs_capacity.simulate", made)
    return made


SHORT_OF_BLOCKS = replace(SETUP, device_tokens=96)
"""Four jobs start in its pool, and one of them can end there."""
GROWING = jobs(60, output_tokens=60)
SLOW_PREFILLS = proportional_cost(0.1, ITERATION_S)


@pytest.mark.parametrize(
    ("best", "setup"),
    [
        ("recompute", replace(SHORT_OF_BLOCKS, link=LinkSpeed(1e4, 0.0))),
        ("proactive", replace(SHORT_OF_BLOCKS, cost=SLOW_PREFILLS)),
        ("defer", replace(SHORT_OF_BLOCKS, cost=SLOW_PREFILLS, link=LinkSpeed(1e4, 0.0))),
    ],
)
def test_each_form_is_the_best_somewhere_and_the_best_counts(
    best: str, setup: ServerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {}
    for form in FCFS_FORMS:
        simulated(monkeypatch, *(other for other in FCFS_FORMS if other != form))
        rates[form] = fcfs_capacity_per_s(setup, GROWING)
    simulated(monkeypatch)
    assert max(rates, key=rates.__getitem__) == best
    assert len(set(rates.values())) == len(FCFS_FORMS)
    assert fcfs_capacity_per_s(setup, GROWING) == rates[best]


def test_one_form_tells_of_all_where_the_pool_always_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = simulated(monkeypatch)
    capacity = fcfs_capacity_per_s(SETUP, GROWING)
    assert ran.forms == ["recompute"]
    simulated(monkeypatch, "recompute", "defer")
    assert fcfs_capacity_per_s(SETUP, GROWING) == capacity
    simulated(monkeypatch, "recompute", "proactive")
    assert fcfs_capacity_per_s(SETUP, GROWING) == capacity


def test_where_the_pool_fills_up_all_forms_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = simulated(monkeypatch)
    fcfs_capacity_per_s(SHORT_OF_BLOCKS, GROWING)
    assert ran.forms == list(FCFS_FORMS)


def test_only_if_every_form_gets_stuck_there_is_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(monkeypatch, *FCFS_FORMS)
    with pytest.raises(StuckError, match="recompute is stuck"):
        fcfs_capacity_per_s(SETUP, GROWING)


@pytest.mark.parametrize("setup", [SETUP, SHORT_OF_BLOCKS])
def test_progress_grows_to_the_number_of_jobs(setup: ServerSetup) -> None:
    told: list[int] = []
    fcfs_capacity_per_s(setup, GROWING, told.append)
    assert told == sorted(told)
    assert told[-1] == len(GROWING)
