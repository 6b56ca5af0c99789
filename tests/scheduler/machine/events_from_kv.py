"""What the KV manager says of three jobs, as events of the scheduler."""

from services.domain.ids import Epoch, JobId
from services.domain.protocol import Grown, ReclaimRequest, Resident
from services.scheduler.machine.scheduler_events import FromKv
from tests.scheduler.machine.checked_scheduler import EPOCH, PRESENT_STAY

A, B, C = JobId("a"), JobId("b"), JobId("c")


def resident(
    job_id: JobId, capacity: int = 1000, valid: int = 0, epoch: Epoch = EPOCH, stay_number: int = PRESENT_STAY
) -> FromKv:
    return FromKv(epoch, Resident(job_id, capacity, valid, stay_number))


def grown(job_id: JobId, capacity: int, stay_number: int = PRESENT_STAY) -> FromKv:
    return FromKv(EPOCH, Grown(job_id, capacity, stay_number))


def reclaim(job_id: JobId, beneficiary_id: JobId | None = None, stay_number: int = PRESENT_STAY) -> FromKv:
    return FromKv(EPOCH, ReclaimRequest(job_id, beneficiary_id, stay_number))
