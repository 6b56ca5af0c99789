"""Logits equal those of transformers, for every family and every switch of its configuration."""

from typing import Any

import pytest
import torch
import transformers

from services.worker.kernels.cpu.decoder_library import InstructionSet, instruction_sets
from services.worker.kernels.kernel_choice import with_kernels
from services.worker.model.batch import SequenceRows
from services.worker.model.loader import filled_model
from services.worker.model.served_decoder import ServedDecoder
from tests.builders.repository_paths import BUNDLED
from tests.worker.model.reference_models import (
    Pool,
    chunked_logits,
    every_way,
    native_of,
    ours_of,
    reference_logits,
    reference_model,
    tokens,
)

ROUNDING = 2e-5
"""Of float32, relative to the greatest logit."""
LENGTH = 60


def rope(rope_type: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 5000.0, **fields}}


FACTORS = [1.0 + 0.25 * number for number in range(6)]
ROPES = {
    "default": rope("default"),
    "linear": rope("linear", factor=3.0),
    "dynamic": rope("dynamic", factor=2.0),
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=40),
    "yarn with every field": rope(
        "yarn",
        factor=4.0,
        original_max_position_embeddings=40,
        beta_fast=16.0,
        beta_slow=2.0,
        mscale=0.7,
        mscale_all_dim=0.9,
        truncate=False,
    ),
    "yarn with an attention factor": rope(
        "yarn", factor=2.0, original_max_position_embeddings=80, attention_factor=1.25
    ),
    "longrope": rope(
        "longrope",
        short_factor=FACTORS,
        long_factor=[2 * factor for factor in FACTORS],
        original_max_position_embeddings=40,
        factor=4.0,
    ),
    "longrope with an attention factor": rope(
        "longrope",
        short_factor=FACTORS,
        long_factor=[3 * factor for factor in FACTORS],
        original_max_position_embeddings=40,
        attention_factor=1.1,
    ),
    "llama3": rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    ),
    "proportional": rope("proportional", factor=2.0, partial_rotary_factor=0.5),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"llama, rope {name}": ("llama", changes) for name, changes in ROPES.items()},
    **{f"{family}, yarn": (family, ROPES["yarn"]) for family in ("mistral", "qwen2", "qwen3")},
    **{f"{family}, llama3": (family, ROPES["llama3"]) for family in ("mistral", "qwen2", "qwen3")},
    "llama, grouped queries": ("llama", {"num_key_value_heads": 2}),
    "llama, one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, attention bias": ("llama", {"attention_bias": True, "num_key_value_heads": 2}),
    "llama, feed-forward bias": ("llama", {"mlp_bias": True}),
    "llama, head size of its own": ("llama", {"head_dim": 20}),
    "llama, epsilon": ("llama", {"rms_norm_eps": 0.1}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, tanh gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama, relu": ("llama", {"hidden_act": "relu"}),
    "mistral, sliding window": ("mistral", {"sliding_window": 13, "num_key_value_heads": 2}),
    "mistral, window wider than the sequence": ("mistral", {"sliding_window": 4096}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "mistral, head size of its own": ("mistral", {"head_dim": 16, "num_key_value_heads": 2}),
    "mistral, tied": ("mistral", {"tie_word_embeddings": True, "sliding_window": 9}),
    "qwen2, grouped queries": ("qwen2", {"num_key_value_heads": 2}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
    "qwen2, windows from a layer on": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    ),
    "qwen2, window not used": ("qwen2", {"use_sliding_window": False, "sliding_window": 11}),
    "qwen3, grouped queries": ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "qwen3, tied with biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 12}),
    "qwen3, windows by layer type": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention"],
            "head_dim": 12,
        },
    ),
}


LIKE_OPT_350M = {"do_layer_norm_before": False, "word_embed_proj_dim": 32}
VARIANTS |= {
    "opt": ("opt", {}),
    "opt, untied": ("opt", {"tie_word_embeddings": False}),
    "opt, norms after, narrow embeddings (350m)": ("opt", LIKE_OPT_350M),
    "opt, norms after": ("opt", {"do_layer_norm_before": False}),
    "opt, norms before, wide embeddings": ("opt", {"word_embed_proj_dim": 64, "tie_word_embeddings": False}),
    "opt, no norm at the end": ("opt", {"_remove_final_layer_norm": True}),
}


def shortened(changes: dict[str, Any]) -> dict[str, Any]:
    """Longrope's factor lists must have half a head's size, here 6 numbers: heads of 12."""
    return {"head_dim": 12, **changes}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_a_prefill_of_chunks_and_of_decodes_equal_the_references(variant: str) -> None:
    family, changes = VARIANTS[variant]
    reference = reference_model(family, **(changes if family == "opt" else shortened(changes)))
    token_ids = tokens(LENGTH)
    expected = reference_logits(reference, token_ids)
    chunks = [30, 1, 1, 9, 2, 1, 16]
    ends = torch.tensor(chunks).cumsum(0) - 1
    for model in every_way(reference).values():
        whole = chunked_logits(model, token_ids, [LENGTH])
        assert_close(whole[0], expected[-1])
        if "longrope" not in variant:  # its frequencies at 31 tokens are not those at 60; see test_rope.py
            assert_close(chunked_logits(model, token_ids, chunks), expected[ends])


@pytest.mark.parametrize("length", [30, 40, 41, 100])
def test_longrope_uses_the_factors_of_the_sequence_s_length(length: int) -> None:
    reference = reference_model("llama", **shortened(ROPES["longrope"]))
    token_ids = tokens(length)
    model = ours_of(reference)
    assert_close(chunked_logits(model, token_ids, [length])[0], reference_logits(reference, token_ids)[-1])


@pytest.mark.parametrize(
    ("way", "family", "changes"),
    [
        (way, family, changes)
        for way in ("torch", *instruction_sets())
        for family, changes in (("llama", {"num_key_value_heads": 2}), ("opt", {}), ("opt", LIKE_OPT_350M))
    ],
)
def test_bfloat16_is_as_close_to_float32_as_the_reference_in_bfloat16(
    way: str | InstructionSet, family: str, changes: dict[str, Any]
) -> None:
    reference = reference_model(family, **changes)
    token_ids = tokens(LENGTH)
    expected = reference_logits(reference, token_ids)[39:]
    if isinstance(way, str):
        model: ServedDecoder = ours_of(reference, torch.bfloat16)
    else:
        model = native_of(reference, torch.bfloat16, way)
    found = chunked_logits(model, token_ids, [40, *[1] * 20])
    assert found.dtype == torch.float32
    ours = (found - expected).square().mean()
    theirs = (reference_logits(reference.to(torch.bfloat16), token_ids)[39:] - expected).square().mean()
    assert ours < 2 * theirs
    assert ours < 0.02**2 * expected.square().max()


@pytest.mark.parametrize("natively", [False, True], ids=["torch", "native"])
def test_the_bundled_model_has_the_references_logits(natively: bool) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        BUNDLED, dtype=torch.float32, attn_implementation="eager"
    )
    model = with_kernels(filled_model(BUNDLED, "cpu", torch.float32), natively)
    token_ids = tokens(90)
    expected = reference_logits(reference, token_ids)
    assert_close(chunked_logits(model, token_ids, [50, *[1] * 40], block_size=16), expected[49:])


@pytest.mark.parametrize("way", ["exact", "fast", "gpu", *(each.name for each in instruction_sets())])
def test_a_mixed_batch_gives_every_sequence_its_own_logits(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.kernels.attention_cpu.GROUP_COST_POSITIONS", 10)
    for name, value in (("GROUP_COST_POSITIONS", 10), ("GATHERED_BYTES", 70 * 2 * 48 * 4), ("MASK_PLACES", 100)):
        monkeypatch.setattr(f"services.worker.kernels.attention_cuda.{name}", value)
    reference = reference_model("qwen2", use_sliding_window=True, sliding_window=11, max_window_layers=1)
    model = every_way(reference)[way]
    lengths = [3, 60, 1, 41, 17, 80, 18, 1, 62]
    texts = [tokens(length, seed=length) for length in lengths]
    pool = Pool(model)
    blocks = [pool.blocks(length) for length in lengths]
    starts = [2, 59, 0, 40, 16, 79, 17, 0, 0]
    starts[3] = 30
    order = sorted(range(len(lengths)), key=lambda number: lengths[number] - starts[number] > 1)
    for number, start in enumerate(starts):
        if start:
            begin = SequenceRows(0, start, blocks[number], samples=False)
            assert pool.run(model, [begin], [texts[number][:start]]).shape[0] == 0
    silent = 4
    sequences = [SequenceRows(starts[n], lengths[n], blocks[n], samples=n != silent) for n in order]
    found = pool.run(model, sequences, [texts[number][starts[number] :] for number in order])
    expected = [reference_logits(reference, texts[number])[-1] for number in order if number != silent]
    assert_close(found, torch.stack(expected))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error < ROUNDING, f"off by {error:.1e} of the greatest logit"
