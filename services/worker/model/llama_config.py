"""The configs of the Llama family, in the spelling of transformers 5 and the older ones. No torch here.

Theory of operation
-------------------
Four families share one decoder and differ in a few switches (biases, norms of q and k, sliding windows); nothing else
of the family is kept. A field that is missing has the default that transformers gives it. Whatever the decoder
can't compute is refused here, by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from services.domain.errors import ModelFolderError
from services.worker.model.fields import Fields
from services.worker.model.model_config import GREATEST_SIZE, ModelConfig, head_dim_of


class RopeType(Enum):
    """How rotary frequencies are scaled for contexts longer than those trained on."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    YARN = "yarn"
    LONGROPE = "longrope"
    LLAMA3 = "llama3"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. Fields that a type does not use keep their defaults; see rope.py for what they mean."""

    rope_type: RopeType = RopeType.DEFAULT
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position: int = 0
    rotary_fraction: float = 1.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """All that decides the computation of a decoder of the Llama family."""

    activation: str
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeConfig


_KV_HEAD_COUNTS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
"""Where the field is missing. Where it is null, and for Llama, there are as many as query heads."""
_MAX_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
_ACTIVATIONS = frozenset({"silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"})
_SCALED_BY_ORIGINAL_LENGTH = frozenset({RopeType.LLAMA3, RopeType.YARN, RopeType.LONGROPE})


def parse_llama(family: str, fields: Fields) -> LlamaConfig:
    """The config of a model of `family`: llama, mistral, qwen2 or qwen3.

    Raises ModelFolderError naming what is missing, out of its limits or not supported.
    """
    layer_count = fields.whole("num_hidden_layers", most=4096)
    hidden_size = fields.whole("hidden_size", most=GREATEST_SIZE)
    head_count = fields.whole("num_attention_heads", most=GREATEST_SIZE)
    kv_heads = head_count if "num_key_value_heads" in fields.raw else _KV_HEAD_COUNTS.get(family, head_count)
    kv_head_count = fields.whole("num_key_value_heads", kv_heads, most=GREATEST_SIZE)
    if fields.raw.get("head_dim") is not None:
        head_dim = fields.whole("head_dim", most=GREATEST_SIZE)
    else:
        head_dim = 128 if family == "qwen3" else head_dim_of(fields, hidden_size, head_count)
    if head_count % kv_head_count:
        raise ModelFolderError(
            f"config.json: num_attention_heads {head_count} is not a multiple of num_key_value_heads {kv_head_count}"
        )
    if head_dim % 2:
        raise ModelFolderError(f"config.json: head_dim {head_dim} is odd; rotary embedding needs an even one")
    activation = fields.text("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ModelFolderError(
            f"config.json: hidden_act {activation!r} is not supported; supported are {', '.join(sorted(_ACTIVATIONS))}"
        )
    attention_bias = fields.flag("attention_bias", False) if family in ("llama", "qwen3") else False
    max_position = fields.whole("max_position_embeddings", _MAX_POSITIONS[family], most=GREATEST_SIZE)
    return LlamaConfig(
        family=family,
        vocabulary_size=fields.whole("vocab_size", most=GREATEST_SIZE),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size", most=GREATEST_SIZE),
        layer_count=layer_count,
        head_count=head_count,
        kv_head_count=kv_head_count,
        head_dim=head_dim,
        max_position=max_position,
        norm_epsilon=fields.real("rms_norm_eps", 1e-6),
        activation=activation,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False) if family == "llama" else False,
        qk_norm=family == "qwen3",
        windows=_windows(family, fields, layer_count),
        rope=_rope(fields, max_position, head_dim),
        eos_token_ids=fields.wholes("eos_token_id"),
        dtype=fields.text("dtype", None) or fields.text("torch_dtype", None),
    )


def _windows(family: str, fields: Fields, layer_count: int) -> tuple[int | None, ...]:
    """Sliding window of each layer: Mistral has one for all layers, Qwen for those that layer_types or
    max_window_layers name.
    """
    if family == "llama" or (family != "mistral" and not fields.flag("use_sliding_window", False)):
        return (None,) * layer_count
    window = fields.whole_or_null("sliding_window", 4096, most=GREATEST_SIZE)
    if family == "mistral" or window is None:
        return (window,) * layer_count
    layer_types = fields.raw.get("layer_types")
    if layer_types is None:
        first = fields.whole("max_window_layers", 28, least=0, most=GREATEST_SIZE)
        return tuple(window if layer >= first else None for layer in range(layer_count))
    kinds = {"sliding_attention": window, "full_attention": None}
    if (
        not isinstance(layer_types, list)
        or len(layer_types) != layer_count
        or any(kind not in kinds for kind in layer_types)
    ):
        raise ModelFolderError(f"config.json: layer_types must name {layer_count} layers, each {' or '.join(kinds)}")
    return tuple(kinds[kind] for kind in layer_types)


def _rope(fields: Fields, max_position: int, head_dim: int) -> RopeConfig:
    """Rotary parameters, from `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta` (before)."""
    rope = _rope_fields(fields)
    name = rope.text("rope_type", rope.text("type", "default"))
    if name not in {kind.value for kind in RopeType}:
        raise ModelFolderError(
            f"config.json: rope type {name!r} is not supported; supported are "
            f"{', '.join(kind.value for kind in RopeType)}"
        )
    rope_type = RopeType(name)
    fraction = rope.real("partial_rotary_factor", fields.real("partial_rotary_factor", 1.0))
    if rope_type is not RopeType.PROPORTIONAL and fraction != 1.0:
        raise ModelFolderError(f"config.json: partial_rotary_factor {fraction} is not supported with rope type {name}")
    original = max_position
    if rope_type in _SCALED_BY_ORIGINAL_LENGTH:
        original = rope.whole("original_max_position_embeddings", max_position, most=GREATEST_SIZE)
        original = fields.whole("original_max_position_embeddings", original, most=GREATEST_SIZE)
    factor = rope.real("factor", None)
    if factor is None:
        if rope_type in (RopeType.LINEAR, RopeType.DYNAMIC, RopeType.LLAMA3):
            raise ModelFolderError(f"config.json: rope type {name} needs a factor")
        factor = max_position / original
    llama3 = rope_type is RopeType.LLAMA3
    config = RopeConfig(
        rope_type=rope_type,
        theta=rope.real("rope_theta", fields.real("rope_theta", 10000.0)),
        factor=factor,
        original_max_position=original,
        rotary_fraction=fraction,
        attention_factor=rope.real("attention_factor", None),
        beta_fast=rope.real("beta_fast", None) or 32.0,
        beta_slow=rope.real("beta_slow", None) or 1.0,
        mscale=rope.real("mscale", 0.0),
        mscale_all_dim=rope.real("mscale_all_dim", 0.0),
        truncate=rope.flag("truncate", True),
        low_freq_factor=rope.real("low_freq_factor") if llama3 else 1.0,
        high_freq_factor=rope.real("high_freq_factor") if llama3 else 4.0,
        short_factor=rope.reals("short_factor"),
        long_factor=rope.reals("long_factor"),
    )
    if rope_type is RopeType.LONGROPE and {len(config.short_factor), len(config.long_factor)} != {head_dim // 2}:
        raise ModelFolderError(
            f"config.json: longrope needs short_factor and long_factor of {head_dim // 2} numbers each"
        )
    return config


def _rope_fields(fields: Fields) -> Fields:
    """The one set of rotary parameters. Raises ModelFolderError if layer types have different ones."""
    found = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters") or {}
    if not isinstance(found, Mapping):
        raise ModelFolderError("config.json: rope_parameters must be an object")
    nested = [value for value in found.values() if isinstance(value, Mapping)]
    if not nested:
        return Fields("config.json: rope_parameters", found)
    if len(nested) != len(found) or any(value != nested[0] for value in nested):
        raise ModelFolderError("config.json: rope_parameters that differ between layer types are not supported")
    return Fields("config.json: rope_parameters", nested[0])
