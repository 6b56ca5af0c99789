"""What the KV manager hears first in an epoch of the worker: all living jobs, of which none is resident."""

from typing import TYPE_CHECKING

from services.domain.protocol import ArrivedJob, Jobs, OrderChange

if TYPE_CHECKING:
    from services.scheduler.machine.scheduler import Scheduler


def first_message(scheduler: "Scheduler") -> Jobs:
    """The jobs by rank, and what the policy's order means to the KV manager. O(jobs)."""
    living = list(scheduler.ranking.by_rank())
    policy, config = scheduler.policy, scheduler.config
    return Jobs(
        epoch=scheduler.epoch,
        jobs=tuple(ArrivedJob(job.job_id, job.known_tokens, job.most_tokens, job.stay_number) for job in living),
        order=tuple(OrderChange(job.job_id, job.rank) for job in living),
        max_batch=scheduler.batch.jobs * scheduler.iterations.stage_count,
        quanta_s=policy.quanta_s,
        starvation_limit_s=config.starvation_limit_s if policy.quanta_s else None,
        displaces=policy.displaces,
    )
