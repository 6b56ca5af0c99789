"""Models with random weights, made on a device in seconds, without files: for checks and timings."""

from dataclasses import dataclass

import torch

from services.worker.kernels.gpu.recorded_decoder import RecordedDecoder
from services.worker.kernels.kernel_choice import computes_by_triton, with_kernels
from services.worker.kv.pools import BlockShape, KvPools, make_pools
from services.worker.model.batch import PagedKv
from services.worker.model.config_json import parse_config
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import empty_model
from services.worker.model.served_decoder import ServedDecoder

BLOCK_SIZE = 16
LOGIT_DEVIATION = 3.0
"""Standard deviation of the logits: sets the best two of them well apart."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama with random weights."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    context: int = 2048

    def config(self) -> dict[str, object]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
        }


SHAPES = {
    "tiny": Shape(64, 2, 4, 2, 128, 512, 256),
    "S": Shape(384, 8, 6, 6, 2048, 8192),
    "M": Shape(1024, 24, 16, 4, 3584, 16000),
    "8B": Shape(4096, 32, 32, 8, 14336, 128256, 8192),
}


def make_model(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> DecoderModel:
    """Random weights; the same numbers for the same seed on one kind of device."""
    model = empty_model(parse_config(shape.config()), shape.context, device, dtype)
    source = torch.Generator(device=device).manual_seed(seed)
    for name, tensor in model.destinations().items():
        if tensor.dim() == 1:
            tensor.fill_(1.0)
            continue
        scale = tensor.shape[1] ** -0.5 * (LOGIT_DEVIATION if "embed" in name or "lm_head" in name else 1.0)
        tensor.copy_(torch.randn(tensor.shape, generator=source, device=device, dtype=torch.float32).mul_(scale))
    return model


def copy_of(model: DecoderModel, shape: Shape, device: torch.device, dtype: torch.dtype) -> DecoderModel:
    """The same weights on another device or in another type."""
    other = empty_model(parse_config(shape.config()), shape.context, device, dtype)
    weights = model.destinations()
    for name, tensor in other.destinations().items():
        tensor.copy_(weights[name])
    return other


def pools_of(model: DecoderModel, device_blocks: int, host_blocks: int) -> KvPools:
    config = model.config
    shape = BlockShape(config.layer_count, BLOCK_SIZE, config.kv_head_count, config.head_dim, model.dtype)
    return make_pools(shape, device_blocks, host_blocks, model.device)


def served(model: DecoderModel, cache: PagedKv, max_batch: int) -> ServedDecoder:
    """The model with the kernels that serve it on a GPU; torch's elsewhere."""
    decoder = with_kernels(model, False, by_triton=computes_by_triton("auto", model.device))
    if isinstance(decoder, RecordedDecoder):
        decoder.record(cache, max_batch)
    return decoder


def parameter_count(shape: Shape) -> int:
    """How many parameters the model has."""
    model = empty_model(parse_config(shape.config()), shape.context, "meta", torch.bfloat16)
    return sum(tensor.numel() for tensor in model.destinations().values())
