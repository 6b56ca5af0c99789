"""Attention on a GPU with a kernel of our own for decodes (paged_decode.py). Prefills go as in attention_cuda.py."""

from torch import Tensor

from services.worker.kernels.attention_cuda import CudaAttention, CudaPass
from services.worker.kernels.gpu.paged_decode import paged_decode
from services.worker.model.batch import BatchLayout, PagedKv


class PagedAttention(CudaAttention):
    """Nothing is gathered for decodes, and no shape depends on their lengths."""

    def begin(self, batch: BatchLayout, cache: PagedKv) -> "PagedPass":
        return PagedPass(self.config, batch, cache)


class PagedPass(CudaPass):
    """See AttentionPass."""

    def attend_decodes(self, layer: int, query_BHE: Tensor) -> Tensor:
        count = self.batch.decode_count
        return paged_decode(
            query_BHE,
            self.cache.pool,
            layer,
            self.batch.block_table_SP[:count],
            self.batch.context_lengths_S[:count],
            self.config.windows[layer],
        )
