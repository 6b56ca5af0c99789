"""The stand-in for the controller of HorizontalPodAutoscalers: external metrics at an average a pod.

The arithmetic is the documented one (Kubernetes, "Horizontal Pod Autoscaling", algorithm details and configurable
scaling behavior): the sum over the target, rounded up, unless that is within a tenth of what there is; the largest of
several metrics; up by what the most generous policy of the last seconds allows, down after the highest recommendation
of the stabilization window. An object with no replicas is left alone: waking it is not the HPA's.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import Any

TOLERANCE = 0.1
UP: dict[str, Any] = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Percent", "value": 100, "periodSeconds": 15},
        {"type": "Pods", "value": 4, "periodSeconds": 15},
    ],
}
DOWN: dict[str, Any] = {
    "stabilizationWindowSeconds": 300,
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}
"""The defaults of `spec.behavior`."""
MOST_REMEMBERED = 10_000
SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6}


def quantity(text: str) -> float:
    """A quantity of Kubernetes, as far as metrics use it."""
    return float(text[:-1]) * SUFFIXES[text[-1]] if text[-1] in SUFFIXES else float(text)


def replicas_for(value: float, target: float, present: int) -> int:
    """What an average of `target` a pod asks for."""
    if abs(1.0 - value / (target * present)) <= TOLERANCE:
        return present
    return ceil(round(value / target, 6))


class PodAutoscaler:
    """One object's: it remembers what was recommended and what was changed."""

    def __init__(self) -> None:
        self._recommended: deque[tuple[float, int]] = deque(maxlen=MOST_REMEMBERED)
        self._changes: deque[tuple[float, int]] = deque(maxlen=MOST_REMEMBERED)

    def replicas(self, spec: Mapping[str, Any], present: int, values: Sequence[float], now_s: float) -> int:
        """What to set, from the HPA's spec and the value of each of its metrics."""
        if not present:
            return present
        targets = [quantity(metric["external"]["target"]["averageValue"]) for metric in spec["metrics"]]
        wanted = max(replicas_for(value, target, present) for value, target in zip(values, targets, strict=True))
        behavior = spec.get("behavior") or {}
        up, down = {**UP, **behavior.get("scaleUp", {})}, {**DOWN, **behavior.get("scaleDown", {})}
        if not self._recommended:
            self._recommended.append((now_s, present))
        self._recommended.append((now_s, wanted))
        if wanted > present:
            wanted = max(present, self._steadied(up, min, wanted, now_s))
            wanted = min(wanted, self._allowed(up, present, now_s, 1))
        else:
            wanted = min(present, self._steadied(down, max, wanted, now_s))
            wanted = max(wanted, self._allowed(down, present, now_s, -1))
        wanted = min(max(wanted, int(spec.get("minReplicas", 1))), int(spec["maxReplicas"]))
        if wanted != present:
            self._changes.append((now_s, wanted - present))
        return wanted

    def _steadied(
        self, rules: Mapping[str, Any], pick: Callable[[Sequence[int]], int], wanted: int, now_s: float
    ) -> int:
        window_s = rules["stabilizationWindowSeconds"]
        return pick([wanted, *(count for at_s, count in self._recommended if now_s - at_s < window_s)])

    def _allowed(self, rules: Mapping[str, Any], present: int, now_s: float, sign: int) -> int:
        """The bound of the rate's policies; `sign` 1 upwards, -1 downwards."""
        if rules["selectPolicy"] == "Disabled":
            return present
        bounds: list[int] = []
        for policy in rules["policies"]:
            changed = sum(by for at_s, by in self._changes if now_s - at_s < policy["periodSeconds"] and by * sign > 0)
            before = present - changed
            step = before * policy["value"] / 100 if policy["type"] == "Percent" else policy["value"]
            bounds.append(ceil(before + step) if sign > 0 else floor(before - step))
        is_widest = rules["selectPolicy"] == "Max"
        return max(bounds) if is_widest == (sign > 0) else min(bounds)
