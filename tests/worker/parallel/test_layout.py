"""Which layouts a model can have, what each rank has of it, and where its layers are cut into stages."""

from dataclasses import replace

import pytest

from services.domain.errors import InvalidFieldError
from services.worker.model.config_json import parse_config
from services.worker.model.model_config import ModelConfig
from services.worker.parallel.layout import (
    GroupRank,
    Layout,
    StageCosts,
    check_layout,
    estimated_stage_costs,
    even_cut,
    share_at,
    share_config,
    split_layers,
)


def model(heads: int = 12, kv_heads: int = 4, layers: int = 5, **fields: object) -> ModelConfig:
    return parse_config(
        {
            "model_type": "llama",
            "hidden_size": heads * 8,
            "intermediate_size": 100,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": 97,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("layout", "field", "why", "nearest"),
    [
        (Layout(tp=5), "--tp", "12 attention heads can't be shared out evenly among 5 ranks", "--tp 4 --pp 1"),
        (Layout(tp=24, pp=2), "--tp", "12 attention heads", "--tp 12 --pp 2"),
        (Layout(tp=6), "--tp", "4 kv heads can be neither shared out evenly among 6 ranks", "--tp 4 --pp 1"),
        (Layout(tp=2, pp=6), "--pp", "6 stages need a layer each; the model has 5", "--tp 2 --pp 5"),
        (Layout(tp=5, pp=9), "--tp", "12 attention heads", "--tp 4 --pp 5"),
    ],
)
def test_what_can_not_be_is_refused_with_the_reason_and_the_nearest_that_can(
    layout: Layout, field: str, why: str, nearest: str
) -> None:
    with pytest.raises(InvalidFieldError, match=why) as refusal:
        check_layout(model(), layout)
    assert refusal.value.field == field
    assert str(refusal.value).endswith(f"the nearest layout that can be is {nearest}")


@pytest.mark.parametrize("tp", [1, 2, 4, 12])
@pytest.mark.parametrize("pp", [1, 3, 5])
def test_the_nearest_layout_can_be(tp: int, pp: int) -> None:
    check_layout(model(), Layout(tp, pp))


@pytest.mark.parametrize("layout", [Layout(1, 1), Layout(2, 3), Layout(4, 2), Layout(12, 1)])
def test_the_ranks_of_a_stage_have_every_head_and_every_width_once(layout: Layout) -> None:
    config = model()
    shares = [share_at(config, layout.tp, place) for place in range(layout.tp)]
    assert [head for share in shares for head in share.heads] == list(range(12))
    assert [row for share in shares for row in share.intermediate] == list(range(100))
    assert [token for share in shares for token in share.vocabulary] == list(range(97))
    for share in shares:
        assert {head * 4 // 12 for head in share.heads} == set(share.kv_heads)


def test_fewer_kv_heads_than_ranks_are_copied_to_those_whose_query_heads_read_them() -> None:
    shares = [share_at(model(heads=8, kv_heads=2), 8, place) for place in range(8)]
    assert [share.kv_heads for share in shares] == [range(1)] * 4 + [range(1, 2)] * 4


def test_a_ranks_model_is_described_by_the_config_of_its_share() -> None:
    config = model(attention_bias=True)
    layout = Layout(tp=2, pp=2)
    stages = (range(3), range(3, 5))
    configs = [share_config(config, GroupRank(number, layout), stages) for number in range(4)]
    sizes = {(each.head_count, each.kv_head_count, each.intermediate_size) for each in configs}
    assert sizes == {(6, 2, 50)}
    assert [(each.first_layer, each.layer_count, len(each.windows)) for each in configs] == [(0, 3, 3)] * 2 + [
        (3, 2, 2)
    ] * 2
    assert [each.first_stage for each in configs] == [True, True, False, False]
    assert [each.last_stage for each in configs] == [False, False, True, True]
    assert [each.head_rows for each in configs] == [None, None, range(49), range(49, 97)]
    assert [each.adds_output_biases for each in configs] == [True, False, True, False]
    assert share_config(config, GroupRank(0, Layout()), (range(5),)) == config


def test_windows_stay_with_their_layers() -> None:
    config = replace(model(), windows=(None, 8, None, 8, 16))
    assert share_config(config, GroupRank(1, Layout(pp=2)), (range(1), range(1, 5))).windows == (8, None, 8, 16)


def test_ranks_are_numbered_stage_by_stage_and_the_first_of_the_last_stage_samples() -> None:
    layout = Layout(tp=2, pp=3)
    ranks = [GroupRank(number, layout) for number in range(6)]
    assert [(rank.stage, rank.place) for rank in ranks] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [rank.number for rank in ranks if rank.samples] == [4]
    assert (ranks[3].before, ranks[3].after) == (1, 5)
    with pytest.raises(InvalidFieldError, match=r"--rank: must be from 0 to 5 with --tp 2 --pp 3, not 6"):
        GroupRank(6, layout)


def test_an_even_cut_differs_by_one_at_most() -> None:
    assert [even_cut(10, 4, number) for number in range(4)] == [range(3), range(3, 6), range(6, 8), range(8, 10)]


def test_stages_count_the_embedding_and_the_head() -> None:
    assert split_layers(StageCosts((1.0,) * 8, 0.0, 0.0), 2) == (range(4), range(4, 8))
    assert split_layers(StageCosts((1.0,) * 8, 0.0, 4.0), 2) == (range(6), range(6, 8))
    assert split_layers(StageCosts((1.0,) * 8, 3.0, 3.0), 3) == (range(2), range(2, 7), range(7, 8))
    assert split_layers(StageCosts((1.0,) * 3, 0.0, 9.0), 3) == (range(1), range(1, 2), range(2, 3))


def test_of_equally_fast_splits_the_most_even_one_is_taken() -> None:
    assert split_layers(StageCosts((1.0,) * 7, 0.0, 0.0), 3) == (range(3), range(3, 5), range(5, 7))
    assert split_layers(StageCosts((1.0,) * 6, 0.0, 5.0), 3) == (range(3), range(3, 5), range(5, 6))


def test_costly_layers_count_for_what_they_cost() -> None:
    assert split_layers(StageCosts((4.0, 1.0, 1.0, 1.0, 1.0), 0.0, 0.0), 2) == (range(1), range(1, 5))


def test_without_measured_costs_layers_and_head_count_by_their_weights() -> None:
    costs = estimated_stage_costs(model(heads=12, kv_heads=4, layers=5))
    layer = 96 * (2 * 96 + 2 * 32) + 3 * 96 * 100 + 2 * 96
    assert costs == StageCosts((float(layer),) * 5, 0.0, float(96 * 97))
