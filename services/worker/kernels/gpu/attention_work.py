"""How the attention of a batch is cut into pieces of work for a GPU, on the host, which knows all lengths. No Triton.

Theory of operation
-------------------
Rows of prefills and chunks are cut into tiles (paged_prefill.py), and the contexts of decodes into items
(paged_decode.py): a GPU of many processors is kept busy by few jobs, and a long context beside short ones is not what
all wait for. Items are as long as gives every processor some of them, no shorter, since what the items of a job found
has to be joined. Long ones come first.

A recorded pass has room for a number of pieces. What is left of it is nobody's: zeros, which end at once.

Shape legend: Y items, B decodes, X tiles.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.model.batch import BatchLayout
from services.worker.model.model_config import ModelConfig

CHUNK = 64
"""Positions of a context that are multiplied together. This, the items of a processor, the rows of a tile, and the
warps and stages of both kernels do well for 1 to 256 jobs of 256 to 8,192 tokens of Llama-3-8B's shape on an H100."""
ITEMS_OF_PROCESSOR = 4
"""So many items, of one kv head, for each processor, unless jobs or contexts are fewer."""
TILE_ROWS = 64
"""Rows of a tile times the query heads of a kv head."""
EXACT_TILE_ROWS = 32
"""The same in float32, whose numbers are twice as large and are not multiplied by tensor cores."""
FEW_ROWS = 8
"""Rows of a prefill or chunk on average down to which a recorded pass has tiles enough."""
NO_SLOT = -1

Numbers = NDArray[np.int64]


class PieceCounts(NamedTuple):
    """How many pieces of each kind there is room for."""

    items: int
    decodes: int
    tiles: int

    @property
    def size(self) -> int:
        """Of all numbers, which are one array."""
        return 5 * self.items + 2 * self.decodes + 4 * self.tiles


class AttentionWork(NamedTuple):
    """The pieces, int64, on the model's device.

    An item is a decode's number, the first position, the position after the last one, the slot for what it found (or
    NO_SLOT if it is the only one) and the decode's length; a join is a decode's first slot and how many there are, or
    0, 0; a tile is a sequence's number, the tile's first row in the batch, that row's position, and the number of rows.
    """

    items_Y5: Tensor
    joins_B2: Tensor
    tiles_X4: Tensor

    @classmethod
    def of(cls, numbers: Tensor, shape: PieceCounts) -> "AttentionWork":
        """The parts of an array of `shape.size` numbers."""
        sizes = [5 * shape.items, 2 * shape.decodes, 4 * shape.tiles]
        items, joins, tiles = torch.split(numbers, sizes)
        return cls(items.view(-1, 5), joins.view(-1, 2), tiles.view(-1, 4))


class NoRoomError(Exception):
    """A batch has more pieces than a recorded pass has room for."""


class AttentionCut:
    """Cuts batches of a model on a device."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._rows_of_tile = tile_rows(config.head_count // config.kv_head_count, dtype)
        self._wanted_items = max(1, ITEMS_OF_PROCESSOR * processor_count(device) // config.kv_head_count)

    def room(self, rows: int, decodes: int, *, has_prefills: bool) -> PieceCounts:
        """For any batch of so many rows and decodes, if its prefills are not many short ones."""
        tiles = rows // self._rows_of_tile + rows // FEW_ROWS + 1 if has_prefills else 0
        return PieceCounts(self._wanted_items + decodes, decodes, tiles)

    def cut(self, batch: BatchLayout, room: PieceCounts | None = None) -> tuple[Numbers, PieceCounts]:
        """The numbers of AttentionWork, and how many pieces they are, which is `room` if that is given.

        Raises NoRoomError if there are more.
        """
        lengths = [sequence.to_token for sequence in batch.sequences[: batch.decode_count]]
        items, joins = self._items(np.array(lengths, dtype=np.int64))
        tiles = self._tiles(batch)
        needed = PieceCounts(len(items), len(joins), len(tiles))
        room = room or needed
        if any(count > most for count, most in zip(needed, room, strict=True)):
            raise NoRoomError
        numbers = np.zeros(room.size, dtype=np.int64)
        at = 0
        for pieces, width, most in ((items, 5, room.items), (joins, 2, room.decodes), (tiles, 4, room.tiles)):
            numbers[at : at + pieces.size] = pieces.reshape(-1)
            at += width * most
        return numbers, room

    def _items(self, lengths: Numbers) -> tuple[Numbers, Numbers]:
        if not len(lengths):
            return np.zeros((0, 5), dtype=np.int64), np.zeros((0, 2), dtype=np.int64)
        chunks = -(-lengths // CHUNK)
        chunks_of_item = -(-int(chunks.sum()) // self._wanted_items)
        counts = -(-chunks // chunks_of_item)
        firsts = np.cumsum(counts) - counts
        decodes = np.repeat(np.arange(len(lengths)), counts)
        begins = (np.arange(len(decodes)) - firsts[decodes]) * (chunks_of_item * CHUNK)
        stops = np.minimum(begins + chunks_of_item * CHUNK, lengths[decodes])
        slots = np.where(counts[decodes] > 1, np.arange(len(decodes)), NO_SLOT)
        items = np.stack((decodes, begins, stops, slots, lengths[decodes]), axis=1)
        joins = np.stack((firsts, counts), axis=1)
        joins[counts == 1] = 0
        return items[np.argsort(begins - stops, kind="stable")], joins

    def _tiles(self, batch: BatchLayout) -> Numbers:
        tiles = []
        for number in range(batch.decode_count, len(batch.sequences)):
            first_row, (from_token, to_token, *_) = batch.first_rows[number], batch.sequences[number]
            for start in range(from_token, to_token, self._rows_of_tile):
                count = min(self._rows_of_tile, to_token - start)
                tiles.append((number, first_row + start - from_token, start, count))
        tiles.sort(key=lambda tile: -tile[2])
        return np.array(tiles, dtype=np.int64).reshape(-1, 4)


def tile_rows(group: int, dtype: torch.dtype) -> int:
    """Rows of a tile at most, with so many query heads for each kv head."""
    return max(1, (EXACT_TILE_ROWS if dtype == torch.float32 else TILE_ROWS) // group)


@cache
def processor_count(device: torch.device) -> int:
    """The GPU's streaming multiprocessors; 1 of anything else, on which kernels are interpreted."""
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
