"""Values <-> wire for the KV manager's two streams: with the scheduler, and with a worker.

A message on these streams is one turn's batch, in order, under one worker epoch. Every pair is `x_to_wire` /
`x_from_wire`. Items are made in place by `add`, which is much cheaper than making messages and copying them in. The
readers raise ProtocolError for an item of no known kind.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastserve.v1 import kvmanager_pb2 as wire
from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Applied,
    Arrive,
    ArrivedJob,
    Assign,
    BlockMove,
    Done,
    Finished,
    Grown,
    Jobs,
    KvToWorker,
    Offload,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    ReclaimRequest,
    Refuse,
    Release,
    ReleaseBlocks,
    Resident,
    SchedulerToKv,
    Upload,
    WorkerPools,
)
from services.domain.work import KvLinkItem, KvWorkerFacts, PoolStatus

# --- scheduler -> KV manager -----------------------------------------------------------------------------------------


def _add_changes(field: Any, changes: Iterable[OrderChange]) -> None:
    add = field.add
    for job, (level, key, arrival_number) in changes:
        add(job_id=job, level=level, key=key, arrival_number=arrival_number)


def _changes(field: Iterable[wire.OrderChange]) -> tuple[OrderChange, ...]:
    return tuple(OrderChange(JobId(one.job_id), Rank(one.level, one.key, one.arrival_number)) for one in field)


def _arrived(message: wire.ArrivedJob) -> ArrivedJob:
    return ArrivedJob(JobId(message.job_id), message.known_tokens, message.most_tokens)


def _write_jobs(item: wire.SchedulerToKv, value: Jobs) -> None:
    jobs = item.jobs
    jobs.max_batch = value.max_batch
    jobs.quanta_s.extend(value.quanta_s)
    if value.starvation_limit_s is not None:
        jobs.starvation_limit_s = value.starvation_limit_s
    for job, known_tokens, most_tokens in value.jobs:
        jobs.jobs.add(job_id=job, known_tokens=known_tokens, most_tokens=most_tokens)
    _add_changes(jobs.order, value.order)


def _read_jobs(epoch: Epoch, message: wire.Jobs) -> Jobs:
    return Jobs(
        epoch=epoch,
        jobs=tuple(_arrived(job) for job in message.jobs),
        order=_changes(message.order),
        max_batch=message.max_batch,
        quanta_s=tuple(message.quanta_s),
        starvation_limit_s=message.starvation_limit_s if message.HasField("starvation_limit_s") else None,
    )


def _write_scheduler_message(item: wire.SchedulerToKv, value: SchedulerToKv) -> None:
    match value:
        case Planned(plan, entries):
            item.planned.plan_number = plan
            add = item.planned.entries.add
            for job, from_token, to_token in entries:
                add(job_id=job, from_token=from_token, to_token=to_token)
        case Finished(plan, cut):
            item.finished.plan_number = plan
            item.finished.cut_job_ids.extend(cut)
        case Order(changes):
            item.order.SetInParent()
            _add_changes(item.order.changes, changes)
        case Arrive((job, known_tokens, most_tokens)):
            arrived = item.arrive.job
            arrived.job_id, arrived.known_tokens, arrived.most_tokens = job, known_tokens, most_tokens
        case Ack(job):
            item.ack.job_id = job
        case Refuse(job):
            item.refuse.job_id = job
        case Release(job):
            item.release.job_id = job
        case Jobs():
            _write_jobs(item, value)


def scheduler_batch_to_wire(epoch: Epoch, messages: Iterable[SchedulerToKv]) -> wire.SchedulerLinkRequest:
    """One turn of the scheduler. A Jobs among the messages must be about `epoch`."""
    batch = wire.SchedulerLinkRequest(epoch=epoch)
    add = batch.messages.add
    for value in messages:
        assert not isinstance(value, Jobs) or value.epoch == epoch, "Jobs of another epoch than its batch's"
        _write_scheduler_message(add(), value)
    return batch


_SCHEDULER_READERS: dict[str | None, Callable[[Epoch, wire.SchedulerToKv], SchedulerToKv]] = {
    "planned": lambda _, item: Planned(
        PlanNumber(item.planned.plan_number),
        tuple(PlanEntry(JobId(one.job_id), one.from_token, one.to_token) for one in item.planned.entries),
    ),
    "finished": lambda _, item: Finished(
        PlanNumber(item.finished.plan_number), tuple(JobId(job) for job in item.finished.cut_job_ids)
    ),
    "order": lambda _, item: Order(_changes(item.order.changes)),
    "arrive": lambda _, item: Arrive(_arrived(item.arrive.job)),
    "ack": lambda _, item: Ack(JobId(item.ack.job_id)),
    "refuse": lambda _, item: Refuse(JobId(item.refuse.job_id)),
    "release": lambda _, item: Release(JobId(item.release.job_id)),
    "jobs": lambda epoch, item: _read_jobs(epoch, item.jobs),
}


def scheduler_batch_from_wire(batch: wire.SchedulerLinkRequest) -> tuple[Epoch, tuple[SchedulerToKv, ...]]:
    """The inverse of scheduler_batch_to_wire. Raises ProtocolError."""
    epoch = Epoch(batch.epoch)
    try:
        return epoch, tuple(_SCHEDULER_READERS[item.WhichOneof("message")](epoch, item) for item in batch.messages)
    except KeyError:
        raise ProtocolError("SchedulerToKv without a message that is known here") from None


# --- KV manager -> scheduler -----------------------------------------------------------------------------------------


def _write_kv_message(item: wire.KvToScheduler, value: KvLinkItem) -> None:
    match value:
        case Resident(job, capacity_tokens, valid_tokens):
            resident = item.resident
            resident.job_id, resident.capacity_tokens, resident.valid_tokens = job, capacity_tokens, valid_tokens
        case Grown(job, capacity_tokens):
            item.grown.job_id, item.grown.capacity_tokens = job, capacity_tokens
        case ReclaimRequest(job, beneficiary):
            item.reclaim_request.job_id = job
            if beneficiary is not None:
                item.reclaim_request.beneficiary_id = beneficiary
        case PoolStatus():
            status = item.pool_status
            status.device_blocks_free = value.device_blocks_free
            status.host_blocks_free = value.host_blocks_free
            status.kv_policy = value.kv_policy
            status.swapped_out_job_ids.extend(value.swapped_out)
            status.swapped_in_job_ids.extend(value.swapped_in)


def kv_batch_to_wire(epoch: Epoch, messages: Iterable[KvLinkItem]) -> wire.SchedulerLinkResponse:
    """One turn of the KV manager to the scheduler."""
    batch = wire.SchedulerLinkResponse(epoch=epoch)
    add = batch.messages.add
    for value in messages:
        _write_kv_message(add(), value)
    return batch


def _reclaim_request(message: wire.ReclaimRequest) -> ReclaimRequest:
    beneficiary = JobId(message.beneficiary_id) if message.HasField("beneficiary_id") else None
    return ReclaimRequest(JobId(message.job_id), beneficiary)


def _pool_status(message: wire.PoolStatus) -> PoolStatus:
    return PoolStatus(
        device_blocks_free=message.device_blocks_free,
        host_blocks_free=message.host_blocks_free,
        kv_policy=message.kv_policy,
        swapped_out=tuple(JobId(job) for job in message.swapped_out_job_ids),
        swapped_in=tuple(JobId(job) for job in message.swapped_in_job_ids),
    )


_KV_READERS: dict[str | None, Callable[[wire.KvToScheduler], KvLinkItem]] = {
    "resident": lambda item: Resident(
        JobId(item.resident.job_id), item.resident.capacity_tokens, item.resident.valid_tokens
    ),
    "grown": lambda item: Grown(JobId(item.grown.job_id), item.grown.capacity_tokens),
    "reclaim_request": lambda item: _reclaim_request(item.reclaim_request),
    "pool_status": lambda item: _pool_status(item.pool_status),
}


def kv_batch_from_wire(batch: wire.SchedulerLinkResponse) -> tuple[Epoch, tuple[KvLinkItem, ...]]:
    """The inverse of kv_batch_to_wire. Raises ProtocolError."""
    try:
        items = tuple(_KV_READERS[item.WhichOneof("message")](item) for item in batch.messages)
    except KeyError:
        raise ProtocolError("KvToScheduler without a message that is known here") from None
    return Epoch(batch.epoch), items


# --- KV manager -> worker --------------------------------------------------------------------------------------------


def _add_moves(field: Any, moves: Sequence[BlockMove]) -> None:
    add = field.add
    for table_index, device_block, host_block in moves:
        add(index=table_index, device_block=device_block, host_block=host_block)


def _moves(field: Iterable[wire.BlockMove]) -> tuple[BlockMove, ...]:
    return tuple(BlockMove(one.index, BlockId(one.device_block), BlockId(one.host_block)) for one in field)


def _blocks(field: Iterable[int]) -> tuple[BlockId, ...]:
    return tuple(BlockId(block) for block in field)


def commands_to_wire(epoch: Epoch, commands: Iterable[KvToWorker]) -> wire.KvManagerServiceWorkerLinkResponse:
    """One turn of the KV manager to a worker, in the order of the command numbers."""
    batch = wire.KvManagerServiceWorkerLinkResponse(epoch=epoch)
    add = batch.commands.add
    for value in commands:
        item = add(command_number=value.command, job_id=value.job)
        match value:
            case Assign(device_blocks=device_blocks):
                item.assign.SetInParent()
                item.assign.device_blocks.extend(device_blocks)
            case Offload(moves=moves, valid_tokens=valid_tokens):
                item.offload.valid_tokens = valid_tokens
                _add_moves(item.offload.moves, moves)
            case Upload(device_blocks=device_blocks, moves=moves, valid_tokens=valid_tokens):
                item.upload.valid_tokens = valid_tokens
                item.upload.device_blocks.extend(device_blocks)
                _add_moves(item.upload.moves, moves)
            case ReleaseBlocks():
                item.release.SetInParent()
    return batch


def _command(item: wire.KvCommand) -> KvToWorker:
    command, job = CommandNumber(item.command_number), JobId(item.job_id)
    match item.WhichOneof("command"):
        case "assign":
            return Assign(command, job, _blocks(item.assign.device_blocks))
        case "offload":
            return Offload(command, job, _moves(item.offload.moves), item.offload.valid_tokens)
        case "upload":
            upload = item.upload
            return Upload(command, job, _blocks(upload.device_blocks), _moves(upload.moves), upload.valid_tokens)
        case "release":
            return ReleaseBlocks(command, job)
        case _:
            raise ProtocolError(f"KV command {command} for job {job} is of no kind that is known here")


def commands_from_wire(batch: wire.KvManagerServiceWorkerLinkResponse) -> tuple[Epoch, tuple[KvToWorker, ...]]:
    """The inverse of commands_to_wire. Raises ProtocolError."""
    return Epoch(batch.epoch), tuple(_command(item) for item in batch.commands)


# --- worker -> KV manager --------------------------------------------------------------------------------------------


def kv_hello_to_wire(facts: KvWorkerFacts) -> wire.KvManagerServiceWorkerLinkRequest:
    """The first message of a worker's stage."""
    pools = facts.pools
    return wire.KvManagerServiceWorkerLinkRequest(
        epoch=pools.epoch,
        hello=wire.KvWorkerHello(
            group=facts.group,
            block_size=pools.block_size,
            device_blocks=pools.device_block_count,
            host_blocks=pools.host_block_count,
            block_bytes=facts.block_bytes,
            stage=pools.stage,
            stages=pools.stage_count,
        ),
    )


def kv_hello_from_wire(message: wire.KvManagerServiceWorkerLinkRequest) -> KvWorkerFacts:
    """The inverse of kv_hello_to_wire. Raises ProtocolError if the message is no hello or names no epoch."""
    if not message.HasField("hello") or message.epoch == 0:
        raise ProtocolError("the first message of a worker's stream is no hello with an epoch")
    hello = message.hello
    pools = WorkerPools(
        epoch=Epoch(message.epoch),
        block_size=hello.block_size,
        device_block_count=hello.device_blocks,
        host_block_count=hello.host_blocks,
        stage=hello.stage,
        stage_count=hello.stages,
    )
    return KvWorkerFacts(hello.group, pools, hello.block_bytes)


def acknowledgements_to_wire(
    epoch: Epoch, acknowledgements: Iterable[Applied | Done]
) -> wire.KvManagerServiceWorkerLinkRequest:
    """One turn of a worker's stage. The stage is the stream's: it was said in the hello."""
    batch = wire.KvManagerServiceWorkerLinkRequest(epoch=epoch)
    add = batch.acknowledgements.add
    for value in acknowledgements:
        applied = isinstance(value, Applied)
        add(
            command_number=value.command,
            state=wire.KV_COMMAND_STATE_APPLIED if applied else wire.KV_COMMAND_STATE_DONE,
        )
    return batch


def acknowledgements_from_wire(
    batch: wire.KvManagerServiceWorkerLinkRequest, stage: int
) -> tuple[Epoch, tuple[Applied | Done, ...]]:
    """The inverse of acknowledgements_to_wire. Raises ProtocolError."""
    values: list[Applied | Done] = []
    for one in batch.acknowledgements:
        command = CommandNumber(one.command_number)
        if one.state == wire.KV_COMMAND_STATE_APPLIED:
            values.append(Applied(command, stage))
        elif one.state == wire.KV_COMMAND_STATE_DONE:
            values.append(Done(command, stage))
        else:
            raise ProtocolError(f"acknowledgement of KV command {command} does not say what happened")
    return Epoch(batch.epoch), tuple(values)
