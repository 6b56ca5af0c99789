"""The intervals of a job are bounded by name; what is over is merged, and nothing of it is lost."""

from hypothesis import given
from hypothesis import strategies as st

from services.tracing.job_spans import JobSpans

LIMITS = {"a": 2, "b": 3}


def test_intervals_beyond_the_limit_become_part_of_the_last_one_of_their_name() -> None:
    spans = JobSpans(LIMITS)
    spans.add("a", 0.0, 1.0, {"tokens": 1}, {"level": 0})
    spans.add("a", 2.0, 3.0, {"tokens": 2}, {"level": 1})
    spans.add("b", 3.0, 4.0)
    spans.add("a", 5.0, 7.0, {"tokens": 4}, {"level": 2})
    first, last, other = spans.intervals
    assert (first.start_s, first.end_s, first.parts) == (0.0, 1.0, 1)
    assert (last.start_s, last.end_s, last.parts, last.active_s) == (2.0, 7.0, 2, 3.0)
    assert (last.amounts, last.labels) == ({"tokens": 6}, {"level": 1})
    assert other.name == "b"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5)), max_size=60))
def test_there_are_never_more_and_their_sums_are_those_of_all(drawn: list[tuple[str, int]]) -> None:
    spans = JobSpans(LIMITS)
    for number, (name, tokens) in enumerate(drawn):
        spans.add(name, float(number), number + 0.5, {"tokens": tokens})
    for name, most in LIMITS.items():
        mine = [one for one in spans.intervals if one.name == name]
        added = [tokens for one, tokens in drawn if one == name]
        assert len(mine) == min(most, len(added))
        assert sum(one.parts for one in mine) == len(added)
        assert sum(one.amounts["tokens"] for one in mine) == sum(added)
        assert sum(one.active_s for one in mine) == 0.5 * len(added)
    merged = {one.name: one for one in spans.merged()}
    assert len(merged) == len(spans.merged()) == len({name for name, _ in drawn})
    for name, one in merged.items():
        assert one.parts == len([drawn_name for drawn_name, _ in drawn if drawn_name == name])
        assert one.amounts["tokens"] == sum(tokens for drawn_name, tokens in drawn if drawn_name == name)
