"""The leader of a group: what it passes on, and when it says what for all ranks (PROTOCOL 24 to 26)."""

import pytest

from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch, PlanNumber
from services.domain.protocol import Applied, Done, PlansGivenBack
from services.worker.group.leader_machine import (
    MOST_WAITING_PLANS,
    Acknowledge,
    Action,
    CommandTaken,
    EndEpoch,
    EpochOver,
    EpochWanted,
    GiveBack,
    Hello,
    LeaderMachine,
    PlansRecalled,
    PlanTaken,
    RankJoined,
    RankLost,
    RankSaid,
    Report,
    Tell,
)
from services.worker.group.messages import (
    Begin,
    Copied,
    Failed,
    FromRank,
    Prepared,
    PrepareGuide,
    Ready,
    Relayed,
    Run,
    Scored,
)
from tests.worker.group.group_values import (
    BEGIN,
    EPOCH,
    GUIDE,
    JOB,
    OTHER,
    SCORED,
    assign,
    decode,
    offload,
    plan,
    prefill,
    ran,
    release,
    token,
)


def working(stages: int = 2, ranks_per_stage: int = 1) -> LeaderMachine:
    """A leader whose epoch has been formed."""
    leader = LeaderMachine(stages, ranks_per_stage)
    ranks = range(stages * ranks_per_stage)
    for rank in ranks:
        leader.handle(RankJoined(rank))
    leader.handle(EpochWanted(BEGIN))
    for rank in ranks:
        leader.handle(RankSaid(rank, Ready(EPOCH)))
    return leader


def says(leader: LeaderMachine, message: FromRank, *ranks: int) -> list[Action]:
    return [action for rank in ranks for action in leader.handle(RankSaid(rank, message))]


def steps(actions: list[Action]) -> list[int]:
    """Numbers of the plans that were passed on, with those of their ranks."""
    runs = [action for action in actions if isinstance(action, Tell) and isinstance(action.message, Run)]
    return [run.message.step.plan.plan_number for run in runs if run.rank == 0 and isinstance(run.message, Run)]


def test_24_commands_and_plans_go_to_every_rank_in_the_order_in_which_they_came() -> None:
    leader = working()
    given = relayed = Relayed(EPOCH, assign(1))
    assert leader.handle(CommandTaken(assign(1))) == [
        Tell(1, given),
        Tell(0, relayed),
        Acknowledge(Applied(CommandNumber(1))),
    ]
    to_one, to_own = leader.handle(PlanTaken(plan(1, prefill())))
    assert isinstance(to_one, Tell)
    assert isinstance(to_own, Tell)
    assert (to_one.rank, to_own.rank) == (1, 0)
    assert to_one.message == to_own.message


def test_25_done_is_said_when_every_rank_has_copied() -> None:
    leader = working(stages=3)
    leader.handle(CommandTaken(offload(5)))
    assert says(leader, Copied(EPOCH, CommandNumber(5)), 0, 2, 2) == []
    assert says(leader, Copied(EPOCH, CommandNumber(5)), 1) == [Acknowledge(Done(CommandNumber(5)))]


def test_25_a_result_is_said_when_every_rank_has_run_the_plan() -> None:
    leader = working(stages=2, ranks_per_stage=2)
    leader.handle(PlanTaken(plan(1, prefill())))
    for rank, compute_s in ((2, 3.0), (0, 1.0), (1, 2.0)):
        tokens = (token(9),) if rank == 2 else ()
        assert leader.handle(RankSaid(rank, ran(1, *tokens, compute_s=compute_s))) == []
    [report] = leader.handle(RankSaid(3, ran(1, compute_s=2.5)))
    assert isinstance(report, Report)
    # The stages compute one after the other, each as long as its slowest rank.
    assert report.result.result.duration_s == 2.0 + 3.0
    assert report.result.result.tokens == (token(9),)
    assert report.result.counters.offloaded_bytes == 40


def test_log_probabilities_of_prompts_are_reported_with_the_plan_in_which_they_were_found() -> None:
    leader = working(stages=2)
    leader.handle(PlanTaken(plan(1, prefill())))
    leader.handle(PlanTaken(plan(2, prefill(job_id=OTHER))))
    assert says(leader, Scored(EPOCH, SCORED), 1, 1) == []
    says(leader, ran(1, token(9)), 1)
    says(leader, Scored(EPOCH, SCORED), 1)
    reports = says(leader, ran(1), 0)
    says(leader, ran(2), 1)
    reports += says(leader, ran(2), 0)
    assert [report.result.scored for report in reports if isinstance(report, Report)] == [(SCORED, SCORED), (SCORED,)]


def test_a_plan_is_passed_on_when_the_tokens_that_it_goes_on_from_are_back_from_the_last_stage() -> None:
    leader = working()
    assert steps(leader.handle(PlanTaken(plan(1, prefill(2))))) == [1]
    assert steps(leader.handle(PlanTaken(plan(2, decode(2))))) == []
    assert steps(leader.handle(PlanTaken(plan(3, decode(3))))) == []
    assert steps(says(leader, ran(1), 0)) == []
    actions = says(leader, ran(1, token(42)), 1)
    assert steps(actions) == [2]
    [step] = {id(one.message): one.message.step for one in actions if isinstance(one, Tell)}.values()  # type: ignore[union-attr]
    assert (step.input_token_ids, step.passed_over_job_ids) == ({JOB: 42}, frozenset())


def test_plans_that_are_not_passed_on_yet_are_given_back() -> None:
    leader = working()
    for number, work in ((1, prefill(2)), (2, decode(2)), (3, decode(3)), (4, decode(4))):
        leader.handle(PlanTaken(plan(number, work)))
    assert leader.handle(PlansRecalled(PlanNumber(3))) == [GiveBack(PlansGivenBack(EPOCH, PlanNumber(3)))]
    assert leader.handle(PlansRecalled(PlanNumber(1))) == [GiveBack(PlansGivenBack(EPOCH, PlanNumber(2)))]
    assert leader.handle(PlansRecalled(PlanNumber(1))) == [GiveBack(PlansGivenBack(EPOCH, None))]
    assert steps(says(leader, ran(1, token(42)), 0, 1)) == []
    assert steps(leader.handle(PlanTaken(plan(5, decode(2))))) == [5]


def test_a_recall_before_the_epoch_is_formed_has_no_answer() -> None:
    leader = working()
    leader.handle(EpochOver())
    assert leader.handle(PlansRecalled(PlanNumber(0))) == []


def test_the_entry_of_a_job_that_has_ended_is_passed_over_on_every_rank() -> None:
    leader = working()
    leader.handle(PlanTaken(plan(1, prefill(2))))
    leader.handle(PlanTaken(plan(2, decode(2))))
    runs = [one.message for one in says(leader, ran(1, token(42, end=True)), 1) if isinstance(one, Tell)]
    assert [run.step.passed_over_job_ids for run in runs if isinstance(run, Run)] == [frozenset({JOB})] * 2


def test_26_hello_is_said_when_every_rank_is_ready() -> None:
    leader = LeaderMachine(2, 1)
    leader.handle(RankJoined(0))
    assert leader.handle(EpochWanted(BEGIN)) == []
    assert leader.missing_ranks == (1,)
    assert leader.handle(RankJoined(1)) == [Tell(1, BEGIN), Tell(0, BEGIN)]
    assert says(leader, Ready(EPOCH), 0) == []
    assert says(leader, Ready(Epoch(EPOCH - 1)), 1) == []
    assert says(leader, Ready(EPOCH), 1) == [Hello(EPOCH)]


def test_26_a_lost_rank_ends_the_epoch_and_the_next_one_waits_for_it() -> None:
    leader = working()
    assert leader.handle(RankLost(1, "gone")) == [EndEpoch(EPOCH, "rank 1 was lost: gone")]
    assert leader.handle(CommandTaken(assign(1))) == leader.handle(PlanTaken(plan(1, prefill()))) == []
    leader.handle(EpochOver())
    following = Begin(Epoch(EPOCH + 1), 4000, 3.0)
    assert leader.handle(EpochWanted(following)) == []
    assert leader.handle(RankJoined(1)) == [Tell(1, following), Tell(0, following)]
    # What a rank still says about the epoch before is not taken for this one's.
    assert says(leader, ran(1, token(1)), 1) == []


def test_26_a_rank_that_fails_ends_the_epoch() -> None:
    leader = working()
    assert says(leader, Failed(EPOCH, "rank 0 does not answer"), 1) == [
        EndEpoch(EPOCH, "rank 1: rank 0 does not answer")
    ]
    assert says(leader, Failed(EPOCH, "the same again"), 0) == []


def test_a_rank_that_is_lost_before_its_epoch_begins_is_waited_for() -> None:
    leader = LeaderMachine(2, 1)
    leader.handle(RankJoined(0))
    leader.handle(RankJoined(1))
    assert leader.handle(RankLost(1, "gone")) == []
    assert leader.handle(EpochWanted(BEGIN)) == []
    assert leader.missing_ranks == (1,)


def test_what_no_peer_can_send_is_refused() -> None:
    leader = working()
    with pytest.raises(ProtocolError, match="which a group of ranks can't give up"):
        leader.handle(PlanTaken(plan(1, prefill(2, cut_after_s=1.0))))
    with pytest.raises(ProtocolError, match="rank 1 ran plan 4"):
        leader.handle(RankSaid(1, ran(4)))
    leader.handle(PlanTaken(plan(1, prefill(2))))
    for number in range(MOST_WAITING_PLANS):
        leader.handle(PlanTaken(plan(2 + number, decode(2))))
    with pytest.raises(ProtocolError, match="plans wait to be run"):
        leader.handle(PlanTaken(plan(100, decode(2))))


def test_a_released_job_is_forgotten() -> None:
    leader = working()
    leader.handle(PlanTaken(plan(1, prefill(2))))
    leader.handle(CommandTaken(release(1)))
    # Its id may come again: what the first one still samples does not end the wait of the second.
    leader.handle(PlanTaken(plan(2, prefill(2))))
    says(leader, ran(1, token(1)), 1)
    assert steps(leader.handle(PlanTaken(plan(3, decode(2))))) == []


WANTED = PrepareGuide(EPOCH, JOB, GUIDE, ())


def test_a_job_with_a_guide_starts_when_the_rank_that_samples_has_prepared_it_and_delays_nobody() -> None:
    leader = working()
    assert leader.handle(PlanTaken(plan(1, prefill(guide=GUIDE)))) == [Tell(1, WANTED)], "the plan waits: no other does"
    started = leader.handle(PlanTaken(plan(2, prefill(job_id=OTHER))))
    assert steps(started) == [1, 2]
    assert isinstance(started[0], Tell)
    assert isinstance(started[0].message, Run)
    assert started[0].message.step.passed_over_job_ids == {JOB}
    (report,) = [action for action in says(leader, ran(1), 0, 1) if isinstance(action, Report)]
    assert report.result.result.cut_job_ids == (JOB,)

    says(leader, ran(2), 0, 1)
    assert leader.handle(PlanTaken(plan(3, prefill(guide=GUIDE)))) == [], "it was asked for before"
    again = says(leader, Prepared(EPOCH, JOB), 1)
    assert steps(again) == [3]
    assert isinstance(again[0], Tell)
    assert isinstance(again[0].message, Run)
    assert again[0].message.step.passed_over_job_ids == frozenset()


def test_a_guide_is_prepared_anew_for_a_job_that_starts_again_after_its_output() -> None:
    leader = working()
    leader.handle(PlanTaken(plan(1, prefill(guide=GUIDE))))
    says(leader, Prepared(EPOCH, JOB), 1)
    says(leader, ran(1, token(7)), 0, 1)
    leader.handle(CommandTaken(release(1)))
    asked = leader.handle(PlanTaken(plan(2, prefill(tokens=3, output=1, guide=GUIDE))))
    assert asked == [Tell(1, WANTED._replace(output=(2,)))]
