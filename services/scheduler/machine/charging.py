"""What an iteration costs each of its jobs.

`wall`, as in the papers, charges every job the whole iteration, including the time of other jobs' prefills (PAPER 7
calls this a weakness). `marginal` divides the time: each job's share is proportional to the cost of its own part
according to the cost model. A prefill counts its own seconds, a decode an equal part of the seconds of all decodes in
the batch.
"""

from collections.abc import Sequence

from services.domain.cost import CostProfile
from services.domain.protocol import PlanEntry
from services.scheduler.scheduler_config import Charge

CONTEXT_STEP = 64
"""Decode costs are looked up at multiples of this many context tokens: they hardly depend on the context (PAPER 1)."""


class Charging:
    """Divides an iteration's duration among its jobs."""

    def __init__(self, mode: Charge) -> None:
        self._mode = mode
        self._profile: CostProfile | None = None
        self._decode_s: dict[tuple[int, int], float] = {}

    def calibrate(self, profile: CostProfile) -> None:
        """Use the cost model of a worker that joined."""
        self._profile = profile
        self._decode_s = {}

    def shares_s(self, entries: Sequence[PlanEntry], duration_s: float) -> Sequence[float]:
        """One charge per entry, in the order of the entries."""
        if self._mode is Charge.WALL:
            return [duration_s] * len(entries)
        decodes = [entry.from_token for entry in entries if entry.to_token - entry.from_token == 1]
        decode_s = self._one_decode_s(len(decodes), sum(decodes) // len(decodes)) if decodes else 0.0
        own_s = [decode_s if entry.to_token - entry.from_token == 1 else self._prefill_s(entry) for entry in entries]
        whole_s = sum(own_s)
        return [duration_s * own / whole_s for own in own_s]

    def _one_decode_s(self, batch: int, context_tokens: int) -> float:
        """One job's part of a decode iteration. Cached: the table is small, batch x contexts / CONTEXT_STEP."""
        assert self._profile is not None
        place = (batch, context_tokens // CONTEXT_STEP)
        known = self._decode_s.get(place)
        if known is None:
            known = self._decode_s[place] = self._profile.decode_s(batch, place[1] * CONTEXT_STEP) / batch
        return known

    def _prefill_s(self, entry: PlanEntry) -> float:
        """A chunk costs what it adds to the prefill, but where the profile is flat at least its tokens' share of the
        whole.
        """
        assert self._profile is not None, "calibrate must be called first"
        whole_s = self._profile.prefill_s(entry.to_token)
        before_s = self._profile.prefill_s(entry.from_token) if entry.from_token else 0.0
        return max(whole_s - before_s, whole_s * (entry.to_token - entry.from_token) / entry.to_token)
