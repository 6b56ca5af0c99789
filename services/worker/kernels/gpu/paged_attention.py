"""Attention on a GPU with kernels of our own, which write and read the pool where it lies (paged_write.py,
paged_decode.py, paged_prefill.py): a few launches a layer for all sequences, whatever their lengths.

Long prompts computed at once, whose keys and values are all at hand, are left to torch's attention (attention_cuda.py),
which is faster there.

Shape legend: T rows, H query heads, K kv heads, E head size.
"""

import torch
from torch import Tensor

from services.worker.kernels.attention_cuda import CudaAttention, CudaPass
from services.worker.kernels.gpu.attention_work import AttentionCut, AttentionWork
from services.worker.kernels.gpu.paged_decode import paged_decode
from services.worker.kernels.gpu.paged_prefill import paged_prefill
from services.worker.kernels.gpu.paged_write import paged_write
from services.worker.kernels.gpu.recorded_decoder import FixedLayout
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.model_config import ModelConfig

LONG_PROMPT = 1024
"""Rows of a prompt computed at once from which on torch's attention is the faster one, on an H100."""


class PagedAttention:
    """See Attention."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._of_torch = CudaAttention(config)

    def begin(self, batch: BatchLayout, cache: PagedKv) -> "PagedPass":
        by_torch = self._of_torch.begin(batch, cache) if self._are_for_torch(batch) else None
        if isinstance(batch, FixedLayout):
            return PagedPass(self._config, batch, cache, batch.work, by_torch)
        cut = AttentionCut(self._config, cache.pool.dtype, cache.pool.device)
        numbers, shape = cut.cut(batch)
        on_device = torch.from_numpy(numbers).to(cache.pool.device, non_blocking=True)
        return PagedPass(self._config, batch, cache, AttentionWork.of(on_device, shape), by_torch)

    def _are_for_torch(self, batch: BatchLayout) -> bool:
        prefills = batch.sequences[batch.decode_count :]
        sees_all = all(window is None for window in self._config.windows)
        are_long = all(each.from_token == 0 and each.to_token >= LONG_PROMPT for each in prefills)
        return bool(prefills) and sees_all and are_long


class PagedPass:
    """See AttentionPass. What a row that is nobody's finds is nothing in particular."""

    def __init__(
        self, config: ModelConfig, batch: BatchLayout, cache: PagedKv, work: AttentionWork, by_torch: CudaPass | None
    ) -> None:
        self._config = config
        self._batch = batch
        self._pool = cache.pool
        self._work = work
        self._by_torch = by_torch

    def attend(self, layer: int, query_THE: Tensor, key_value_T2KE: Tensor) -> Tensor:
        batch, pool, window = self._batch, self._pool, self._config.windows[layer]
        paged_write(pool, layer, batch.slots_T, key_value_T2KE)
        found_TX = torch.empty(query_THE.shape[0], self._config.query_size, dtype=query_THE.dtype, device=pool.device)
        if self._work.items_Y5.shape[0]:
            paged_decode(query_THE, pool, layer, self._work, batch.block_table_SP, window, found_TX)
        if self._by_torch is not None:
            self._prefill_by_torch(self._by_torch, layer, query_THE, key_value_T2KE, found_TX)
        elif self._work.tiles_X4.shape[0]:
            paged_prefill(query_THE, pool, layer, self._work.tiles_X4, batch.block_table_SP, window, found_TX)
        return found_TX

    def _prefill_by_torch(
        self, by_torch: CudaPass, layer: int, query_THE: Tensor, key_value_T2KE: Tensor, found_TX: Tensor
    ) -> None:
        if key_value_T2KE.dtype == torch.float16:
            key_value_T2KE.nan_to_num_()  # as they are written (model/attention.py)
        for number in range(self._batch.decode_count, len(self._batch.sequences)):
            first = self._batch.first_rows[number]
            rows = slice(first, first + self._batch.sequences[number].to_token)
            found_TX[rows] = by_torch.attend_prefill(layer, number, query_THE, key_value_T2KE)
