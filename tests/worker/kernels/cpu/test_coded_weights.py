"""bfloat16 weights in 12 bits: no number becomes another one, and no product has other bits."""

from typing import Any

import pytest
import torch

from services.worker.kernels.cpu.decoder_library import CODED_BYTES, InstructionSet, instruction_sets
from services.worker.kernels.cpu.packed_weights import coded_panels, packed_panels
from tests.worker.model.reference_models import chunked_logits, native_of, reference_model, tokens

LLAMA = {"num_key_value_heads": 2, "hidden_size": 200, "intermediate_size": 300}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("qwen2", LLAMA),
    "llama, tied": ("qwen2", {**LLAMA, "tie_word_embeddings": True}),
    "opt": ("opt", {}),
    "opt, projected": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
}
LENGTH = 600
CHUNKS = [1, 2, 3, 4, 5, 6, 7, 12, 13, 30, 500, 1, 1, 15]
"""Rows that go from codes to registers, of one tile, of several, and of several units."""


@torch.no_grad()
def with_far_numbers(reference: Any) -> Any:
    """One weight in 3,701 of a matrix is 2^-40 of what it was, so its upper byte is not among the frequent."""
    for weight in reference.parameters():
        if weight.dim() == 2:
            weight.view(-1)[::3701] *= 2.0**-40
    return reference


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("kind", MODELS)
def test_logits_have_the_bits_of_weights_that_are_not_coded(instruction_set: InstructionSet, kind: str) -> None:
    family, changes = MODELS[kind]
    reference = with_far_numbers(reference_model(family, **changes, max_position_embeddings=LENGTH))
    plain, coded = (
        native_of(reference, torch.bfloat16, instruction_set, threads=2, coded=coded) for coded in (False, True)
    )
    assert memory(coded) < memory(plain), "it is coded"
    text = tokens(LENGTH)
    expected = chunked_logits(plain, text, CHUNKS, block_size=16)
    assert torch.equal(chunked_logits(coded, text, CHUNKS, block_size=16), expected)


def memory(model: Any) -> int:
    """Bytes of what the compiled code reads."""
    return sum(tensor.nbytes for tensor in model.kept)


def test_only_words_with_a_rare_upper_byte_are_kept_whole() -> None:
    weight = torch.full((128, 40), 1.5, dtype=torch.bfloat16)
    weight[:16, :32] = 2.0 ** (
        4 * torch.arange(16)[:, None] - 32
    )  # 16 upper bytes of the first panel, with that of 1.5
    weight[3, 36] = 2.0**100
    weight[70, 5:7] = torch.tensor([-1.5, float("inf")])
    packed = packed_panels(weight)
    found = coded_panels(packed)
    assert found is not None
    coded, upper, first_whole, whole_at, whole = found
    assert coded.shape == (2, 20, CODED_BYTES)
    assert upper.shape == (2, 16)
    beyond = torch.iinfo(torch.int32).max
    assert first_whole.tolist() == [0, 2]
    assert whole_at.tolist() == [18, beyond, beyond]
    assert torch.equal(whole[0], packed[0, 18])


def test_a_matrix_of_numbers_of_all_sizes_is_not_coded() -> None:
    bits = torch.randint(-(2**15), 2**15, (64, 100), generator=torch.Generator().manual_seed(1), dtype=torch.int16)
    assert coded_panels(packed_panels(bits.view(torch.bfloat16))) is None
