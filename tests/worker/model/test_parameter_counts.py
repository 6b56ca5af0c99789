"""Counts of parameters equal those published, and those of the decoders that would be built."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from services.worker.model.config_json import parse_config
from services.worker.model.loader import empty_model
from services.worker.model.model_config import ModelConfig
from services.worker.model.parameter_counts import parameter_counts
from services.worker.parallel.layout import GroupRank, Layout, StageCosts, share_config, split_layers
from tests.builders.repository_paths import PUBLISHED_CONFIGS
from tests.worker.model.test_shares import MODELS

PUBLISHED = {
    "opt-350m": 331_196_416,
    "opt-13b": 12_853_473_280,
    "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_241_732_096,
}
"""As model cards and checkpoints have them; a tied head counts once. The names round them."""
LAYOUTS = [Layout(1, 1), Layout(2, 1), Layout(1, 2), Layout(2, 3), Layout(4, 1)]
WITH_ALL_SWITCHES: dict[str, Any] = {**MODELS["llama"], "model_type": "qwen3", "head_dim": 20, "mlp_bias": None}


def published(name: str) -> ModelConfig:
    return parse_config(json.loads((PUBLISHED_CONFIGS / f"{name}.json").read_text()))


def counted(config: ModelConfig) -> int:
    """What the decoder would ask a checkpoint for."""
    return sum(each.numel() for each in empty_model(config, 8, "meta", torch.float16).destinations().values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_published_counts(name: str) -> None:
    assert parameter_counts(published(name)).total == PUBLISHED[name]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", [*MODELS, "qwen3"])
def test_every_rank_of_a_layout_has_what_its_decoder_asks_for(kind: str, layout: Layout) -> None:
    config = parse_config(WITH_ALL_SWITCHES if kind == "qwen3" else MODELS[kind])
    stage_layers = split_layers(StageCosts((1.0,) * config.layer_count, 0, 0), layout.pp)
    for number in range(layout.rank_count):
        share = share_config(config, GroupRank(number, layout), stage_layers)
        assert parameter_counts(share).total == counted(share)


def test_the_head_is_what_is_read_for_logits_wherever_it_lies() -> None:
    tied = parse_config(MODELS["opt"])
    assert parameter_counts(tied).head == 97 * 48
    assert parameter_counts(replace(tied, head_rows=range(10, 20))).head == 10 * 48
    assert parameter_counts(replace(tied, last_stage=False)).head == 0
