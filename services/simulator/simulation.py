"""Serves a trace on a virtual clock with the production code: what would a server do, and when?

The machines of the scheduler and the KV manager are the real ones, and they make all decisions; this package makes
none. It models how long things take (iterations and copies of the worker, the delay of messages) and delivers messages.
virtual_clock.py orders events in time, simulated_group.py connects the machines as the services' drivers do,
simulated_router.py puts the real router before several groups, simulated_scaling.py lets groups come and go,
simulated_worker.py and host_link.py compute how long a plan and a copy take.

There is no randomness and no real time: the same jobs and setup give the same figures, bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from services.domain.copying import CopyDirection
from services.domain.errors import InvalidFieldError
from services.domain.group_backlog import GroupBacklog
from services.domain.ids import JobId
from services.domain.server_status import ServerCounters
from services.simulator.outcome import JobOutcome, Simulation
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulated_clients import KvGauge, SimulatedClients
from services.simulator.simulated_group import SimulatedGroup
from services.simulator.simulated_router import SimulatedRouter
from services.simulator.simulated_scaling import ScalingSetup, SimulatedScaling
from services.simulator.time_spans import overlap_s, total_s, union
from services.simulator.virtual_clock import StuckError, VirtualClock

__all__ = ["JobOutcome", "ServerSetup", "SimulatedJob", "Simulation", "StuckError", "simulate"]

IDLE_TURNS = 10_000
IDLE_TURNS_OF_A_JOB = 100
IDLE_TURNS_OF_A_CHUNK = 100
"""Turns that may pass between two tokens: every job may have arrived, moved or been cut at every level, and the longest
prompt may have been prefilled in chunks.
"""


def simulate(
    setup: ServerSetup,
    jobs: Sequence[SimulatedJob],
    on_progress: Callable[[int], None] | None = None,
    foresee_s: float | None = None,
    scaling: ScalingSetup | None = None,
) -> Simulation:
    """Serve the jobs. `on_progress` is called with the number of ended jobs each time one ends. At `foresee_s` the
    schedulers are asked what they expect of their jobs. With `scaling`, groups come and go, and those of `setup` are
    there at the start.

    Raises InvalidFieldError if two jobs have the same id, StuckError if jobs are left and nothing happens any more, and
    ProtocolError if one of the parts broke PROTOCOL; the last two are bugs.
    """
    if len({job.job_id for job in jobs}) != len(jobs):
        raise InvalidFieldError("id", "must be unique")
    chunks = -(-setup.max_model_len // (setup.scheduler.prefill_chunk_tokens or setup.max_model_len))
    clock = VirtualClock(IDLE_TURNS + IDLE_TURNS_OF_A_JOB * len(jobs) + IDLE_TURNS_OF_A_CHUNK * chunks)
    clients = SimulatedClients(jobs, setup.hop_s, on_progress)
    gauge = KvGauge(max(setup.groups, scaling.limits.most if scaling else 0))
    autoscaler: SimulatedScaling | None = None
    if setup.groups == 1 and scaling is None:
        # One group needs no router.
        alone = SimulatedGroup(setup, 0, clock, clients, gauge)
        submit, groups = alone.submit, [alone]
    else:
        router = SimulatedRouter(setup, clock, clients, gauge)
        submit, groups = router.submit, router.groups
        autoscaler = None if scaling is None else SimulatedScaling(scaling, router, clock, clients)
    for job in sorted(jobs, key=lambda job: job.arrival_s):
        submit(job)
    foreseen: list[GroupBacklog] = []
    if foresee_s is not None:
        clock.post(foresee_s, lambda _: foreseen.extend(group.foreseen() for group in groups), None)
    try:
        clock.run()
        if clients.left_count:
            raise StuckError(f"no events are left, but {clients.left_count} jobs have not ended")
    except StuckError as error:
        stories = "\n".join(group.story() for group in groups)
        raise StuckError(f"{error} (at {clock.now_s} s)\n{stories}") from None
    for group in groups:
        group.check_end()
    outcomes = tuple(_outcome(clients, groups, JobId(job.job_id)) for job in jobs)
    summed = _summed(setup, groups, outcomes, gauge)
    spans = autoscaler.spans(summed.duration_s) if autoscaler else ()
    return replace(summed, foreseen=tuple(foreseen), spans=spans)


def _outcome(clients: SimulatedClients, groups: Sequence[SimulatedGroup], job_id: JobId) -> JobOutcome:
    """A job's outcome; its times are summed over the groups that it was in."""
    parts = [group.worker.jobs[job_id] for group in groups if job_id in group.worker.jobs]
    return clients.outcome(job_id, sum(part.executing_s for part in parts), sum(part.uploading_s for part in parts))


def _summed(
    setup: ServerSetup, groups: Sequence[SimulatedGroup], outcomes: tuple[JobOutcome, ...], gauge: KvGauge
) -> Simulation:
    """Add up the figures of all groups."""
    workers = [group.worker for group in groups]
    counters = [group.scheduler.counters for group in groups]
    copied = [sum(worker.link.copied_blocks[direction] for worker in workers) for direction in CopyDirection]
    block_bytes = setup.block_size * setup.kv_bytes_per_token
    copying = [union(worker.link.spans) for worker in workers]
    swap_s = sum(total_s(spans) for spans in copying)
    overlapped_s = sum(overlap_s(spans, worker.compute) for spans, worker in zip(copying, workers, strict=True))
    return Simulation(
        outcomes=outcomes,
        counters=ServerCounters(
            preemptions=sum(counter.preemptions for counter in counters),
            promotions=sum(counter.promotions for counter in counters),
            demotions=sum(counter.demotions for counter in counters),
            iterations=sum(counter.iterations for counter in counters),
            offloaded_bytes=copied[CopyDirection.OFFLOAD] * block_bytes,
            uploaded_bytes=copied[CopyDirection.UPLOAD] * block_bytes,
            recomputed_tokens=sum(counter.recomputed_tokens for counter in counters),
            stall_s=sum(worker.stall_s for worker in workers),
            busy_s=sum(worker.busy_s for worker in workers),
            plan_wait_s=sum(worker.plan_wait_s for worker in workers),
        ),
        swap_s=swap_s,
        swap_exposed_s=max(swap_s - overlapped_s, 0.0),
        peak_kv_tokens=gauge.peak_blocks * setup.block_size,
        peak_device_kv_tokens=gauge.peak_device_blocks * setup.block_size,
        duration_s=max((outcome.token_times_s[-1] for outcome in outcomes if outcome.token_times_s), default=0.0),
    )
