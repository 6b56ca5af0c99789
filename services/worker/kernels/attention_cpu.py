"""Attention on a CPU.

Theory of operation
-------------------
bfloat16, decodes: sequences of similar length form a group, padded to its longest. All query heads meet all kv heads in
one product per sequence: the queries are laid out as a matrix [H, K * E] that is zero outside of each head's own kv
head, so that the gathered pages are used as they lie and the product is a real matrix product even where each kv head
has a single query head. It multiplies K times more than needed and is still 2 to 5 times faster than a product per
head, let alone torch's scaled_dot_product_attention for single rows.

bfloat16, prefills: tiles of query rows against all keys up to the tile's end; explicit products with a softmax between
them are more than twice as fast as torch's own causal attention here, and a tile keeps the scores in the cache.

float32 is the reference, with the same bits for a row in every batch, whether in a prefill or in a decode (exact.py).
Every sequence goes through the tiles, single rows too, with rows padded as in the linear layers, keys padded to whole
chunks, and the product with V summed chunk by chunk, since the BLAS would split a long sum by its length. Masked places
weigh exactly 0.

Shape legend: T rows, B sequences of a group, R rows of a tile, H query heads, K kv heads, G = H / K, E head size, C
context positions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from services.worker.model.attention import PAGES_PER_LAYER, PoolRows, group_cuts, visible
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.exact import is_exact, row_padding
from services.worker.model.model_config import ModelConfig

TILE_ROWS = 128
TILE_SCORES = 1 << 23
"""Scores of a tile at most, all heads together: long contexts have smaller tiles."""

CHUNK_POSITIONS = 128
GROUP_COST_POSITIONS = 1536
"""What one more group costs, as the padded positions that take as long: a dozen calls, three of which wake threads."""


class CpuAttention:
    """Keeps the buffers that pages are gathered into, since fresh memory costs more than the copy."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._kept = torch.zeros(0)

    def begin(self, batch: BatchLayout, cache: PagedKv) -> "CpuPass":
        return CpuPass(self, batch, cache)

    def buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """Memory of `size` numbers, all finite, valid until the next call."""
        if self._kept.numel() < size or self._kept.dtype != dtype:
            self._kept = torch.zeros(size + size // 4, dtype=dtype)
        return self._kept[:size]


class CpuDecodeGroup(NamedTuple):
    """Sequences of one row, padded to the same number of pages. Rows count from the first decode in the order of
    falling length.

    `masks` holds, per sliding window, what is added to the scores, [B, 1, C].
    """

    first_row: int
    row_count: int
    page_index: Tensor
    masks: dict[int | None, Tensor]
    wide_query_BHX: Tensor


class Tile(NamedTuple):
    """Rows first_row to first_row + row_count - 1 of the batch, which see keys 0 to context - 1.

    `masks` holds, per sliding window, the first column that needs a mask and the mask [R, C - column].
    """

    first_row: int
    row_count: int
    context: int
    masks: dict[int | None, tuple[int, Tensor]]


class RowSpan(NamedTuple):
    """A sequence that goes through tiles. `page_index` is None if its rows are all that it attends to."""

    first_row: int
    row_count: int
    page_index: Tensor | None
    tiles: tuple[Tile, ...]


class CpuPass:
    """See AttentionPass."""

    def __init__(self, owner: CpuAttention, batch: BatchLayout, cache: PagedKv) -> None:
        self.owner = owner
        self.config = owner.config
        self.dtype = cache.pool.dtype
        self.exact = is_exact(cache.pool)
        self.scale = 1 / math.sqrt(self.config.head_dim)
        self.pool = PoolRows(batch, cache)
        self.windows = tuple(dict.fromkeys(self.config.windows))
        self.decode_count = 0 if self.exact else batch.decode_count
        self.groups, self.order, self.order_back = self._decode_groups(batch)
        self.spans = [self._span(batch, number) for number in range(self.decode_count, len(batch.sequences))]

    def attend(self, layer: int, query_THE: Tensor, key_value_T2KE: Tensor) -> Tensor:
        self.pool.write(layer, key_value_T2KE)
        found_THE = torch.empty(query_THE.shape, dtype=self.dtype)
        if self.groups:
            query = query_THE[: self.decode_count]
            found = found_THE[: self.decode_count]
            if self.order is None:
                self._decode(layer, query, found)
            else:
                sorted_found = torch.empty_like(found)
                self._decode(layer, query.index_select(0, self.order), sorted_found)
                torch.index_select(sorted_found, 0, self.order_back, out=found)
        for span in self.spans:
            self._attend_span(layer, span, query_THE, key_value_T2KE, found_THE)
        return found_THE.view(found_THE.shape[0], -1)

    def _decode_groups(self, batch: BatchLayout) -> tuple[list[CpuDecodeGroup], Tensor | None, Tensor]:
        """The groups, and the order of their rows and its inverse (None: as they are)."""
        lengths = [sequence.to_token for sequence in batch.sequences[: self.decode_count]]
        order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
        cuts = group_cuts([lengths[number] for number in order], GROUP_COST_POSITIONS)
        if len(cuts) < 2:
            order = list(range(len(lengths)))
        order_tensor = torch.tensor(order, dtype=torch.int64)
        groups = []
        for first, stop in zip([0, *cuts], cuts, strict=False):
            members = order_tensor[first:stop]
            pages = -(-max(lengths[number] for number in order[first:stop]) // batch.block_size)
            last_positions = (batch.context_lengths_S[members] - 1).view(-1, 1, 1)
            positions = torch.arange(pages * batch.block_size)
            masks = {
                window: _additive(visible(last_positions, positions, window), self.dtype) for window in self.windows
            }
            wide = torch.zeros(stop - first, self.config.head_count, self.config.kv_size, dtype=self.dtype)
            table = batch.block_table_SP[members, :pages]
            groups.append(CpuDecodeGroup(first, stop - first, self.pool.page_index(table).view(-1), masks, wide))
        return groups, order_tensor if len(cuts) > 1 else None, order_tensor.argsort()

    def _span(self, batch: BatchLayout, number: int) -> RowSpan:
        sequence = batch.sequences[number]
        row_count = sequence.to_token - sequence.from_token
        first_row = batch.first_rows[number]
        step = max(1, min(TILE_ROWS, TILE_SCORES // (self.config.head_count * sequence.to_token)))
        tiles = tuple(
            self._tile(sequence, first_row, start, min(start + step, row_count)) for start in range(0, row_count, step)
        )
        if sequence.from_token == 0 and not self.exact:
            return RowSpan(first_row, row_count, None, tiles)
        pages = -(-sequence.to_token // batch.block_size)
        return RowSpan(first_row, row_count, self.pool.page_index(batch.block_table_SP[number, :pages]), tiles)

    def _tile(self, sequence: SequenceRows, first_row: int, start: int, stop: int) -> Tile:
        end = sequence.from_token + stop
        context = -(-end // CHUNK_POSITIONS) * CHUNK_POSITIONS if self.exact else end
        queries = torch.arange(sequence.from_token + start, end).view(-1, 1)
        masks = {}
        for window in self.windows:
            column = sequence.from_token + start if window is None else 0
            masks[window] = (column, _additive(visible(queries, torch.arange(column, context), window), self.dtype))
        return Tile(first_row + start, stop - start, context, masks)

    def _decode(self, layer: int, query_BHE: Tensor, found_BHE: Tensor) -> None:
        kv_heads, head_dim = self.config.kv_head_count, self.config.head_dim
        window = self.config.windows[layer]
        for group in self.groups:
            size, rows = group.row_count, slice(group.first_row, group.first_row + group.row_count)
            kept = self.owner.buffer(group.page_index.numel() * self.pool.pages.shape[1], self.dtype)
            torch.index_select(
                self.pool.pages,
                0,
                group.page_index + layer * PAGES_PER_LAYER,
                out=kept.view(-1, self.pool.pages.shape[1]),
            )
            keys_BCX, values_BCX = kept.view(2, size, -1, kv_heads * head_dim)
            by_head = (size, kv_heads, -1, head_dim)
            own_BGEK = group.wide_query_BHX.view(size, kv_heads, -1, kv_heads, head_dim).diagonal(dim1=1, dim2=3)
            own_BGEK.copy_(query_BHE[rows].view(by_head).permute(0, 2, 3, 1))
            scores_BHC = torch.baddbmm(
                group.masks[window], group.wide_query_BHX, keys_BCX.transpose(1, 2), alpha=self.scale
            )
            wide_BHX = torch.bmm(torch.softmax(scores_BHC, dim=-1), values_BCX)
            own_BGEK = wide_BHX.view(size, kv_heads, -1, kv_heads, head_dim).diagonal(dim1=1, dim2=3)
            found_BHE[rows].view(by_head).copy_(own_BGEK.permute(0, 3, 1, 2))

    def _attend_span(
        self, layer: int, span: RowSpan, query_THE: Tensor, key_value_T2KE: Tensor, found_THE: Tensor
    ) -> None:
        if span.page_index is None:
            keys_CKE, values_CKE = key_value_T2KE[span.first_row : span.first_row + span.row_count].unbind(1)
        else:
            keys_CKE, values_CKE = self._gather(layer, span.page_index, span.tiles[-1].context)
        for tile in span.tiles:
            self._attend_tile(layer, tile, query_THE, keys_CKE, values_CKE, found_THE)

    def _gather(self, layer: int, page_index: Tensor, context: int) -> Tensor:
        """K and V of a sequence, [2, C, K, E] with at least `context` positions; those beyond its pages are finite."""
        width = self.config.kv_size
        page_positions = self.pool.pages.shape[1] // width
        positions = max(context, page_index.shape[1] * page_positions)
        kept = self.owner.buffer(2 * positions * width, self.dtype).view(2, positions, width)
        for side in range(2):
            pages = kept[side, : page_index.shape[1] * page_positions].view(-1, self.pool.pages.shape[1])
            torch.index_select(self.pool.pages, 0, page_index[side] + layer * PAGES_PER_LAYER, out=pages)
        return kept.view(2, positions, self.config.kv_head_count, self.config.head_dim)

    def _attend_tile(
        self, layer: int, tile: Tile, query_THE: Tensor, keys_CKE: Tensor, values_CKE: Tensor, found_THE: Tensor
    ) -> None:
        kv_heads, head_dim = self.config.kv_head_count, self.config.head_dim
        group = self.config.head_count // kv_heads
        rows, by_head = tile.row_count, (tile.row_count, kv_heads, group, head_dim)
        batch_rows = slice(tile.first_row, tile.first_row + rows)
        query_KXE = query_THE[batch_rows].view(by_head).permute(1, 2, 0, 3).reshape(kv_heads, group * rows, head_dim)
        padding = row_padding(group * rows) if self.exact else 0
        if padding:
            query_KXE = torch.nn.functional.pad(query_KXE, (0, 0, 0, padding))
        keys_KEC = keys_CKE[: tile.context].permute(1, 2, 0)
        scores_KXC = torch.baddbmm(query_KXE.new_empty(1), query_KXE, keys_KEC, beta=0, alpha=self.scale)
        column, mask = tile.masks[self.config.windows[layer]]
        scores_KXC[:, : group * rows, column:].view(kv_heads, group, rows, -1).add_(mask)
        weights_KXC = torch.softmax(scores_KXC, dim=-1)
        found_KXE = self._weigh(weights_KXC, values_CKE[: tile.context].transpose(0, 1))
        found = found_KXE[:, : group * rows].view(kv_heads, group, rows, head_dim).permute(2, 0, 1, 3)
        found_THE[batch_rows].view(by_head).copy_(found)

    def _weigh(self, weights_KXC: Tensor, values_KCE: Tensor) -> Tensor:
        """Weighted sums of values; in float32 summed chunk by chunk."""
        if not self.exact:
            return torch.bmm(weights_KXC, values_KCE)
        total = torch.zeros(*weights_KXC.shape[:2], values_KCE.shape[2], dtype=self.dtype)
        for start in range(0, weights_KXC.shape[2], CHUNK_POSITIONS):
            chunk = slice(start, start + CHUNK_POSITIONS)
            total.baddbmm_(weights_KXC[:, :, chunk], values_KCE[:, chunk])
        return total


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen, minus infinity elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf)
