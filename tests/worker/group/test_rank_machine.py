"""One rank of a group: what it does at once, what waits, and what a new epoch drops (PROTOCOL 25, 26)."""

from dataclasses import replace

import pytest

from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch, PlanNumber
from services.domain.iteration import WorkerCounters
from services.worker.group.messages import Begin, Copied, Failed, Ran, Ready, Relayed, Run, Scored
from services.worker.group.rank_machine import (
    Apply,
    Began,
    Broke,
    Compute,
    CopyEnded,
    Expect,
    Heard,
    LeaderLost,
    Meet,
    RankMachine,
    Say,
    Stepped,
)
from services.worker.step import Step
from tests.worker.group.group_values import BEGIN, EPOCH, SCORED, assign, offload, outcome, plan, prefill

NEXT = Begin(Epoch(EPOCH + 1), 4000, 3.0)


def ready() -> RankMachine:
    rank = RankMachine()
    rank.handle(Heard(BEGIN))
    rank.handle(Began(EPOCH))
    return rank


def step(number: int) -> Step:
    return Step(plan(number, prefill()), frozenset(), {})


def stepped(number: int) -> Stepped:
    return Stepped(step(number), outcome(), WorkerCounters())


def test_it_says_ready_when_it_has_met_the_others() -> None:
    rank = RankMachine()
    assert rank.handle(Heard(BEGIN)) == [Meet(BEGIN)]
    assert rank.handle(Began(EPOCH)) == [Say(Ready(EPOCH))]


def test_commands_take_effect_at_once_also_while_a_step_runs_and_steps_run_one_at_a_time() -> None:
    rank = ready()
    assert rank.handle(Heard(Run(EPOCH, step(1)))) == [Expect(step(1)), Compute(step(1))]
    assert rank.handle(Heard(Run(EPOCH, step(2)))) == [Expect(step(2))]
    assert rank.handle(Heard(Relayed(EPOCH, assign(1)))) == [Apply(assign(1))]
    ran = Ran(EPOCH, PlanNumber(1), outcome(), WorkerCounters())
    assert rank.handle(stepped(1)) == [Say(ran), Compute(step(2))]


def test_log_probabilities_of_prompts_are_said_part_by_part_before_the_step_is() -> None:
    rank = ready()
    rank.handle(Heard(Run(EPOCH, step(1))))
    done = Stepped(step(1), replace(outcome(), scored=(SCORED, SCORED)), WorkerCounters())
    ran = Ran(EPOCH, PlanNumber(1), outcome(), WorkerCounters())
    assert rank.handle(done) == [Say(Scored(EPOCH, SCORED)), Say(Scored(EPOCH, SCORED)), Say(ran)]


def test_25_a_rank_meets_the_others_when_its_copies_have_ended() -> None:
    rank = ready()
    rank.handle(Heard(Relayed(EPOCH, offload(1))))
    rank.handle(Heard(Relayed(EPOCH, offload(2))))
    assert rank.handle(CopyEnded(EPOCH, CommandNumber(1))) == [Say(Copied(EPOCH, CommandNumber(1)))]
    assert rank.handle(Heard(NEXT)) == []
    assert rank.handle(CopyEnded(EPOCH, CommandNumber(2))) == [Meet(NEXT)]


def test_a_new_epoch_waits_for_the_step_under_way_drops_the_waiting_ones_and_says_nothing_of_them() -> None:
    rank = ready()
    rank.handle(Heard(Run(EPOCH, step(1))))
    rank.handle(Heard(Run(EPOCH, step(2))))
    assert rank.handle(Heard(NEXT)) == []
    assert rank.handle(stepped(1)) == [Meet(NEXT)]
    assert rank.handle(Heard(Run(EPOCH, step(3)))) == []


def test_a_step_that_fails_ends_the_epoch_here_and_its_leader_is_told_why() -> None:
    rank = ready()
    rank.handle(Heard(Run(EPOCH, step(1))))
    rank.handle(Heard(Run(EPOCH, step(2))))
    assert rank.handle(Broke(EPOCH, "rank 1 does not answer")) == [Say(Failed(EPOCH, "rank 1 does not answer"))]
    assert rank.handle(Heard(Run(EPOCH, step(3)))) == []
    assert rank.handle(Heard(NEXT)) == [Meet(NEXT)]


def test_a_meeting_that_fails_after_the_next_one_was_called_for_is_of_no_interest() -> None:
    rank = RankMachine()
    rank.handle(Heard(BEGIN))
    assert rank.handle(Heard(NEXT)) == []
    assert rank.handle(Broke(EPOCH, "nobody came")) == [Meet(NEXT)]


def test_without_its_leader_a_rank_forgets_its_steps_and_begins_anew_with_the_next_one() -> None:
    rank = ready()
    rank.handle(Heard(Run(EPOCH, step(1))))
    rank.handle(Heard(Run(EPOCH, step(2))))
    assert rank.handle(LeaderLost()) == []
    assert rank.handle(Heard(NEXT)) == []
    assert rank.handle(Broke(EPOCH, "a peer was lost")) == [Meet(NEXT)]


def test_a_command_before_the_rank_is_ready_is_a_bug_of_the_leader() -> None:
    rank = RankMachine()
    rank.handle(Heard(BEGIN))
    with pytest.raises(ProtocolError, match="before this rank was ready"):
        rank.handle(Heard(Relayed(EPOCH, assign(1))))
