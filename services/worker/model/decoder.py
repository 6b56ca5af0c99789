"""What every decoder is, whatever its family: the interface that engine, loader and parallelism see.

Theory of operation
-------------------
A forward pass takes a flat batch of T tokens, rows of prefills and decodes alike (batch.py), writes their keys and
values into a paged cache and gives the logits of the rows that sample. A family's file shows the whole of its decoder;
here is only what it shares with the others: the two ends, which a share of a model may lack (model_config.py).

What parallelism counts on, in every family: `layers` are modules with `attention.output` and `feed_forward.down`, the
two products whose results are summed over the shares of a layer; `destinations` names the tensors of the whole
checkpoint, whose memory may be that of a part of them.

Shape legend: T rows, D hidden, S rows that sample, V tokens with a logit (all of the vocabulary, or the share's).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from services.worker.kernels.attention_cpu import CpuAttention
from services.worker.kernels.attention_cuda import CudaAttention
from services.worker.model.attention import Attention
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.linear import Linear
from services.worker.model.model_config import ModelConfig


class DecoderModel(nn.Module, ABC):
    """A decoder with its weights, or the share of one that its config describes.

    `max_model_len` is the longest sequence it serves. One forward pass at a time: attention keeps buffers.
    """

    embedding: nn.Parameter | None
    head: Linear | None
    layers: nn.ModuleList

    def __init__(self, config: ModelConfig, max_model_len: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.max_model_len = max_model_len
        self.dtype = dtype
        on_cpu = torch.get_default_device().type == "cpu"
        self.attention: Attention = CpuAttention(config) if on_cpu else CudaAttention(config)

    @property
    def hidden_dtype(self) -> torch.dtype:
        """The type of the hidden states that stages hand on."""
        return self.dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def pool_shape(self, block_count: int, block_size: int) -> tuple[int, int, int, int, int, int]:
        """Shape of a PagedKv pool of `block_count` blocks."""
        return (block_count, self.config.layer_count, 2, block_size, self.config.kv_head_count, self.config.head_dim)

    @abstractmethod
    def forward(
        self, inputs: Tensor, cache: PagedKv, batch: BatchLayout, keep_going: Callable[[], bool] | None = None
    ) -> Tensor:
        """Logits of the rows that `batch.logit_rows` names, float32 [S, V]; or, if the model is not the last stage, the
        hidden states of all rows, [T, D].

        `inputs` are token ids [T], or, if the model is not the first stage, the hidden states that the stage before it
        returned. `keep_going` is called before every layer; raises PrefillCut if it returns False.
        """

    @abstractmethod
    def destinations(self) -> dict[str, Tensor]:
        """Every checkpoint tensor that the model needs, by name, and the memory that it fills."""

    @staticmethod
    def canonical_name(name: str) -> str:
        """What `destinations` calls a tensor that a checkpoint calls `name`."""
        return name


def embedding_table(config: ModelConfig, width: int) -> nn.Parameter | None:
    """The embeddings of all tokens, [vocabulary, width]; None for a share that begins from hidden states."""
    if not config.first_stage:
        return None
    return nn.Parameter(torch.empty(config.vocabulary_size, width), requires_grad=False)


def logit_head(config: ModelConfig, embedding: nn.Parameter | None, width: int, tied_to: str) -> Linear | None:
    """The product that makes logits of `width` numbers; None for a share that ends with hidden states.

    A tied head is the embedding's memory where that is at hand. Else it has its own, filled from the checkpoint's
    tensor `tied_to`, as the embedding is.
    """
    if not config.last_stage:
        return None
    rows = config.head_rows or range(config.vocabulary_size)
    if not config.tied_embeddings:
        return Linear(width, {"lm_head": len(rows)}, bias=False)
    head = Linear(width, {tied_to: len(rows)}, bias=False)
    if embedding is not None:
        whole = len(rows) == config.vocabulary_size
        head.weight = embedding if whole else nn.Parameter(embedding.data[rows.start : rows.stop], requires_grad=False)
    return head
