"""Creating many NamedTuples at once."""

from services.domain.ids import JobId
from services.domain.protocol import PlanEntry
from services.domain.records import records


def test_they_are_what_calling_their_class_gives() -> None:
    made = records(PlanEntry, [("a", 0, 5), ("b", 7, 8)])
    assert made == [PlanEntry(JobId("a"), 0, 5), PlanEntry(JobId("b"), 7, 8)]
    assert [type(entry) for entry in made] == [PlanEntry, PlanEntry]
    assert made[1].from_token == 7


def test_one_kind_can_be_made_of_another_with_the_same_fields() -> None:
    entries = records(PlanEntry, [("a", 0, 5)])
    assert records(PlanEntry, entries) == entries
