"""The attention of decodes by Triton, whose interpreter runs it on a CPU, against the reference."""

from typing import Any

import pytest
import torch

from tests.worker.kernels.interpreted_attention import interpreted_attention
from tests.worker.model.reference_models import Pool, ours_of, reference_logits, reference_model, tokens

LENGTHS = [1, 2, 15, 16, 17, 64, 65, 130, 150]


@pytest.mark.parametrize("items", [1, 64], ids=["whole", "cut"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_key_value_heads": 2}),
        ("qwen3", {"num_key_value_heads": 1, "head_dim": 24}),
        ("mistral", {"sliding_window": 40}),
    ],
    ids=["two heads share keys and values", "all do, and a head is no power of two", "a window"],
)
def test_decodes_have_the_references_logits(family: str, changes: dict[str, Any], items: int) -> None:
    reference = reference_model(family, **changes)
    model, texts = ours_of(reference), [tokens(length, seed=length) for length in LENGTHS]
    pool = Pool(model, block_size=16)
    rows = pool.begun(model, texts)
    with interpreted_attention(items) as attention:
        model.attention = attention(model.config)
        found = pool.run(model, rows, [text[-1:] for text in texts])
    expected = torch.stack([reference_logits(reference, text)[-1] for text in texts])
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4
