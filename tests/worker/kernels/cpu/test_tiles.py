"""Products by the tiles of Intel's AMX. On a processor with them they are one more instruction set, and all tests of
the decoder hold for it; here a library is compiled that has them in plain C++, as the manual describes them.
"""

from ctypes import CDLL

import pytest
import torch

from services.worker.kernels.cpu import compiled, native_decoder
from services.worker.kernels.cpu.decoder_library import InstructionSet, instruction_sets, loaded
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.batch import SequenceRows
from tests.worker.model.reference_models import Pool, chunked_logits, native_of, ours_of, reference_model, tokens

pytestmark = pytest.mark.skipif(
    InstructionSet.AVX512_BF16 not in instruction_sets(),
    reason="what surrounds the tiles needs AVX-512 with bfloat16",
)

SIZES = [{"head_dim": 64}, {"head_dim": 80, "hidden_size": 136, "intermediate_size": 200}]
"""Whole tiles, and rests of them."""


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> CDLL:
    with monkeypatch.context() as only_here:
        only_here.setattr(compiled, "extra_flags", ("-O1", *compiled.extra_flags, compiled.EMULATED_TILES))
        path = compiled.library()
    library = loaded(path)
    monkeypatch.setattr(native_decoder, "loaded", lambda: library)
    return library


def by_tiles(sizes: dict[str, int], *, quantized: bool = False, threads: int = 1) -> NativeDecoder:
    reference = reference_model("qwen3", num_key_value_heads=2, max_position_embeddings=400, **sizes)
    return native_of(reference, torch.bfloat16, InstructionSet.AMX_BF16, threads, quantized=quantized)


@pytest.mark.parametrize("sizes", SIZES)
def test_logits_are_those_of_torch_but_for_rounding(sizes: dict[str, int]) -> None:
    reference = reference_model("qwen3", num_key_value_heads=2, max_position_embeddings=400, **sizes)
    text, chunks = tokens(330), [300, 1, 27, 1, 1]
    found = chunked_logits(by_tiles(sizes, threads=2), text, chunks, block_size=16)
    expected = chunked_logits(ours_of(reference), text, chunks, block_size=16)
    assert float((found - expected).abs().max() / expected.abs().max()) < 0.05


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_row_has_the_same_bits_in_any_batch(sizes: dict[str, int], quantized: bool) -> None:
    """Alone, in chunks and beside others: one row is a tile of its own, 33 rows are a pair of tiles and a third one."""
    model = by_tiles(sizes, quantized=quantized)
    text = tokens(120)
    whole = chunked_logits(model, text, [120])
    assert torch.equal(chunked_logits(model, text, [50, 37, 32, 1])[-1:], whole)
    assert torch.equal(chunked_logits(model, text, [87, *[1] * 33])[-1:], whole)

    pool = Pool(model, block_size=16)
    texts = [tokens(20 + number, seed=number) for number in range(17)]
    texts[7] = text[:40]
    rows = [SequenceRows(0, len(each), pool.blocks(len(each))) for each in texts]
    assert torch.equal(pool.run(model, rows, texts)[7:8], chunked_logits(model, text[:40], [40]))


def test_the_tiles_are_what_computes() -> None:
    """They add up in an order of their own."""
    reference = reference_model("llama", num_key_value_heads=2)
    found = [
        chunked_logits(native_of(reference, torch.bfloat16, each), tokens(30), [30])
        for each in (InstructionSet.AMX_BF16, InstructionSet.AVX512_BF16)
    ]
    assert not torch.equal(*found)


@pytest.mark.skipif(InstructionSet.AMX_BF16 not in instruction_sets(), reason="a processor with tiles")
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_processors_tiles_add_up_as_the_manual_says(
    sizes: dict[str, int], quantized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, chunks = tokens(120), [80, 1, 38, 1]
    in_plain_code = chunked_logits(by_tiles(sizes, quantized=quantized, threads=2), text, chunks, block_size=16)
    monkeypatch.setattr(native_decoder, "loaded", loaded)
    by_processor = chunked_logits(by_tiles(sizes, quantized=quantized, threads=2), text, chunks, block_size=16)
    assert torch.equal(by_processor, in_plain_code)


def test_float32_is_computed_as_without_tiles() -> None:
    reference = reference_model("llama", num_key_value_heads=2)
    found = [
        chunked_logits(native_of(reference, torch.float32, each), tokens(30), [30])
        for each in (InstructionSet.AMX_BF16, InstructionSet.AVX512_BF16)
    ]
    assert torch.equal(*found)


def test_tiles_that_multiply_rightly_are_the_best_choice(emulated: CDLL) -> None:
    assert emulated.fastserve_best_instruction_set() == InstructionSet.AMX_BF16
