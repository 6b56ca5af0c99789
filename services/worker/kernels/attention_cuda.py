"""Attention on a GPU: plain torch on the device's tensors.

Theory of operation
-------------------
Decodes of similar length form a group, padded to its longest: its pages are gathered, and the query heads of a kv head
are the query rows of one scaled_dot_product_attention, so that keys are read once for all of them. A group gathers
GATHERED_BYTES at most, so that a long job among many does not pad them all to its length. Masks come from the lengths
on the device; nothing here asks the host for a tensor's value, so that passes can be queued ahead.

Prefills go one by one: causal attention within their own rows if they start at 0 and no window cuts anything off, else
in tiles of rows over the keys that a tile can see, since a mask for all rows at once grows with their square.

cuDNN's attention is switched off: it makes a plan for every shape that is new to it, which takes longer than the
attention, and here nearly every shape is new.

Shape legend: T rows, B decode sequences of a group, P their pages, R rows of a prefill, H query heads, K kv heads, G =
H / K, E head size, C context positions.
"""

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from services.worker.model.attention import PAGES_PER_LAYER, PoolRows, bounded_cuts, visible
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.model_config import ModelConfig

GROUP_COST_POSITIONS = 8192
"""What one more group costs, as the padded positions that take as long: some launches of kernels."""
GATHERED_BYTES = 1 << 30
"""K and V of a group at most, in one layer; a sequence longer than that is alone."""
MASK_PLACES = 1 << 24
"""Rows times keys of a prefill's tile at most."""


class CudaAttention:
    """Stateless: torch's caching allocator makes fresh buffers cheap on a GPU."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        torch.backends.cuda.enable_cudnn_sdp(False)

    def begin(self, batch: BatchLayout, cache: PagedKv) -> "CudaPass":
        return CudaPass(self.config, batch, cache)


class CudaDecodeGroup(NamedTuple):
    """Decodes, padded to the same number of pages. Rows count in the order of falling length.

    `masks` holds, per sliding window, the keys that each row sees, [B, 1, 1, C].
    """

    first_row: int
    row_count: int
    page_index_2BP: Tensor
    masks: dict[int | None, Tensor]


class CudaPass:
    """See AttentionPass."""

    def __init__(self, config: ModelConfig, batch: BatchLayout, cache: PagedKv) -> None:
        self.config = config
        self.batch = batch
        self.cache = cache
        self.scale = 1 / math.sqrt(config.head_dim)

    def attend(self, layer: int, query_THE: Tensor, key_value_T2KE: Tensor) -> Tensor:
        self.pool.write(layer, key_value_T2KE)
        count = self.batch.decode_count
        found = [self._decodes(layer, query_THE[:count])] if count else []
        for number in range(count, len(self.batch.sequences)):
            found.append(self.attend_prefill(layer, number, query_THE, key_value_T2KE))
        return _joined(found)

    def _decodes(self, layer: int, query_BHE: Tensor) -> Tensor:
        """Attention of the rows of decodes, [B, H * E]."""
        groups, order, order_back = self.decode_groups
        if order is not None:
            query_BHE = query_BHE.index_select(0, order)
        decoded = _joined([self._decode(layer, group, query_BHE) for group in groups])
        return decoded if order_back is None else decoded.index_select(0, order_back)

    @cached_property
    def pool(self) -> PoolRows:
        return PoolRows(self.batch, self.cache)

    @cached_property
    def page_index(self) -> Tensor:
        """Layer 0's pages of all sequences."""
        return self.pool.page_index(self.batch.block_table_SP)

    @cached_property
    def decode_groups(self) -> tuple[list[CudaDecodeGroup], Tensor | None, Tensor | None]:
        """The groups, and the order of their rows and its inverse (None: as they are)."""
        batch, count = self.batch, self.batch.decode_count
        pages = [-(-sequence.to_token // batch.block_size) for sequence in batch.sequences[:count]]
        order = sorted(range(count), key=lambda number: -pages[number])
        position_bytes = 2 * self.config.kv_size * self.pool.pages.element_size()
        cuts = bounded_cuts(
            [pages[number] * batch.block_size for number in order],
            GROUP_COST_POSITIONS,
            GATHERED_BYTES // position_bytes,
        )
        page_index_2BP, lengths_B = self.page_index[:, :count], batch.context_lengths_S[:count]
        order_tensor = order_back = None
        if len(cuts) > 1:
            back = sorted(range(count), key=order.__getitem__)
            both = torch.tensor([order, back], dtype=torch.int64).to(lengths_B.device, non_blocking=True)
            order_tensor, order_back = both.unbind()
            page_index_2BP, lengths_B = page_index_2BP.index_select(1, order_tensor), lengths_B[order_tensor]
        groups = []
        for first, stop in zip([0, *cuts], cuts, strict=False):
            longest = pages[order[first]]
            last_positions = (lengths_B[first:stop] - 1).view(-1, 1, 1, 1)
            positions = torch.arange(longest * batch.block_size, device=lengths_B.device)
            masks = {
                window: visible(last_positions, positions, window) for window in dict.fromkeys(self.config.windows)
            }
            groups.append(CudaDecodeGroup(first, stop - first, page_index_2BP[:, first:stop, :longest], masks))
        return groups, order_tensor, order_back

    def _gather(self, layer: int, page_index: Tensor) -> Tensor:
        """K and V of the pages, [2, ..., C, K, E]."""
        pages = self.pool.pages.index_select(0, page_index.reshape(-1) + layer * PAGES_PER_LAYER)
        return pages.view(*page_index.shape[:-1], -1, self.config.kv_head_count, self.config.head_dim)

    def _decode(self, layer: int, group: CudaDecodeGroup, query_BHE: Tensor) -> Tensor:
        count, kv_heads, head_dim = group.row_count, self.config.kv_head_count, self.config.head_dim
        keys_BCKE, values_BCKE = self._gather(layer, group.page_index_2BP)
        rows = slice(group.first_row, group.first_row + count)
        query_BKGE = query_BHE[rows].reshape(count, kv_heads, -1, head_dim)
        mask = group.masks[self.config.windows[layer]].expand(-1, -1, query_BKGE.shape[2], -1)
        found_BKGE = scaled_dot_product_attention(
            query_BKGE, keys_BCKE.transpose(1, 2), values_BCKE.transpose(1, 2), attn_mask=mask, scale=self.scale
        )
        return found_BKGE.reshape(count, -1)

    def attend_prefill(self, layer: int, number: int, query_THE: Tensor, key_value_T2KE: Tensor) -> Tensor:
        """Attention of the rows of a sequence of more than one, [R, H * E]."""
        sequence, first = self.batch.sequences[number], self.batch.first_rows[number]
        from_token, to_token = sequence.from_token, sequence.to_token
        rows = slice(first, first + to_token - from_token)
        window = self.config.windows[layer]
        if from_token == 0:
            keys_CKE, values_CKE = key_value_T2KE[rows].unbind(1)
        else:
            pages = -(-to_token // self.batch.block_size)
            keys_CKE, values_CKE = self._gather(layer, self.page_index[:, number, :pages])[:, :to_token]
        query_HRE = query_THE[rows].transpose(0, 1)
        keys_HCE, values_HCE = self._by_query_head(keys_CKE), self._by_query_head(values_CKE)
        if from_token == 0 and (window is None or window >= to_token):
            return self._attend_rows(query_HRE, keys_HCE, values_HCE, None)
        positions = torch.arange(to_token, device=query_THE.device)
        step = max(1, MASK_PLACES // to_token)
        found = []
        for start in range(from_token, to_token, step):
            stop = min(start + step, to_token)
            seen = slice(0 if window is None else max(0, start - window + 1), stop)
            mask = visible(positions[start:stop, None], positions[seen], window)
            query = query_HRE[:, start - from_token : stop - from_token]
            found.append(self._attend_rows(query, keys_HCE[:, seen], values_HCE[:, seen], mask))
        return _joined(found)

    def _attend_rows(self, query_HRE: Tensor, keys_HCE: Tensor, values_HCE: Tensor, mask: Tensor | None) -> Tensor:
        """Causal without a mask."""
        found_HRE = scaled_dot_product_attention(
            query_HRE[None],
            keys_HCE[None],
            values_HCE[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
        )[0]
        return found_HRE.transpose(0, 1).reshape(found_HRE.shape[1], -1)

    def _by_query_head(self, x_CKE: Tensor) -> Tensor:
        """K or V repeated for each query head: the fused kernels that take masks have no groups of their own."""
        return x_CKE.transpose(0, 1).repeat_interleave(self.config.head_count // self.config.kv_head_count, dim=0)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]
