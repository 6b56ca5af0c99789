"""Attention on a GPU: plain torch on the device's tensors.

Theory of operation
-------------------
Decodes form one batch, padded to the widest row of the block table: its pages are gathered, and the query heads of a kv
head are the query rows of one scaled_dot_product_attention, so that keys are read once for all of them. Masks come from
the lengths on the device; nothing here asks the host for a tensor's value, so that passes can be queued ahead.

Prefills go one by one: causal attention within their own rows if they start at 0, else over their gathered pages.

Shape legend: T rows, B decode sequences, R rows of a prefill, H query heads, K kv heads, G = H / K, E head size, C
context positions.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from services.worker.model.attention import PAGES_PER_LAYER, PoolRows, visible
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.config import ModelConfig


class CudaAttention:
    """Stateless: torch's caching allocator makes fresh buffers cheap on a GPU."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def begin(self, batch: BatchLayout, cache: PagedKv) -> "CudaPass":
        return CudaPass(self.config, batch, cache)


class CudaPass:
    """See AttentionPass."""

    def __init__(self, config: ModelConfig, batch: BatchLayout, cache: PagedKv) -> None:
        self.config = config
        self.batch = batch
        self.scale = 1 / math.sqrt(config.head_dim)
        self.pool = PoolRows(batch, cache)
        self.page_index_2SP = self.pool.page_index(batch.block_table_SP)
        lengths = [sequence.to_token for sequence in batch.sequences[: batch.decode_count]]
        self.decode_pages = -(-max(lengths, default=0) // batch.block_size)
        self.masks = {window: self._decode_mask(window) for window in dict.fromkeys(config.windows)}

    def attend(self, layer: int, query_THE: Tensor, key_value_T2KE: Tensor) -> Tensor:
        self.pool.write(layer, key_value_T2KE)
        found = []
        if self.batch.decode_count:
            found.append(self._decode(layer, query_THE[: self.batch.decode_count]))
        for number in range(self.batch.decode_count, len(self.batch.sequences)):
            found.append(self._prefill(layer, number, query_THE, key_value_T2KE))
        return torch.cat(found) if len(found) > 1 else found[0]

    def _decode_mask(self, window: int | None) -> Tensor:
        """Keys that each decode sees, [B, 1, 1, C]."""
        lengths = self.batch.context_lengths_S[: self.batch.decode_count].view(-1, 1, 1, 1)
        positions = torch.arange(self.decode_pages * self.batch.block_size, device=lengths.device)
        return visible(lengths - 1, positions, window)

    def _gather(self, layer: int, page_index: Tensor) -> Tensor:
        """K and V of the pages, [2, ..., C, K, E]."""
        pages = self.pool.pages.index_select(0, page_index.reshape(-1) + layer * PAGES_PER_LAYER)
        return pages.view(*page_index.shape[:-1], -1, self.config.kv_head_count, self.config.head_dim)

    def _decode(self, layer: int, query_BHE: Tensor) -> Tensor:
        count, kv_heads, head_dim = query_BHE.shape[0], self.config.kv_head_count, self.config.head_dim
        keys_BCKE, values_BCKE = self._gather(layer, self.page_index_2SP[:, :count, : self.decode_pages])
        query_BKGE = query_BHE.reshape(count, kv_heads, -1, head_dim)
        mask = self.masks[self.config.windows[layer]].expand(-1, -1, query_BKGE.shape[2], -1)
        found_BKGE = scaled_dot_product_attention(
            query_BKGE, keys_BCKE.transpose(1, 2), values_BCKE.transpose(1, 2), attn_mask=mask, scale=self.scale
        )
        return found_BKGE.reshape(count, -1)

    def _prefill(self, layer: int, number: int, query_THE: Tensor, key_value_T2KE: Tensor) -> Tensor:
        sequence, first = self.batch.sequences[number], self.batch.first_rows[number]
        rows = slice(first, first + sequence.to_token - sequence.from_token)
        window = self.config.windows[layer]
        if sequence.from_token == 0:
            keys_CKE, values_CKE = key_value_T2KE[rows].unbind(1)
        else:
            pages = -(-sequence.to_token // self.batch.block_size)
            keys_CKE, values_CKE = self._gather(layer, self.page_index_2SP[:, number, :pages])[:, : sequence.to_token]
        keys_HCE, values_HCE = self._by_query_head(keys_CKE), self._by_query_head(values_CKE)
        mask = None
        if sequence.from_token or window is not None:
            positions = torch.arange(sequence.to_token, device=query_THE.device)
            mask = visible(positions[sequence.from_token :, None], positions, window)
        found_HRE = scaled_dot_product_attention(
            query_THE[rows].transpose(0, 1)[None],
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
