"""How much memory KV takes, and may take. No torch here."""

MEMORY_SHARE = 0.8
"""Share of the memory free now that a pool may take; the rest is for activations, and for the other services of
this machine.
"""


def kv_bytes(layer_count: int, kv_head_count: int, head_dim: int, value_bytes: int) -> int:
    """Bytes of one position: K and V of every layer."""
    return layer_count * 2 * kv_head_count * head_dim * value_bytes


def affordable_blocks(free_bytes: int, block_bytes: int) -> int:
    """Blocks that a pool may have when so much memory is free."""
    return max(int(free_bytes * MEMORY_SHARE), 0) // block_bytes
