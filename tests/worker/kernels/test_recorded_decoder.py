"""What surrounds the recording of passes on a GPU: which are replayed, and what a replay reads. Here a replay launches
again; that a GPU replays what it recorded is checked by benchmarks/gpu.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from services.worker.kernels.gpu.recorded_decoder import MOST_ROWS, RecordedDecoder, can_be_recorded, row_counts
from services.worker.model.batch import BatchLayout, SequenceRows
from services.worker.model.prefill_cut import PrefillCut
from tests.worker.kernels.interpreted_attention import interpreted_attention
from tests.worker.model.reference_models import Pool, ours_of, reference_model, tokens

LENGTHS = [3, 1, 30, 17, 9]


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
def pool(decoder: RecordedDecoder, replays: Replays) -> Pool:
    pool = Pool(decoder)
    decoder.record(pool.cache, max_batch=6, recorder=replays)
    return pool


@pytest.fixture
def decoder() -> Iterator[RecordedDecoder]:
    model = ours_of(reference_model("llama", num_key_value_heads=2))
    with interpreted_attention() as attention:
        model.attention = attention(model.config)
        yield RecordedDecoder(model)


def begun(pool: Pool, decoder: RecordedDecoder, lengths: list[int]) -> list[SequenceRows]:
    return pool.begun(decoder, [tokens(length, seed=length) for length in lengths])


@pytest.mark.parametrize("max_batch", [1, 2, 5, 16, 17, 100, 256, 1000])
def test_a_batch_is_filled_up_by_half_at_most(max_batch: int) -> None:
    counts = row_counts(max_batch)
    assert counts[-1] >= min(max_batch, MOST_ROWS)
    for rows in range(1, min(max_batch, MOST_ROWS) + 1):
        assert min(count for count in counts if count >= rows) <= max(2, rows + rows // 2)


def test_decodes_are_replayed_with_the_logits_and_the_pool_of_the_model(
    decoder: RecordedDecoder, pool: Pool, replays: Replays
) -> None:
    """Again with other jobs and fewer of them: nothing is left of those before. Rows that fill up a pass write what the
    first row does.
    """
    plain = Pool(decoder.model)
    for count in (5, 2, 3):
        texts = [tokens(1, seed=number) for number in range(count)]
        expected = plain.run(decoder.model, begun(plain, decoder, LENGTHS[:count]), texts)
        found = pool.run(decoder, begun(pool, decoder, LENGTHS[:count]), texts)
        assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(pool.cache.pool, plain.cache.pool, atol=1e-6)
    assert replays.count == 3


def test_logits_stay_when_the_next_pass_is_replayed(decoder: RecordedDecoder, pool: Pool) -> None:
    rows = begun(pool, decoder, [4, 5])
    first = pool.run(decoder, rows[:1], [tokens(1, seed=1)])
    kept = first.clone()
    pool.run(decoder, rows[1:], [tokens(1, seed=2)])
    assert torch.equal(first, kept)


@pytest.mark.parametrize(
    "what", ["a prefill", "a prefill beside a decode", "a row without logits", "more rows", "another pool"]
)
def test_all_else_runs_as_the_model_does(what: str, decoder: RecordedDecoder, pool: Pool, replays: Replays) -> None:
    count = row_counts(6)[-1] + 1 if what == "more rows" else 1
    rows, texts = begun(pool, decoder, [3] * count), [tokens(1)] * count
    if what == "a row without logits":
        rows = [SequenceRows(rows[0].from_token, rows[0].to_token, rows[0].blocks, samples=False)]
    if what.startswith("a prefill"):
        rows, texts = rows if "beside" in what else [], texts if "beside" in what else []
        rows, texts = [*rows, SequenceRows(0, 4, pool.blocks(4))], [*texts, tokens(4)]
    pool.run(decoder, rows, texts) if what != "another pool" else Pool(decoder).run(decoder, rows, texts)
    assert replays.count == 0


def test_a_pass_that_is_given_up_is_not_begun(decoder: RecordedDecoder, pool: Pool, replays: Replays) -> None:
    (row,) = begun(pool, decoder, [3])
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
