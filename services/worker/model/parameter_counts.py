"""How many numbers a model has, or the share of one that a config describes. No torch here.

The formulas follow the constructors of llama.py and opt.py; tests compare them with the tensors these ask for.
"""

from dataclasses import dataclass

from services.worker.model.llama_config import LlamaConfig
from services.worker.model.model_config import ModelConfig
from services.worker.model.opt_config import POSITION_OFFSET, OptConfig


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Numbers in one layer; before the first layer, if it is here; after the last one, if it is here.

    `head` is how many of them are read to compute logits. If the head is tied to an embedding that is here, they are in
    `beginning` and not again in `ending`.
    """

    layer: int
    beginning: int
    ending: int
    head: int
    layer_count: int

    @property
    def total(self) -> int:
        return self.layer_count * self.layer + self.beginning + self.ending


def parameter_counts(config: ModelConfig) -> ParameterCounts:
    """The counts of a model, or of a share of one."""
    match config:
        case LlamaConfig():
            return _llama(config)
        case OptConfig():
            return _opt(config)
    raise AssertionError(f"nobody counts the parameters of {type(config).__name__}")


def _llama(config: LlamaConfig) -> ParameterCounts:
    hidden, inner = config.hidden_size, config.intermediate_size
    output_biases = (config.output_bias + config.mlp_bias) * config.adds_output_biases
    attention = _products(hidden, config.query_size + 2 * config.kv_size, config.qkv_bias) + config.query_size * hidden
    feed_forward = _products(hidden, 2 * inner, config.mlp_bias) + inner * hidden
    norms = 2 * hidden + 2 * config.head_dim * config.qk_norm
    head, separate_head = _head(config, hidden)
    return ParameterCounts(
        layer=attention + feed_forward + output_biases * hidden + norms,
        beginning=config.vocabulary_size * hidden * config.first_stage,
        ending=(hidden + separate_head) * config.last_stage,
        head=head * config.last_stage,
        layer_count=config.layer_count,
    )


def _opt(config: OptConfig) -> ParameterCounts:
    hidden, inner, width = config.hidden_size, config.intermediate_size, config.embedding_size
    attention = _products(hidden, config.query_size + 2 * config.kv_size, True) + config.query_size * hidden
    feed_forward = _products(hidden, inner, True) + inner * hidden
    projection = hidden * width if width != hidden else 0
    positions = (config.max_position + POSITION_OFFSET) * hidden
    head, separate_head = _head(config, width)
    return ParameterCounts(
        layer=attention + feed_forward + 2 * hidden * config.adds_output_biases + 4 * hidden,
        beginning=(config.vocabulary_size * width + positions + projection) * config.first_stage,
        ending=(2 * hidden * config.final_norm + projection + separate_head) * config.last_stage,
        head=head * config.last_stage,
        layer_count=config.layer_count,
    )


def _products(inputs: int, outputs: int, bias: bool) -> int:
    return (inputs + bias) * outputs


def _head(config: ModelConfig, width: int) -> tuple[int, int]:
    """Numbers of the head, and of those the ones that no embedding here holds."""
    head = len(config.head_rows or range(config.vocabulary_size)) * width
    return head, 0 if config.tied_embeddings and config.first_stage else head
