"""Loads a model folder: config.json and safetensors, in one file or several with an index.

Weights stream tensor by tensor from the mapped files into memory of their final type and place (weight_files.py), so
that a load needs memory for the model, or the share of it that is asked for, and one more tensor. Every tensor that the
whole model needs must be there with the right shape, and no tensor may be there that it would not use: a share is
refused where the whole would be.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
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
from services.worker.model.weight_file import Cut, WeightFile

CutOf = Callable[[str], Cut | None]
"""What a share needs of a tensor of the whole model, None: all of it."""

_UNUSED = re.compile(r"(.*\.rotary_emb\.inv_freq|.*\.masked_bias|.*\.attn\.bias|(model\.)?decoder\.version)$")


def load_model(
    folder: Path, device: torch.device | str, dtype: torch.dtype, max_model_len: int | None = None
) -> DecoderModel:
    """The folder's model on a device, ready to compute with torch. See `filled_model`."""
    model = filled_model(folder, device, dtype, max_model_len)
    prepare(model)
    return model


def filled_model(
    folder: Path, device: torch.device | str, dtype: torch.dtype, max_model_len: int | None = None
) -> DecoderModel:
    """The folder's model on a device, its weights as `dtype`, in plain layout. `max_model_len` None serves the longest
    context that the model has.

    Raises ModelFolderError for a folder that is missing, broken or not supported, InvalidFieldError for a max_model_len
    beyond the model's context.
    """
    config = read_model_config(folder)
    return filled_share(folder, config, config, lambda _: None, device, dtype, max_model_len)


def filled_share(
    folder: Path,
    whole: ModelConfig,
    share: ModelConfig,
    cut_of: CutOf,
    device: torch.device | str,
    dtype: torch.dtype,
    max_model_len: int | None = None,
) -> DecoderModel:
    """The share of the folder's model `whole` that `share` describes, in plain layout. `cut_of` says which part of a
    tensor it needs.

    Raises like `filled_model`.
    """
    if max_model_len is not None and not 1 <= max_model_len <= whole.max_position:
        raise InvalidFieldError(
            "max_model_len",
            f"must be from 1 to the model's context of {whole.max_position} tokens, not {max_model_len}",
        )
    files = model_files.weight_files(folder)
    model = empty_model(share, max_model_len or whole.max_position, device, dtype)
    shapes = {name: tensor.shape for name, tensor in empty_model(whole, 1, "meta", dtype).destinations().items()}
    _fill(model, files, shapes, cut_of)
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


def _fill(model: DecoderModel, files: tuple[Path, ...], shapes: dict[str, torch.Size], cut_of: CutOf) -> None:
    """`shapes`: of every tensor of the whole model."""
    destinations = model.destinations()
    waiting = set(shapes)
    most_elements = max(shape.numel() for shape in shapes.values())
    for path in files:
        try:
            with WeightFile(path, most_elements) as file:
                for stored_name, name in _needed_names(file, model, path):
                    _check(file, stored_name, name, shapes, path)
                    if name not in waiting:
                        raise ModelFolderError(f"{path} contains the tensor {stored_name}, of which there is another")
                    waiting.discard(name)
                    if name in destinations:
                        _copy(file.read(stored_name, cut_of(name)), destinations[name], f"{path}: {stored_name}")
        except (SafetensorError, OSError) as error:
            raise ModelFolderError(f"{path} is truncated or not a safetensors file: {error}") from error
    if waiting:
        raise ModelFolderError(
            f"{files[0].parent} lacks the tensor {min(waiting)}"
            + (f" and {len(waiting) - 1} more" if len(waiting) > 1 else "")
        )


def _needed_names(file: WeightFile, model: DecoderModel, path: Path) -> Iterator[tuple[str, str]]:
    """The file's names of tensors and the model's."""
    for stored_name in file.names():
        unused = _UNUSED.match(stored_name) is not None
        if not unused and not (model.config.tied_embeddings and stored_name == "lm_head.weight"):
            yield stored_name, model.canonical_name(stored_name)


def _check(file: WeightFile, stored_name: str, name: str, shapes: dict[str, torch.Size], path: Path) -> None:
    if name not in shapes:
        raise ModelFolderError(
            f"{path} contains the tensor {stored_name}, which the model described by config.json does not use"
        )
    shape = file.shape(stored_name)
    if shape != list(shapes[name]):
        raise ModelFolderError(
            f"{path}: {stored_name} has the shape {shape}; config.json requires {list(shapes[name])}"
        )


def _copy(tensor: Tensor, destination: Tensor, what: str) -> None:
    if not tensor.is_floating_point():
        raise ModelFolderError(f"{what} has the dtype {tensor.dtype}; quantized weights are not supported")
    assert tensor.shape == destination.shape, f"{what}: a cut of {tensor.shape} for {destination.shape}"
    destination.copy_(tensor)
