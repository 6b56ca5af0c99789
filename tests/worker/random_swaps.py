"""Jobs that lose the device all the time."""

import random

from services.domain.ids import JobId
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans


def chunked_mixed_and_recomputed(runner: FakeSchedulerPlans, jobs: list[JobId]) -> None:
    """The first three jobs begin with a chunk of their prompts, the first two run on together, and the first one's KV
    is dropped.
    """
    for number, job_id in enumerate(jobs[:3]):
        runner.run(runner.entry(job_id, to_token=2 + number))
    for _ in range(2):
        runner.run(*(runner.entry(job_id) for job_id in jobs[:2]))
    runner.kv.release(jobs[0])
    runner.planned[jobs[0]] = 0


def swap_at_random(runner: FakeSchedulerPlans, jobs: list[JobId], dice: random.Random) -> int:
    """Runs the jobs to their ends, moving them in and out between plans. Copies run on; only a full pool waits for
    one.
    """
    kv, out, moves = runner.kv, set[JobId](), 0
    while left := [job_id for job_id in jobs if job_id not in runner.ended]:
        kv.settle()
        for job_id in sorted(out & set(left) - kv.copying.keys()):
            if dice.random() < 0.6 and len(kv.free_device) >= len(kv.host[job_id]) + 6:
                kv.upload(job_id, runner.planned[job_id])  # and planned below, before it is done
                out.discard(job_id)
                moves += 1
        here = [job_id for job_id in left if job_id not in out]
        while len(kv.free_device) < 6 * len(here):
            movable = [job_id for job_id in here if job_id not in kv.copying and runner.planned[job_id]]
            if movable:
                kv.offload(movable[-1], runner.planned[movable[-1]])
                out.add(movable[-1])
                moves += 1
            elif kv.copying:
                kv.settle_one()
            here = [job_id for job_id in here if job_id not in out][: len(kv.free_device) // 6]
        if here:
            runner.run(*(runner.entry(job_id) for job_id in here))
        elif kv.copying:
            kv.settle_one()
        for job_id in [
            job_id for job_id in jobs if job_id in runner.ended and job_id in kv.device and job_id not in kv.copying
        ]:
            kv.release(job_id)
    return moves
