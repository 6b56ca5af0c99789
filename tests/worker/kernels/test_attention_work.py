"""How the attention of a batch is cut for a GPU: every position and row once, evenly, within the room there is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.worker.kernels.gpu import attention_work
from services.worker.kernels.gpu.attention_work import (
    CHUNK,
    FEW_ROWS,
    ITEMS_OF_PROCESSOR,
    NO_SLOT,
    AttentionCut,
    AttentionWork,
    NoRoomError,
)
from services.worker.model.batch import BatchLayout, SequenceRows

KV_HEADS = 8
PROCESSORS = 132


@pytest.fixture(scope="module", autouse=True)
def _processors() -> Any:
    """Those of an H100."""
    with pytest.MonkeyPatch.context() as here:
        here.setattr(attention_work, "processor_count", lambda device: PROCESSORS)
        yield


def cut_of(heads: int = 32) -> AttentionCut:
    config: Any = SimpleNamespace(head_count=heads, kv_head_count=KV_HEADS)
    return AttentionCut(config, torch.bfloat16, torch.device("cpu"))


def work_of(spans: list[tuple[int, int]]) -> AttentionWork:
    numbers, shape = cut_of().cut(batch_of(spans))
    return AttentionWork.of(torch.from_numpy(numbers), shape)


def batch_of(spans: list[tuple[int, int]]) -> BatchLayout:
    spans = sorted(spans, key=lambda span: span[1] - span[0] > 1)
    return BatchLayout.of([SequenceRows(start, stop, range(stop)) for start, stop in spans], 1)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60))
def test_every_position_of_a_decode_is_in_one_item_and_several_items_are_joined_in_order(lengths: list[int]) -> None:
    work = work_of([(length - 1, length) for length in lengths])
    slots = [slot for *_, slot, _ in work.items_Y5.tolist() if slot != NO_SLOT]
    assert len(set(slots)) == len(slots)
    for decode, length in enumerate(lengths):
        items = sorted(item[1:] for item in work.items_Y5.tolist() if item[0] == decode)
        begins, stops = [item[0] for item in items], [item[1] for item in items]
        assert [0, *stops] == [*begins, length]
        assert all(item[3] == length for item in items)
        first, count = work.joins_B2[decode].tolist()
        assert [item[2] for item in items] == (list(range(first, first + count)) if count else [NO_SLOT])


def test_no_processor_waits_for_a_long_context_beside_short_ones() -> None:
    items = work_of([(6399, 6400)] + [(63, 64)] * 100).items_Y5
    sizes = (items[:, 2] - items[:, 1]).tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= CHUNK * -(-200 * KV_HEADS // (ITEMS_OF_PROCESSOR * PROCESSORS))


def test_few_jobs_keep_all_processors_busy_and_many_are_not_cut() -> None:
    assert len(work_of([(8191, 8192)] * 2).items_Y5) * KV_HEADS >= 0.9 * ITEMS_OF_PROCESSOR * PROCESSORS
    assert len(work_of([(1023, 1024)] * 256).items_Y5) == 256


def test_tiles_have_the_rows_of_prefills_once_and_those_that_see_most_come_first() -> None:
    work = work_of([(4, 5), (10, 37), (0, 16), (100, 103)])
    assert work.tiles_X4.tolist() == [[3, 44, 100, 3], [1, 17, 26, 11], [1, 1, 10, 16], [2, 28, 0, 16]]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(1, 8192))
def test_a_recorded_pass_has_room_for_any_batch_whose_prefills_are_not_many_short_ones(
    counts: list[int], context: int
) -> None:
    spans = [(context, context + count) for count in counts]
    prefills = [count for count in counts if count > 1]
    rows, decodes = sum(counts), counts.count(1)
    room = cut_of().room(rows, decodes, has_prefills=True)
    if sum(prefills) >= FEW_ROWS * len(prefills):
        numbers, shape = cut_of().cut(batch_of(spans), room)
        assert shape == room
        assert len(numbers) == room.size


def test_what_is_left_of_the_room_is_nobodys() -> None:
    batch, cut = batch_of([(4, 5), (0, 9)]), cut_of()
    exact, shape = cut.cut(batch)
    roomy, room = cut.cut(batch, cut.room(64, 8, has_prefills=True))
    tight_parts, parts = (AttentionWork.of(torch.from_numpy(each), of) for each, of in ((exact, shape), (roomy, room)))
    for tight, found in zip(tight_parts, parts, strict=True):
        assert torch.equal(found[: len(tight)], tight)
        assert not found[len(tight) :].any()


@pytest.mark.parametrize("spans", [[(9, 10)] * 3, [(0, 2)] * 20], ids=["decodes", "short prefills"])
def test_more_than_there_is_room_for_is_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(NoRoomError):
        cut_of().cut(batch_of(spans), cut_of().room(40, 2, has_prefills=True))
    assert np.issubdtype(cut_of().cut(batch_of(spans))[0].dtype, np.int64)
