"""A worker of several ranks through all interleavings: the real machines of leader and ranks between the real
scheduler and KV manager. And each of the rules 24 to 26 broken on purpose: the explorer finds what it is there for.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.domain.ids import CommandNumber
from services.domain.protocol import Done, KvToWorker
from services.worker.group import rank_machine
from services.worker.group.leader_machine import Acknowledge, Action, Hello, LeaderMachine, Phase
from services.worker.group.rank_machine import RankMachine
from services.worker.step import OutputLedger
from tests.protocol.explorer import CounterexampleError, explore
from tests.protocol.instance import Instance, JobSize

MOST_STATES = 60_000
Patch = Callable[[pytest.MonkeyPatch], None]

SHORT = Instance((JobSize(1, 2), JobSize(1, 2)), 2, 2, kv_policy="reactive", plans_in_flight=3)
"""Two jobs whose KV does not fit at the same time, and the smallest possible number of blocks."""

INSTANCES = {
    "two stages, a cancel at any time": replace(SHORT, stages=2, cancels=frozenset({0})),
    "two ranks of a stage, a cancel and an early end": replace(
        SHORT, ranks_per_stage=2, cancels=frozenset({1}), early_ends=frozenset({0})
    ),
    "two stages, one rank dies": replace(SHORT, stages=2, kills=1),
    "two ranks of a stage, one dies": replace(SHORT, ranks_per_stage=2, kills=1),
    "two ranks of a stage, scheduler and KV manager lose each other": replace(SHORT, ranks_per_stage=2, breaks=1),
    "three stages": replace(SHORT, stages=3),
}


@pytest.mark.parametrize("name", INSTANCES)
def test_every_interleaving_is_safe_and_ends_with_all_jobs_ended_and_all_blocks_free(name: str) -> None:
    assert explore(INSTANCES[name], most_states=MOST_STATES).ends > 0


def relay_late(patch: pytest.MonkeyPatch) -> None:
    """[24 relay-order] a rank hears a command after the plans that the leader took after it."""
    taken, started = LeaderMachine._command_taken, LeaderMachine._start
    held: list[Action] = []

    def command_taken(self: LeaderMachine, command: KvToWorker) -> list[Action]:
        actions = taken(self, command)
        held.extend(actions[:1])
        return actions[1:]

    def start(self: LeaderMachine) -> list[Action]:
        actions = started(self) + held
        held.clear()
        return actions

    patch.setattr(LeaderMachine, "_command_taken", command_taken)
    patch.setattr(LeaderMachine, "_start", start)


def done_of_the_first_rank(patch: pytest.MonkeyPatch) -> None:
    """[25 all-ranks-done] the first rank's copy counts for all."""

    def copied(self: LeaderMachine, rank: int, command_number: CommandNumber) -> list[Action]:
        known = self._copying.pop(command_number, None)
        return [] if known is None else [Acknowledge(Done(command_number))]

    patch.setattr(LeaderMachine, "_copied", copied)


def decide_before_the_tokens(patch: pytest.MonkeyPatch) -> None:
    """[25] a plan becomes a step before the tokens that it goes on from are back."""
    patch.setattr(OutputLedger, "waits", lambda self, plan: False)


def begin_beside_old_copies(patch: pytest.MonkeyPatch) -> None:
    """[25 report-after-all-ranks] a rank is ready while a copy of the last epoch still runs."""
    original = RankMachine._go_on

    def go_on(self: RankMachine) -> list[rank_machine.Action]:
        self._copies.clear()
        return original(self)

    patch.setattr(RankMachine, "_go_on", go_on)


def hello_at_once(patch: pytest.MonkeyPatch) -> None:
    """[26 epoch-after-rendezvous] the leader joins its peers when it has told the ranks to begin."""
    original = LeaderMachine._form

    def form(self: LeaderMachine) -> list[Action]:
        actions = original(self)
        if not actions or self._epoch == 1:
            return actions
        self._phase = Phase.WORKING
        return [*actions, Hello(self._epoch)]

    patch.setattr(LeaderMachine, "_form", form)


def go_on_without_a_rank(patch: pytest.MonkeyPatch) -> None:
    """[26] the death of a rank ends the epoch of that rank only."""
    patch.setattr(LeaderMachine, "_end", lambda self, reason: [])


BROKEN: dict[Patch, Instance] = {
    relay_late: SHORT,
    done_of_the_first_rank: SHORT,
    decide_before_the_tokens: SHORT,
    begin_beside_old_copies: replace(SHORT, kills=1),
    hello_at_once: replace(SHORT, kills=1),
    go_on_without_a_rank: replace(SHORT, kills=1),
}


@pytest.mark.parametrize("break_rule", BROKEN, ids=lambda patch: patch.__name__)
@pytest.mark.parametrize("layout", [(2, 1), (1, 2)], ids=["two stages", "two ranks of a stage"])
def test_a_broken_rule_of_groups_has_a_counterexample(
    break_rule: Patch, layout: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, ranks_per_stage = layout
    break_rule(monkeypatch)
    with pytest.raises(CounterexampleError) as found:
        explore(replace(BROKEN[break_rule], stages=stages, ranks_per_stage=ranks_per_stage), MOST_STATES)
    print(found.value)
