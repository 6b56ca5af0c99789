"""Moves of blocks between the pools."""

from services.domain.ids import BlockId
from services.domain.protocol import BlockMove


def block_moves(*pairs: tuple[int, int]) -> tuple[BlockMove, ...]:
    """Of the first blocks of a table; a pair is a device block and a host block."""
    return tuple(BlockMove(index, BlockId(device), BlockId(host)) for index, (device, host) in enumerate(pairs))
