"""Reads a model's config from its config.json. No torch here.

Whatever the decoders can't compute is refused here or by the family's own reader, by name, before any weight is read: a
wrong answer that looks right is worse than none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.domain.errors import ModelFolderError
from services.runtime import model_files
from services.worker.model.fields import Fields
from services.worker.model.llama_config import parse_llama
from services.worker.model.model_config import ModelConfig
from services.worker.model.opt_config import parse_opt

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "opt": "OPTForCausalLM",
}
_WITHOUT_HEAD = {"opt": "OPTModel"}
"""Saved without its head, which is tied to the embeddings; an untied one is missed when weights are read."""


def read_model_config(folder: Path) -> ModelConfig:
    """The config of a model folder.

    Raises ModelFolderError if config.json is missing, broken or asks for something unsupported.
    """
    return parse_config(model_files.read_config(folder))


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """The config of a parsed config.json: that of its family.

    Raises ModelFolderError naming what is missing, out of its limits or not supported.
    """
    family = _supported_family(raw)
    fields = Fields("config.json", raw)
    return parse_opt(fields) if family == "opt" else parse_llama(family, fields)


def _supported_family(raw: Mapping[str, Any]) -> str:
    """The model family. Raises ModelFolderError for what no decoder here can compute."""
    if raw.get("auto_map"):
        raise ModelFolderError("config.json: auto_map: models that bring their own code are not supported")
    if raw.get("quantization_config") or raw.get("compression_config"):
        raise ModelFolderError("config.json: quantization_config: quantized weights are not supported")
    family = raw.get("model_type")
    supported = ", ".join(_ARCHITECTURES)
    if not isinstance(family, str) or family not in _ARCHITECTURES:
        raise ModelFolderError(f"config.json: model_type {family!r} is not supported; supported are {supported}")
    architectures = raw.get("architectures") or [_ARCHITECTURES[family]]
    if architectures not in ([_ARCHITECTURES[family]], [_WITHOUT_HEAD.get(family)]):
        raise ModelFolderError(
            f"config.json: architectures {architectures!r} is not supported; for model_type {family} it must be "
            f"{_ARCHITECTURES[family]}"
        )
    return family
