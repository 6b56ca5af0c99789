"""What the compiled decoder does beyond what every decoder does (tests/worker/model holds both to that)."""

import ctypes
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.kernels.cpu.decoder_library import InstructionSet, instruction_sets
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.kernels.cpu.packed_weights import packed_panels, put_by_vector
from services.worker.model.batch import BatchLayout, SequenceRows
from services.worker.model.loader import filled_model
from services.worker.model.prefill_cut import PrefillCut, StepLimit
from tests.worker.model.reference_models import (
    Pool,
    chunked_logits,
    native_of,
    native_pair,
    ours_of,
    plain_pair,
    reference_model,
    spans,
    tokens,
)

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [{"head_dim": 64}, {"head_dim": 128}, {"head_dim": 80, "hidden_size": 136}])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_a_long_prompt_and_what_follows_are_those_of_torch(
    instruction_set: InstructionSet, sizes: dict[str, int], dtype: torch.dtype
) -> None:
    """Long enough for several chunks of keys, several units of rows and several passes."""
    reference = reference_model("qwen3", num_key_value_heads=2, max_position_embeddings=1200, **sizes)
    text = tokens(1100)
    chunks = [1087, 1, 9, 1, 1, 1]
    found = chunked_logits(native_of(reference, dtype, instruction_set, threads=2), text, chunks, block_size=16)
    expected = chunked_logits(ours_of(reference), text, chunks, block_size=16)
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error < (2e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("intermediate_size", [700, 257])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_matrices_of_several_pieces_are_multiplied_and_looked_up_as_those_of_torch(
    instruction_set: InstructionSet, intermediate_size: int
) -> None:
    """By one to several tiles; the last piece is a short one, down to one word. In bfloat16 test_coded_weights holds
    them to others.
    """
    sizes = {"hidden_size": 304, "intermediate_size": intermediate_size}
    reference = reference_model("llama", tie_word_embeddings=True, **sizes)
    text, chunks = tokens(60), [19, 1, 2, 3, 4, 5, 6, 8, 12]
    found = chunked_logits(native_of(reference, torch.float32, instruction_set, threads=2), text, chunks, block_size=16)
    expected = chunked_logits(ours_of(reference), text, chunks, block_size=16)
    assert float((found - expected).abs().max() / expected.abs().max()) < 2e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "heads_of_kv_head"), [(64, 1), (128, 2), (80, 3), (64, 4), (64, 6)])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_a_position_has_the_same_bits_as_a_decode_and_within_a_prefill(
    instruction_set: InstructionSet, head_size: int, heads_of_kv_head: int, dtype: torch.dtype
) -> None:
    """A decode reads keys and values where they lie; a prefill packs them first."""
    heads = {"num_attention_heads": 2 * heads_of_kv_head, "num_key_value_heads": 2, "head_dim": head_size}
    model = native_of(reference_model("llama", **heads), dtype, instruction_set, threads=2)
    text = tokens(80)
    one_by_one = chunked_logits(model, text, [1] * 80, block_size=16)
    for length in (2, 64, 65, 80):
        at_once = chunked_logits(model, text[:length], [length], block_size=16)
        assert torch.equal(one_by_one[length - 1], at_once[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prefill", [0, 70])
@pytest.mark.parametrize(("kv_heads", "window"), [(1, None), (2, None), (6, None), (6, 40)])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_decodes_side_by_side_have_the_bits_of_each_alone(
    instruction_set: InstructionSet, kv_heads: int, window: int | None, prefill: int, dtype: torch.dtype
) -> None:
    """Side by side, several heads of a row are one unit, and each thread fetches what it is likely to read next."""
    heads = {"num_attention_heads": 6, "num_key_value_heads": kv_heads, "head_dim": 64}
    reference = reference_model("mistral", sliding_window=window, **heads)
    model = native_of(reference, dtype, instruction_set, threads=2)
    pool = Pool(model, block_size=16)
    lengths = [1, 2, 16, 63, 64, 65, 90, 128, 129]
    texts = [tokens(length + 1, seed=length) for length in lengths]
    blocks = [pool.blocks(length + 1) for length in lengths]
    for length, text, own in zip(lengths, texts, blocks, strict=True):
        pool.run(model, [SequenceRows(0, length, own)], [text[:length]])
    rows = [SequenceRows(length, length + 1, own) for length, own in zip(lengths, blocks, strict=True)]
    last = [text[-1:] for text in texts]
    alone = torch.cat([pool.run(model, [one], [token]) for one, token in zip(rows, last, strict=True)])
    if prefill:
        rows.append(SequenceRows(0, prefill, pool.blocks(prefill)))
        last.append(tokens(prefill))
    assert torch.equal(pool.run(model, rows, last)[: len(lengths)], alone)


def test_greedy_output_in_float32_is_torchs_wherever_it_is_clear() -> None:
    reference = reference_model("llama", num_key_value_heads=2)
    plain, native = ours_of(reference), native_of(reference)
    text = tokens(12)
    pools = [Pool(plain), Pool(native)]
    blocks = pools[0].blocks(60)
    rows, clear = SequenceRows(0, 12, blocks), 0
    for _ in range(40):
        fed = text[rows.from_token :]
        expected = pools[0].run(plain, [rows], [fed])[0]
        found = pools[1].run(native, [rows], [fed])[0]
        best, second = expected.topk(2).values.tolist()
        if best - second > 1e-3:
            clear += 1
            assert int(found.argmax()) == int(expected.argmax())
        text = torch.cat((text, expected.argmax().view(1)))
        rows = SequenceRows(len(text) - 1, len(text), blocks)
    assert clear > 30


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_key_value_heads": 2}),
        ("opt", {}),
        ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    ],
)
def test_rows_get_the_same_logits_when_the_last_layer_leaves_out_those_without(
    family: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    """Two passes; sequences that sample, whose first rows are scored, that do both, and of which nothing is asked."""
    model = native_of(reference_model(family, max_position_embeddings=900, **changes), dtype, threads=2)
    asked = [(1, True, 0), (1, False, 0), (90, True, 40), (97, False, 0), (60, False, 50), (900, True, 0), (9, True, 9)]
    some, every = Pool(model, block_size=16), Pool(model, block_size=16)
    batch = [SequenceRows(0, rows, some.blocks(rows), samples, 0, scored) for rows, samples, scored in asked]
    whole = [sequence._replace(scored_rows=sequence.to_token) for sequence in batch]
    texts = [tokens(sequence.to_token) for sequence in batch]
    wanted_rows = BatchLayout.of(batch, 16).logit_rows
    assert len(wanted_rows) == 1 + 41 + 50 + 1 + 9
    found, all_rows = some.run(model, batch, texts), every.run(model, whole, texts)
    assert len(all_rows) == sum(rows for rows, _, _ in asked) > 1024
    assert torch.equal(found, all_rows[wanted_rows])
    assert torch.equal(some.cache.pool, every.cache.pool)


def test_panels_hold_words_of_64_outputs_side_by_side() -> None:
    weight = torch.arange(128 * 6, dtype=torch.float32).view(128, 6)
    floats = packed_panels(weight).view(torch.float32)
    assert torch.equal(floats[1, 4], weight[64:, 4])
    halves = packed_panels(weight[:, :5].bfloat16()).view(torch.bfloat16).view(2, 3, 64, 2)
    assert torch.equal(halves[1, 1], weight[64:, 2:4].bfloat16())
    assert torch.equal(halves[0, 2, :, 1], torch.zeros(64))


@pytest.mark.parametrize("pieces", [(48, 48, 34), (64, 64, 64, 64, 1), (1,)])  # as even as those of whole lines can be
def test_put_by_vector_each_piece_has_its_words_of_16_outputs_after_those_of_the_16_before(
    pieces: tuple[int, ...],
) -> None:
    words = sum(pieces)
    packed = torch.arange(2 * words * 64, dtype=torch.int32).view(2, words, 64)
    moved = put_by_vector(packed.clone())
    for begin, end in spans(pieces):
        piece = moved[1, begin:end].reshape(4, end - begin, 16)
        for vector in range(4):
            assert torch.equal(piece[vector], packed[1, begin:end, vector * 16 : vector * 16 + 16])


class TestAThreadThatLosesItsCore:
    """As each does when there are several for every core."""

    THREADS = 4 * (os.cpu_count() or 1)
    MOST_ROUNDS = 200

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(
        ("family", "changes"),
        [("llama", {"num_key_value_heads": 2}), ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32})],
    )
    def test_gives_up_its_work_to_another_and_no_bit_changes(
        self, family: str, changes: dict[str, Any], dtype: torch.dtype
    ) -> None:
        reference = reference_model(family, max_position_embeddings=320, hidden_size=256, **changes)
        text, chunks = tokens(310), [280, *[1] * 30]
        expected = chunked_logits(native_of(reference, dtype), text, chunks)
        model = native_of(reference, dtype, threads=self.THREADS)
        for _ in range(self.MOST_ROUNDS):
            assert torch.equal(chunked_logits(model, text, chunks), expected)
            if model.taken_over > 100:
                break
        assert model.taken_over > 100

    def test_is_not_waited_for_when_a_pass_is_cut(self) -> None:
        reference = reference_model("llama", max_position_embeddings=320)
        model = native_of(reference, threads=self.THREADS)
        pool = Pool(model)
        layout = BatchLayout.of([SequenceRows(0, 300, pool.blocks(300))], pool.block_size)
        expected = model(tokens(300), pool.cache, layout)
        for _ in range(self.MOST_ROUNDS):
            with pytest.raises(PrefillCut):
                model(tokens(300), pool.cache, layout, StepLimit(ctypes.c_int32(0), limit_s=1e-4))
            assert torch.equal(model(tokens(300), pool.cache, layout), expected)


def test_a_thread_has_no_unit_to_give_up_where_it_is_the_only_one() -> None:
    model = native_of(reference_model("llama"))
    chunked_logits(model, tokens(90), [30, *[1] * 60])
    assert model.taken_over == 0


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_weights_are_kept_once(family: str, tied: bool, tmp_path: Path) -> None:
    reference_model(family, tie_word_embeddings=tied).save_pretrained(tmp_path)
    plain = filled_model(tmp_path, "cpu", torch.float32)
    shapes = {name: parameter.shape for name, parameter in plain.named_parameters() if parameter.dim() == 2}
    native = NativeDecoder(plain, threads=1)
    assert all(plain.get_parameter(name).numel() == 0 for name in shapes)
    panels = [tensor for tensor in native.kept if tensor.dim() == 3]
    assert len(panels) == 4 * native.config.layer_count + 1
    assert [tensor.shape for tensor in native.kept if tensor.shape == (97, 48)] == [(97, 48)] * (not tied)


class TestAPassIsCut:
    def cut(self, model: NativeDecoder, limit: StepLimit) -> Tensor:
        pool = Pool(model)
        layout = BatchLayout.of([SequenceRows(0, 8, pool.blocks(8))], pool.block_size)
        with pytest.raises(PrefillCut):
            model(tokens(8), pool.cache, layout, limit)
        return pool.cache.pool

    def test_once_it_is_given_up(self) -> None:
        assert not self.cut(native_pair()[1], StepLimit(ctypes.c_int32(1))).any()

    def test_once_its_time_is_over(self) -> None:
        limit = StepLimit(ctypes.c_int32(0), limit_s=1e-9)
        while limit():
            time.monotonic()
        assert not self.cut(native_pair()[1], limit).any()

    def test_and_not_before(self) -> None:
        _, model = native_pair()
        pool = Pool(model)
        layout = BatchLayout.of([SequenceRows(0, 8, pool.blocks(8))], pool.block_size)
        assert model(tokens(8), pool.cache, layout, StepLimit(ctypes.c_int32(0), limit_s=600)).isfinite().all()


class TestAStage:
    """Of a pipeline, or a rank of several: layers from and to hidden states, and sums over the ranks."""

    def test_hands_on_hidden_states_that_lose_nothing(self) -> None:
        _, model = native_pair()
        text, whole, staged = tokens(20), Pool(model), Pool(model)
        layout = BatchLayout.of([SequenceRows(0, 20, whole.blocks(20))], whole.block_size)
        expected = model(text, whole.cache, layout)
        hidden_TD, logits_SV = torch.empty(20, 48), torch.empty(1, 97)
        model.compute(staged.cache, layout, stop_layer=1, token_ids_T=text, hidden_out_TD=hidden_TD)
        model.compute(staged.cache, layout, first_layer=1, hidden_in_TD=hidden_TD, logits_SV=logits_SV)
        assert torch.equal(logits_SV, expected)
        assert torch.equal(staged.cache.pool, whole.cache.pool)

    def test_calls_for_the_sum_of_both_products_of_every_layer(self) -> None:
        model = native_of(plain_pair()[0], threads=2)
        pool, asked = Pool(model), []
        layout = BatchLayout.of([SequenceRows(0, 20, pool.blocks(20))], pool.block_size)
        expected = model(tokens(20), pool.cache, layout)

        def as_of_two_ranks(parts: Tensor) -> None:
            asked.append(parts.numel())
            half = parts * 0.5
            parts.copy_(half + half)

        model.add_up = as_of_two_ranks
        assert torch.equal(model(tokens(20), pool.cache, layout), expected)
        # In the last layer, the one row that gets logits.
        assert asked == [20 * 48, 20 * 48, 48, 48]

    @pytest.mark.parametrize("sums_before", [0, 1, 3])
    def test_whose_partner_does_not_come_to_a_sum_ends_its_pass_with_that_error(self, sums_before: int) -> None:
        model = native_of(plain_pair()[0], threads=2)
        pool, asked = Pool(model), []
        layout = BatchLayout.of([SequenceRows(0, 20, pool.blocks(20))], pool.block_size)

        def comes_no_more(_: Tensor) -> None:
            asked.append(0)
            if len(asked) > sums_before:
                raise RuntimeError("did not come")

        model.add_up = comes_no_more
        with pytest.raises(RuntimeError, match="did not come"):
            model(tokens(20), pool.cache, layout)
        assert len(asked) == sums_before + 1
        model.add_up = None
        assert model(tokens(20), pool.cache, layout).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_job_beyond_all_numbers_spoils_itself_only(dtype: torch.dtype) -> None:
    reference = reference_model("llama", num_key_value_heads=2)
    with torch.no_grad():
        reference.model.embed_tokens.weight[7] = math.inf
    model = native_of(reference, dtype, threads=2)
    text = tokens(20)
    text[text == 7] = 8
    clean, spoiled = Pool(model), Pool(model)
    loud = torch.full((20,), 7)
    expected = clean.run(model, [SequenceRows(0, 20, [1, 2, 3, 4, 5])], [text])[0]
    spoiled.run(model, [SequenceRows(0, 20, [5, 4, 3, 2, 1])], [loud])
    sequences = [SequenceRows(0, 20, [1, 2, 3, 4, 5]), SequenceRows(0, 20, [6, 7, 8, 9, 10])]
    found = spoiled.run(model, sequences, [text, loud])
    assert torch.equal(found[0], expected)
    assert not found[1].isfinite().any()
