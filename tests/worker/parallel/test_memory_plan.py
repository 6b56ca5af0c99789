"""What a layout needs of each rank's memory, and the smallest layout that has it."""

import json

import pytest
import torch

from services.domain.errors import InvalidFieldError
from services.worker.kv.pools import BlockShape, block_counts
from services.worker.model.config_json import parse_config
from services.worker.model.model_config import ModelConfig
from services.worker.model.parameter_counts import parameter_counts
from services.worker.parallel.layout import MOST_RANKS, Layout, StageCosts, possible_tp, split_layers
from services.worker.parallel.memory_plan import Memory, job_kv_bytes, layers_of_stages, plan_group, smallest_layout
from tests.builders.repository_paths import PUBLISHED_CONFIGS

GIB = 1 << 30


def published(name: str) -> ModelConfig:
    return parse_config(json.loads((PUBLISHED_CONFIGS / f"{name}.json").read_text()))


def memory(gpu_gib: int, length: int = 2048) -> Memory:
    return Memory(gpu_gib * GIB, value_bytes=2, block_size=16, length=length)


def test_a_job_of_opt_175b_has_the_papers_kv() -> None:
    assert job_kv_bytes(published("opt-175b"), 512, 2) == 4 * 96 * 12288 * 512
    assert round(job_kv_bytes(published("opt-175b"), 512, 2) / GIB + 1e-9, 1) == 2.3


def test_a_token_of_llama_3_8b_has_128_kib() -> None:
    assert job_kv_bytes(published("llama-3-8b"), 1, 2) == 128 * 1024


def test_stages_share_out_an_untied_model_and_its_kv() -> None:
    config = published("llama-3-70b")
    plan = plan_group(config, Layout(1, 4), memory(80, length=4096))
    assert sum(rank.weight_bytes for rank in plan.ranks) == 2 * parameter_counts(config).total
    assert sum(rank.job_kv_bytes for rank in plan.ranks) == job_kv_bytes(config, 4096, 2)
    assert [layer for rank in plan.ranks for layer in rank.layers] == list(range(80))
    assert len(plan.ranks[-1].layers) < len(plan.ranks[0].layers), "the last stage has the head besides"


def test_ranks_of_a_stage_share_out_what_is_cut_and_repeat_the_rest() -> None:
    config = published("llama-3-70b")
    (alone,) = plan_group(config, Layout(), memory(80)).ranks
    ranks = plan_group(config, Layout(8, 1), memory(80)).ranks
    repeated = config.vocabulary_size * config.hidden_size + (2 * config.layer_count + 1) * config.hidden_size
    assert sum(rank.weight_bytes for rank in ranks) == alone.weight_bytes + 7 * 2 * repeated
    assert {rank.block_bytes for rank in ranks} == {alone.block_bytes // 8}


def test_fewer_kv_heads_than_ranks_are_repeated() -> None:
    eight, sixteen = (plan_group(published("qwen3-32b"), Layout(tp, 1), memory(80)).ranks for tp in (8, 16))
    assert {rank.block_bytes for rank in sixteen} == {rank.block_bytes for rank in eight}


def test_a_group_has_as_many_blocks_as_its_poorest_rank_and_its_pools_take_them() -> None:
    config = published("opt-13b")
    plan = plan_group(config, Layout(2, 2), memory(24))
    poorest = min(plan.ranks, key=lambda rank: rank.block_count)
    assert plan.block_count == poorest.block_count < max(rank.block_count for rank in plan.ranks)
    shape = BlockShape(len(poorest.layers), 16, config.kv_head_count // 2, config.head_dim, torch.float16)
    free = 24 * GIB - poorest.weight_bytes
    cuda = torch.device("cuda")
    assert block_counts(shape, cuda, plan.block_count * 16, 16, free, GIB)[0] == plan.block_count
    with pytest.raises(InvalidFieldError, match="kv-device-tokens"):
        block_counts(shape, cuda, plan.block_count * 16 + 16, 16, free, GIB)


def test_a_layout_fits_if_one_job_of_the_length_does() -> None:
    config = published("llama-3-8b")
    fitting = plan_group(config, Layout(), memory(16, length=6816))
    assert (fitting.block_count, fitting.fits, fitting.job_count) == (426, True, 1)
    assert smallest_layout(config, memory(16, length=6816)) == Layout(1, 1)
    assert smallest_layout(config, memory(16, length=6817)) == Layout(2, 1)
    assert not plan_group(config, Layout(), memory(16, length=6817)).fits
    assert plan_group(config, Layout(), memory(8, length=1)).block_count == 0


@pytest.mark.parametrize(
    ("name", "gpu_gib"), [("opt-175b", 80), ("llama-3-70b", 24), ("opt-66b", 12), ("mistral-7b", 4), ("opt-13b", 80)]
)
def test_the_smallest_layout_is_the_first_that_fits(name: str, gpu_gib: int) -> None:
    config, small = published(name), memory(gpu_gib)
    found = smallest_layout(config, small)
    assert found is not None
    assert plan_group(config, found, small).fits
    for tp in (tp for tp in possible_tp(config) if tp <= 8):
        for pp in range(1, min(config.layer_count, MOST_RANKS // tp) + 1):
            if tp * pp < found.rank_count or (tp * pp == found.rank_count and tp > found.tp):
                assert not plan_group(config, Layout(tp, pp), small).fits


def test_there_may_be_no_layout_at_all() -> None:
    assert smallest_layout(published("opt-175b"), memory(1)) is None


@pytest.mark.parametrize("name", ["opt-13b", "llama-3-8b", "opt-350m"])
def test_stages_are_those_of_the_group_if_its_layers_cost_what_they_read(name: str) -> None:
    config = published(name)
    counts = parameter_counts(config)
    costs = StageCosts((float(counts.layer),) * config.layer_count, 0.0, float(counts.head))
    for pp in (1, 2, 3, 5, 8, 11, config.layer_count - 1, config.layer_count):
        assert layers_of_stages(config, pp) == split_layers(costs, pp)
