"""The decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3 (dense).

See decoder.py for what goes in and out. Nothing here knows of jobs, queues or specific devices; attention, linear
products and rotary embedding have their own files. Where a GPU has a faster way for a step, it replaces `rotate`,
`gated` and `normed` (kernels/gpu/fused.py).

Shape legend: T rows, D hidden, I width of the feed-forward part, H query heads, K kv heads, E head size, V vocabulary,
S rows that sample.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.worker.model import exact
from services.worker.model.attention import AttentionPass
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.decoder import DecoderModel, embedding_table, logit_head
from services.worker.model.linear import Linear
from services.worker.model.llama_config import LlamaConfig
from services.worker.model.prefill_cut import PrefillCut
from services.worker.model.rope import Rope, rotate

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class Norm(nn.Module):
    """Root mean square norm over the last dimension."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.epsilon = epsilon
        self.normed: Callable[[Tensor, Tensor, float], Tensor] = normed

    def forward(self, x: Tensor) -> Tensor:
        return self.normed(x, self.weight, self.epsilon)


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The root mean square norm of rows of the weight's size."""
    return F.rms_norm(x, weight.shape, weight, epsilon)


class SelfAttention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        qkv = {"q_proj": config.query_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
        self.qkv = Linear(config.hidden_size, qkv, config.qkv_bias)
        output_bias = config.output_bias and config.adds_output_biases
        self.output = Linear(config.query_size, {"o_proj": config.hidden_size}, output_bias)
        self.rotate: Callable[[Tensor, Tensor, Tensor, Tensor], None] = rotate
        self.query_norm = Norm(config.head_dim, config.norm_epsilon) if config.qk_norm else None
        self.key_norm = Norm(config.head_dim, config.norm_epsilon) if config.qk_norm else None

    def forward(self, x_TD: Tensor, tables: tuple[Tensor, Tensor], attention: AttentionPass, layer: int) -> Tensor:
        heads, kv_heads, head_dim = self.config.head_count, self.config.kv_head_count, self.config.head_dim
        qkv_TNE = self.qkv(x_TD).view(-1, heads + 2 * kv_heads, head_dim)
        turning = turned = qkv_TNE[:, : heads + kv_heads]
        if self.query_norm is not None and self.key_norm is not None:
            turning = torch.cat((self.query_norm(turning[:, :heads]), self.key_norm(turning[:, heads:])), dim=1)
        self.rotate(turning, *tables, turned)
        key_value_T2KE = qkv_TNE[:, heads:].view(-1, 2, kv_heads, head_dim)
        found_TX = attention.attend(layer, qkv_TNE[:, :heads], key_value_T2KE)
        return self.output(found_TX)  # type: ignore[no-any-return]

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from self.qkv.destinations(prefix)
        yield from self.output.destinations(prefix)
        if self.query_norm is not None and self.key_norm is not None:
            yield f"{prefix}q_norm.weight", self.query_norm.weight
            yield f"{prefix}k_norm.weight", self.key_norm.weight


def gated(activation: Callable[[Tensor], Tensor], gate_up_TI: Tensor) -> Tensor:
    """The second half of every row times its first half's activation, [T, I]."""
    gate_TI, up_TI = gate_up_TI.chunk(2, dim=-1)
    return exact.elementwise(activation, gate_TI) * up_TI


class FeedForward(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up = Linear(config.hidden_size, {"gate_proj": size, "up_proj": size}, config.mlp_bias)
        self.down = Linear(size, {"down_proj": config.hidden_size}, config.mlp_bias and config.adds_output_biases)
        self.activation = _ACTIVATIONS[config.activation]
        self.gated: Callable[[Tensor], Tensor] = partial(gated, self.activation)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down(self.gated(self.gate_up(x_TD)))  # type: ignore[no-any-return]

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from self.gate_up.destinations(prefix)
        yield from self.down.destinations(prefix)


class DecoderLayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = Norm(config.hidden_size, config.norm_epsilon)
        self.attention = SelfAttention(config)
        self.feed_forward_norm = Norm(config.hidden_size, config.norm_epsilon)
        self.feed_forward = FeedForward(config)

    def forward(self, x_TD: Tensor, tables: tuple[Tensor, Tensor], attention: AttentionPass, layer: int) -> Tensor:
        x_TD = x_TD + self.attention(self.attention_norm(x_TD), tables, attention, layer)
        return x_TD + self.feed_forward(self.feed_forward_norm(x_TD))  # type: ignore[no-any-return]

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{prefix}input_layernorm.weight", self.attention_norm.weight
        yield from self.attention.destinations(f"{prefix}self_attn.")
        yield f"{prefix}post_attention_layernorm.weight", self.feed_forward_norm.weight
        yield from self.feed_forward.destinations(f"{prefix}mlp.")


class LlamaModel(DecoderModel):
    """A decoder of the Llama family."""

    def __init__(self, config: LlamaConfig, max_model_len: int, dtype: torch.dtype) -> None:
        super().__init__(config, max_model_len, dtype)
        self.embedding = embedding_table(config, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layer_count))
        self.norm = Norm(config.hidden_size, config.norm_epsilon) if config.last_stage else None
        self.head = logit_head(config, self.embedding, config.hidden_size, tied_to="model.embed_tokens")
        self.rope = Rope(config.rope, config.head_dim, max_model_len, dtype)

    @torch.inference_mode()
    def forward(
        self, inputs: Tensor, cache: PagedKv, batch: BatchLayout, keep_going: Callable[[], bool] | None = None
    ) -> Tensor:
        tables = self.rope.tables(batch)
        attention = self.attention.begin(batch, cache)
        x_TD = inputs if self.embedding is None else F.embedding(inputs, self.embedding)
        for number, layer in enumerate(self.layers):
            if keep_going is not None and not keep_going():
                raise PrefillCut
            x_TD = layer(x_TD, tables, attention, number)
        if self.norm is None or self.head is None:
            return x_TD
        x_SD = self.norm(x_TD.index_select(0, batch.logit_rows))
        return self.head(x_SD).float()  # type: ignore[no-any-return]

    def destinations(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self.norm is not None and self.head is not None:
            found["model.norm.weight"] = self.norm.weight.data
            found.update(self.head.destinations(""))
        if self.embedding is not None:  # a tied head is part of it
            found["model.embed_tokens.weight"] = self.embedding.data
        for number, layer in enumerate(self.layers, self.config.first_layer):
            assert isinstance(layer, DecoderLayer)
            found.update(layer.destinations(f"model.layers.{number}."))
        return found
