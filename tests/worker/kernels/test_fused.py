"""Steps on single numbers by Triton, whose interpreter runs them on a CPU, against torch's."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from services.worker.model.llama import gated, normed
from services.worker.model.rope import rotate
from tests.worker.kernels.interpreted_attention import PACKAGE, interpreted_attention
from tests.worker.model.reference_models import Pool, chunked_logits, ours_of, reference_logits, reference_model, tokens


@pytest.fixture
def fused() -> Iterator[Any]:
    with interpreted_attention():
        yield importlib.import_module(f"{PACKAGE}.fused")


@pytest.mark.parametrize(("heads", "head_size"), [(3, 24), (8, 16), (9, 64)])
@pytest.mark.parametrize("in_place", [True, False])
def test_heads_are_turned_as_torch_does_and_nothing_beside_them(
    heads: int, head_size: int, in_place: bool, fused: Any
) -> None:
    """The rows are parts of longer ones, as queries and keys are."""
    x, cosines, sines = torch.randn(5, heads + 2, head_size), torch.randn(5, 1, head_size), torch.randn(5, 1, head_size)
    found = x.clone() if in_place else torch.zeros(5, heads + 1, head_size)
    expected, turning = found.clone(), found if in_place else x
    rotate(x[:, :heads], cosines, sines, expected[:, :heads])
    fused.rotate(turning[:, :heads], cosines, sines, found[:, :heads])
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("width", [12, 1024, 1500])
def test_gates_multiply_as_torch_does(width: int, fused: Any) -> None:
    gate_up = 5 * torch.randn(3, 2 * width)
    assert torch.allclose(fused.gated_silu(gate_up), gated(F.silu, gate_up), atol=1e-5)


@pytest.mark.parametrize("width", [24, 64, 1500])
def test_rows_are_normed_as_torch_does(width: int, fused: Any) -> None:
    """Parts of longer rows, as heads are."""
    x, weight = 3 * torch.randn(4, 3, width), torch.randn(width)
    assert torch.allclose(fused.normed(x[:, :2], weight, 1e-5), normed(x[:, :2], weight, 1e-5), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "changes", "replaced"),
    [
        ("llama", {}, True),
        ("qwen3", {"head_dim": 24}, True),
        ("llama", {"hidden_act": "gelu"}, False),
        ("opt", {}, None),
    ],
    ids=["llama", "queries and keys are normed", "another activation stays", "nothing to replace"],
)
def test_a_model_of_them_has_the_references_logits(
    family: str, changes: dict[str, Any], replaced: bool | None, fused: Any
) -> None:
    reference, text = reference_model(family, **changes), tokens(20)
    model = ours_of(reference)
    fused.fuse(model)
    assert {part.gated is fused.gated_silu for part in model.modules() if hasattr(part, "gated")} == (
        set() if replaced is None else {replaced}
    )
    found = chunked_logits(model, text, [7, 1, 12], Pool(model).block_size)
    expected = reference_logits(reference, text)[[6, 7, 19]]
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4
