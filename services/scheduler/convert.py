"""Values <-> wire for AdminService. What gateways and workers say is in services.runtime.gateway_link and
scheduler_link.
"""

from fastserve.v1 import admin_pb2
from services.domain.errors import InvalidFieldError
from services.scheduler.policy.counters import ITERATION_TOKEN_BOUNDS
from services.scheduler.report import GroupReport, ServerReport


def check_interval(request: admin_pb2.WatchStatusRequest) -> float:
    """Seconds between snapshots. Raises InvalidFieldError."""
    if not request.HasField("interval_s"):
        return 1.0
    if not 0.05 <= request.interval_s <= 60:
        raise InvalidFieldError("interval_s", f"must be 0.05 to 60 seconds, got {request.interval_s:g}")
    return request.interval_s


def report_to_wire(report: ServerReport) -> admin_pb2.Status:
    """A snapshot of the server."""
    counters, worker = report.counters, report.worker
    return admin_pb2.Status(
        model=report.model,
        policy=report.policy,
        kv_policy=report.kv_policy,
        groups=[_group_to_wire(group) for group in report.groups],
        counters=admin_pb2.Counters(
            preemptions=counters.preemptions,
            promotions=counters.promotions,
            demotions=counters.demotions,
            iterations=counters.iterations,
            offloaded_bytes=worker.offloaded_bytes,
            uploaded_bytes=worker.uploaded_bytes,
            recomputed_tokens=counters.recomputed_tokens,
            stall_s=worker.stall_s,
            busy_s=worker.busy_s,
            plan_wait_s=worker.plan_wait_s,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            jobs_admitted=counters.jobs_admitted,
            jobs_finished=counters.jobs_finished,
        ),
        uptime_s=report.uptime_s,
        max_queued_jobs=report.max_queued_jobs,
        admission_rejections=counters.rejections.get("full", 0),
        iteration_tokens=admin_pb2.IterationTokens(
            bounds=ITERATION_TOKEN_BOUNDS, counts=counters.iteration_token_counts, sum=counters.iteration_token_sum
        ),
    )


def _group_to_wire(group: GroupReport) -> admin_pb2.GroupStatus:
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
        device_blocks_total=group.device_blocks_total,
        device_blocks_free=group.device_blocks_free,
        host_blocks_total=group.host_blocks_total,
        host_blocks_free=group.host_blocks_free,
        block_size=group.block_size,
        device=group.device,
        worker_joins=group.worker_joins,
    )
