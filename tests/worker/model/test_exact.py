"""Float32 on a CPU, and bfloat16 by the compiled decoder: what else is in a batch does not change a bit of a
sequence's logits.

With torch's kernels this is proved where it was measured: on AMD processors with AVX-512. Another processor's BLAS may
add in another order; then only closeness is claimed.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.kernels.cpu.decoder_library import instruction_sets
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.batch import SequenceRows
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.model.reference_models import (
    Pool,
    chunked_logits,
    native_of,
    native_pair,
    ours_of,
    plain_pair,
    reference_model,
    tokens,
)

LENGTH = 300
CHECKED = [2, 3, 16, 17, 100, 127, 128, 129, 255, 256, 257, 300]
CPU_FACTS = Path("/proc/cpuinfo")
MEASURED_HERE = (
    torch.backends.cpu.get_cpu_capability() == "AVX512"
    and CPU_FACTS.is_file()
    and "AuthenticAMD" in CPU_FACTS.read_text(encoding="utf-8")
)


def assert_same(model: ServedDecoder, found: Tensor, expected: Tensor) -> None:
    if MEASURED_HERE or isinstance(model, NativeDecoder):
        assert torch.equal(found, expected)
    else:
        assert torch.allclose(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


WAYS: dict[str, Callable[[Any], ServedDecoder]] = {
    "torch": ours_of,
    **{
        f"{each.name}, {name}": partial(native_of, dtype=dtype, instruction_set=each, threads=2)
        for each in instruction_sets()
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
    },
}


@pytest.fixture(scope="module", params=["torch, one thread", *WAYS])
def model(request: pytest.FixtureRequest) -> ServedDecoder:
    torch.set_num_threads(1 if "one thread" in request.param else 2)
    reference = reference_model("llama", num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True)
    return WAYS[request.param.removesuffix(", one thread")](reference)


@pytest.fixture(autouse=True, scope="module")
def _one_thread_afterwards() -> object:
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def prefilled(model: ServedDecoder) -> dict[int, Tensor]:
    """Logits after each of several prefills, by length."""
    return {length: chunked_logits(model, tokens(LENGTH)[:length], [length])[0] for length in CHECKED}


def test_a_decode_gives_the_bits_of_a_prefill(model: ServedDecoder, prefilled: dict[int, Tensor]) -> None:
    chunks = [1, 1, 1, 12, 1, 1, 82, 1, 26, 1, 1, 1, 125, 1, 1, 1, 42, 1]
    ends = torch.tensor(chunks).cumsum(0).tolist()
    decoded = chunked_logits(model, tokens(LENGTH), chunks)
    for length in CHECKED:
        assert chunks[ends.index(length)] == 1
        assert_same(model, decoded[ends.index(length)], prefilled[length])


def test_a_prefill_in_chunks_gives_the_bits_of_one_in_one_piece(
    model: ServedDecoder, prefilled: dict[int, Tensor]
) -> None:
    chunks = [1, 5, 60, 2, 1, 131, 100]
    found = chunked_logits(model, tokens(LENGTH), chunks)
    assert_same(model, found[-1], prefilled[LENGTH])


def test_a_sequence_has_the_same_bits_alone_and_among_others(
    model: ServedDecoder, prefilled: dict[int, Tensor]
) -> None:
    chance = random.Random(3)
    for trial in range(8):
        pool = Pool(model, block_size=16, seed=trial)
        length = CHECKED[trial + 4]
        text, blocks = tokens(LENGTH)[:length], pool.blocks(length)
        pool.run(model, [SequenceRows(0, length - 1, blocks)], [text[:-1]])
        sequences, inputs = [SequenceRows(length - 1, length, blocks)], [text[-1:]]
        for _ in range(chance.randrange(9)):
            start = chance.randrange(1, 90)
            sequences.append(SequenceRows(start, start + 1, pool.blocks(start + 1)))
            inputs.append(tokens(1, seed=start))
        place = chance.randrange(len(sequences))
        sequences.insert(place, sequences.pop(0))
        inputs.insert(place, inputs.pop(0))
        for _ in range(chance.randrange(3)):
            size = chance.randrange(2, 200)
            sequences.append(SequenceRows(0, size, pool.blocks(size)))
            inputs.append(tokens(size, seed=size))
        assert_same(model, pool.run(model, sequences, inputs)[place], prefilled[length])


@pytest.mark.parametrize("pair", [plain_pair, native_pair])
def test_what_a_pool_held_before_does_not_matter(pair: Callable[[], tuple[Any, ServedDecoder]]) -> None:
    _, model = pair()
    clean = Pool(model, block_size=16)
    dirty = Pool(model, block_size=16)
    dirty.cache.pool.normal_()
    found = []
    for pool in (clean, dirty):
        blocks = pool.blocks(40)
        pool.run(model, [SequenceRows(0, 20, blocks)], [tokens(20)])
        found.append(pool.run(model, [SequenceRows(20, 21, blocks)], [tokens(1)]))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("changes", [{}, {"do_layer_norm_before": False, "word_embed_proj_dim": 32}], ids=["", "350m"])
def test_opt_has_the_same_bits_in_a_prefill_in_chunks_and_among_others(way: str, changes: dict[str, Any]) -> None:
    model = WAYS[way](reference_model("opt", **changes))
    text = tokens(150)
    whole = chunked_logits(model, text, [150])[0]
    assert_same(model, chunked_logits(model, text, [1, 1, 60, 17, 1, 69, 1])[-1], whole)
    pool = Pool(model, block_size=16)
    blocks, others = pool.blocks(150), [pool.blocks(40), pool.blocks(33)]
    pool.run(model, [SequenceRows(0, 149, blocks)], [text[:149]])
    rows = [SequenceRows(7, 8, others[0]), SequenceRows(149, 150, blocks), SequenceRows(0, 33, others[1])]
    assert_same(model, pool.run(model, rows, [tokens(1, seed=1), text[149:], tokens(33, seed=2)])[1], whole)
