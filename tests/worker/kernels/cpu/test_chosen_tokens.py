"""Tokens chosen by the compiled code: of one iteration, and of several in one call, which are the same as one after the
other, bit for bit.
"""

import ctypes
from typing import Any

import pytest
import torch

from services.domain.job_sampling import JobSampling
from services.worker.kernels.cpu.decoder_library import InstructionSet, instruction_sets
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.kernels.cpu.native_draws import native_draw
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.prefill_cut import PrefillCut, StepLimit
from services.worker.sampling.choices import Choices
from services.worker.sampling.sampler import JobSampler, SampleRow, sample
from tests.worker.model.reference_models import (
    Pool,
    native_of,
    native_pair,
    reference_model,
    tokens,
)

LENGTHS = [3, 17, 9, 30]
"""Of prompts. With blocks of four, jobs cross into their next block at different iterations."""
BLOCKS = 12


def laid_out(lengths: list[int], ahead_tokens: int = 0) -> BatchLayout:
    """The next decode of sequences that have these lengths; sequence n has blocks of its own."""
    rows = [
        SequenceRows(length, length + 1, range(BLOCKS * number, BLOCKS * (number + 1)), longest_tokens=60)
        for number, length in enumerate(lengths)
    ]
    return BatchLayout.of(rows, 4, ahead_tokens=ahead_tokens)


def prefilled(model: NativeDecoder) -> Pool:
    pool = Pool(model)
    for number, length in enumerate(LENGTHS):
        blocks = range(BLOCKS * number, BLOCKS * (number + 1))
        pool.run(model, [SequenceRows(0, length, blocks, longest_tokens=60)], [tokens(length, seed=number)])
    return pool


def one_by_one(model: NativeDecoder, pool: Pool, rows_left: list[int]) -> list[list[int]]:
    fed = [5, 6, 7, 8]
    chosen: list[list[int]] = []
    for ahead, rows in enumerate(rows_left):
        layout = laid_out([length + ahead for length in LENGTHS[:rows]])
        fed = model(torch.tensor(fed[:rows]), pool.cache, layout).argmax(-1).tolist()
        chosen.append(fed)
    return chosen


def together(
    model: NativeDecoder, pool: Pool, rows_left: list[int], last_token_ids: tuple[int, ...] = ()
) -> list[tuple[list[int], int]]:
    return model.next_tokens([5, 6, 7, 8], pool.cache, laid_out(LENGTHS, len(rows_left) - 1), rows_left, last_token_ids)


@pytest.mark.parametrize("samples", [(True, True, True), (True, False, True), (False, False, False)])
def test_of_one_iteration_every_row_with_logits_gets_its_token_whatever_else_is_in_the_batch(
    samples: tuple[bool, bool, bool],
) -> None:
    """A decode, a chunk and a prompt."""
    _, model = native_pair()
    pools = [prefilled(model), prefilled(model)]
    spans = [(3, 4), (17, 29), (0, 40)]
    rows = [
        SequenceRows(first, stop, range(BLOCKS * number, BLOCKS * (number + 1)), samples=wanted)
        for number, ((first, stop), wanted) in enumerate(zip(spans, samples, strict=True))
    ]
    layout, fed = BatchLayout.of(rows, 4), tokens(53, seed=9)
    expected = model(fed, pools[0].cache, layout).argmax(-1).tolist()
    ((found, _),) = model.next_tokens(fed.tolist(), pools[1].cache, layout, [sum(samples)])
    assert found == expected
    assert torch.equal(pools[1].cache.pool, pools[0].cache.pool)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_key_value_heads": 2}),
        ("qwen3", {"head_dim": 80, "hidden_size": 136, "vocab_size": 3000}),
        ("mistral", {"sliding_window": 7}),
        ("opt", {}),
    ],
)
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_the_tokens_and_their_kv_are_those_of_one_iteration_after_the_other(
    instruction_set: InstructionSet, family: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    model = native_of(reference_model(family, max_position_embeddings=64, **changes), dtype, instruction_set, threads=2)
    pools = [prefilled(model), prefilled(model)]
    rows_left = [4, 4, 3, 3, 2, 1, 1]
    expected = one_by_one(model, pools[0], rows_left)
    found = together(model, pools[1], rows_left)
    assert [token_ids for token_ids, _ in found] == expected
    assert torch.equal(pools[1].cache.pool, pools[0].cache.pool)
    ended_ns = [ended for _, ended in found]
    assert ended_ns == sorted(ended_ns)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_tokens_are_drawn_that_one_iteration_after_the_other_draws(
    instruction_set: InstructionSet, dtype: torch.dtype
) -> None:
    """Each job in its own way, the third one's tokens are the likeliest."""
    hows: list[dict[str, Any]] = [
        {"temperature": 1.5},
        {"top_p": 0.9, "min_p": 0.01},
        {"temperature": 0.0},
        {"top_k": 40},
    ]
    rows = [
        SampleRow(JobSampler(JobSampling(max_tokens=9, seed=number, **how)), number) for number, how in enumerate(hows)
    ]
    reference = reference_model("llama", max_position_embeddings=64, vocab_size=3000)
    model = native_of(reference, dtype, instruction_set, threads=2)
    pools = [prefilled(model), prefilled(model)]
    rows_left = [4, 4, 3, 3, 2, 1, 1]
    fed, expected = [5, 6, 7, 8], []
    for ahead, left in enumerate(rows_left):
        layout = laid_out([length + ahead for length in LENGTHS[:left]])
        logits = model(torch.tensor(fed[:left]), pools[0].cache, layout)
        now = [row._replace(number=row.number + ahead) for row in rows[:left]]
        fed = sample(logits, now, native_draw(instruction_set)).token_ids
        expected.append(fed)
    layout = laid_out(LENGTHS, len(rows_left) - 1)
    found = model.next_tokens([5, 6, 7, 8], pools[1].cache, layout, rows_left, choices=Choices(rows, len(rows_left)))
    assert [token_ids for token_ids, _ in found] == expected
    assert torch.equal(pools[1].cache.pool, pools[0].cache.pool)


def test_more_threads_than_cores_change_no_bit() -> None:
    reference = reference_model("llama", max_position_embeddings=64)
    rows_left = [4] * 9
    expected = together(native_of(reference), prefilled(native_of(reference)), rows_left)
    model = native_of(reference, threads=8)
    for _ in range(100):
        found = together(model, prefilled(model), rows_left)
        assert [token_ids for token_ids, _ in found] == [token_ids for token_ids, _ in expected]


def test_more_decodes_than_a_pass_computes_at_a_time_go_on_together() -> None:
    """A pass has 1,024 rows."""
    _, model = native_pair()
    rows, fed = 1030, [5] * 1030
    pools = [torch.zeros(model.pool_shape(rows, 4)) for _ in range(2)]
    chosen: list[list[int]] = []
    for ahead in range(3):
        layout = BatchLayout.of([SequenceRows(ahead, ahead + 1, [number]) for number in range(rows)], 4)
        fed = model(torch.tensor(fed), PagedKv(pools[0]), layout).argmax(-1).tolist()
        chosen.append(fed)
    layout = BatchLayout.of([SequenceRows(0, 1, [number]) for number in range(rows)], 4, ahead_tokens=2)
    found = model.next_tokens([5] * rows, PagedKv(pools[1]), layout, [rows] * 3)
    assert [token_ids for token_ids, _ in found] == chosen
    assert torch.equal(pools[1], pools[0])


@pytest.mark.parametrize("ends_at", [0, 2, 5])
def test_the_iteration_that_gives_a_last_token_is_the_last(ends_at: int) -> None:
    _, model = native_pair()
    rows_left = [4, 4, 3, 3, 2, 1]
    expected = [token_ids for token_ids, _ in together(model, prefilled(model), rows_left)]
    before = {token for token_ids in expected[:ends_at] for token in token_ids}
    last = next(token for token in expected[ends_at] if token not in before)
    found = together(model, prefilled(model), rows_left, (96, last) if 96 not in before else (last,))
    assert [token_ids for token_ids, _ in found] == expected[: ends_at + 1]


def test_of_equal_logits_the_first_is_taken() -> None:
    reference = reference_model("llama", vocab_size=3000, tie_word_embeddings=False, max_position_embeddings=64)
    with torch.no_grad():
        reference.lm_head.weight[:] = reference.lm_head.weight[:50].repeat(60, 1)
    model = native_of(reference)
    found = together(model, prefilled(model), [4] * 5)
    assert all(token < 50 for token_ids, _ in found for token in token_ids)


def test_it_is_given_up_between_two_layers() -> None:
    _, model = native_pair()
    layout = laid_out(LENGTHS, 3)
    with pytest.raises(PrefillCut):
        model.next_tokens([5, 6, 7, 8], prefilled(model).cache, layout, [4] * 4, (), StepLimit(ctypes.c_int32(1)))
