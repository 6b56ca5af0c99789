"""The cost model passes through the measured points and stays plausible beyond them."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import InvalidFieldError
from services.experiments.named_profiles import find_profile, profile_names

PREFILL = (PrefillCost(16, 0.01), PrefillCost(128, 0.05), PrefillCost(512, 0.21))
DECODE = (DecodeCost(1, 16, 0.004), DecodeCost(1, 1024, 0.006), DecodeCost(16, 16, 0.008), DecodeCost(16, 1024, 0.016))
PROFILE = CostProfile(PREFILL, DECODE)


def test_a_measured_point_costs_what_was_measured() -> None:
    for prefill in PREFILL:
        assert PROFILE.prefill_s(prefill.tokens) == pytest.approx(prefill.seconds)
    for decode in DECODE:
        assert PROFILE.decode_s(decode.batch, decode.context_tokens) == pytest.approx(decode.seconds)


def test_between_two_points_the_cost_is_linear() -> None:
    assert PROFILE.prefill_s(320) == pytest.approx(0.13)
    assert PROFILE.decode_s(1, 520) == pytest.approx(0.005)


def test_beyond_the_last_point_the_last_slope_goes_on() -> None:
    assert PROFILE.prefill_s(896) == pytest.approx(0.37)
    assert PROFILE.decode_s(31, 16) == pytest.approx(0.012)


def test_before_the_first_point_its_cost_holds() -> None:
    assert PROFILE.prefill_s(1) == 0.01
    assert PROFILE.decode_s(1, 0) == 0.004


def test_a_single_point_costs_the_same_everywhere() -> None:
    flat = CostProfile((PrefillCost(16, 0.01),), (DecodeCost(1, 16, 0.004),))
    assert (flat.prefill_s(9999), flat.decode_s(64, 9999)) == (0.01, 0.004)


def test_a_falling_measurement_never_makes_a_cost_fall_below_its_last_point() -> None:
    noisy = CostProfile((PrefillCost(16, 0.02), PrefillCost(32, 0.01)), DECODE)
    assert noisy.prefill_s(10_000) == 0.01


def test_the_first_quantum_is_the_shortest_iteration_measured() -> None:
    assert PROFILE.smallest_iteration_s == 0.004


@given(st.integers(0, 100_000), st.integers(1, 512))
def test_every_iteration_costs_time(tokens: int, batch: int) -> None:
    assert PROFILE.prefill_s(tokens) > 0
    assert PROFILE.decode_s(batch, tokens) > 0


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ((), DECODE),
        (PREFILL, ()),
        ((PrefillCost(16, 0.0),), DECODE),
        ((PrefillCost(16, -1.0),), DECODE),
        ((PrefillCost(16, 0.1), PrefillCost(32, nan)), DECODE),
        (PREFILL, (DecodeCost(1, 16, inf),)),
        (PREFILL[::-1], DECODE),
        ((PREFILL[0], PREFILL[0]), DECODE),
        (PREFILL, DECODE[::-1]),
    ],
)
def test_a_profile_that_is_none_is_refused(prefill: tuple[PrefillCost, ...], decode: tuple[DecodeCost, ...]) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        CostProfile(prefill, decode)
    assert caught.value.field == "profile"


def test_an_iteration_of_one_kind_costs_what_was_measured() -> None:
    for prefill in PREFILL:
        assert PROFILE.iteration_s([(0, prefill.tokens)], 0, 0.0) == pytest.approx(prefill.seconds)
    for decode in DECODE:
        assert PROFILE.iteration_s([], decode.batch, decode.context_tokens) == pytest.approx(decode.seconds)


def test_a_mixed_iteration_costs_all_rows_as_one_prefill_and_the_kv_that_its_decodes_read() -> None:
    """Rows 128 + 16: 0.05 + 16 / 384 of 0.16. Sixteen decodes at 1,024 tokens of context cost 0.016, six milliseconds
    more than the 16 rows of a prefill.
    """
    rows_s = 0.05 + 0.16 * 16 / 384
    assert PROFILE.iteration_s([(0, 128)], 16, 1024) == pytest.approx(rows_s + 0.016 - 0.01)
    assert PROFILE.iteration_s([(0, 128)], 16, 16) == pytest.approx(rows_s)


def test_prefill_and_decode_of_one_iteration_read_the_weights_once() -> None:
    """Where more rows cost nothing, because reading the weights takes longer than computing with them."""
    flat = CostProfile((PrefillCost(256, 0.01),), DECODE)
    assert flat.iteration_s([(0, 128)], 16, 1024) == pytest.approx(0.01 + 0.016 - flat.smallest_iteration_s)


@pytest.mark.parametrize("name", profile_names())
@given(st.lists(st.integers(2, 2048), min_size=1, max_size=3), st.integers(1, 256), st.integers(1, 4096))
def test_on_every_profile_a_mixed_iteration_costs_no_less_than_its_parts_with_one_reading_of_the_weights(
    name: str, prompts: list[int], batch: int, context_tokens: int
) -> None:
    cost = find_profile(name).cost
    prefills = [(0, tokens) for tokens in prompts]
    parts_s = cost.iteration_s(prefills, 0, 0.0) + cost.decode_s(batch, context_tokens) - cost.smallest_iteration_s
    assert cost.iteration_s(prefills, batch, context_tokens) >= parts_s - 1e-12


def test_compute_that_prefills_and_decodes_do_not_share_makes_a_mixed_iteration_longer() -> None:
    """Llama-3-8B on an H100: 1,024 prompt tokens beside 256 decodes with 1,000 tokens of context."""
    cost = find_profile("llama-3-8b-h100").cost
    parts_s = cost.prefill_s(1024) + cost.decode_s(256, 1000) - cost.smallest_iteration_s
    assert cost.iteration_s([(0, 1024)], 256, 1000) > 1.1 * parts_s


def test_prompts_of_one_iteration_cost_no_more_than_alone_nor_than_one_prompt_of_their_length() -> None:
    """One prompt of 32 tokens is cheaper than two of 16, but one of 1024 costs more than two of 512: it has more
    context to attend to.
    """
    assert PROFILE.iteration_s([(0, 16), (0, 16)], 0, 0.0) == pytest.approx(PROFILE.prefill_s(32))
    bending = CostProfile((PrefillCost(1, 0.01), PrefillCost(512, 0.2), PrefillCost(1024, 0.9)), DECODE)
    assert bending.iteration_s([(0, 512), (0, 512)], 0, 0.0) == pytest.approx(0.4)


def test_a_chunk_costs_what_it_adds_and_at_least_what_a_prompt_of_its_length_does() -> None:
    bending = CostProfile((PrefillCost(1, 0.01), PrefillCost(512, 0.2), PrefillCost(1024, 0.9)), DECODE)
    assert bending.iteration_s([(512, 1024)], 0, 0.0) == pytest.approx(0.7)
    assert PROFILE.iteration_s([(112, 128)], 0, 0.0) == pytest.approx(0.01)


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(2, 2000)), max_size=4), st.integers(0, 64), st.floats(1, 4000)
)
def test_more_work_in_an_iteration_never_takes_less_time(
    chunks: list[tuple[int, int]], batch: int, context_tokens: float
) -> None:
    prefills = [(start, start + count) for start, count in chunks]
    if prefills or batch:
        whole_s = PROFILE.iteration_s(prefills, batch, context_tokens)
        assert whole_s > 0
        assert whole_s <= PROFILE.iteration_s([*prefills, (0, 64)], batch, context_tokens) + 1e-12
        assert whole_s <= PROFILE.iteration_s(prefills, batch + 1, context_tokens) + 1e-12
