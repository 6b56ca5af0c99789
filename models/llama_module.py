"""A Llama-architecture model in plain torch, for training, with its folder in Hugging Face layout.

Theory of operation
-------------------
The modules are named so that `state_dict()` is the checkpoint: the names of a Hugging Face Llama, with q, k and v
apart and the rotary halves side by side.  Whole sequences go through at once, without a KV cache: this module is
for training and measuring, the worker has its own for serving.

Shape legend: B batch, L length, D hidden, H query heads, K kv heads, E head size, V vocabulary.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from models.folder import BEGIN_ID, END_IDS

PLAIN_ATTENTION_TOKENS_MAX = 512


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The figures of `config.json` that decide the computation."""

    hidden: int
    layer_count: int
    head_count: int
    kv_head_count: int
    intermediate: int
    vocabulary: int
    context: int
    tied: bool = True
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_size(self) -> int:
        return self.hidden // self.head_count


def config_of(shape: LlamaShape) -> dict[str, object]:
    """`config.json` in the spelling that both old and new `transformers` read."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": list(END_IDS),
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "num_attention_heads": shape.head_count,
        "num_hidden_layers": shape.layer_count,
        "num_key_value_heads": shape.kv_head_count,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def shape_from(config: dict[str, object]) -> LlamaShape:
    """The inverse of `config_of`, for folders written by it."""

    def whole(name: str) -> int:
        value = config[name]
        assert isinstance(value, int), name
        return value

    def real(name: str) -> float:
        value = config[name]
        assert isinstance(value, float), name
        return value

    return LlamaShape(
        hidden=whole("hidden_size"),
        layer_count=whole("num_hidden_layers"),
        head_count=whole("num_attention_heads"),
        kv_head_count=whole("num_key_value_heads"),
        intermediate=whole("intermediate_size"),
        vocabulary=whole("vocab_size"),
        context=whole("max_position_embeddings"),
        tied=bool(config["tie_word_embeddings"]),
        rope_theta=real("rope_theta"),
        norm_epsilon=real("rms_norm_eps"),
    )


class RootMeanSquareNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


def rotary_tables(shape: LlamaShape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [L, E] for positions 0 to length - 1."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles_LE = torch.cat((angles, angles), dim=-1)
    return angles_LE.cos(), angles_LE.sin()


def rotate(x_BHLE: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary position embedding in the half-and-half layout of the checkpoint."""
    first, second = x_BHLE.chunk(2, dim=-1)
    return x_BHLE * cosines + torch.cat((-second, first), dim=-1) * sines


def causal_attention(q_BHLE: Tensor, k_BHLE: Tensor, v_BHLE: Tensor) -> Tensor:
    """Softmax attention over earlier positions; on a CPU, short rows train faster as two plain products."""
    length, size = q_BHLE.shape[2:]
    if length > PLAIN_ATTENTION_TOKENS_MAX:
        return functional.scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLE, is_causal=True)
    mask_LL = torch.full((length, length), float("-inf"), dtype=q_BHLE.dtype).triu(1)
    scores_BHLL = (q_BHLE * size**-0.5) @ k_BHLE.transpose(2, 3) + mask_LL
    mixed_BHLE: Tensor = scores_BHLL.softmax(dim=-1, dtype=q_BHLE.dtype) @ v_BHLE
    return mixed_BHLE


class Attention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        kv_size = shape.kv_head_count * shape.head_size
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_size, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x_BLD: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, hidden = x_BLD.shape
        size, group = self.shape.head_size, self.shape.head_count // self.shape.kv_head_count
        q_BHLE = self.q_proj(x_BLD).view(batch, length, -1, size).transpose(1, 2)
        k_BKLE = self.k_proj(x_BLD).view(batch, length, -1, size).transpose(1, 2)
        v_BKLE = self.v_proj(x_BLD).view(batch, length, -1, size).transpose(1, 2)
        cosines, sines = cosines.to(q_BHLE.dtype), sines.to(q_BHLE.dtype)
        mixed_BHLE = causal_attention(
            rotate(q_BHLE, cosines, sines),
            rotate(k_BKLE, cosines, sines).repeat_interleave(group, dim=1),
            v_BKLE.repeat_interleave(group, dim=1),
        )
        out: Tensor = self.o_proj(mixed_BHLE.transpose(1, 2).reshape(batch, length, hidden))
        return out


class FeedForward(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x_BLD)) * self.up_proj(x_BLD))
        return out


class Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = RootMeanSquareNorm(shape.hidden, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RootMeanSquareNorm(shape.hidden, shape.norm_epsilon)
        self.mlp = FeedForward(shape)

    def forward(self, x_BLD: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x_BLD = x_BLD + self.self_attn(self.input_layernorm(x_BLD), cosines, sines)
        out: Tensor = x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))
        return out


class LlamaBody(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layer_count))
        self.norm = RootMeanSquareNorm(shape.hidden, shape.norm_epsilon)

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD: Tensor = self.embed_tokens(ids_BL)
        cosines, sines = rotary_tables(self.shape, ids_BL.shape[1])
        for layer in self.layers:
            x_BLD = layer(x_BLD, cosines, sines)
        out: Tensor = self.norm(x_BLD)
        return out


class LlamaModel(nn.Module):
    """Token ids [B, L] to logits [B, L, V]."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = LlamaBody(shape)
        self.lm_head = None if shape.tied else nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def initialise(self) -> None:
        """Normal weights from torch's seeded generator; what writes into the residual stream starts smaller."""
        residual_scale = 1 / math.sqrt(2 * self.shape.layer_count)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                wide = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 * (residual_scale if wide else 1.0))

    def head_weight(self) -> Tensor:
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return head.weight

    def forward(self, ids_BL: Tensor) -> Tensor:
        logits_BLV: Tensor = functional.linear(self.model(ids_BL), self.head_weight())
        return logits_BLV


def weights_of(model: LlamaModel) -> dict[str, Tensor]:
    """All weights in bfloat16, contiguous, under their Hugging Face names."""
    return {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}


def read_model(folder: Path) -> LlamaModel:
    """The float32 model of a folder that was written from `weights_of` and `config_of`."""
    model = LlamaModel(shape_from(json.loads((folder / "config.json").read_text())))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval()
