"""A forward pass as the engine sees it: which rows answer, how it ends early, how decodes are grouped."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from services.worker.kernels.attention_cpu import GROUP_COST_POSITIONS
from services.worker.model.attention import bounded_cuts, group_cuts
from services.worker.model.batch import BatchLayout, SequenceRows
from services.worker.model.prefill_cut import PrefillCut
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.model.reference_models import (
    Pool,
    native_of,
    native_pair,
    ours_of,
    plain_pair,
    reference_model,
    tokens,
)


@pytest.fixture(params=[plain_pair, native_pair], ids=["torch", "native"])
def model(request: pytest.FixtureRequest) -> ServedDecoder:
    _, model = request.param()
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", [ours_of, native_of])
def test_a_batch_in_which_nothing_samples_has_no_logits(
    way: Callable[[Any, torch.dtype], ServedDecoder], dtype: torch.dtype
) -> None:
    model = way(reference_model("llama"), dtype)
    pool = Pool(model)
    found = pool.run(model, [SequenceRows(0, 8, pool.blocks(8), samples=False)], [tokens(8)])
    assert found.shape == (0, 97)


def test_a_pass_that_may_not_go_on_raises_between_layers(model: ServedDecoder) -> None:
    pool = Pool(model)
    layout = BatchLayout.of([SequenceRows(0, 8, pool.blocks(8))], pool.block_size)
    answers = iter([True, False])
    with pytest.raises(PrefillCut):
        model(tokens(8), pool.cache, layout, lambda: next(answers))
    assert next(answers, None) is None
    assert pool.cache.pool[:, 0].abs().sum() > 0
    assert pool.cache.pool[:, 1].abs().sum() == 0


def test_a_pass_that_may_go_on_is_asked_once_a_layer(model: ServedDecoder) -> None:
    pool = Pool(model)
    answers = iter([True] * 100)
    layout = BatchLayout.of([SequenceRows(0, 8, pool.blocks(8))], pool.block_size)
    model(tokens(8), pool.cache, layout, lambda: next(answers))
    assert len(list(answers)) == 100 - model.config.layer_count


def test_a_pass_writes_only_its_own_positions(model: ServedDecoder) -> None:
    pool = Pool(model, block_size=4)
    pool.cache.pool.fill_(3.0)
    pool.run(model, [SequenceRows(0, 6, [5, 2])], [tokens(6)])
    untouched = torch.ones(pool.cache.pool.shape[0], 4, dtype=torch.bool)
    untouched[5] = False
    untouched[2, :2] = False
    assert (pool.cache.pool.permute(0, 3, 1, 2, 4, 5)[untouched] == 3.0).all()


def test_sequences_of_one_row_must_come_first() -> None:
    with pytest.raises(AssertionError, match="one row come first"):
        BatchLayout.of([SequenceRows(0, 2, [0]), SequenceRows(3, 4, [1])], 4)


def test_decodes_of_like_length_are_one_group() -> None:
    assert group_cuts([100, 99, 90, 80], GROUP_COST_POSITIONS) == [4]
    assert group_cuts([7], GROUP_COST_POSITIONS) == [1]
    assert group_cuts([], GROUP_COST_POSITIONS) == []


def test_a_long_decode_among_many_short_ones_gets_a_group_of_its_own() -> None:
    assert group_cuts([2000] + [20] * 15, GROUP_COST_POSITIONS) == [1, 16]


def test_lengths_fall_into_groups_only_where_that_saves_more_than_a_group_costs() -> None:
    lengths = [3000, 3000, 1500, 1500, 100, 100]
    assert group_cuts(lengths, GROUP_COST_POSITIONS) == [2, 4, 6]
    barely = [100 + GROUP_COST_POSITIONS // 2, 100, 100]
    assert group_cuts(barely, GROUP_COST_POSITIONS) == [3]


def test_a_group_holds_no_more_positions_than_it_may_and_one_too_long_is_alone() -> None:
    assert bounded_cuts([100, 99, 90, 80], 1000, 400) == [4]
    assert bounded_cuts([100, 99, 90, 80], 1000, 399) == [3, 4]
    assert bounded_cuts([100, 99, 60, 60, 60, 60], 1000, 200) == [2, 5, 6]
    assert bounded_cuts([500, 20, 20], 10_000, 100) == [1, 3]
    assert bounded_cuts([], 10, 10) == []
