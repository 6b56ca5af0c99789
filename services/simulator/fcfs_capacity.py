"""The reference for load: the jobs per second that FCFS sustains on a server. Pure.

Measured as on a live server: all jobs arrive at once, under FCFS with KV reserved at admission (`defer`). The
measurement ends when the last job has started, because batches are no longer full after that. Work is counted in output
tokens: jobs per second = (share of all output tokens made until then) x jobs / (seconds until then). There should be a
few hundred jobs with lengths like the workload's; their arrival times do not matter.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.domain.errors import InvalidFieldError
from services.kvmanager.policies.defer import Defer
from services.scheduler.scheduler_config import PolicyName
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import simulate


def fcfs_setup(setup: ServerSetup, jobs: Sequence[SimulatedJob]) -> ServerSetup:
    """The same server under FCFS and `defer`, with admission limits that allow all jobs at once."""
    tokens = sum(job.prompt_tokens + job.most_output_tokens for job in jobs)
    scheduler = replace(
        setup.scheduler,
        policy=PolicyName.FCFS,
        max_queued_jobs=max(setup.scheduler.max_queued_jobs, len(jobs)),
        max_queued_tokens=max(setup.scheduler.max_queued_tokens, tokens),
    )
    return replace(setup, scheduler=scheduler, kv=replace(setup.kv, policy=Defer()))


def fcfs_capacity_per_s(
    setup: ServerSetup, jobs: Sequence[SimulatedJob], on_progress: Callable[[int], None] | None = None
) -> float:
    """Jobs per second that FCFS sustains for jobs with these lengths. Jobs that the server refuses are left out.

    Raises InvalidFieldError if it refuses all jobs.
    """
    at_once = [replace(job, arrival_s=0.0, cancel_s=None) for job in jobs]
    outcomes = simulate(fcfs_setup(setup, at_once), at_once, on_progress).outcomes
    served = [outcome for outcome in outcomes if outcome.error is None]
    if not served:
        raise InvalidFieldError("workload", "no job fits this server, so there is no capacity to measure")
    saturated_s = max(outcome.token_times_s[0] for outcome in served)
    made = sum(bisect_right(outcome.token_times_s, saturated_s) for outcome in served)
    whole = sum(len(outcome.token_times_s) for outcome in served)
    return made / whole * len(served) / saturated_s
