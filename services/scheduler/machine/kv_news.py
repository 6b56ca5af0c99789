"""When the KV manager need not hear at once how plans go on (services/scheduler/held_batches.py).

It has to know for two things: who is to get blocks, and whose blocks may be taken for somebody. Neither comes up while
all jobs that would run are running, and each of them has more room than the KV manager leaves it before it gets more
(PROTOCOL 16). Levels make it look at the clock, too: it estimates when a job will be promoted. So under their policies
it hears of every turn.
"""

from services.domain.protocol import GROWTH_TOKENS
from services.scheduler.job import RESIDENT
from services.scheduler.machine.scheduler import Scheduler


def may_wait(machine: Scheduler) -> bool:
    """Whether the KV manager has nothing to decide that depends on the plans under way. O(batch)."""
    flights = machine.iterations.unfinished
    if machine.policy.quanta_s or not flights or flights[-1].is_sure:
        return False
    batch = flights[-1].jobs
    # One token more for each plan: so many may be made before the next turn that tells of them.
    room_tokens = GROWTH_TOKENS + len(flights)
    for job in batch:
        if job.state is not RESIDENT:
            return False
        if job.capacity_tokens - job.planned_tokens <= room_tokens and job.capacity_tokens < job.most_tokens:
            return False
    waiting = machine.ranking.first_not_ready()
    return waiting is None or (len(batch) >= machine.batch.jobs and waiting > max(job.rank for job in batch))
