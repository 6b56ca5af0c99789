"""The config of OPT. No torch here.

A field that is missing has the default that transformers gives it. All published OPT models have ReLU, biases and
layer norms with weights; a config that asks for something else is refused by name.
"""

from dataclasses import dataclass

from services.domain.errors import ModelFolderError
from services.worker.model.fields import Fields
from services.worker.model.model_config import GREATEST_SIZE, ModelConfig, head_dim_of

POSITION_OFFSET = 2
"""Row of the position table that belongs to position 0: OPT was trained with two rows before it that nothing uses."""

NORM_EPSILON = 1e-5
"""config.json has no field for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig(ModelConfig):
    """All that decides the computation of an OPT decoder.

    `embedding_size` is the width of a token's embedding, which is projected to and from the hidden size if it differs
    (the 350m model). Norms come before attention and feed-forward if `norm_first`, else after each of them is added.
    """

    embedding_size: int
    norm_first: bool
    final_norm: bool


def parse_opt(fields: Fields) -> OptConfig:
    """The config of an OPT model.

    Raises ModelFolderError naming what is missing, out of its limits or not supported.
    """
    activation = fields.text("activation_function", "relu")
    if activation != "relu":
        raise ModelFolderError(f"{fields.place}: activation_function {activation!r} is not supported; OPT has relu")
    for name in ("enable_bias", "layer_norm_elementwise_affine"):
        if not fields.flag(name, True):
            raise ModelFolderError(f"{fields.place}: {name} false is not supported")
    hidden_size = fields.whole("hidden_size", most=GREATEST_SIZE)
    head_count = fields.whole("num_attention_heads", most=GREATEST_SIZE)
    layer_count = fields.whole("num_hidden_layers", most=4096)
    norm_first = fields.flag("do_layer_norm_before", True)
    return OptConfig(
        family="opt",
        vocabulary_size=fields.whole("vocab_size", most=GREATEST_SIZE),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("ffn_dim", most=GREATEST_SIZE),
        layer_count=layer_count,
        head_count=head_count,
        kv_head_count=head_count,
        head_dim=head_dim_of(fields, hidden_size, head_count),
        max_position=fields.whole("max_position_embeddings", 2048, most=GREATEST_SIZE),
        norm_epsilon=NORM_EPSILON,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        windows=(None,) * layer_count,
        eos_token_ids=fields.wholes("eos_token_id"),
        dtype=fields.text("dtype", None) or fields.text("torch_dtype", None),
        embedding_size=fields.whole("word_embed_proj_dim", hidden_size, most=GREATEST_SIZE),
        norm_first=norm_first,
        final_norm=norm_first and not fields.flag("_remove_final_layer_norm", False),
    )
