"""A decoder built from the config of a share computes its share: some layers, some heads, some logits.

The weights of a share are taken from the whole model's memory, so that nothing but the decoder is tested.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.kernels.kernel_choice import with_kernels
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.config_json import parse_config
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import empty_model
from services.worker.model.model_config import ModelConfig
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.model.reference_models import tokens

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "attention_bias": True,
    "mlp_bias": True,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}
NARROW_OPT = {**OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False}
MODELS = {
    "llama": LLAMA,
    "llama, tied, windows": {**LLAMA, "model_type": "mistral", "sliding_window": 5, "tie_word_embeddings": True},
    "opt": OPT,
    "opt, untied": {**OPT, "tie_word_embeddings": False},
    "opt, as the 350m model": NARROW_OPT,
}


def random_model(config: ModelConfig) -> DecoderModel:
    """Every weight matters; none is packed."""
    model = empty_model(config, 64, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(3)
    for name, tensor in model.destinations().items():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.dim() > 1 else 0.5))
        if "norm" in name:
            tensor.add_(1.0)
    return model


@cache
def whole(kind: str) -> DecoderModel:
    return random_model(parse_config(MODELS[kind]))


KERNELS = pytest.mark.parametrize("natively", [False, True], ids=["torch", "native"])


def plain_share_of(model: DecoderModel, config: ModelConfig) -> DecoderModel:
    """The part of `model` that `config` describes: some of its layers, and some rows of its head."""
    share = empty_model(config, 64, "cpu", torch.float32)
    weights = model.destinations()
    rows = config.head_rows or range(config.vocabulary_size)
    for name, tensor in share.destinations().items():
        is_cut = tensor.shape != weights[name].shape
        tensor.copy_(weights[name][rows.start : rows.stop] if is_cut else weights[name])
    return share


def share_of(model: DecoderModel, config: ModelConfig, natively: bool = False) -> ServedDecoder:
    """The same, ready to compute."""
    return with_kernels(plain_share_of(model, config), natively)


def layers(config: ModelConfig, first: int, stop: int) -> ModelConfig:
    return replace(
        config,
        first_layer=first,
        layer_count=stop - first,
        windows=config.windows[first:stop],
        last_stage=stop == config.layer_count,
    )


def outputs(stages: Sequence[ServedDecoder]) -> list[Tensor]:
    """Logits of a prefill, then of a mixed batch, through models that pass hidden states on."""
    configs = [stage.config for stage in stages]
    pools = [PagedKv(torch.zeros(12, each.layer_count, 2, 4, each.kv_head_count, each.head_dim)) for each in configs]
    text, other = tokens(20), tokens(9, seed=1)
    found = []
    batches: list[tuple[list[SequenceRows], Tensor]] = [
        ([SequenceRows(0, 11, [3, 1, 7])], text[:11]),
        ([SequenceRows(11, 12, [3, 1, 7]), SequenceRows(0, 9, [0, 2, 5])], torch.cat((text[11:12], other))),
        ([SequenceRows(12, 20, [3, 1, 7, 4, 6], samples=False)], text[12:]),
    ]
    for sequences, token_ids in batches:
        x, layout = token_ids, BatchLayout.of(sequences, 4)
        for stage, pool in zip(stages, pools, strict=True):
            x = stage(x, pool, layout)
        found.append(x)
    return found


@KERNELS
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("borders", [(1,), (1, 2)], ids=["two stages", "three stages"])
def test_stages_that_pass_hidden_states_on_give_the_bits_of_the_whole(
    kind: str, borders: tuple[int, ...], natively: bool
) -> None:
    config = whole(kind).config
    ends = (0, *borders, config.layer_count)
    parts = [layers(config, first, stop) for first, stop in pairwise(ends)]
    together = {name for part in parts for name in empty_model(part, 1, "meta", torch.float32).destinations()}
    assert together == set(whole(kind).destinations())
    stages = [share_of(whole(kind), part, natively) for part in parts]
    reference = share_of(whole(kind), config, natively)
    for found, expected in zip(outputs(stages), outputs([reference]), strict=True):
        assert torch.equal(found, expected)
    last = stages[-1]
    if isinstance(last, DecoderModel) and last.head is not None:
        packed = last.head.weight.numel() == 0
        assert packed != config.tied_embeddings, "packed beside the embedding or nowhere"


@pytest.mark.parametrize("kind", MODELS)
def test_a_stage_that_is_not_the_last_gives_the_hidden_states_of_all_rows(kind: str) -> None:
    stage = plain_share_of(whole(kind), layers(whole(kind).config, 0, 1))
    assert [tuple(each.shape) for each in outputs([stage])] == [(11, 48), (10, 48), (8, 48)]
    assert stage.head is None


@KERNELS
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("first", [0, 2], ids=["one stage", "the last stage"])
def test_heads_cut_by_vocabulary_give_their_tokens_logits(kind: str, first: int, natively: bool) -> None:
    config = layers(whole(kind).config, first, 3)
    before = [share_of(whole(kind), layers(whole(kind).config, 0, first), natively)] if first else []
    expected = outputs([*before, share_of(whole(kind), config, natively)])
    cuts = [replace(config, head_rows=rows) for rows in (range(50), range(50, 97))]
    parts = [outputs([*before, share_of(whole(kind), cut, natively)]) for cut in cuts]
    for number, logits in enumerate(expected):
        found = torch.cat([part[number] for part in parts], dim=1)
        assert found.shape == logits.shape
        assert torch.allclose(found, logits, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_a_share_with_half_the_heads_has_half_of_what_is_cut_and_all_of_the_rest(kind: str) -> None:
    config = whole(kind).config
    half = replace(
        config,
        head_count=2,
        kv_head_count=config.kv_head_count // 2,
        intermediate_size=40,
        adds_output_biases=False,
    )
    share, expected = empty_model(half, 64, "cpu", torch.float32), whole(kind).destinations()
    assert share.pool_shape(5, 4) == (5, 3, 2, 4, half.kv_head_count, 12)
    cut: dict[str, tuple[int, ...]] = {}
    for name, tensor in share.destinations().items():
        if tensor.shape != expected[name].shape:
            cut[name.rpartition("layers.1.")[2]] = tuple(tensor.shape)
    missing = {name.rpartition("layers.1.")[2] for name in expected.keys() - share.destinations().keys()}
    output, up, down = ("o_proj", "mlp.gate_proj", "mlp.down_proj") if kind == "llama" else ("out_proj", "fc1", "fc2")
    assert cut["self_attn.q_proj.weight"] == (24, 48)
    assert cut["self_attn.k_proj.bias"] == (half.kv_size,)
    assert cut[f"self_attn.{output}.weight"] == (48, 24)
    assert (cut[f"{up}.weight"], cut[f"{up}.bias"]) == ((40, 48), (40,))
    assert cut[f"{down}.weight"] == (48, 40)
    assert {name for name in missing if "layers" not in name} == {f"self_attn.{output}.bias", f"{down}.bias"}
