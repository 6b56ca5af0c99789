"""The attention of decodes by Triton, whose interpreter runs it on a CPU, against the reference."""

from typing import Any

import pytest
import torch

from services.worker.model.batch import SequenceRows
from services.worker.model.decoder import DecoderModel
from tests.worker.kernels.interpreted_attention import interpreted_attention
from tests.worker.model.reference_models import Pool, ours_of, reference_logits, reference_model, tokens

LENGTHS = [1, 2, 15, 16, 17, 64, 65, 130, 150]


def decoded(model: DecoderModel, block_size: int) -> torch.Tensor:
    """Logits of the last token of texts of all lengths, as decodes side by side."""
    pool = Pool(model, block_size)
    texts = [tokens(length, seed=length) for length in LENGTHS]
    blocks = [pool.blocks(length) for length in LENGTHS]
    for text, own in zip(texts, blocks, strict=True):
        if len(text) > 1:
            pool.run(model, [SequenceRows(0, len(text) - 1, own, samples=False)], [text[:-1]])
    rows = [SequenceRows(len(text) - 1, len(text), own) for text, own in zip(texts, blocks, strict=True)]
    return pool.run(model, rows, [text[-1:] for text in texts])


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_key_value_heads": 2}),
        ("qwen3", {"num_key_value_heads": 1, "head_dim": 24}),
        ("mistral", {"sliding_window": 40}),
    ],
    ids=["two heads share keys and values", "all do, and a head is no power of two", "a window"],
)
def test_decodes_have_the_references_logits(family: str, changes: dict[str, Any], parts: int) -> None:
    reference = reference_model(family, **changes)
    model = ours_of(reference)
    with interpreted_attention(parts) as attention:
        model.attention = attention(model.config)
        found = decoded(model, block_size=16)
    expected = torch.stack([reference_logits(reference, tokens(length, seed=length))[-1] for length in LENGTHS])
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4
