"""The attention of prefills and chunks by Triton, whose interpreter runs it on a CPU, against the reference."""

import importlib
from typing import Any

import pytest
import torch

from services.worker.kernels.gpu import attention_work
from services.worker.model.batch import SequenceRows
from tests.worker.kernels.interpreted_attention import PACKAGE, interpreted_attention
from tests.worker.model.reference_models import Pool, ours_of, reference_logits, reference_model, tokens

SPANS = [(40, 41), (0, 2), (64, 65), (7, 30), (60, 80), (63, 66), (0, 70)]
"""From which position to which each sequence computes its rows: decodes, prompts and chunks."""


ONE_LAYER = {"num_hidden_layers": 1}
"""Where a layer's KV lies, the first of the cases shows."""


@pytest.mark.parametrize("tile_rows", [8, 32])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_key_value_heads": 2}),
        ("qwen3", {"num_key_value_heads": 1, "head_dim": 24, **ONE_LAYER}),
        ("mistral", {"sliding_window": 40, **ONE_LAYER}),
        ("mistral", {"sliding_window": 5, **ONE_LAYER}),
        ("opt", ONE_LAYER),
    ],
    ids=["two heads share", "all do, and a head is no power of two", "a window", "a narrow one", "no rotation"],
)
def test_a_mix_has_the_references_logits_in_every_row(
    family: str, changes: dict[str, Any], tile_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_work, "EXACT_TILE_ROWS", tile_rows)
    reference = reference_model(family, **changes)
    found, expected = logits_of_a_mix(reference, SPANS)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


@pytest.mark.parametrize("spans", [[(40, 41), (0, 33), (0, 60)], [(0, 33), (0, 29)]], ids=["beside a decode", "alone"])
def test_long_prompts_computed_at_once_are_torchs_and_have_the_same_logits(
    spans: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_long(attention: Any) -> None:
        monkeypatch.setattr(f"{PACKAGE}.paged_attention.LONG_PROMPT", 20)
        monkeypatch.setattr(f"{PACKAGE}.paged_attention.paged_prefill", None)

    found, expected = logits_of_a_mix(reference_model("llama", num_key_value_heads=2), spans, is_long)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


def logits_of_a_mix(
    reference: Any, spans: list[tuple[int, int]], change: Any = lambda attention: None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every row of one pass of all these spans, ours and the reference's. What is before them is in the pool."""
    spans = sorted(spans, key=lambda span: span[1] - span[0] > 1)
    texts = [tokens(stop, seed=stop) for _, stop in spans]
    model = ours_of(reference)
    pool, rows = Pool(model, block_size=16), []
    for text, (start, stop) in zip(texts, spans, strict=True):
        blocks = pool.blocks(stop)
        if start:
            pool.run(model, [SequenceRows(0, start, blocks, samples=False)], [text[:start]])
        rows.append(SequenceRows(start, stop, blocks, scored_rows=stop - start))
    with interpreted_attention() as attention:
        model.attention = attention(model.config)
        change(model.attention)
        found = pool.run(model, rows, [text[start:] for text, (start, _) in zip(texts, spans, strict=True)])
    expected = [reference_logits(reference, text)[start:] for text, (start, _) in zip(texts, spans, strict=True)]
    return found, torch.cat(expected)


def test_what_float16_cannot_hold_is_written_as_the_nearest_number_and_nobodys_rows_nowhere() -> None:
    pool = torch.full((3, 2, 2, 4, 1, 3), 7.0, dtype=torch.float16)
    rows = torch.tensor([[[1.0, float("inf"), -2.0]], [[float("-inf"), float("nan"), 5.0]]], dtype=torch.float16)
    before = pool.clone()
    with interpreted_attention():
        write = importlib.import_module(f"{PACKAGE}.paged_write").paged_write
        write(pool, 1, torch.tensor([9, -1]), torch.stack((rows, rows)))
    assert pool[2, 1, 0, 1, 0].tolist() == [1.0, 65504.0, -2.0]
    assert pool[2, 1, 1, 1, 0].tolist() == [-65504.0, 0.0, 5.0]
    pool[2, 1, :, 1] = before[2, 1, :, 1]
    assert torch.equal(pool, before)
