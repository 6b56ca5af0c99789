"""What a forward pass works on: the rows of a batch, and the paged KV cache they read and write.

Theory of operation
-------------------
A forward pass computes T rows, one per token, of several sequences laid end to end. Each sequence gives the rows of its
positions from_token to to_token - 1: one row is a decode, more are a prefill or a chunk of one. Sequences of a single
row come first, so that all decodes of a batch are one slice.

A sequence's KV cache lives in blocks of `block_size` positions, anywhere in the pool: position p is in its block number
p // block_size, at offset p % block_size. Position p of the blocks named by `blocks` must be valid for p < from_token;
the pass writes from_token to to_token - 1 and reads all.

Shape legend: T rows, S sequences, P blocks of the longest sequence, L layers, N blocks of the pool, O offset in a
block, K kv heads, E head size.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class SequenceRows(NamedTuple):
    """A sequence's part in a batch. `blocks` may be longer than needed. `samples`: the logits after its last row are
    wanted; `scored_rows`: those after so many of its first rows are.

    `longest_tokens` is the length that the sequence may come to have (prompt and output); it must not change while its
    KV is kept. Only models whose rotary frequencies depend on the length look at it (see rope.py).
    """

    from_token: int
    to_token: int
    blocks: Sequence[int]
    samples: bool = True
    longest_tokens: int = 0
    scored_rows: int = 0


@dataclass(frozen=True, slots=True)
class PagedKv:
    """A pool of KV blocks, [N, L, 2, O, K, E]: a block is contiguous across layers, so that moving it is one copy.

    Index 0 of 2 is K, 1 is V.
    """

    pool: Tensor

    def __post_init__(self) -> None:
        assert self.pool.dim() == 6, "a pool has six dimensions"
        assert self.pool.is_contiguous(), "a pool is contiguous"

    @property
    def block_size(self) -> int:
        return self.pool.shape[3]

    @property
    def layer_count(self) -> int:
        return self.pool.shape[1]


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where the rows of a batch come from and where their KV goes. Made by `of`; tensors are int64 and on the model's
    device.

    `first_rows[s]` is the first row of `sequences[s]`; sequences[:decode_count] have one row each. `slots_T` is block *
    block_size + offset of each row's KV. `block_table_SP` is padded with block 0. `context_lengths_S` is to_token.
    `logit_rows` names the rows that are scored and the last rows of the sequences that sample, in their order: the
    forward pass returns one row of logits for each.
    """

    sequences: tuple[SequenceRows, ...]
    first_rows: tuple[int, ...]
    row_count: int
    decode_count: int
    block_size: int
    position_ids_T: Tensor
    slots_T: Tensor
    block_table_SP: Tensor
    context_lengths_S: Tensor
    logit_rows: Tensor

    @classmethod
    def of(
        cls,
        sequences: Sequence[SequenceRows],
        block_size: int,
        device: torch.device | str = "cpu",
        *,
        ahead_tokens: int = 0,
    ) -> "BatchLayout":
        """Lays out sequences: single rows first. All index tensors travel to the device as one copy. The block table
        holds the blocks of `ahead_tokens` later positions as well, as far as there are any.
        """
        row_counts = [sequence.to_token - sequence.from_token for sequence in sequences]
        decode_count = next((number for number, rows in enumerate(row_counts) if rows > 1), len(row_counts))
        assert row_counts, "an empty batch"
        assert min(row_counts) >= 1, "a sequence without rows"
        assert all(rows > 1 for rows in row_counts[decode_count:]), "sequences of one row come first"

        decodes = sequences[:decode_count]
        first_rows = list(range(decode_count))
        positions = array("q", [sequence.from_token for sequence in decodes])
        slots = array("q", [_slot(sequence, sequence.from_token, block_size) for sequence in decodes])
        logit_rows = array("q", [row for row, each in enumerate(decodes) if each.samples or each.scored_rows])
        row = decode_count
        for sequence, rows in zip(sequences[decode_count:], row_counts[decode_count:], strict=True):
            first_rows.append(row)
            positions.extend(range(sequence.from_token, sequence.to_token))
            _append_slots(slots, sequence, block_size)
            logit_rows.extend(range(row, row + sequence.scored_rows))
            row += rows
            if sequence.samples and sequence.scored_rows < rows:
                logit_rows.append(row - 1)

        used = [
            min(-(-(sequence.to_token + ahead_tokens) // block_size), len(sequence.blocks)) for sequence in sequences
        ]
        widest, lengths = max(used), array("q", [sequence.to_token for sequence in sequences])
        sizes = [len(positions), len(slots), len(lengths), len(logit_rows), len(sequences) * widest]
        numbers = positions + slots + lengths + logit_rows
        start = len(numbers)
        numbers.frombytes(bytes(sizes[-1] * numbers.itemsize))
        for sequence, count in zip(sequences, used, strict=True):
            numbers[start : start + count] = array("q", sequence.blocks[:count])
            start += widest
        packed = staged(torch.frombuffer(numbers, dtype=torch.int64), device).to(device, non_blocking=True)
        position_ids_T, slots_T, context_lengths_S, logit_rows_tensor, table_flat = torch.split(packed, sizes)
        return cls(
            sequences=tuple(sequences),
            first_rows=tuple(first_rows),
            row_count=row,
            decode_count=decode_count,
            block_size=block_size,
            position_ids_T=position_ids_T,
            slots_T=slots_T,
            block_table_SP=table_flat.view(len(sequences), widest),
            context_lengths_S=context_lengths_S,
            logit_rows=logit_rows_tensor,
        )


def staged(numbers: Tensor, device: torch.device | str) -> Tensor:
    """The numbers, on the host, from where a copy to the device does not wait for what that is computing: pinned
    memory, if it is a GPU.
    """
    return numbers.pin_memory() if torch.device(device).type == "cuda" else numbers


def _slot(sequence: SequenceRows, position: int, block_size: int) -> int:
    """Where the K and V of a position go."""
    return sequence.blocks[position // block_size] * block_size + position % block_size


def _append_slots(slots: "array[int]", sequence: SequenceRows, block_size: int) -> None:
    """Those of a sequence's rows: neighbours, as far as a block reaches."""
    position = sequence.from_token
    while position < sequence.to_token:
        stop = min(position - position % block_size + block_size, sequence.to_token)
        first = _slot(sequence, position, block_size)
        slots.extend(range(first, first + stop - position))
        position = stop
