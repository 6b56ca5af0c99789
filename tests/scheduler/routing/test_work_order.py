"""The order of a group's jobs, and its sums, against a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.scheduler.routing.work_order import MOST_IN_PART, RoutedJob, WorkOrder


def job(number: int, key: float, prompt_tokens: int = 3, rest_tokens: float = 5.0) -> RoutedJob:
    """A job with this key."""
    made = RoutedJob(JobId(f"j{number}"), number, prompt_tokens, 100, 0.0)
    made.rank, made.rest_tokens = Rank(0, key, number), rest_tokens
    return made


steps = st.lists(st.tuples(st.sampled_from("aaaarmt"), st.integers(0, 1000), st.integers(0, 9)), max_size=80)


@given(steps)
def test_order_and_sums_are_those_of_a_sorted_list(given_steps: list[tuple[str, int, int]]) -> None:
    order = WorkOrder(most_in_part=4)
    plain: list[RoutedJob] = []
    for number, (kind, at, key) in enumerate(given_steps):
        chosen = plain[at % len(plain)] if plain else None
        if kind == "a" or chosen is None:
            plain.append(job(number, float(key), prompt_tokens=1 + at))
            order.add(plain[-1])
        elif kind == "r":
            order.remove(chosen)
            plain.remove(chosen)
        elif kind == "m":
            order.move(chosen, Rank(0, float(key), chosen.arrival_number))
        else:
            order.made_token(chosen, chosen.rest_tokens / 2)
        order.check()
        plain.sort(key=lambda one: one.rank)
        assert list(order) == plain
        assert order.after(at % 5, 3) == plain[at % 5 : at % 5 + 3]
        rank = Rank(0, float(key), at)
        before = [one for one in plain if one.rank < rank]
        ahead = order.ahead_of(rank)
        assert (ahead.jobs, ahead.unstarted) == (len(before), sum(one.prefill_tokens > 0 for one in before))
        assert ahead.known_tokens == sum(one.known_tokens for one in before)
        assert abs(ahead.rest_tokens - sum(one.rest_tokens for one in before)) < 1e-6


def test_a_question_walks_one_part_however_many_jobs_there_are() -> None:
    order = WorkOrder()
    for number in range(10_000):
        order.add(job(number, float(number * 7919 % 10_000)))
    order.check()
    assert order.ahead_of(Rank(0, 5000.0, -1)).jobs == 5000
    assert max(len(part.jobs) for part in order._parts) <= MOST_IN_PART
    assert len(order._parts) <= 4 * 10_000 / MOST_IN_PART


def test_parts_that_shrink_are_joined() -> None:
    order = WorkOrder()
    jobs = [job(number, float(number)) for number in range(2000)]
    for one in jobs:
        order.add(one)
    for number, one in enumerate(jobs):
        if number % 50:
            order.remove(one)
    order.check()
    assert len(order._parts) <= 8
