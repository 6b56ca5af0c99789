"""What the compiled code is told of a model, or of a share of one: its family's shape, and where its weights are."""

import torch

from services.worker.kernels.cpu.decoder_library import DecoderView, LayerView
from services.worker.kernels.cpu.packed_weights import PackedWeights
from services.worker.model.decoder import DecoderModel
from services.worker.model.llama import DecoderLayer, LlamaModel
from services.worker.model.llama_config import LlamaConfig
from services.worker.model.opt import OptLayer, OptModel
from services.worker.model.opt_config import POSITION_OFFSET, OptConfig
from services.worker.model.rope import Rope

_ACTIVATIONS = {"silu": 0, "swish": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "relu": 3}


def llama_view(model: LlamaModel, rope: Rope, weights: PackedWeights) -> DecoderView:
    """Of the Llama family. The model's weights move into `weights`."""
    config = model.config
    assert isinstance(config, LlamaConfig), "a LlamaModel has the config of its family"
    view = _shape(model, [_llama_layer(model, number, weights) for number in range(config.layer_count)])
    view.activation = _ACTIVATIONS[config.activation]
    view.gated = 1
    half = config.head_dim // 2
    view.cosines = weights.keep(rope.cosines_ME[:, half:].contiguous())
    view.sines = weights.keep(rope.sines_ME[:, half:].contiguous())
    _ends(view, model, weights)
    if model.norm is not None:
        view.norm = weights.norm(model.norm.weight)
    return view


def opt_view(model: OptModel, weights: PackedWeights) -> DecoderView:
    """Of OPT. The model's weights move into `weights`."""
    config = model.config
    assert isinstance(config, OptConfig), "an OptModel has the config of its family"
    view = _shape(model, [_opt_layer(model, number, weights) for number in range(config.layer_count)])
    view.embedding_size = config.embedding_size
    view.activation = _ACTIVATIONS["relu"]
    view.norms_after = not config.norm_first
    if model.positions is not None:
        table = model.positions.data
        weights.keep(table)
        view.positions = table[POSITION_OFFSET:].data_ptr()
        model.positions.data = table.new_empty(0)
    if model.project_in is not None:
        view.project_in = weights.linear(model.project_in)
    if model.project_out is not None:
        view.project_out = weights.linear(model.project_out)
    _ends(view, model, weights)
    if model.norm is not None:
        view.norm = weights.norm(model.norm.weight, model.norm.bias)
    return view


def _llama_layer(model: LlamaModel, number: int, weights: PackedWeights) -> LayerView:
    layer = model.layers[number]
    assert isinstance(layer, DecoderLayer)
    attention = layer.attention
    query_norm, key_norm = attention.query_norm, attention.key_norm
    return LayerView(
        query_key_value=weights.linear(attention.qkv),
        attention_output=weights.linear(attention.output),
        up=weights.linear(layer.feed_forward.gate_up, halves=True),
        down=weights.linear(layer.feed_forward.down),
        attention_norm=weights.norm(layer.attention_norm.weight),
        feed_forward_norm=weights.norm(layer.feed_forward_norm.weight),
        query_norm=None if query_norm is None else weights.vector(query_norm.weight),
        key_norm=None if key_norm is None else weights.vector(key_norm.weight),
        window=model.config.windows[number] or 0,
    )


def _opt_layer(model: OptModel, number: int, weights: PackedWeights) -> LayerView:
    layer = model.layers[number]
    assert isinstance(layer, OptLayer)
    return LayerView(
        query_key_value=weights.linear(layer.attention.qkv),
        attention_output=weights.linear(layer.attention.output),
        up=weights.linear(layer.feed_forward.up),
        down=weights.linear(layer.feed_forward.down),
        attention_norm=weights.norm(layer.attention_norm.weight, layer.attention_norm.bias),
        feed_forward_norm=weights.norm(layer.feed_forward_norm.weight, layer.feed_forward_norm.bias),
    )


def _shape(model: DecoderModel, layers: list[LayerView]) -> DecoderView:
    """What every family has."""
    config = model.config
    return DecoderView(
        is_bfloat16=model.dtype == torch.bfloat16,
        hidden_size=config.hidden_size,
        embedding_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.head_count,
        kv_heads=config.kv_head_count,
        head_size=config.head_dim,
        vocabulary=config.vocabulary_size,
        layer_count=config.layer_count,
        layers=(LayerView * len(layers))(*layers),
        epsilon=config.norm_epsilon,
    )


def _ends(view: DecoderView, model: DecoderModel, weights: PackedWeights) -> None:
    """The embedding and the head, those that are here."""
    config = model.config
    rows = config.head_rows or range(config.vocabulary_size)
    view.first_logit = rows.start
    if model.embedding is None:
        if model.head is not None:
            view.head = weights.linear(model.head)
    elif model.head is not None and config.tied_embeddings and not weights.quantized:
        view.head = weights.table_and_head(model.embedding, model.head, rows)
    else:
        table = model.embedding.data
        view.embedding = weights.keep(table)
        if model.head is not None:
            view.head = weights.linear(model.head)
        model.embedding.data = table.new_empty(0)
