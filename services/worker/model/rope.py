"""Rotary position embedding with every frequency scaling of the supported families.

Theory of operation
-------------------
Pair i of a head's E dimensions (i and i + E/2) turns by position * frequency[i]. The types differ in the frequencies,
and some scale the cosines and sines too. Both are tables over all positions of the served context, made once.

Two types have frequencies that depend on the sequence's length, so that a cached key, turned already, would be wrong as
soon as the sequence grows:
- dynamic: frequencies change only beyond max_position_embeddings. No sequence may grow beyond it here (load_model
  refuses), so they never do.
- longrope: one set of frequencies up to original_max_position_embeddings, another one beyond. A sequence gets the set
  for the longest that it may become (SequenceRows.longest_tokens), from its first token on. Sequences that stay short,
  and long ones once they are long, get exactly what one pass over all their tokens would give.

Shape legend: T rows, E head size, N heads, M positions.
"""

import math

import torch
from torch import Tensor, nn

from services.worker.model.batch import BatchLayout
from services.worker.model.llama_config import RopeConfig, RopeType


class Rope(nn.Module):
    """Tables of cosines and sines, [M, E]; for longrope with long contexts twice as many rows, the long set after the
    short one.

    The sines are signed such that rotating is x * cos + (x with its halves swapped) * sin.
    """

    def __init__(self, config: RopeConfig, head_dim: int, length: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.length = length
        self.short_length = length
        sets = [frequencies(config, head_dim, long=False)]
        if config.rope_type is RopeType.LONGROPE and length > config.original_max_position:
            self.short_length = config.original_max_position
            sets.append(frequencies(config, head_dim, long=True))
        positions = torch.arange(length, dtype=torch.float32, device="cpu")
        angles = torch.cat([torch.outer(positions, each) for each in sets])
        scale = amplitude(config)
        cosines, sines = angles.cos() * scale, angles.sin() * scale
        self.cosines_ME: Tensor
        self.sines_ME: Tensor
        self.register_buffer("cosines_ME", torch.cat((cosines, cosines), dim=-1).to(dtype), persistent=False)
        self.register_buffer("sines_ME", torch.cat((-sines, sines), dim=-1).to(dtype), persistent=False)

    def tables(self, batch: BatchLayout) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of the batch's rows, [T, 1, E]."""
        rows_T = self.rows(batch)
        return (
            self.cosines_ME.index_select(0, rows_T).unsqueeze(1),
            self.sines_ME.index_select(0, rows_T).unsqueeze(1),
        )

    def rows(self, batch: BatchLayout) -> Tensor:
        """The tables' row of each of the batch's rows, [T]."""
        rows = batch.position_ids_T
        if self.short_length < self.length:
            long = [max(each.longest_tokens, each.to_token) > self.short_length for each in batch.sequences]
            counts = [each.to_token - each.from_token for each in batch.sequences]
            offsets = torch.tensor(long, device=rows.device).long() * self.length
            rows = rows + offsets.repeat_interleave(
                torch.tensor(counts, device=rows.device), output_size=batch.row_count
            )
        return rows


def rotate(x_TNE: Tensor, cosines_T1E: Tensor, sines_T1E: Tensor, out_TNE: Tensor) -> None:
    """Turns every head of every row, into `out_TNE`, which may be `x_TNE`. No fused product and sum: exact.py wants
    every step rounded.
    """
    torch.add(x_TNE * cosines_T1E, x_TNE.roll(x_TNE.shape[-1] // 2, dims=-1) * sines_T1E, out=out_TNE)


def frequencies(config: RopeConfig, head_dim: int, *, long: bool) -> Tensor:
    """Angle per position of each pair of dimensions, float32 [E / 2]. `long` chooses longrope's set."""
    plain = 1.0 / (config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim))
    match config.rope_type:
        case RopeType.DEFAULT | RopeType.DYNAMIC:
            return plain
        case RopeType.LINEAR:
            return plain / config.factor
        case RopeType.PROPORTIONAL:
            turning = int(config.rotary_fraction * head_dim // 2)
            return torch.cat((plain[:turning], torch.zeros_like(plain[turning:]))) / config.factor
        case RopeType.LLAMA3:
            return _llama3(config, plain)
        case RopeType.YARN:
            return _yarn(config, plain, head_dim)
        case RopeType.LONGROPE:
            stretch = torch.tensor(
                config.long_factor if long else config.short_factor, dtype=torch.float32, device="cpu"
            )
            return plain / stretch


def amplitude(config: RopeConfig) -> float:
    """The factor of cosines and sines."""
    if config.rope_type not in (RopeType.YARN, RopeType.LONGROPE):
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.rope_type is RopeType.LONGROPE:
        growth = math.log(max(config.factor, 1.0)) / math.log(config.original_max_position)
        return math.sqrt(1 + growth)
    if config.mscale and config.mscale_all_dim:
        return _yarn_amplitude(config.factor, config.mscale) / _yarn_amplitude(config.factor, config.mscale_all_dim)
    return _yarn_amplitude(config.factor, 1.0)


def _yarn_amplitude(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / plain
    waves = config.original_max_position / wavelengths
    blend = (waves - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blended = (1 - blend) * plain / config.factor + blend * plain
    kept = wavelengths < config.original_max_position / config.high_freq_factor
    stretched = wavelengths > config.original_max_position / config.low_freq_factor
    return torch.where(stretched, plain / config.factor, torch.where(kept, plain, blended))


def _yarn(config: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """Between the two dimensions that turn beta_fast and beta_slow times within the original length, frequencies pass
    from kept to stretched.
    """

    def dimension(turns: float) -> float:
        return head_dim * math.log(config.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32, device="cpu") - low) / width).clamp(0, 1)
    return plain / config.factor * ramp + plain * (1 - ramp)
