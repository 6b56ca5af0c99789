"""What surrounds the recording of passes on a GPU: which are replayed, and what a replay reads. Here a replay launches
again; that a GPU replays what it recorded is checked by benchmarks/gpu.py.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.worker.kernels.gpu import recorded_decoder
from services.worker.kernels.gpu.recorded_decoder import (
    MIXED_ROWS,
    MOST_ROWS,
    RecordedDecoder,
    can_be_recorded,
    mixed_row_counts,
    row_counts,
)
from services.worker.model.batch import BatchLayout, SequenceRows
from services.worker.model.prefill_cut import PrefillCut
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.kernels.interpreted_attention import interpreted_attention
from tests.worker.model.reference_models import Pool, ours_of, reference_model, tokens

LENGTHS = [3, 1, 30, 17, 9]
ROWS_HERE = (8, 24)
"""Of passes with prefills: those of a GPU take long by the interpreter."""
MAX_BATCH = 6


class Replays:
    """A recorder, and how many replays there were."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, launch: Callable[[], None]) -> Callable[[], None]:
        launch()

        def replay() -> None:
            self.count += 1
            launch()

        return replay


@pytest.fixture
def replays() -> Replays:
    return Replays()


@pytest.fixture
def pool(decoder: RecordedDecoder, replays: Replays, monkeypatch: pytest.MonkeyPatch) -> Pool:
    pool = Pool(decoder)
    monkeypatch.setattr(recorded_decoder, "MIXED_ROWS", ROWS_HERE)
    decoder.record(pool.cache, max_batch=MAX_BATCH, recorder=replays)
    return pool


@pytest.fixture
def decoder() -> Iterator[RecordedDecoder]:
    model = ours_of(reference_model("llama", num_key_value_heads=2))
    with interpreted_attention() as attention:
        model.attention = attention(model.config)
        yield RecordedDecoder(model)


def begun(pool: Pool, decoder: ServedDecoder, lengths: list[int]) -> list[SequenceRows]:
    return pool.begun(decoder, [tokens(length, seed=length) for length in lengths])


@pytest.mark.parametrize("max_batch", [1, 2, 5, 16, 17, 100, 256, 1000])
def test_a_batch_is_filled_up_by_half_at_most(max_batch: int) -> None:
    counts = row_counts(max_batch)
    assert counts[-1] >= min(max_batch, MOST_ROWS)
    for rows in range(1, min(max_batch, MOST_ROWS) + 1):
        assert min(count for count in counts if count >= rows) <= max(2, rows + rows // 2)


@pytest.mark.parametrize(("parameters", "most"), [(218_000_000, 512), (60_000_000, 1792), (1_000_000, 2048)])
def test_passes_with_prefills_are_recorded_until_their_products_take_longer_than_launches(
    parameters: int, most: int
) -> None:
    """Of a Llama of 8B 512 rows; of small ones more."""
    layer: Any = SimpleNamespace(parameters=lambda: [torch.empty(parameters, device="meta")])
    model: Any = SimpleNamespace(layers=[layer])
    assert mixed_row_counts(model)[-1] == most


def test_a_pass_with_prefills_is_filled_up_by_a_quarter_at_most_where_rows_cost() -> None:
    for rows in range(256, MIXED_ROWS[-1] + 1):
        assert min(count for count in MIXED_ROWS if count >= rows) <= 1.25 * rows


def test_recording_writes_nothing_into_the_pool(pool: Pool) -> None:
    assert not pool.cache.pool.any()


def test_passes_are_replayed_with_the_logits_and_the_pool_of_the_model(
    decoder: RecordedDecoder, pool: Pool, replays: Replays
) -> None:
    """Again with others and fewer of them: nothing is left of those before, and what fills up a pass writes nothing."""
    plain = Pool(decoder.model)
    for lengths, chunks in (
        (LENGTHS, []),
        (LENGTHS[:2], [(0, 4), (9, 14)]),
        ([], [(0, 20)]),
        (LENGTHS[:3], []),
        (LENGTHS[2:3], [(0, 2)]),
        ([], [(30, 33), (0, 5)]),
    ):
        expected = passed(plain, decoder.model, lengths, chunks)
        found = passed(pool, decoder, lengths, chunks)
        assert torch.allclose(found, expected, atol=1e-5)
        assert torch.allclose(pool.cache.pool, plain.cache.pool, atol=1e-6)
    assert replays.count == 6


def passed(pool: Pool, decoder: ServedDecoder, lengths: list[int], chunks: list[tuple[int, int]]) -> torch.Tensor:
    """Logits of one pass of decodes of these lengths and of these rows of other sequences."""
    model = decoder.model if isinstance(decoder, RecordedDecoder) else decoder
    rows = begun(pool, model, lengths)
    ids = [tokens(1, seed=length) for length in lengths]
    for start, stop in chunks:
        text, blocks = tokens(stop, seed=stop), pool.blocks(stop)
        if start:
            pool.run(model, [SequenceRows(0, start, blocks, samples=False)], [text[:start]])
        rows.append(SequenceRows(start, stop, blocks))
        ids.append(text[start:])
    return pool.run(decoder, rows, ids)


@pytest.mark.parametrize("comes", ["it", "another", "one that runs as the model does", "one between"])
def test_a_batch_that_was_prepared_is_replayed_if_it_comes_and_disturbs_no_other(
    comes: str, decoder: RecordedDecoder, pool: Pool, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = begun(pool, decoder.model, [5, 9, 2])
    ids = [tokens(1, seed=seed) for seed in (1, 2, 3)]
    first, second = (BatchLayout.of(some, pool.block_size) for some in (rows[:2], rows[1:]))
    expected = [
        decoder.model(torch.cat(some), pool.cache, batch) for some, batch in ((ids[:2], first), (ids[1:], second))
    ]
    fills: list[BatchLayout] = []
    fill = recorded_decoder._FixedInputs.fill

    def noted(fixed: Any, layout: Any, batch: BatchLayout, work: torch.Tensor) -> None:
        fills.append(batch)
        fill(fixed, layout, batch, work)

    monkeypatch.setattr(recorded_decoder._FixedInputs, "fill", noted)
    decoder.prepare(pool.cache, first)
    if comes == "one that runs as the model does":
        pool.run(decoder, [SequenceRows(0, 30, pool.blocks(30))], [tokens(30)])
    if comes in ("another", "one between"):
        assert torch.allclose(decoder(torch.cat(ids[1:]), pool.cache, second), expected[1], atol=1e-5)
    if comes != "another":
        assert torch.allclose(decoder(torch.cat(ids[:2]), pool.cache, first), expected[0], atol=1e-5)
    again = {"another": [second], "one between": [second, first]}
    assert fills == [first, *again.get(comes, [])], "it is brought there once"
    assert replays.count == (2 if comes == "one between" else 1)


def test_what_was_prepared_is_replayed_once(decoder: RecordedDecoder, pool: Pool) -> None:
    (row,) = begun(pool, decoder.model, [5])
    batch = BatchLayout.of([row], pool.block_size)
    decoder.prepare(pool.cache, batch)
    found = [decoder(tokens(1, seed=seed), pool.cache, batch) for seed in (1, 2)]
    expected = [decoder.model(tokens(1, seed=seed), pool.cache, batch) for seed in (1, 2)]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_batch_that_is_not_recorded_is_not_prepared(decoder: RecordedDecoder, pool: Pool, replays: Replays) -> None:
    long = SequenceRows(0, 30, pool.blocks(30))
    batch = BatchLayout.of([long], pool.block_size)
    decoder.prepare(pool.cache, batch)
    assert decoder(tokens(30), pool.cache, batch).shape[0] == 1
    assert replays.count == 0


def test_logits_stay_when_the_next_pass_is_replayed(decoder: RecordedDecoder, pool: Pool) -> None:
    rows = begun(pool, decoder, [4, 5])
    first = pool.run(decoder, rows[:1], [tokens(1, seed=1)])
    kept = first.clone()
    pool.run(decoder, rows[1:], [tokens(1, seed=2)])
    assert torch.equal(first, kept)


@pytest.mark.parametrize(
    ("rows", "logits_only_of_the_last"),
    [([(0, 4)], True), ([(0, 1), (0, 4)], True), ([(0, 1)], False), ([(0, 3)], False), ([(0, 5)] * 4, True)],
    ids=["a prefill", "beside a decode", "a decode without logits", "a chunk without", "some prefills"],
)
def test_a_pass_that_fits_is_replayed(
    rows: list[tuple[int, int]],
    logits_only_of_the_last: bool,
    decoder: RecordedDecoder,
    pool: Pool,
    replays: Replays,
) -> None:
    sequences = [SequenceRows(*each, pool.blocks(each[1]), samples=logits_only_of_the_last) for each in rows]
    logits = pool.run(decoder, sequences, [tokens(stop - start) for start, stop in rows])
    assert logits.shape[0] == (len(rows) if logits_only_of_the_last else 0)
    assert replays.count == 1


@pytest.mark.parametrize("what", ["more rows", "more logits", "more decodes", "more sequences", "another pool"])
def test_all_else_runs_as_the_model_does(what: str, decoder: RecordedDecoder, pool: Pool, replays: Replays) -> None:
    counts = {
        "more rows": [ROWS_HERE[-1] + 1],
        "more decodes": [1] * (row_counts(MAX_BATCH)[-1] + 1),
        "more sequences": [2] * 7,
    }.get(what, [9])
    scored = 9 if what == "more logits" else 0
    rows = [SequenceRows(0, count, pool.blocks(count), scored_rows=scored) for count in counts]
    used = Pool(decoder) if what == "another pool" else pool
    assert used.run(decoder, rows, [tokens(count) for count in counts]).shape[0] == max(scored, len(counts))
    assert replays.count == 0


def test_a_pass_that_is_given_up_is_not_begun(decoder: RecordedDecoder, pool: Pool, replays: Replays) -> None:
    (row,) = begun(pool, decoder.model, [3])
    with pytest.raises(PrefillCut):
        decoder(tokens(1), pool.cache, BatchLayout.of([row], pool.block_size), lambda: False)
    assert replays.count == 0


@pytest.mark.parametrize(
    ("changes", "is_so"),
    [
        ({}, True),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, True),
        (
            {
                "rope_scaling": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 6,
                    "long_factor": [2.0] * 6,
                    "original_max_position_embeddings": 40,
                }
            },
            False,
        ),
    ],
)
def test_a_model_whose_tables_depend_on_lengths_is_not_recorded(changes: dict[str, Any], is_so: bool) -> None:
    assert can_be_recorded(ours_of(reference_model("llama", **changes))) == is_so
