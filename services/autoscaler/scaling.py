"""How many pods the workers' object should have: whole groups, more at once, fewer after a quiet time. Pure.

The scheduler says how many groups it wants. Nothing is changed while that is not known. A group that leaves is the one
with the highest number, which is told to end by its pods' removal; so groups leave one at a time, and the next one only
after another quiet time, when the jobs of the last have found their places.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """Groups from `least` to `most`; `quiet_s` seconds in which fewer must have sufficed; `pods_per_group` replicas."""

    least: int
    most: int
    quiet_s: float
    pods_per_group: int


class Scaling:
    """Decides over time."""

    def __init__(self, limits: ScaleLimits) -> None:
        self._limits = limits
        self._fewer_since_s: float | None = None

    def replicas(self, wanted: int | None, present: int, now_s: float) -> int | None:
        """The replicas to set, or None to leave the `present` ones. `wanted`: groups; None: not known now."""
        limits = self._limits
        if wanted is None:
            self._fewer_since_s = None
            return None
        # A part of a group serves nobody: it is completed, never counted.
        groups = -(-present // limits.pods_per_group)
        target = min(max(wanted, limits.least), limits.most)
        if target >= groups:
            self._fewer_since_s = None
        elif self._fewer_since_s is None:
            self._fewer_since_s, target = now_s, groups
        elif now_s - self._fewer_since_s < limits.quiet_s:
            target = groups
        else:
            self._fewer_since_s, target = now_s, groups - 1
        replicas = target * limits.pods_per_group
        return None if replicas == present else replicas
