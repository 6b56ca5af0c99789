"""What FCFS sustains on a server."""

from dataclasses import replace

import pytest

from services.domain.copying import LinkSpeed
from services.domain.errors import InvalidFieldError
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from services.simulator.fcfs_capacity import fcfs_capacity_per_s, fcfs_setup
from services.simulator.server_setup import ServerSetup, SimulatedJob
from tests.builders.cost_profiles import flat_cost

ITERATION_S = 0.1
SETUP = ServerSetup(
    scheduler=SchedulerConfig(max_batch=4),
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
    # 18 tokens are two blocks: a pool of four has room for two jobs.
    assert fcfs_capacity_per_s(replace(SETUP, device_tokens=64), jobs(100)) == pytest.approx(capacity / 2, rel=0.1)


def test_jobs_that_can_never_fit_are_left_out_and_if_none_fits_it_says_so() -> None:
    long = [SimulatedJob(f"long{number}", 0.0, 400, 400) for number in range(50)]
    assert fcfs_capacity_per_s(SETUP, [*jobs(100), *long]) == pytest.approx(fcfs_capacity_per_s(SETUP, jobs(100)))
    with pytest.raises(InvalidFieldError, match="no job fits"):
        fcfs_capacity_per_s(SETUP, long)


def test_the_server_is_otherwise_the_same_one() -> None:
    setup = fcfs_setup(SETUP, ())
    assert setup == replace(
        SETUP,
        scheduler=replace(SETUP.scheduler, policy=PolicyName.FCFS),
        kv=replace(SETUP.kv, policy=kv_policy_named("defer")),
    )
