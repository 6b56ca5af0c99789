"""What the engine and the measuring of its cost ask of a decoder, whichever kernels it computes with."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from services.worker.model.model_config import ModelConfig


class ServedDecoder(Protocol):
    """A DecoderModel (decoder.py), or something that is called as one is. One forward pass at a time."""

    config: ModelConfig
    max_model_len: int
    dtype: torch.dtype

    @property
    def hidden_dtype(self) -> torch.dtype:
        """The type of the hidden states that stages hand on."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def __call__(self) -> Callable[..., Any]:
        """Computes a batch: see DecoderModel.forward."""
        ...
