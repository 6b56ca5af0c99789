"""What every peer's engine is told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """`made` is a folder for what a peer makes of the model, which is kept; `kv_tokens` are those that its KV cache can
    hold; `max_batch` is the most jobs of an iteration.
    """

    model: Path
    made: Path
    threads: int
    kv_tokens: int
    max_batch: int
