"""Time and turns; a simulation without progress reports what each job is waiting for."""

from collections.abc import Sequence

import pytest

from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import Command, Event
from services.simulator.server_setup import SimulatedJob
from services.simulator.simulation import simulate
from services.simulator.time_spans import TimeSpan, overlap_s, total_s, union
from services.simulator.virtual_clock import StuckError, VirtualClock, VirtualInbox
from tests.simulator.simulated_servers import server


def test_everything_of_one_instant_is_one_turn_in_the_order_in_which_it_was_posted() -> None:
    clock = VirtualClock(100)
    turns: list[tuple[float, list[str]]] = []
    inbox = VirtualInbox(clock, lambda events: turns.append((clock.now_s, events)))
    for at_s, events in ((2.0, ["d"]), (1.0, ["a", "b"]), (1.0, ["c"])):
        clock.post(at_s, inbox.put, events)
    clock.run()
    assert turns == [(1.0, ["a", "b", "c"]), (2.0, ["d"])]


def test_what_is_said_without_delay_is_heard_in_a_later_turn_of_the_same_instant() -> None:
    clock = VirtualClock(100)
    turns: list[str] = []
    second = VirtualInbox(clock, lambda events: turns.append(f"second {events}"))

    def first_turn(events: list[str]) -> None:
        turns.append(f"first {events}")
        clock.post(clock.now_s, second.put, ["from first"])

    first = VirtualInbox(clock, first_turn)
    clock.post(1.0, first.put, ["x"])
    clock.post(1.0, second.put, ["y"])
    clock.run()
    assert turns == ["first ['x']", "second ['y']", "second ['from first']"]
    assert clock.now_s == 1.0


def test_turns_without_progress_end_the_simulation() -> None:
    clock = VirtualClock(50)
    inbox = VirtualInbox(clock, lambda events: clock.post(clock.now_s + 1.0, inbox.put, events))
    inbox.put(["for ever"])
    with pytest.raises(StuckError, match="51 turns"):
        clock.run()


def test_a_deadlock_tells_who_waits_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KV manager that decides but sends nothing."""
    decide = KvManager.handle

    def say_nothing(manager: KvManager, events: Sequence[Event], now_s: float) -> list[Command]:
        decide(manager, events, now_s)
        return []

    monkeypatch.setattr(KvManager, "handle", say_nothing)
    with pytest.raises(StuckError) as caught:
        simulate(server(), [SimulatedJob("a", 0.0, 5, 7), SimulatedJob("b", 1.5, 5, 7)])
    story = str(caught.value)
    assert "no events are left, but 2 jobs have not ended (at 1.5 s)" in story
    assert "plans without a result []" in story
    assert "a: out at" in story
    assert "KV manager: KvState.ASSIGNING" in story


def test_the_union_of_spans_is_apart_and_overlaps_are_counted_once() -> None:
    spans = union([TimeSpan(4.0, 5.0), TimeSpan(0.0, 2.0), TimeSpan(1.0, 3.0), TimeSpan(5.0, 6.0)])
    assert spans == [TimeSpan(0.0, 3.0), TimeSpan(4.0, 6.0)]
    assert total_s(spans) == 5.0
    assert overlap_s(spans, [TimeSpan(2.5, 4.5), TimeSpan(5.5, 9.0)]) == 1.5
    assert overlap_s([TimeSpan(2.5, 4.5), TimeSpan(5.5, 9.0)], spans) == 1.5
    assert overlap_s([], spans) == 0.0
