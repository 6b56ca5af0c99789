"""A job that is cancelled at any moment holds no block any more when the plans that were under way have ended.

Here links are prompt: whatever is on them arrives before the next iteration ends, as it does where an iteration takes
far longer than a message. What is left is what the rules cost: a cancelled job waits for the plans that name it
(PROTOCOL 3), and nothing else. One iteration more may end while the Release travels, which makes the promise to
clients: plans in flight + 1.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from services.domain.ids import JobId
from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from tests.protocol.instance import Instance, JobSize
from tests.protocol.world import State, Step, World

LINKS = ("results", "to_manager", "to_scheduler", "commands", "answers")


class Moment(NamedTuple):
    """A state and the step that led to it."""

    state: State
    step: Step


def walk(world: World, state: State, slow_copies: bool) -> Iterator[Moment]:
    """Steps of a world with prompt links, to its end. Slow copies take until the end of the next iteration."""
    overdue = 0
    while True:
        possible = list(world.possible(state))
        message = next((step for step in possible if step[0] in LINKS), None)
        run = next((step for step in possible if step[0] == "run"), None)
        if message is not None:
            step = message
        elif state.copies and (overdue or not slow_copies or run is None):
            step = ("copy", 0)
            overdue = max(0, overdue - 1)
        elif run is not None:
            step = run
            overdue = len(state.copies)
        else:
            return
        state = world.take(state, step)
        yield Moment(state, step)


def is_quiet(state: State) -> bool:
    """Whether all messages have arrived."""
    return not any(getattr(state, link) for link in LINKS)


def holds_blocks(world: World, state: State, job_id: JobId) -> bool:
    """Whether the KV manager or the worker still holds blocks for the job or for a copy of its blocks."""
    ledger = world.managers.get(state.manager)._ledger
    worker = world.workers.get(state.worker)
    leaving = any(zombie.job_id == job_id for zombie in ledger.zombies.values())
    return job_id in ledger.jobs or leaving or job_id in worker.tables or job_id in worker.host_tables


def iterations_until_free(world: World, state: State, number: int, slow_copies: bool) -> int:
    """The number of iterations that end between the job's cancellation and the release of all its blocks."""
    job_id = world.instance.job_ids[number]
    iterations = 0
    for moment in walk(world, world.take(state, ("cancel", number)), slow_copies):
        iterations += int(moment.step[0] == "run")
        if is_quiet(moment.state) and not holds_blocks(world, moment.state, job_id):
            return iterations
    raise AssertionError(f"{job_id} holds blocks for ever")


@pytest.mark.parametrize("slow_copies", [False, True], ids=["fast copies", "slow copies"])
@pytest.mark.parametrize("kv_policy", KV_POLICY_NAMES)
@pytest.mark.parametrize("plans_in_flight", [1, 2, 3])
def test_a_job_cancelled_at_any_moment_is_free_everywhere_when_the_plans_under_way_have_ended(
    plans_in_flight: int, kv_policy: str, slow_copies: bool
) -> None:
    instance = Instance(
        (JobSize(2, 5), JobSize(1, 5), JobSize(3, 3)),
        device_blocks=7,
        host_blocks=7,
        kv_policy=kv_policy,
        max_batch=2,
        plans_in_flight=plans_in_flight,
        cancels=frozenset({0, 1, 2}),
    )
    world = World(instance)
    start = world.start()
    waits: list[int] = []
    for state in (start, *(moment.state for moment in walk(world, start, slow_copies))):
        living = world.schedulers.get(state.scheduler).jobs
        waits += [
            iterations_until_free(world, state, number, slow_copies)
            for number, job_id in enumerate(instance.job_ids)
            if job_id in living
        ]
    assert max(waits) == plans_in_flight
