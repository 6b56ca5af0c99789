"""Loads a model folder: config.json and safetensors, in one file or several with an index.

Weights stream tensor by tensor from the mapped files into memory of their final type and place, so that a load needs
memory for the model and one more tensor. Every tensor that the model needs must be there with the right shape, and no
tensor may be there that the model would not use.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.domain.errors import InvalidFieldError, ModelFolderError
from services.runtime import model_files
from services.worker.model.config_json import read_model_config
from services.worker.model.decoder import DecoderModel
from services.worker.model.linear import Linear, packing_helps
from services.worker.model.llama import LlamaModel
from services.worker.model.llama_config import LlamaConfig
from services.worker.model.model_config import ModelConfig
from services.worker.model.opt import OptModel
from services.worker.model.opt_config import OptConfig

_UNUSED = re.compile(r"(.*\.rotary_emb\.inv_freq|.*\.masked_bias|.*\.attn\.bias|(model\.)?decoder\.version)$")


def load_model(
    folder: Path, device: torch.device | str, dtype: torch.dtype, max_model_len: int | None = None
) -> DecoderModel:
    """The folder's model on a device, its weights as `dtype`. `max_model_len` None serves the longest context that the
    model has.

    Raises ModelFolderError for a folder that is missing, broken or not supported, InvalidFieldError for a max_model_len
    beyond the model's context.
    """
    config = read_model_config(folder)
    if max_model_len is not None and not 1 <= max_model_len <= config.max_position:
        raise InvalidFieldError(
            "max_model_len",
            f"must be from 1 to the model's context of {config.max_position} tokens, not {max_model_len}",
        )
    files = model_files.weight_files(folder)
    model = empty_model(config, max_model_len or config.max_position, device, dtype)
    _fill(model, files)
    prepare(model)
    return model


def empty_model(
    config: ModelConfig, max_model_len: int, device: torch.device | str, dtype: torch.dtype
) -> DecoderModel:
    """A model whose weights are allocated but not filled."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = _decoder(config, max_model_len, dtype)
    finally:
        torch.set_default_dtype(previous)
    return model.to(device)


def _decoder(config: ModelConfig, max_model_len: int, dtype: torch.dtype) -> DecoderModel:
    match config:
        case LlamaConfig():
            return LlamaModel(config, max_model_len, dtype)
        case OptConfig():
            return OptModel(config, max_model_len, dtype)
    raise AssertionError(f"no decoder computes {type(config).__name__}")


def prepare(model: DecoderModel) -> None:
    """Brings filled weights into the layout that computes fastest on the device.

    A tied head's weights also serve as the embedding table, so they stay as they are; also in a share of a model that
    has the head alone, so that it gives the same bits.
    """
    kept = model.head if model.config.tied_embeddings else None
    for module in model.modules():
        if isinstance(module, Linear) and module is not kept and packing_helps(module.weight):
            module.pack()


def _fill(model: DecoderModel, files: tuple[Path, ...]) -> None:
    destinations = model.destinations()
    waiting = set(destinations)
    for path in files:
        try:
            with safe_open(path, framework="pt") as tensors:
                for stored_name in tensors.keys():  # noqa: SIM118 (no mapping)
                    if _is_unused(stored_name, model.config):
                        continue
                    name = model.canonical_name(stored_name)
                    if name in destinations and name not in waiting:
                        raise ModelFolderError(f"{path} contains the tensor {stored_name}, of which there is another")
                    _copy(name, tensors.get_tensor(stored_name), destinations, path)
                    waiting.discard(name)
        except (SafetensorError, OSError) as error:
            raise ModelFolderError(f"{path} is truncated or not a safetensors file: {error}") from error
    if waiting:
        raise ModelFolderError(
            f"{files[0].parent} lacks the tensor {min(waiting)}"
            + (f" and {len(waiting) - 1} more" if len(waiting) > 1 else "")
        )


def _is_unused(name: str, config: ModelConfig) -> bool:
    return _UNUSED.match(name) is not None or (config.tied_embeddings and name == "lm_head.weight")


def _copy(name: str, tensor: Tensor, destinations: Mapping[str, Tensor], path: Path) -> None:
    destination = destinations.get(name)
    if destination is None:
        raise ModelFolderError(
            f"{path} contains the tensor {name}, which the model described by config.json does not use"
        )
    if tensor.shape != destination.shape:
        raise ModelFolderError(
            f"{path}: {name} has the shape {list(tensor.shape)}; config.json requires {list(destination.shape)}"
        )
    if not tensor.is_floating_point():
        raise ModelFolderError(f"{path}: {name} has the dtype {tensor.dtype}; quantized weights are not supported")
    destination.copy_(tensor)
