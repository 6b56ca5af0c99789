"""A machine whose batch nobody said: its parts take what the worker's profile says (policies/batch_limit.py)."""

import pytest

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.ids import Epoch, JobId
from services.domain.protocol import Jobs
from services.scheduler.machine.scheduler_events import Submit
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.checked_scheduler import EPOCH, CheckedScheduler, entries, joined, plans, told
from tests.scheduler.machine.events_from_kv import resident

JOBS = [JobId(str(number)) for number in range(80)]


def measured(*batches: int) -> CostProfile:
    """A worker that takes as long for any of these batches."""
    return CostProfile((PrefillCost(1, 0.01),), tuple(DecodeCost(batch, 64, 0.01) for batch in batches))


@pytest.mark.parametrize("policy", [PolicyName.GITTINS, PolicyName.FCFS, PolicyName.STATIC, PolicyName.SKIP_JOIN_MLFQ])
def test_plans_have_as_many_jobs_and_the_kv_manager_is_told_and_the_next_worker_has_its_own(policy: PolicyName) -> None:
    machine = CheckedScheduler(SchedulerConfig(policy=policy, chooses_batch=True))
    machine.start(measured(1, 16, 64))
    machine.turn(*(Submit(job_id, 10, 50) for job_id in JOBS))
    commands = machine.turn(*(resident(job_id, 100) for job_id in JOBS))
    assert len(entries(plans(commands)[0])) == 64
    commands = machine.turn(joined(measured(1, 32), epoch=EPOCH + 1))
    assert [message.max_batch for message in told(machine.commands) if isinstance(message, Jobs)] == [64, 32]
    assert machine.scheduler.batch.jobs == 32
    commands = machine.turn(*(resident(job_id, 100, epoch=Epoch(EPOCH + 1)) for job_id in JOBS))
    assert len(entries(plans(commands)[0])) == 32
