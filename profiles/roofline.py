"""A roofline model of a decoder on GPUs: seconds of iterations, and the room for KV, from public figures. Pure.

Theory of operation
-------------------
An iteration computes or reads memory, whichever takes longer, and on top of that its GPUs talk to one another and
every layer costs something that is neither:

    iteration = max(FLOP / (TP x peak x efficiency), bytes / (TP x bandwidth x efficiency))
              + 2 x layers x all_reduce(tokens x hidden x 2 bytes)
              + layers x layer_overhead + iteration_overhead + (stages - 1) x send(tokens x hidden x 2 bytes)

- FLOP: 2 for every weight and token, and 4 x hidden x context for a token's attention in a layer, of which a prefill of
  n tokens sees n / 2 on average. The output matrix counts for the one token of each job that is sampled.
- bytes: every weight once, and the KV of every token of context of all jobs that decode.
- all_reduce(b) = latency + 2 x (TP - 1) / TP x b / (NVLink x efficiency), as in a ring; 0 with one GPU.
- Pipeline stages work one after the other, so the whole model's iteration has the sum of their times: each has its
  layers' share of FLOP and bytes, and TP GPUs.

Prefill time thus is linear in the prompt, once that is long enough to be bound by compute, and decode time is nearly
flat in the batch, as the papers say.
"""

from profiles.hardware import (
    ALL_REDUCE_LATENCY,
    BANDWIDTH_EFFICIENCY,
    COMPUTE_EFFICIENCY,
    COPY_LATENCY,
    HOST_SHARE,
    ITERATION_OVERHEAD,
    LAYER_OVERHEAD,
    LINK_EFFICIENCY,
    MEMORY_SHARE,
    STAGE_BANDWIDTH,
    STAGE_LATENCY,
    VALUE_BYTES,
    Layout,
    Shape,
)
from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile, DecodeCost, PrefillCost

FIRST_PREFILL_TOKENS = 16
DECODE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIRST_CONTEXT = 1
_SIGNIFICANT_DIGITS = 6


def layer_weights(shape: Shape) -> int:
    """Weights of all layers."""
    kv_size = shape.hidden // shape.heads * shape.kv_heads
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * kv_size
    feed_forward = (3 if shape.gated else 2) * shape.hidden * shape.intermediate
    return shape.layers * (attention + feed_forward)


def output_weights(shape: Shape) -> int:
    """Weights of the output matrix."""
    return shape.vocabulary * shape.hidden


def stored_weights(shape: Shape) -> int:
    """All weights in memory: an embedding of its own is stored, but only looked up, never read as a whole."""
    return layer_weights(shape) + output_weights(shape) * (1 if shape.tied else 2)


def kv_bytes_per_token(shape: Shape) -> int:
    """Keys and values of one token in all layers: 4 x layers x hidden in FP16 without GQA (PAPER 3)."""
    return int(2 * shape.layers * (shape.hidden // shape.heads) * shape.kv_heads * VALUE_BYTES.value)


def all_reduce_s(layout: Layout, tokens: int) -> float:
    """Seconds of one all-reduce of the activations of that many tokens among the GPUs of a stage."""
    ranks = layout.tensor_parallel
    if ranks == 1:
        return 0.0
    sent_bytes = 2 * (ranks - 1) / ranks * tokens * layout.shape.hidden * VALUE_BYTES.value
    return ALL_REDUCE_LATENCY.value + sent_bytes / (layout.gpu.nvlink.value * LINK_EFFICIENCY.value)


def _iteration_s(layout: Layout, flop: float, read_bytes: float, tokens: int) -> float:
    shape, gpu, ranks = layout.shape, layout.gpu, layout.tensor_parallel
    compute_s = flop / (ranks * gpu.compute.value * COMPUTE_EFFICIENCY.value)
    memory_s = read_bytes / (ranks * gpu.bandwidth.value * BANDWIDTH_EFFICIENCY.value)
    activation_bytes = tokens * shape.hidden * VALUE_BYTES.value
    send_s = STAGE_LATENCY.value + activation_bytes / STAGE_BANDWIDTH.value
    return (
        max(compute_s, memory_s)
        + 2 * shape.layers * all_reduce_s(layout, tokens)
        + shape.layers * LAYER_OVERHEAD.value
        + ITERATION_OVERHEAD.value
        + (layout.stages - 1) * send_s
    )


def prefill_s(layout: Layout, tokens: int) -> float:
    """Seconds of an iteration that prefills one prompt."""
    shape = layout.shape
    attention_flop = 4 * shape.layers * shape.hidden * tokens * tokens / 2
    flop = 2 * layer_weights(shape) * tokens + attention_flop + 2 * output_weights(shape)
    read_bytes = (layer_weights(shape) + output_weights(shape)) * VALUE_BYTES.value
    return _iteration_s(layout, flop, read_bytes, tokens)


def decode_s(layout: Layout, batch: int, context_tokens: int) -> float:
    """Seconds of an iteration that decodes one token for each of `batch` jobs."""
    shape = layout.shape
    weights = layer_weights(shape) + output_weights(shape)
    flop = batch * (2 * weights + 4 * shape.layers * shape.hidden * context_tokens)
    read_bytes = weights * VALUE_BYTES.value + batch * context_tokens * kv_bytes_per_token(shape)
    return _iteration_s(layout, flop, read_bytes, batch)


def cost_profile(layout: Layout) -> CostProfile:
    """The model at its points: between them it is linear, except for the bend where compute takes over from memory."""
    context = layout.shape.context
    prefill_tokens = []
    tokens = FIRST_PREFILL_TOKENS
    while tokens < context:
        prefill_tokens += [tokens, tokens * 3 // 2]
        tokens *= 2
    contexts = (FIRST_CONTEXT, context // 4, context)
    return CostProfile(
        tuple(PrefillCost(tokens, rounded(prefill_s(layout, tokens))) for tokens in [*prefill_tokens, context]),
        tuple(
            DecodeCost(batch, tokens, rounded(decode_s(layout, batch, tokens)))
            for batch in DECODE_BATCHES
            for tokens in contexts
        ),
    )


def device_kv_tokens(layout: Layout) -> int:
    """Tokens whose KV fits beside the weights on all GPUs together."""
    gpus = layout.tensor_parallel * layout.stages
    weight_bytes = stored_weights(layout.shape) * VALUE_BYTES.value
    room_bytes = gpus * layout.gpu.memory.value * MEMORY_SHARE.value - weight_bytes
    assert room_bytes > 0, f"{layout.shape.name} does not fit"
    return int(room_bytes / kv_bytes_per_token(layout.shape))


def host_kv_tokens(layout: Layout) -> int:
    """Tokens whose KV fits into the group's share of host memory."""
    gpus = layout.tensor_parallel * layout.stages
    return int(gpus * layout.gpu.host_memory.value * HOST_SHARE.value / kv_bytes_per_token(layout.shape))


def link_speed(layout: Layout) -> LinkSpeed:
    """The host link of a stage: each of its GPUs has one, and moves its own part of every job's KV."""
    return LinkSpeed(layout.tensor_parallel * layout.gpu.host_link.value, COPY_LATENCY.value)


def rounded(value: float) -> float:
    """Rounded to the digits written: more would depend on the machine that writes them."""
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
