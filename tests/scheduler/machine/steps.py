"""Short words for tests of the protocol: three jobs, and what the KV manager says of them."""

from services.domain.ids import Epoch, JobId
from services.domain.protocol import ReclaimRequest, Resident
from services.scheduler.job import JobState
from services.scheduler.machine.scheduler_events import FromKv, Submit
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.virtual import EPOCH, Machine

A, B, C = JobId("a"), JobId("b"), JobId("c")


def fcfs(**knobs: object) -> SchedulerConfig:
    return SchedulerConfig(**({"policy": PolicyName.FCFS} | knobs))  # type: ignore[arg-type]


def resident(job_id: JobId, capacity: int = 1000, valid: int = 0, epoch: Epoch = EPOCH) -> FromKv:
    return FromKv(epoch, Resident(job_id, capacity, valid))


def reclaim(job_id: JobId, beneficiary_id: JobId | None = None) -> FromKv:
    return FromKv(EPOCH, ReclaimRequest(job_id, beneficiary_id))


def started(config: SchedulerConfig | None = None, *jobs: JobId, prompt: int = 10, output: int = 100) -> Machine:
    """A machine with jobs that arrived and are not resident."""
    machine = Machine(config or fcfs())
    machine.start()
    if jobs:
        machine.turn(*(Submit(job_id, prompt, output) for job_id in jobs))
    return machine


def state(machine: Machine, job_id: JobId) -> JobState:
    return machine.scheduler.jobs[job_id].state
