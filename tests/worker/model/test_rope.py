"""Rotary scalings whose frequencies depend on the sequence's length."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from services.domain.errors import InvalidFieldError
from services.worker.model.batch import SequenceRows
from services.worker.model.llama import LlamaModel
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.model.reference_models import Pool, native_of, ours_of, reference_logits, reference_model, tokens

ORIGINAL = 40


Decoding = Callable[..., ServedDecoder]


@pytest.fixture(params=[ours_of, native_of], ids=["torch", "native"])
def way(request: pytest.FixtureRequest) -> Decoding:
    return request.param  # type: ignore[no-any-return]


def longrope_model(way: Decoding) -> tuple[Any, ServedDecoder]:
    factors = [1.0 + 0.25 * number for number in range(6)]
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "short_factor": factors,
        "long_factor": [3 * factor for factor in factors],
        "original_max_position_embeddings": ORIGINAL,
    }
    reference = reference_model("llama", rope_parameters=scaling, num_key_value_heads=2)
    return reference, way(reference)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()


def test_a_sequence_that_may_become_long_has_long_factors_from_its_first_token_on(way: Decoding) -> None:
    """So that the KV of its beginning fits when it is long; what it says while short is not what transformers gives."""
    reference, model = longrope_model(way)
    text = tokens(70)
    pool = Pool(model)
    blocks = pool.blocks(70)
    pool.run(model, [SequenceRows(0, 30, blocks, longest_tokens=70)], [text[:30]])
    for position in range(30, 70):
        row = SequenceRows(position, position + 1, blocks, longest_tokens=70)
        found = pool.run(model, [row], [text[position : position + 1]])
    assert_close(found[0], reference_logits(reference, text)[-1])


def test_sequences_that_stay_short_keep_short_factors_beside_long_ones(way: Decoding) -> None:
    reference, model = longrope_model(way)
    short, long = tokens(30, seed=1), tokens(60, seed=2)
    pool = Pool(model)
    short_blocks, long_blocks = pool.blocks(30), pool.blocks(60)
    pool.run(model, [SequenceRows(0, 29, short_blocks, longest_tokens=ORIGINAL)], [short[:29]])
    sequences = [
        SequenceRows(29, 30, short_blocks, longest_tokens=ORIGINAL),
        SequenceRows(0, 60, long_blocks, longest_tokens=60),
    ]
    found = pool.run(model, sequences, [short[29:], long])
    assert_close(found[0], reference_logits(reference, short)[-1])
    assert_close(found[1], reference_logits(reference, long)[-1])


def test_longrope_served_within_its_original_length_has_short_factors_only() -> None:
    reference, _ = longrope_model(ours_of)
    model = ours_of(reference, max_model_len=ORIGINAL)
    assert isinstance(model, LlamaModel)
    assert model.rope.cosines_ME.shape[0] == ORIGINAL


def test_no_context_beyond_the_models_own_is_served() -> None:
    reference = reference_model("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0})
    with pytest.raises(InvalidFieldError, match="max_model_len: must be from 1 to the model's context of 160 tokens"):
        ours_of(reference, max_model_len=161)
