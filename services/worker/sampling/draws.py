"""The randomness of sampling: a draw is a function of (seed, choice, output token number) and of the probabilities.

Theory of operation
-------------------
Nothing here keeps state. A counter-based generator (the mixing function of SplitMix64, in wrapping 64-bit integers,
which are exact on every device) turns (seed, choice) into a stream, the stream and the number of the output token
into a key, the key and an index into a uniform number. So neither the batch a job lands in, nor a preemption, nor a
restart of the worker changes a draw.

The token is the winner of an exponential race: the index that maximises weight / -log(uniform) wins with a
probability in proportion to its weight. Why not one uniform number and the inverse of the cumulated probabilities:
the same job computed in another batch has logits that differ by rounding, and there the small differences add up
along the vocabulary, so that every border behind them shifts; a token rarer than the shift changes with nearly any
draw. In a race, only the two leaders matter: the winner changes when both are within the rounding of one another,
whatever the vocabulary is.

A race over the whole vocabulary would need a number for every token. So there are two: one over chunks of CHUNK
neighbouring ids, by their summed weights, and one over the tokens of the winning chunk. That is the same
distribution, for V / CHUNK + CHUNK numbers instead of V.

Shape legend: R rows, V vocabulary, C chunks, K ids of a chunk.
"""

import torch
from torch import Tensor

CHUNK = 64
GREATEST = 1.0 - 2.0**-53
"""The greatest number below 1."""

_WEYL = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL = (1 << 64) - 1


def _signed(value: int) -> int:
    """The 64-bit pattern as torch's signed integer."""
    return value - (1 << 64) if value >> 63 else value


def _mix_one(value: int) -> int:
    value = ((value ^ value >> 30) * _FIRST) & _ALL
    value = ((value ^ value >> 27) * _SECOND) & _ALL
    return value ^ value >> 31


def _mix(values: Tensor) -> Tensor:
    """The same for a tensor of int64: shifts are made logical by masks, products wrap."""
    values = (values ^ (values >> 30 & (1 << 34) - 1)) * _signed(_FIRST)
    values = (values ^ (values >> 27 & (1 << 37) - 1)) * _signed(_SECOND)
    return values ^ (values >> 31 & (1 << 33) - 1)


def stream_of(seed: int, choice: int) -> int:
    """The stream of a job's draws, as a signed 64-bit number. `seed` is any signed 64-bit number."""
    return _signed(_mix_one((_mix_one((seed + _WEYL) & _ALL) + (choice + 1) * _WEYL) & _ALL))


def keys_of(streams_R: Tensor, numbers_R: Tensor) -> Tensor:
    """The key of each row's draw, from its stream and the number of the output token (both int64)."""
    return _mix(streams_R + (numbers_R + 1) * _signed(_WEYL))


def uniforms(keys_R: Tensor, indices_RC: Tensor) -> Tensor:
    """One number in (0, 1) for each index, float64: 53 bits plus a half, so that neither end is reached. The largest
    would round up to 1, whose logarithm is 0, hence the clamp.
    """
    bits = _mix(keys_R[:, None] + (indices_RC + 1) * _signed(_WEYL))
    return (((bits >> 11 & (1 << 53) - 1).double() + 0.5) * 2.0**-53).clamp_(max=GREATEST)


def race(weights_RV: Tensor, keys_R: Tensor) -> Tensor:
    """Draws an index from each row in proportion to its weights (float32, none negative, one positive). Returns
    int64 [R].
    """
    row_count, vocabulary_size = weights_RV.shape
    padding = -vocabulary_size % CHUNK
    if padding:
        weights_RV = torch.nn.functional.pad(weights_RV, (0, padding))
    chunks_RCK = weights_RV.view(row_count, -1, CHUNK)
    chunk_ids = torch.arange(chunks_RCK.shape[1], device=weights_RV.device)
    # Even indices are the chunks', odd ones the tokens'.
    chunk_R = _winner(chunks_RCK.sum(-1), uniforms(keys_R, 2 * chunk_ids[None]))
    token_ids_RK = chunk_R[:, None] * CHUNK + torch.arange(CHUNK, device=weights_RV.device)
    weights_RK = weights_RV.gather(1, token_ids_RK)
    return chunk_R * CHUNK + _winner(weights_RK, uniforms(keys_R, 2 * token_ids_RK + 1))


def _winner(weights: Tensor, uniform: Tensor) -> Tensor:
    return (weights.double() / -uniform.log()).argmax(-1)
