"""Values <-> wire for the stream between scheduler and KV manager.

A message is the batch of one turn, in order, for one epoch of one worker group. Functions come in pairs, `x_to_wire` /
`x_from_wire`. Items are created in place by `add`, which is much cheaper than creating messages and copying them. The
readers raise ProtocolError for an item of an unknown kind.
"""

from collections.abc import Callable, Iterable
from typing import Any

from fastserve.v1 import kvmanager_pb2 as wire
from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Arrive,
    ArrivedJob,
    Finished,
    Grown,
    Jobs,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    Recalled,
    ReclaimRequest,
    Refuse,
    Release,
    Resident,
    SchedulerToKv,
)
from services.domain.server_status import KvLinkItem, PoolStatus

# --- scheduler -> KV manager -----------------------------------------------------------------------------------------


def _add_changes(field: Any, changes: Iterable[OrderChange]) -> None:
    add = field.add
    for job_id, (level, key, arrival_number) in changes:
        add(job_id=job_id, level=level, key=key, arrival_number=arrival_number)


def _changes(field: Iterable[wire.OrderChange]) -> tuple[OrderChange, ...]:
    return tuple(OrderChange(JobId(one.job_id), Rank(one.level, one.key, one.arrival_number)) for one in field)


def _arrived(message: wire.ArrivedJob) -> ArrivedJob:
    return ArrivedJob(JobId(message.job_id), message.known_tokens, message.most_tokens, message.stay_number)


def _write_jobs(item: wire.SchedulerToKv, value: Jobs) -> None:
    jobs = item.jobs
    jobs.max_batch = value.max_batch
    jobs.quanta_s.extend(value.quanta_s)
    if value.starvation_limit_s is not None:
        jobs.starvation_limit_s = value.starvation_limit_s
    jobs.runs_to_completion = not value.displaces
    for job in value.jobs:
        jobs.jobs.add(**job._asdict())
    _add_changes(jobs.order, value.order)


def _read_jobs(epoch: Epoch, message: wire.Jobs) -> Jobs:
    return Jobs(
        epoch=epoch,
        jobs=tuple(_arrived(job) for job in message.jobs),
        order=_changes(message.order),
        max_batch=message.max_batch,
        quanta_s=tuple(message.quanta_s),
        starvation_limit_s=message.starvation_limit_s if message.HasField("starvation_limit_s") else None,
        displaces=not message.runs_to_completion,
    )


def _write_scheduler_message(item: wire.SchedulerToKv, value: SchedulerToKv) -> None:
    match value:
        case Planned(plan_number, entries):
            item.planned.plan_number = plan_number
            add = item.planned.entries.add
            for job_id, from_token, to_token in entries:
                add(job_id=job_id, from_token=from_token, to_token=to_token)
        case Finished(plan_number, cut):
            item.finished.plan_number = plan_number
            item.finished.cut_job_ids.extend(cut)
        case Recalled(plan_number):
            item.recalled.plan_number = plan_number
        case Order(changes):
            item.order.SetInParent()
            _add_changes(item.order.changes, changes)
        case Arrive((job_id, known_tokens, most_tokens, stay_number)):
            arrived = item.arrive.job
            arrived.job_id, arrived.known_tokens, arrived.most_tokens = job_id, known_tokens, most_tokens
            arrived.stay_number = stay_number
        case Ack(job_id):
            item.ack.job_id = job_id
        case Refuse(job_id):
            item.refuse.job_id = job_id
        case Release(job_id):
            item.release.job_id = job_id
        case Jobs():
            _write_jobs(item, value)


def scheduler_batch_to_wire(
    group: int, epoch: Epoch, messages: Iterable[SchedulerToKv], traces: Iterable[tuple[JobId, str]] = ()
) -> wire.SchedulerLinkRequest:
    """The messages of one turn of the scheduler for a group. A Jobs among them must be for `epoch`. `traces` are the
    trace contexts of jobs among them.
    """
    batch = wire.SchedulerLinkRequest(epoch=epoch, group=group)
    add = batch.messages.add
    for value in messages:
        assert not isinstance(value, Jobs) or value.epoch == epoch, "Jobs of another epoch than its batch's"
        _write_scheduler_message(add(), value)
    for job_id, traceparent in traces:
        batch.traces.add(job_id=job_id, traceparent=traceparent)
    return batch


def traces_from_wire(batch: wire.SchedulerLinkRequest) -> list[tuple[JobId, str]]:
    """The trace contexts of jobs that a batch announces."""
    return [(JobId(one.job_id), one.traceparent) for one in batch.traces]


_SCHEDULER_READERS: dict[str | None, Callable[[Epoch, wire.SchedulerToKv], SchedulerToKv]] = {
    "planned": lambda _, item: Planned(
        PlanNumber(item.planned.plan_number),
        tuple(PlanEntry(JobId(one.job_id), one.from_token, one.to_token) for one in item.planned.entries),
    ),
    "finished": lambda _, item: Finished(
        PlanNumber(item.finished.plan_number), tuple(JobId(job) for job in item.finished.cut_job_ids)
    ),
    "recalled": lambda _, item: Recalled(PlanNumber(item.recalled.plan_number)),
    "order": lambda _, item: Order(_changes(item.order.changes)),
    "arrive": lambda _, item: Arrive(_arrived(item.arrive.job)),
    "ack": lambda _, item: Ack(JobId(item.ack.job_id)),
    "refuse": lambda _, item: Refuse(JobId(item.refuse.job_id)),
    "release": lambda _, item: Release(JobId(item.release.job_id)),
    "jobs": lambda epoch, item: _read_jobs(epoch, item.jobs),
}


def scheduler_batch_from_wire(batch: wire.SchedulerLinkRequest) -> tuple[int, Epoch, tuple[SchedulerToKv, ...]]:
    """The inverse of scheduler_batch_to_wire. Raises ProtocolError."""
    epoch = Epoch(batch.epoch)
    try:
        messages = tuple(_SCHEDULER_READERS[item.WhichOneof("message")](epoch, item) for item in batch.messages)
    except KeyError:
        raise ProtocolError("a SchedulerToKv has a message of an unknown kind") from None
    return batch.group, epoch, messages


# --- KV manager -> scheduler -----------------------------------------------------------------------------------------


def _write_kv_message(item: wire.KvToScheduler, value: KvLinkItem) -> None:
    match value:
        case Resident(job_id, capacity_tokens, valid_tokens, stay_number):
            resident = item.resident
            resident.job_id, resident.capacity_tokens, resident.valid_tokens = job_id, capacity_tokens, valid_tokens
            resident.stay_number = stay_number
        case Grown(job_id, capacity_tokens, stay_number):
            grown = item.grown
            grown.job_id, grown.capacity_tokens, grown.stay_number = job_id, capacity_tokens, stay_number
        case ReclaimRequest(job_id, beneficiary_id, stay_number):
            item.reclaim_request.job_id, item.reclaim_request.stay_number = job_id, stay_number
            if beneficiary_id is not None:
                item.reclaim_request.beneficiary_id = beneficiary_id
        case PoolStatus():
            status = item.pool_status
            status.device_blocks_free = value.device_blocks_free
            status.host_blocks_free = value.host_blocks_free
            status.kv_policy = value.kv_policy
            status.swapped_out_job_ids.extend(value.swapped_out_job_ids)
            status.swapped_in_job_ids.extend(value.swapped_in_job_ids)


def kv_batch_to_wire(group: int, epoch: Epoch, messages: Iterable[KvLinkItem]) -> wire.SchedulerLinkResponse:
    """The messages of one turn of the KV manager to the scheduler about a group."""
    batch = wire.SchedulerLinkResponse(epoch=epoch, group=group)
    add = batch.messages.add
    for value in messages:
        _write_kv_message(add(), value)
    return batch


def _reclaim_request(message: wire.ReclaimRequest) -> ReclaimRequest:
    beneficiary_id = JobId(message.beneficiary_id) if message.HasField("beneficiary_id") else None
    return ReclaimRequest(JobId(message.job_id), beneficiary_id, message.stay_number)


def _pool_status(message: wire.PoolStatus) -> PoolStatus:
    return PoolStatus(
        device_blocks_free=message.device_blocks_free,
        host_blocks_free=message.host_blocks_free,
        kv_policy=message.kv_policy,
        swapped_out_job_ids=tuple(JobId(job) for job in message.swapped_out_job_ids),
        swapped_in_job_ids=tuple(JobId(job) for job in message.swapped_in_job_ids),
    )


_KV_READERS: dict[str | None, Callable[[wire.KvToScheduler], KvLinkItem]] = {
    "resident": lambda item: Resident(
        JobId(item.resident.job_id),
        item.resident.capacity_tokens,
        item.resident.valid_tokens,
        item.resident.stay_number,
    ),
    "grown": lambda item: Grown(JobId(item.grown.job_id), item.grown.capacity_tokens, item.grown.stay_number),
    "reclaim_request": lambda item: _reclaim_request(item.reclaim_request),
    "pool_status": lambda item: _pool_status(item.pool_status),
}


def kv_batch_from_wire(batch: wire.SchedulerLinkResponse) -> tuple[int, Epoch, tuple[KvLinkItem, ...]]:
    """The inverse of kv_batch_to_wire. Raises ProtocolError."""
    try:
        items = tuple(_KV_READERS[item.WhichOneof("message")](item) for item in batch.messages)
    except KeyError:
        raise ProtocolError("a KvToScheduler has a message of an unknown kind") from None
    return batch.group, Epoch(batch.epoch), items
