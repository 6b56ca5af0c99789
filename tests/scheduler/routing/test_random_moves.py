"""Groups that die and come back at random, jobs that come, go and move: nobody is lost, and no token is made twice."""

from random import Random

import pytest

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.scheduler.machine.scheduler_events import Cancel, Reject
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.builders.cost_profiles import proportional_cost
from tests.scheduler.routing.routed_groups import RoutedGroups

STEPS = 300
GROUPS = 3


@pytest.mark.parametrize("policy", PolicyName)
def test_whatever_dies_every_job_that_is_wanted_gets_all_its_tokens_once(policy: PolicyName) -> None:
    """The groups check the machines' and the router's invariants after every turn, and the order of tokens."""
    random = Random(f"moves under {policy.value}")
    config = SchedulerConfig(policy=policy, max_batch=2, starvation_limit_s=1.0, max_queued_jobs=40)
    groups = RoutedGroups(config, [proportional_cost(0.001, 0.02)] * GROUPS, resident_jobs=3)
    groups.join()
    alive = set(range(GROUPS))
    wanted: dict[str, int] = {}
    for number in range(STEPS):
        choice = random.random()
        if choice < 0.3:
            tokens = random.randint(1, 12)
            if not isinstance(groups.route(f"j{number}", random.randint(2, 40), tokens), Reject):
                wanted[f"j{number}"] = tokens
        elif choice < 0.35 and wanted:
            name = random.choice(sorted(wanted))
            group = groups.router.group_of(JobId(name))
            if group is not None:
                groups.turn(group, Cancel(JobId(name), EndReason.CANCELLED))
                del wanted[name]
        elif choice < 0.4 and alive:
            dying = random.choice(sorted(alive))
            alive.discard(dying)
            groups.lose(dying)
        elif choice < 0.5 and len(alive) < GROUPS:
            coming = random.choice(sorted(set(range(GROUPS)) - alive))
            alive.add(coming)
            groups.join(coming)
        else:
            groups.run_one_of(random.sample(range(GROUPS), GROUPS))
    groups.join(*(set(range(GROUPS)) - alive))
    groups.run_all()
    assert {name: groups.tokens[JobId(name)] for name in wanted} == wanted
    assert groups.moved
    assert not groups.router.jobs
