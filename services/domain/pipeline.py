"""How the seconds of an iteration are shared out over the stages of a pipeline, and what lies between two stages.

Layers are split by what they cost in a decode. A prefill is shared out otherwise: the head computes one row of each
prompt there, and the layers all of them. So each kind has shares of its own.
"""

from dataclasses import dataclass
from math import inf

from services.domain.errors import InvalidFieldError

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Each stage's share in the seconds of an iteration that prefills, and of one that decodes; each adds up to 1.

    `hand_over_s`: until the hidden states of one row are at the next stage; `row_s`: what every further row adds.

    Raises InvalidFieldError for shares that do not add up to 1 or are not of the same stages, and for other seconds
    than those from 0 on.
    """

    prefill_shares: tuple[float, ...]
    decode_shares: tuple[float, ...]
    hand_over_s: float = 0.0
    row_s: float = 0.0

    def __post_init__(self) -> None:
        if len(self.prefill_shares) != len(self.decode_shares):
            raise InvalidFieldError(
                "pipeline", f"has {len(self.prefill_shares)} shares of a prefill, but {len(self.decode_shares)} others"
            )
        for shares in (self.prefill_shares, self.decode_shares):
            if not all(0.0 < share <= 1.0 for share in shares) or abs(sum(shares) - 1.0) > ROUNDING:
                raise InvalidFieldError("pipeline", f"shares must be above 0 and add up to 1, but are {shares}")
        if not (0.0 <= self.hand_over_s < inf and 0.0 <= self.row_s < inf):
            raise InvalidFieldError("pipeline", "hand_over_s and row_s must be at least 0")

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.decode_shares)

    def stage_s(self, prefill_s: float, decode_s: float) -> tuple[float, ...]:
        """Seconds of each stage in an iteration that takes so long for its prefills and its decodes."""
        pairs = zip(self.prefill_shares, self.decode_shares, strict=True)
        return tuple(of_prefill * prefill_s + of_decode * decode_s for of_prefill, of_decode in pairs)

    def way_s(self, rows: int) -> float:
        """Seconds until the hidden states of so many rows are at the next stage; nothing is sent for none."""
        return self.hand_over_s + self.row_s * (rows - 1) if rows else 0.0
