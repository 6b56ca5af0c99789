"""What a key may use: a minute's worth at once, then evenly; what is refused takes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.errors import AdmissionFullError
from services.gateway.access.rate_limits import KeyLimits, KeyMeter, RateBucket


def wait_s(meter: KeyMeter, now_s: float, tokens: int = 0) -> float:
    """How long a request that is refused must wait; it must be refused."""

    def begin() -> None:
        meter.begin(now_s)
        meter.reserve(tokens, now_s)

    with pytest.raises(AdmissionFullError) as refused:
        begin()
    return refused.value.retry_after_s


def test_a_minutes_worth_of_requests_may_come_at_once_and_then_one_each_share_of_a_minute() -> None:
    meter = KeyMeter("alice", KeyLimits(requests_per_minute=4), 100.0)
    for _ in range(4):
        meter.begin(100.0)
    assert wait_s(meter, 100.0) == pytest.approx(15.0)
    assert wait_s(meter, 110.0) == pytest.approx(5.0)
    meter.begin(115.0)
    assert wait_s(meter, 115.0) == pytest.approx(15.0)


def test_a_quiet_key_gathers_no_more_than_a_minutes_worth() -> None:
    meter = KeyMeter("alice", KeyLimits(requests_per_minute=2), 0.0)
    for _ in range(2):
        meter.begin(3600.0)
    assert wait_s(meter, 3600.0) == pytest.approx(30.0)


def test_the_refusal_names_key_and_limit() -> None:
    meter = KeyMeter("alice", KeyLimits(requests_per_minute=1), 0.0)
    meter.begin(0.0)
    with pytest.raises(AdmissionFullError, match="'alice' has reached its limit of 1 requests per minute"):
        meter.begin(0.0)


def test_open_requests_are_bounded_and_an_end_makes_room() -> None:
    meter = KeyMeter("alice", KeyLimits(max_concurrent=2), 0.0)
    meter.begin(0.0)
    meter.begin(0.0)
    with pytest.raises(AdmissionFullError, match="2 requests at a time"):
        meter.begin(0.0)
    meter.end(0, 0, 0.0)
    meter.begin(0.0)


def test_tokens_are_reserved_at_the_beginning_and_what_was_not_used_comes_back() -> None:
    meter = KeyMeter("alice", KeyLimits(tokens_per_minute=600), 0.0)
    meter.begin(0.0)
    assert meter.reserve(400, 0.0) == 400
    assert wait_s(meter, 0.0, tokens=300) == pytest.approx(10.0)
    meter.end(400, 100, 0.0)
    meter.begin(0.0)
    assert meter.reserve(500, 0.0) == 500


def test_a_request_of_more_than_a_minutes_worth_needs_a_full_bucket_and_owes_the_rest() -> None:
    meter = KeyMeter("alice", KeyLimits(tokens_per_minute=600), 0.0)
    meter.begin(0.0)
    assert meter.reserve(10_000, 0.0) == 600
    meter.end(600, 900, 0.0)
    assert wait_s(meter, 0.0, tokens=1) == pytest.approx(30.1)


def test_a_request_refused_for_its_tokens_does_not_count_as_a_request() -> None:
    meter = KeyMeter("alice", KeyLimits(requests_per_minute=2, tokens_per_minute=60), 0.0)
    meter.begin(0.0)
    meter.reserve(60, 0.0)
    for _ in range(5):
        assert wait_s(meter, 0.0, tokens=30) == pytest.approx(30.0)


def test_other_limits_hold_at_once_and_do_not_fill_what_was_used() -> None:
    meter = KeyMeter("alice", KeyLimits(requests_per_minute=2), 0.0)
    meter.begin(0.0)
    meter.begin(0.0)
    meter.set_limits(KeyLimits(requests_per_minute=60), 0.0)
    assert wait_s(meter, 0.0) == pytest.approx(1.0)
    meter.set_limits(KeyLimits(), 0.0)
    meter.begin(0.0)


@given(
    per_minute=st.integers(1, 10_000_000),
    steps=st.lists(st.tuples(st.integers(1, 100_000), st.floats(0, 100)), max_size=30),
)
def test_who_waits_as_long_as_told_gets_through_and_the_rate_is_kept(
    per_minute: int, steps: list[tuple[int, float]]
) -> None:
    now_s, taken = 50.0, 0
    bucket = RateBucket(per_minute, now_s)
    for amount, pause_s in steps:
        now_s += pause_s
        told_s = bucket.wait_s(amount, now_s)
        now_s += int(told_s * 1e9) / 1e9  # as it travels in RetryInfo
        assert bucket.wait_s(amount, now_s) == 0
        took = min(amount, per_minute)
        bucket.take(took)
        taken += took
        assert taken <= per_minute * (1 + (now_s - 50.0) / 60) + 0.01 * len(steps)
