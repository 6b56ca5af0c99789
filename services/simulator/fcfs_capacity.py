"""The reference for load: the jobs per second that FCFS sustains on a server, in its best form. Pure.

FCFS has three forms, which differ in what happens when the KV cache of the running jobs outgrows the device pool. One
job loses its blocks, and its KV is computed again later (`recompute`, as in vLLM) or moved to the host and back
(`proactive`); or no job starts before all blocks that it may ever need are reserved (`defer`, as in Orca). Which is
best depends on the lengths of jobs, the pools and the link, so all three are measured and the greatest rate counts.
With a pool that never fills up they are one and the same, and one is measured.

Measured as on a live server: all jobs arrive at once. The measurement ends when the last job has started, because
batches are no longer full after that. Work is counted in output tokens: jobs per second = (share of all output tokens
made until then) x jobs / (seconds until then). There should be a few hundred jobs with lengths like the workload's;
their arrival times do not matter.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.domain.errors import InvalidFieldError
from services.kvmanager.policies.kv_config import kv_policy_named
from services.scheduler.scheduler_config import PolicyName
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import Simulation, StuckError, simulate

FCFS_FORMS = ("recompute", "proactive", "defer")
"""The KV policies under which FCFS is measured; the first shows whether the others can differ."""


def fcfs_setup(setup: ServerSetup, jobs: Sequence[SimulatedJob], form: str = FCFS_FORMS[0]) -> ServerSetup:
    """The same server under FCFS and this KV policy, with admission limits that allow all jobs at once."""
    tokens = sum(job.prompt_tokens + job.most_output_tokens for job in jobs)
    scheduler = replace(
        setup.scheduler,
        policy=PolicyName.FCFS,
        max_queued_jobs=max(setup.scheduler.max_queued_jobs, len(jobs)),
        max_queued_tokens=max(setup.scheduler.max_queued_tokens, tokens),
    )
    return replace(setup, scheduler=scheduler, kv=replace(setup.kv, policy=kv_policy_named(form)))


def fcfs_capacity_per_s(
    setup: ServerSetup, jobs: Sequence[SimulatedJob], on_progress: Callable[[int], None] | None = None
) -> float:
    """Jobs per second that FCFS in its best form sustains for jobs with these lengths. Jobs that the server refuses are
    left out. `on_progress` is called with a number that grows to that of the jobs.

    Raises InvalidFieldError if it refuses all jobs, and StuckError if FCFS gets stuck in every form.
    """
    at_once = [replace(job, arrival_s=0.0, cancel_s=None) for job in jobs]
    rates: list[float] = []
    stuck: StuckError | None = None
    for number, form in enumerate(FCFS_FORMS):
        try:
            simulation = simulate(fcfs_setup(setup, at_once, form), at_once, _share_of(on_progress, number, len(jobs)))
        except StuckError as error:
            stuck = stuck or error
            continue
        rates.append(_sustained_per_s(simulation))
        if never_short(setup, at_once, simulation):
            break
    if stuck is not None and not rates:
        raise stuck
    if on_progress is not None:
        on_progress(len(jobs))
    return max(rates)


def _share_of(on_progress: Callable[[int], None] | None, number: int, job_count: int) -> Callable[[int], None] | None:
    """The progress of one form as a part of that of all."""
    if on_progress is None:
        return None
    return lambda ended_count: on_progress((number * job_count + ended_count) // len(FCFS_FORMS))


def _sustained_per_s(simulation: Simulation) -> float:
    served = [outcome for outcome in simulation.outcomes if outcome.error is None]
    if not served:
        raise InvalidFieldError("workload", "no job fits this server, so there is no capacity to measure")
    saturated_s = max(outcome.token_times_s[0] for outcome in served)
    made = sum(bisect_right(outcome.token_times_s, saturated_s) for outcome in served)
    whole = sum(len(outcome.token_times_s) for outcome in served)
    return made / whole * len(served) / saturated_s


def never_short(setup: ServerSetup, jobs: Sequence[SimulatedJob], simulation: Simulation) -> bool:
    """Whether the forms of FCFS could not differ: the device pool always had room for two more jobs, each as large as
    the largest. Then no job was kept waiting for blocks, in the batch or ahead of it, so there was nothing to
    recompute, move or reserve differently.
    """
    fitting = [
        job.prompt_tokens + job.most_output_tokens
        for job, outcome in zip(jobs, simulation.outcomes, strict=True)
        if outcome.error is None
    ]
    largest_blocks = -(-max(fitting) // setup.block_size)
    room_blocks = setup.device_blocks - simulation.peak_device_kv_tokens // setup.block_size
    return room_blocks >= 2 * largest_blocks
