"""Everything that is recorded reads back unchanged; what must not be recorded is left out."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.errors import RecordingError
from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Arrive,
    ArrivedJob,
    IterationResult,
    PlanEntry,
    Planned,
    Release,
    ReleaseBlocks,
    Resident,
    SampledToken,
)
from services.kvmanager.kv_manager_recording import KV_MANAGER_FORMAT
from services.kvmanager.machine.kv_manager_events import FromScheduler, ToWorker
from services.runtime.recording.codec import Aliases, Codec
from services.runtime.recording.lines import MachineFormat
from services.scheduler.machine.scheduler_events import DropWorker, Emit, FromKv, Submit, ToKv
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from tests.runtime.recording.drawn_values import values

MACHINES = (SCHEDULER_FORMAT, KV_MANAGER_FORMAT)


def types_of(machine: MachineFormat) -> dict[str, type]:
    """Every type that a recording of the machine can hold."""
    hints = (machine.settings, machine.event, machine.command)
    return {name: kind for hint in hints for name, kind in Codec(hint, machine.rules).types.items()}


EVERY_TYPE = [
    pytest.param(machine, kind, id=f"{machine.name}-{name}")
    for machine in MACHINES
    for name, kind in types_of(machine).items()
]


@pytest.mark.parametrize(("machine", "kind"), EVERY_TYPE)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_every_value_of_every_message_reads_back_as_it_was(
    machine: MachineFormat, kind: type, data: st.DataObject
) -> None:
    value = data.draw(values(kind, machine))
    codec = Codec(kind, machine.rules)
    read = codec.decode(json.loads(json.dumps(codec.encode(value))))
    assert read == value
    assert type(read) is kind


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_event_and_command_reads_back_as_it_was(machine: MachineFormat, data: st.DataObject) -> None:
    for hint in (machine.event, machine.command):
        value = data.draw(values(hint, machine))
        codec = Codec(hint, machine.rules)
        assert codec.decode(json.loads(json.dumps(codec.encode(value)))) == value


def test_a_message_is_its_name_and_its_fields() -> None:
    planned = Planned(PlanNumber(3), (PlanEntry(JobId("a"), 0, 17), PlanEntry(JobId("b"), 9, 10)))
    encode = Codec(SCHEDULER_FORMAT.command, SCHEDULER_FORMAT.rules).encode
    assert json.dumps(encode(ToKv(Epoch(7), planned))) == '["ToKv", 7, ["Planned", 3, [["a", 0, 17], ["b", 9, 10]]]]'


def test_jobs_are_named_by_aliases_that_stay_the_same_until_the_job_is_released() -> None:
    aliases = Aliases()
    event = Codec(SCHEDULER_FORMAT.event, SCHEDULER_FORMAT.rules, aliases).encode
    command = Codec(SCHEDULER_FORMAT.command, SCHEDULER_FORMAT.rules, aliases).encode
    alice, bob = JobId("alice@example.org/0"), JobId("bob/0")

    assert event(Submit(alice, 1, 2)) == ["Submit", "j0", 1, 2, None, 0, None, False, None]
    assert event(Submit(bob, 3, 4)) == ["Submit", "j1", 3, 4, None, 0, None, False, None]
    assert event(FromKv(Epoch(1), Resident(alice, 16, 0, 3))) == ["FromKv", 1, ["Resident", "j0", 16, 0, 3]]
    assert command(ToKv(Epoch(1), Release(alice))) == ["ToKv", 1, ["Release", "j0"]]
    aliases.end_turn()

    assert len(aliases) == 1
    assert event(Submit(bob, 3, 4))[1] == "j1"
    assert event(Submit(alice, 1, 2))[1] == "j2"


def test_a_job_that_begins_in_the_turn_in_which_one_of_its_id_was_released_keeps_the_alias() -> None:
    aliases = Aliases()
    event = Codec(KV_MANAGER_FORMAT.event, KV_MANAGER_FORMAT.rules, aliases).encode
    command = Codec(KV_MANAGER_FORMAT.command, KV_MANAGER_FORMAT.rules, aliases).encode
    alice = JobId("alice/0")
    arrive = FromScheduler(Epoch(1), Arrive(ArrivedJob(alice, 1, 2, 0)))
    release = FromScheduler(Epoch(1), Release(alice))

    event(arrive)
    aliases.end_turn()
    event(release)
    event(arrive)
    assert command(ToWorker(Epoch(1), ReleaseBlocks(CommandNumber(1), alice)))[-1][-1] == "j0"
    aliases.end_turn()
    assert event(arrive)[-1][-1][0] == "j0"

    event(release)
    aliases.end_turn()
    assert len(aliases) == 0


def test_token_ids_and_words_about_jobs_are_left_out() -> None:
    event = Codec(SCHEDULER_FORMAT.event, SCHEDULER_FORMAT.rules).encode
    command = Codec(SCHEDULER_FORMAT.command, SCHEDULER_FORMAT.rules).encode
    result = IterationResult(Epoch(1), PlanNumber(2), (SampledToken(JobId("a"), 1234, True),), (), 0.5)
    assert event(result) == ["IterationResult", 1, 2, [["a", 0, True]], [], 0.5]
    assert command(Emit(JobId("a"), PlanNumber(2), 5, 1234)) == ["Emit", "a", 2, 5, 0]
    assert command(DropWorker(Epoch(1), "job alice/0 was planned twice")) == ["DropWorker", 1, ""]


def test_no_other_message_holds_free_text_or_a_token() -> None:
    """A new field with text or tokens needs a decision: it is left out, or named here with a reason."""
    harmless = {
        # The name of the offending field.
        ("Reject", "field"),
        # The KV policy's name.
        ("OnDemand", "name"),
        ("Defer", "name"),
        ("Proactive", "name"),
    }
    found = set()
    for machine in MACHINES:
        for kind in types_of(machine).values():
            for name, hint in Codec(kind, machine.rules).field_types(kind).items():
                is_open = hint is str or "token_id" in name
                if is_open and (kind, name) not in machine.rules.left_out:
                    found.add((kind.__name__, name))
    assert found == harmless


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["Nothing"], "is not one of Submit, Withdraw, Hold, TakeIn, Cancel"),
        ([], "is not one of"),
        ("Submit", "is not a list"),
        (["Submit", "a", 1], "is not a list of 8"),
        (["Submit", "a", 1.5, 2, None, 0, None, False, None], "1.5 is not of type int"),
        (["Submit", "a", True, 2, None, 0, None, False, None], "True is not of type int"),
        (["Submit", 1, 1, 2, None, 0, None, False, None], "1 is not of type str"),
        (["Submit", "a", 1, 2, None, "alice", None, False, None], "'alice' is not of type int"),
        (["Cancel", "a", "bored"], "'bored' is not a valid EndReason"),
        (["FromKv", 1, ["Assign", 1, "a", []]], "is not one of Resident, Grown, ReclaimRequest"),
        (["FromKv", 1, None], "None is not a list"),
    ],
)
def test_what_is_no_message_of_the_machine_is_refused(written: Any, said: str) -> None:
    with pytest.raises(RecordingError, match=said):
        Codec(SCHEDULER_FORMAT.event, SCHEDULER_FORMAT.rules).decode(written)
