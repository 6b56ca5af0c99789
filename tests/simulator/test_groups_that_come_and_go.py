"""Groups that come and go on the virtual clock: those of the autoscaler's own rule."""

from collections.abc import Mapping

import pytest

from services.autoscaler.scaling import ScaleLimits
from services.domain.errors import InvalidFieldError
from services.scheduler.policies.group_demand import DemandLimits, GroupDemand
from services.scheduler.scheduler_config import PolicyName
from services.simulator.outcome import GroupSpan, Simulation
from services.simulator.server_setup import SimulatedJob
from services.simulator.simulated_group import SimulatedGroup
from services.simulator.simulated_scaling import GroupsWanted, ScalingSetup
from services.simulator.simulation import simulate
from tests.simulator.simulated_servers import GROWING_COST, mean_jct_s, random_jobs, server

START_S = 2.0
JOBS = random_jobs(3, 120, rate_per_s=60.0, longest=40)


def scaling(wanted: GroupsWanted, start_s: float = START_S) -> ScalingSetup:
    return ScalingSetup(wanted, ScaleLimits(1, 4, 1.0, 1), start_s)


def over_time(*wanted: tuple[float, int]) -> GroupsWanted:
    """So many groups from each of these seconds on."""

    def at(groups: Mapping[int, SimulatedGroup], now_s: float) -> int:
        return [count for from_s, count in wanted if from_s <= now_s][-1]

    return at


def check_whole(simulation: Simulation, jobs: list[SimulatedJob]) -> None:
    """Every job has made all its tokens, once."""
    assert [len(one.token_times_s) for one in simulation.outcomes] == [job.output_tokens for job in jobs]
    assert {one.finish_reason for one in simulation.outcomes} == {"length"}


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_that_stay_are_those_of_a_server_without_an_autoscaler(groups: int) -> None:
    setup = server(PolicyName.GITTINS, cost=GROWING_COST, groups=groups, hop_s=0.0003)
    fixed, scaled = simulate(setup, JOBS), simulate(setup, JOBS, scaling=scaling(over_time((0.0, groups))))
    assert [one.token_times_s for one in scaled.outcomes] == [one.token_times_s for one in fixed.outcomes]
    assert scaled.spans == tuple(GroupSpan(number, 0.0, fixed.duration_s) for number in range(groups))


def test_a_burst_gets_more_groups_and_they_go_when_it_is_over() -> None:
    jobs = [*random_jobs(3, 500, rate_per_s=400.0, longest=30), SimulatedJob("late", 60.0, 10, 10)]
    setup = server(PolicyName.GITTINS, cost=GROWING_COST, hop_s=0.0003)
    demand = GroupDemand(DemandLimits(target_s=0.2, quiet_s=2.0, least=1, most=4))

    def wanted(groups: Mapping[int, SimulatedGroup], now_s: float) -> int:
        backlogs = [group.scheduler.iterations.backlog.predicted() for group in groups.values()]
        return demand.update(backlogs, now_s).wanted

    alone, scaled = simulate(setup, jobs), simulate(setup, jobs, scaling=scaling(wanted, start_s=0.5))
    check_whole(scaled, jobs)
    assert mean_jct_s(scaled) < 0.7 * mean_jct_s(alone)
    came = [span for span in scaled.spans if span.group]
    assert {span.group for span in came} == {1, 2, 3}
    assert all(span.to_s < 60.0 for span in came)


def test_the_jobs_of_a_group_that_goes_end_there_or_go_on_in_another() -> None:
    setup = server(PolicyName.SKIP_JOIN_MLFQ, groups=2, hop_s=0.0003)
    jobs = [SimulatedJob(f"j{number}/0", 0.0, 10, 100 + 40 * number) for number in range(30)]
    scaled = simulate(setup, jobs, scaling=scaling(over_time((0.0, 2), (3.0, 1))))
    check_whole(scaled, jobs)
    gone, stays = scaled.spans
    assert (gone.group, stays) == (1, GroupSpan(0, 0.0, scaled.duration_s))
    assert 4.0 <= gone.to_s < scaled.duration_s
    assert scaled.counters.recomputed_tokens > 0


def test_a_number_that_is_wanted_again_while_its_pod_drains_begins_when_that_is_gone() -> None:
    setup = server(PolicyName.FCFS, groups=2, max_batch=4, hop_s=0.0003)
    jobs = [SimulatedJob(f"j{number}/0", 0.0, 10, 400) for number in range(8)]
    scaled = simulate(setup, jobs, scaling=scaling(over_time((0.0, 2), (1.0, 1), (2.5, 2))))
    check_whole(scaled, jobs)
    first, second = sorted((span for span in scaled.spans if span.group == 1), key=lambda span: span.from_s)
    assert first.from_s == 0.0
    assert second.from_s == first.to_s > 2.5


def test_a_group_that_is_not_wanted_any_more_before_it_has_started_never_serves() -> None:
    setup = server(PolicyName.FCFS, hop_s=0.0003)
    slow = ScalingSetup(over_time((0.0, 2), (0.5, 1)), ScaleLimits(1, 2, 0.0, 1), start_s=50.0)
    jobs = [SimulatedJob("only", 0.0, 10, 400)]
    scaled = simulate(setup, jobs, scaling=slow)
    check_whole(scaled, jobs)
    assert scaled.spans[0] == GroupSpan(1, 0.0, 1.0)


@pytest.mark.parametrize(
    ("field", "changed"),
    [("least", {"limits": ScaleLimits(0, 2, 1.0, 1)}), ("pods_per_group", {"limits": ScaleLimits(1, 2, 1.0, 2)}),
     ("period_s", {"period_s": 0.0}), ("drain_limit_s", {"drain_limit_s": -1.0}), ("start_s", {"start_s": -1.0})],
)  # fmt: skip
def test_a_setup_that_can_not_be_is_refused_by_its_field(field: str, changed: dict[str, object]) -> None:
    given: dict[str, object] = {"wanted": over_time((0.0, 1)), "limits": ScaleLimits(1, 2, 1.0, 1), "start_s": 1.0}
    with pytest.raises(InvalidFieldError, match=field):
        ScalingSetup(**{**given, **changed})  # type: ignore[arg-type]
