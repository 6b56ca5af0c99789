"""Masks of tokens on rows of logits.

A mask comes as bits. Each 16 of them are looked up in a table of 65,536 rows of 16 numbers, 0 or minus infinity, whose
row is then added to the logits: one lookup and one addition for 16 tokens, with the same few lines on every device.
Unpacking bit by bit takes many times as long.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from services.worker.sampling.guide_states import Mask

_BITS = 16
_WORD_BITS = 32


def mask_words(vocabulary_size: int) -> int:
    """Words of a mask."""
    return -(-vocabulary_size // _WORD_BITS)


def bits_of(token_ids: "np.ndarray[tuple[int], np.dtype[np.int64]]", vocabulary_size: int) -> Mask:
    """The mask of these tokens."""
    bits = np.zeros(mask_words(vocabulary_size) * _WORD_BITS, dtype=np.uint8)
    bits[token_ids] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


@lru_cache(maxsize=4)
def _table(device: torch.device) -> Tensor:
    """Float32 [65536, 16], 4 MB: what 16 bits add to the logits of their tokens."""
    patterns = torch.arange(1 << _BITS, device=device)[:, None]
    bits = patterns >> torch.arange(_BITS, device=device) & 1
    return torch.zeros(bits.shape, device=device).masked_fill_(bits == 0, -torch.inf)


def prepare_masks(device: torch.device) -> None:
    """Makes the table, so that the first iteration with a guide need not."""
    _table(device)


def add_masks(logits_SV: Tensor, numbers: list[int], masks: Mask) -> None:
    """Sets the logits of masked tokens to minus infinity, in place. `masks` [G, words] belong to the rows `numbers`."""
    halves = torch.from_numpy(masks.view(np.uint16).astype(np.int32)).to(logits_SV.device)
    added_GV = _table(logits_SV.device).index_select(0, halves.view(-1)).view(len(numbers), -1)
    vocabulary_size = logits_SV.shape[1]
    if len(numbers) == logits_SV.shape[0]:
        logits_SV += added_GV[:, :vocabulary_size]
        return
    for place, number in enumerate(numbers):
        logits_SV[number] += added_GV[place, :vocabulary_size]
