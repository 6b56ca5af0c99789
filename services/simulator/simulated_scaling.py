"""Worker groups that come and go on the virtual clock, as the autoscaler's own rule says (services.autoscaler.scaling).

How many groups are wanted is asked every `period_s` seconds. A group that is to come takes `start_s` seconds: its pod,
the model, the profile. The one that is to go is that with the highest number; it drains, and its pod stays as long. A
number that is wanted again while its pod still drains begins when that is gone, as in a StatefulSet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from services.autoscaler.scaling import ScaleLimits, Scaling
from services.domain.errors import InvalidFieldError
from services.simulator.outcome import GroupSpan
from services.simulator.simulated_clients import SimulatedClients
from services.simulator.simulated_group import SimulatedGroup
from services.simulator.simulated_router import SimulatedRouter
from services.simulator.virtual_clock import StuckError, VirtualClock

MOST_LOOKS = 10_000_000
"""Of a simulation; after so many nothing happens any more."""

GroupsWanted = Callable[[Mapping[int, SimulatedGroup], float], int]
"""How many groups are wanted, from those that serve or drain, at a second of the virtual clock."""


@dataclass(frozen=True, slots=True)
class ScalingSetup:
    """`limits` of the autoscaler; its pods are groups. Seconds: see the module."""

    wanted: GroupsWanted
    limits: ScaleLimits
    start_s: float
    drain_limit_s: float = 20.0
    period_s: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.limits.least <= self.limits.most:
            raise InvalidFieldError("least", f"must be from 1 to most ({self.limits.most}), but is {self.limits.least}")
        if self.limits.pods_per_group != 1:
            raise InvalidFieldError("pods_per_group", f"must be 1, but is {self.limits.pods_per_group}")
        for field, value_s in (("period_s", self.period_s), ("drain_limit_s", self.drain_limit_s)):
            if not 0.0 < value_s < inf:
                raise InvalidFieldError(field, f"must be greater than 0, but is {value_s}")
        if not 0.0 <= self.start_s < inf:
            raise InvalidFieldError("start_s", f"must be at least 0, but is {self.start_s}")


class SimulatedScaling:
    """The autoscaler, and the pods that it asks for. The router's groups are there at the start."""

    def __init__(
        self, setup: ScalingSetup, router: SimulatedRouter, clock: VirtualClock, clients: SimulatedClients
    ) -> None:
        self._setup, self._router, self._clock, self._clients = setup, router, clock, clients
        self._scaling = Scaling(setup.limits)
        self._replicas = len(router.present)
        self._pods = dict.fromkeys(router.present, clock.now_s)
        """When the pod of each number began."""
        self._spans: list[GroupSpan] = []
        self._looks = 0
        router.on_gone = self._gone
        clock.post(clock.now_s, self._look, None)

    def spans(self, until_s: float) -> tuple[GroupSpan, ...]:
        """Of all pods, in the order in which they went; those that are left went at the end."""
        left = [GroupSpan(number, began_s, max(began_s, until_s)) for number, began_s in self._pods.items()]
        return (*self._spans, *left)

    def _look(self, _: None) -> None:
        now_s = self._clock.now_s
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise StuckError(f"{self._clients.left_count} jobs have not ended after {MOST_LOOKS} looks")
        wanted = self._setup.wanted(self._router.present, now_s)
        count = self._scaling.replicas(wanted, self._replicas, now_s)
        if count is not None:
            self._scale(count)
        if self._clients.left_count:
            self._clock.post(now_s + self._setup.period_s, self._look, None)

    def _scale(self, count: int) -> None:
        before, self._replicas = self._replicas, count
        for number in range(before, count):
            if number not in self._pods:
                self._begin(number)
        for number in reversed(range(count, before)):
            if number in self._router.present:
                self._router.drain_group(number, self._setup.drain_limit_s)
            else:
                # It is still starting: nothing is lost with it.
                self._gone(number)

    def _begin(self, number: int) -> None:
        began_s = self._pods[number] = self._clock.now_s
        self._clock.post(began_s + self._setup.start_s, self._started, (number, began_s))

    def _started(self, pod: tuple[int, float]) -> None:
        number, began_s = pod
        if self._pods.get(number) == began_s and number not in self._router.present:
            self._router.open_group(number)

    def _gone(self, number: int) -> None:
        self._spans.append(GroupSpan(number, self._pods.pop(number), self._clock.now_s))
        if number < self._replicas:
            self._begin(number)
