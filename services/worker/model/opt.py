"""The decoder of OPT.

See decoder.py for what goes in and out. Positions are learned vectors that are added to the embeddings, every product
has a bias, and a layer norm stands before attention and feed-forward, or, in the 350m model, after each was added to
the residual stream. That model's embeddings are narrower than its layers: they are projected up at the start and down
before the head.

Shape legend: T rows, D hidden, H query heads, K kv heads, E head size, S rows that sample.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.worker.model.attention import AttentionPass
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.decoder import DecoderModel, embedding_table, logit_head
from services.worker.model.linear import Linear
from services.worker.model.opt_config import POSITION_OFFSET, OptConfig
from services.worker.model.prefill_cut import PrefillCut

_PREFIX = "model.decoder."


def norm_of(config: OptConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, config.norm_epsilon).requires_grad_(False)


def norm_destinations(name: str, norm: nn.LayerNorm) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", norm.weight.data
    yield f"{name}.bias", norm.bias.data


class OptAttention(nn.Module):
    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.config = config
        qkv = {"q_proj": config.query_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
        self.qkv = Linear(config.hidden_size, qkv, bias=True)
        self.output = Linear(config.query_size, {"out_proj": config.hidden_size}, config.adds_output_biases)

    def forward(self, x_TD: Tensor, attention: AttentionPass, layer: int) -> Tensor:
        heads, kv_heads, head_dim = self.config.head_count, self.config.kv_head_count, self.config.head_dim
        qkv_TNE = self.qkv(x_TD).view(-1, heads + 2 * kv_heads, head_dim)
        key_value_T2KE = qkv_TNE[:, heads:].view(-1, 2, kv_heads, head_dim)
        return self.output(attention.attend(layer, qkv_TNE[:, :heads], key_value_T2KE))  # type: ignore[no-any-return]

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from self.qkv.destinations(prefix)
        yield from self.output.destinations(prefix)


class OptFeedForward(nn.Module):
    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden_size, {"fc1": config.intermediate_size}, bias=True)
        self.down = Linear(config.intermediate_size, {"fc2": config.hidden_size}, config.adds_output_biases)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x_TD)))  # type: ignore[no-any-return]

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from self.up.destinations(prefix)
        yield from self.down.destinations(prefix)


class OptLayer(nn.Module):
    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.attention_norm = norm_of(config)
        self.attention = OptAttention(config)
        self.feed_forward_norm = norm_of(config)
        self.feed_forward = OptFeedForward(config)

    def forward(self, x_TD: Tensor, attention: AttentionPass, layer: int) -> Tensor:
        if self.norm_first:
            x_TD = x_TD + self.attention(self.attention_norm(x_TD), attention, layer)
            return x_TD + self.feed_forward(self.feed_forward_norm(x_TD))  # type: ignore[no-any-return]
        x_TD = self.attention_norm(x_TD + self.attention(x_TD, attention, layer))
        return self.feed_forward_norm(x_TD + self.feed_forward(x_TD))  # type: ignore[no-any-return]

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from norm_destinations(f"{prefix}self_attn_layer_norm", self.attention_norm)
        yield from self.attention.destinations(f"{prefix}self_attn.")
        yield from norm_destinations(f"{prefix}final_layer_norm", self.feed_forward_norm)
        yield from self.feed_forward.destinations(prefix)


class OptModel(DecoderModel):
    """A decoder of OPT."""

    def __init__(self, config: OptConfig, max_model_len: int, dtype: torch.dtype) -> None:
        super().__init__(config, max_model_len, dtype)
        hidden, width = config.hidden_size, config.embedding_size
        table_rows = config.max_position + POSITION_OFFSET
        self.embedding = embedding_table(config, width)
        self.positions: nn.Parameter | None = None
        self.project_in: Linear | None = None
        self.norm: nn.LayerNorm | None = None
        self.project_out: Linear | None = None
        if config.first_stage:
            self.positions = nn.Parameter(torch.empty(table_rows, hidden), requires_grad=False)
            if width != hidden:
                self.project_in = Linear(width, {"project_in": hidden}, bias=False)
        self.layers = nn.ModuleList(OptLayer(config) for _ in range(config.layer_count))
        if config.last_stage:
            if config.final_norm:
                self.norm = norm_of(config)
            if width != hidden:
                self.project_out = Linear(hidden, {"project_out": width}, bias=False)
        self.head = logit_head(config, self.embedding, width, tied_to=f"{_PREFIX}embed_tokens")

    @torch.inference_mode()
    def forward(
        self, inputs: Tensor, cache: PagedKv, batch: BatchLayout, keep_going: Callable[[], bool] | None = None
    ) -> Tensor:
        attention = self.attention.begin(batch, cache)
        x_TD = self._embedded(inputs, batch)
        for number, layer in enumerate(self.layers):
            if keep_going is not None and not keep_going():
                raise PrefillCut
            x_TD = layer(x_TD, attention, number)
        if self.head is None:
            return x_TD
        x_SD = x_TD.index_select(0, batch.logit_rows)
        if self.norm is not None:
            x_SD = self.norm(x_SD)
        if self.project_out is not None:
            x_SD = self.project_out(x_SD)
        return self.head(x_SD).float()  # type: ignore[no-any-return]

    def _embedded(self, inputs: Tensor, batch: BatchLayout) -> Tensor:
        """The hidden states that the first layer gets."""
        if self.embedding is None or self.positions is None:
            return inputs
        x_TD = F.embedding(inputs, self.embedding)
        if self.project_in is not None:
            x_TD = self.project_in(x_TD)
        return x_TD + F.embedding(batch.position_ids_T + POSITION_OFFSET, self.positions)

    def destinations(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self.norm is not None:
            found.update(norm_destinations(f"{_PREFIX}final_layer_norm", self.norm))
        for projection in (self.project_in, self.project_out):
            if projection is not None:
                found.update(projection.destinations(_PREFIX))
        if self.head is not None:
            found.update(self.head.destinations(""))
        if self.embedding is not None:  # a tied head is part of it
            found[f"{_PREFIX}embed_tokens.weight"] = self.embedding.data
        if self.positions is not None:
            found[f"{_PREFIX}embed_positions.weight"] = self.positions.data
        for number, layer in enumerate(self.layers, self.config.first_layer):
            assert isinstance(layer, OptLayer)
            found.update(layer.destinations(f"{_PREFIX}layers.{number}."))
        return found

    @staticmethod
    def canonical_name(name: str) -> str:
        """OPT is stored with all of `model.decoder.` before its names, or with a part of it or none."""
        bare = name.removeprefix("model.").removeprefix("decoder.")
        return name if name == "lm_head.weight" else _PREFIX + bare
