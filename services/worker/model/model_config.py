"""What a model's shape is to all that does not compute it: attention, pools, loader, parallelism. No torch here.

Theory of operation
-------------------
Each family has a config of its own (llama_config.py, opt_config.py), which adds the switches of its decoder to these
fields; config_json.py reads it from a folder. A family's decoder is built from its config alone.

A config may also describe a share of a model, as one rank of several holds it: then head_count, kv_head_count and
intermediate_size are those of the share, layer_count and windows those of its layers, and the last four fields say
where the share lies. Sizes that are never cut (hidden_size, head_dim, vocabulary_size) stay those of the model.
"""

from dataclasses import dataclass

from services.domain.errors import ModelFolderError
from services.worker.model.fields import Fields

GREATEST_SIZE = 1 << 24
"""Larger than any size in a real config; keeps a broken one from asking for absurd amounts of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder, or of a share of it. `windows[layer]` is the sliding window of a layer in tokens, None:
    full attention.

    `dtype` is the name that the checkpoint gives its weights' type ("bfloat16", ...), None if it names none.

    Of a share: its layers are `first_layer` and those after it; it begins from hidden states unless that is 0, and ends
    with hidden states unless it is the `last_stage`. `head_rows` are the tokens whose logits it computes, None: all.
    `adds_output_biases` is False where the outputs of attention and feed-forward are summed over several shares of the
    same layers, and another share adds their biases.
    """

    family: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    max_position: int
    norm_epsilon: float
    tied_embeddings: bool
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    dtype: str | None
    first_layer: int = 0
    last_stage: bool = True
    head_rows: range | None = None
    adds_output_biases: bool = True

    @property
    def first_stage(self) -> bool:
        """Whether it begins from token ids."""
        return self.first_layer == 0

    @property
    def kv_size(self) -> int:
        """Width of K, and of V, of one position in one layer."""
        return self.kv_head_count * self.head_dim

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.head_count * self.head_dim


def head_dim_of(fields: Fields, hidden_size: int, head_count: int) -> int:
    """The size of a head where the config leaves it to the other two. Raises ModelFolderError if there is none."""
    if hidden_size % head_count:
        raise ModelFolderError(
            f"{fields.place}: hidden_size {hidden_size} is not a multiple of num_attention_heads {head_count}"
        )
    return hidden_size // head_count
