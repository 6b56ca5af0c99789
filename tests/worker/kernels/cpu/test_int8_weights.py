"""int8 weights: what they are rounded to, that they are multiplied as such, and what that costs in quality."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from services.domain.errors import InvalidFieldError
from services.worker.build import build
from services.worker.kernels.cpu.decoder_library import InstructionSet, instruction_sets
from services.worker.kernels.cpu.packed_weights import quantized_panels
from services.worker.kernels.kernel_choice import with_kernels
from services.worker.model.batch import SequenceRows
from services.worker.model.loader import filled_model
from services.worker.model.served_decoder import ServedDecoder
from services.worker.settings import EngineSettings
from tests.builders.model_folders import tiny_model_folder
from tests.builders.repository_paths import BUNDLED
from tests.worker.model.reference_models import (
    Pool,
    chunked_logits,
    native_of,
    ours_of,
    reference_model,
    tokens,
)

MOST_LOST = 0.01
"""Of perplexity."""


LLAMA = {"num_key_value_heads": 2, "hidden_size": 200, "intermediate_size": 300}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("qwen2", LLAMA),
    "llama, tied": ("qwen2", {**LLAMA, "tie_word_embeddings": True}),
    "opt": ("opt", {}),
    "opt, projected": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
}
DTYPES = [torch.float32, torch.bfloat16]
LENGTH = 250
"""More rows than a unit of work has."""


@torch.no_grad()
def round_weights(reference: Any) -> None:
    """Every output's weights become whole multiples, up to 127, of a step of its own. A table is not rounded, unless it
    is the head as well.
    """
    head = reference.get_output_embeddings().weight
    for name, weight in reference.named_parameters():
        if weight.dim() == 2 and ("embed" not in name or weight is head):
            steps = weight.abs().amax(dim=1, keepdim=True) / 127
            weight.copy_((weight / steps).round() * steps)


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_torch_with_weights_that_are_rounded_likewise(
    instruction_set: InstructionSet, dtype: torch.dtype, kind: str
) -> None:
    family, changes = MODELS[kind]
    reference = reference_model(family, **changes).to(dtype).float()
    if reference.config.tie_word_embeddings:
        round_weights(reference)  # what int8 can hold stays as it is: the table of the engine is not rounded
    text, chunks = tokens(40), [30, 1, 8, 1]
    found = chunked_logits(native_of(reference, dtype, instruction_set, threads=2, quantized=True), text, chunks)
    round_weights(reference)
    expected = chunked_logits(ours_of(reference), text, chunks)
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error < (2e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["llama, tied", "opt, projected"])
def test_a_sequence_has_the_same_bits_in_chunks_and_in_batches_of_every_size(
    instruction_set: InstructionSet, dtype: torch.dtype, kind: str
) -> None:
    """Few rows and many are multiplied in two ways."""
    family, changes = MODELS[kind]
    reference = reference_model(family, **{**changes, "max_position_embeddings": LENGTH})
    model = native_of(reference, dtype, instruction_set, threads=2, quantized=True)
    text, before = tokens(LENGTH), LENGTH - 1
    whole = chunked_logits(model, text, [LENGTH])[0]
    assert torch.equal(chunked_logits(model, text, [1, 2, 3, 4, 5, 6, before - 21, 1])[-1], whole)
    pool = Pool(model, block_size=16)
    blocks = pool.blocks(LENGTH)
    pool.run(model, [SequenceRows(0, before, blocks)], [text[:before]])
    for others in range(8):
        rows = [SequenceRows(0, 1, pool.blocks(1)) for _ in range(others)]
        inputs = [tokens(1, seed=number) for number in range(others)]
        if others % 2:
            rows.append(SequenceRows(0, 9, pool.blocks(9)))
            inputs.append(tokens(9, seed=others))
        found = pool.run(model, [SequenceRows(before, LENGTH, blocks), *rows], [text[before:], *inputs])
        assert torch.equal(found[0], whole)


def test_an_outputs_greatest_weight_becomes_127_of_its_steps() -> None:
    weight = torch.zeros(64, 3)
    weight[0] = torch.tensor([0.5, -1.0, 0.25])
    scales, panels = quantized_panels(weight, word_numbers=2)
    assert scales[0] == 1.0 / 127
    assert panels.shape == (1, 2, 4, 2, 16)
    assert panels[0, :, 0, :, 0].flatten().tolist() == [64, -127, 32, 0]
    assert not panels[0, :, 1:].any()


def log_perplexity(model: ServedDecoder, text: torch.Tensor) -> float:
    logits = chunked_logits(model, text[:-1], [1] * (len(text) - 1), block_size=16)
    return float(F.cross_entropy(logits, text[1:]))


def test_a_text_is_hardly_less_likely_with_int8_weights() -> None:
    from tokenizers import Tokenizer

    source = Path(with_kernels.__code__.co_filename).read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).encode(source).ids[:400]
    text = torch.tensor(ids)
    plain, rounded = (
        log_perplexity(with_kernels(filled_model(BUNDLED, "cpu", torch.bfloat16), True, quantized=quantized), text)
        for quantized in (False, True)
    )
    assert rounded - plain < MOST_LOST


def test_torch_has_no_int8_weights(tmp_path: Path) -> None:
    asked = {"model": tiny_model_folder(tmp_path), "weights": "int8", "kernels": "torch"}
    settings = EngineSettings.model_validate(asked)
    with pytest.raises(InvalidFieldError, match=r"--weights: int8 needs the compiled decoder"):
        build(settings)
