"""Values <-> wire for AdminService: the server's status, from the scheduler through the gateway to the operator."""

from typing import Any

from fastserve.v1 import admin_pb2
from services.domain.errors import InvalidFieldError
from services.domain.server_status import (
    LONGEST_INTERVAL_S,
    MOST_LISTED_JOBS,
    SHORTEST_INTERVAL_S,
    GroupStatus,
    IterationTokens,
    JobPhase,
    JobStatus,
    KvSite,
    LevelStatus,
    PoolUsage,
    ServerCounters,
    ServerStatus,
)

DEFAULT_INTERVAL_S = 1.0


def interval_from_wire(request: admin_pb2.WatchStatusRequest) -> float:
    """The interval between two statuses in seconds. Raises InvalidFieldError."""
    if not request.HasField("interval_s"):
        return DEFAULT_INTERVAL_S
    if not SHORTEST_INTERVAL_S <= request.interval_s <= LONGEST_INTERVAL_S:
        limits = f"between {SHORTEST_INTERVAL_S:g} and {LONGEST_INTERVAL_S:g} seconds"
        raise InvalidFieldError("interval_s", f"must be {limits}, but is {request.interval_s:g}")
    return request.interval_s


def max_jobs_from_wire(request: admin_pb2.GetStatusRequest | admin_pb2.WatchStatusRequest) -> int:
    """How many jobs to list; 0 unless asked for. Raises InvalidFieldError."""
    if request.max_jobs > MOST_LISTED_JOBS:
        raise InvalidFieldError("max_jobs", f"must be at most {MOST_LISTED_JOBS:,}, but is {request.max_jobs:,}")
    return request.max_jobs


def _counters_to_wire(counters: ServerCounters) -> admin_pb2.Counters:
    values: dict[str, Any] = {name: getattr(counters, name) for name in ServerCounters.__slots__}
    return admin_pb2.Counters(**values)


def _counters_from_wire(message: admin_pb2.Counters) -> ServerCounters:
    return ServerCounters(**{name: getattr(message, name) for name in ServerCounters.__slots__})


def status_to_wire(status: ServerStatus) -> admin_pb2.Status:
    return admin_pb2.Status(
        model=status.model,
        policy=status.policy,
        kv_policy=status.kv_policy,
        groups=[_group_to_wire(group) for group in status.groups],
        counters=_counters_to_wire(status.counters),
        uptime_s=status.uptime_s,
        max_queued_jobs=status.max_queued_jobs,
        admission_rejections=status.admission_rejections,
        iteration_tokens=admin_pb2.IterationTokens(**status.iteration_tokens._asdict()),
        jobs=[_job_to_wire(job) for job in status.listed_jobs],
        unplaced_jobs=status.unplaced_jobs,
    )


def status_from_wire(message: admin_pb2.Status) -> ServerStatus:
    """The inverse of status_to_wire, except that rejections for reasons other than a full queue are lost."""
    tokens = message.iteration_tokens
    return ServerStatus(
        model=message.model,
        policy=message.policy,
        kv_policy=message.kv_policy,
        groups=tuple(_group_from_wire(group) for group in message.groups),
        counters=_counters_from_wire(message.counters),
        uptime_s=message.uptime_s,
        max_queued_jobs=message.max_queued_jobs,
        rejections={"full": message.admission_rejections} if message.admission_rejections else {},
        iteration_tokens=IterationTokens(tuple(tokens.bounds), tuple(tokens.counts), tokens.sum),
        listed_jobs=tuple(_job_from_wire(job) for job in message.jobs),
        unplaced_jobs=message.unplaced_jobs,
    )


def _job_to_wire(job: JobStatus) -> admin_pb2.JobStatus:
    return admin_pb2.JobStatus(
        alias=job.alias,
        group=job.group,
        level=job.level,
        state=admin_pb2.JobState.ValueType(job.phase.value),
        kv=admin_pb2.KvPlace.ValueType(job.kv.value),
        prompt_tokens=job.prompt_tokens,
        output_tokens=job.output_tokens,
    )


def _job_from_wire(message: admin_pb2.JobStatus) -> JobStatus:
    return JobStatus(
        message.alias,
        message.group,
        message.level,
        JobPhase(message.state),
        KvSite(message.kv),
        message.prompt_tokens,
        message.output_tokens,
    )


def _group_to_wire(group: GroupStatus) -> admin_pb2.GroupStatus:
    return admin_pb2.GroupStatus(
        group=group.group,
        ready=group.ready,
        levels=[
            admin_pb2.LevelStatus(
                level=level.level,
                quantum_s=level.quantum_s,
                running=level.running,
                waiting=level.waiting,
                swapped_out=level.swapped_out,
            )
            for level in group.levels
        ],
        running=group.running,
        waiting=group.waiting,
        swapped_out=group.swapped_out,
        **group.pools._asdict(),
        block_size=group.block_size,
        device=group.device,
        worker_joins=group.worker_joins,
        max_batch=group.max_batch,
        counters=_counters_to_wire(group.counters),
        draining=group.draining,
    )


def _group_from_wire(message: admin_pb2.GroupStatus) -> GroupStatus:
    return GroupStatus(
        group=message.group,
        ready=message.ready,
        levels=tuple(
            LevelStatus(level.level, level.quantum_s, level.running, level.waiting, level.swapped_out)
            for level in message.levels
        ),
        pools=PoolUsage(
            message.device_blocks_total,
            message.device_blocks_free,
            message.host_blocks_total,
            message.host_blocks_free,
        ),
        block_size=message.block_size,
        device=message.device,
        worker_joins=message.worker_joins,
        max_batch=message.max_batch,
        counters=_counters_from_wire(message.counters),
        draining=message.draining,
    )
