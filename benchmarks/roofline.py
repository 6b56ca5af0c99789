"""What a machine allows an engine at most, by the speed at which it reads memory and that of its products.

A decode of one stream reads all weights but the embedding's once, as bfloat16: an engine that keeps them in fewer bits
can pass that bound. A prefill multiplies each of its tokens with all weights of the layers. Jobs all at once do at
least the operations of all tokens that are computed, and the head's for each token that is put out; that bound leaves
out attention, and that weights are read for few jobs at the end.
"""

import json
from pathlib import Path

NUMBER_BYTES = 2  # bfloat16


def _weights(folder: Path) -> tuple[int, int]:
    """The numbers of weights in the layers' matrices and in the head's."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    attention = hidden * config["head_dim"] * (heads + config["num_attention_heads"])
    layers = config["num_hidden_layers"] * (attention + 3 * hidden * config["intermediate_size"])
    return layers, hidden * config["vocab_size"]


def bounds(folder: Path, rates: dict[str, float]) -> dict[str, float]:
    """Tokens per second that reading, and multiplying, allow one stream. `rates` are those of machine_rates.py."""
    layers, head = _weights(folder)
    read_bytes = NUMBER_BYTES * (layers + head)
    return {
        "weight_bytes": float(read_bytes),
        "decode_tokens_per_s": rates["read_bytes_per_s"] / read_bytes,
        "prefill_tokens_per_s": rates["product_flop_per_s"] / (2 * layers),
    }


def offline_bound(folder: Path, rates: dict[str, float], computed_tokens: int, output_tokens: int) -> float:
    """Output tokens per second that multiplying allows many jobs at once. `computed_tokens` are those of the prompts
    and all output tokens but each job's last.
    """
    layers, head = _weights(folder)
    flop = 2 * (layers * computed_tokens + head * output_tokens)
    return output_tokens * rates["product_flop_per_s"] / flop
