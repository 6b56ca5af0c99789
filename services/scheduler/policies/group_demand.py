"""How many worker groups are wanted, from the backlogs of those there are. Pure.

Wanted are as many groups that no group has more than `target_s` seconds of work before it, and that at most
`MOST_BUSY_SHARE` of what they can run at once is taken, so that a job that comes finds room. But never are more wanted
for the work than its jobs would keep at that share of their full pace: long jobs that all run already, in batches with
room, are much work, and end hardly sooner if another group takes some of them. More are wanted at once;
fewer only when the most that was wanted during `quiet_s` seconds is fewer. A group that comes takes its share of the
jobs, so the backlog is counted over all groups, and jobs that wait for a first group count as one group's work.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp

from services.domain.group_backlog import GroupBacklog

MOST_BUSY_SHARE = 0.8
BUSY_MEMORY_S = 10.0
"""The busy share is a mean over about so long: a short burst is the backlog's matter."""
WINDOWS = 60
"""The quiet time is remembered in so many parts."""


@dataclass(frozen=True, slots=True)
class DemandLimits:
    """`target_s`: seconds of work per group. `quiet_s`: see the module. Groups: `least` to `most`."""

    target_s: float = 5.0
    quiet_s: float = 60.0
    least: int = 1
    most: int = 1


@dataclass(frozen=True, slots=True)
class Demand:
    """What follows for whoever scales: groups wanted, and why."""

    wanted: int
    backlog_s: float
    busy_groups: float


class GroupDemand:
    """Remembers what was wanted during the quiet time."""

    def __init__(self, limits: DemandLimits) -> None:
        self._limits = limits
        self._busy_groups = 0.0
        self._updated_s: float | None = None
        self._recent: deque[tuple[float, int]] = deque()
        """(second, most wanted since), the most wanted first; each later one is wanted less."""

    def update(self, backlogs: Sequence[GroupBacklog | None], now_s: float) -> Demand:
        """`backlogs` of all groups that have jobs or a worker; None: jobs wait, and nobody has said what they cost."""
        limits = self._limits
        work_s = sum(one.work_s for one in backlogs if one is not None)
        busy = sum(1.0 if one is None else one.busy_share for one in backlogs)
        elapsed_s = 0.0 if self._updated_s is None else max(0.0, now_s - self._updated_s)
        self._updated_s = now_s
        self._busy_groups += (1.0 - exp(-elapsed_s / BUSY_MEMORY_S)) * (busy - self._busy_groups)
        full = sum(1.0 if one is None else one.full_groups for one in backlogs)
        by_work = ceil(round(min(work_s / limits.target_s, full / MOST_BUSY_SHARE), 6))
        by_room = ceil(round(self._busy_groups / MOST_BUSY_SHARE, 6))
        waits = 1 if any(one is None or one.work_s > 0.0 for one in backlogs) else 0
        if not waits and by_room == 1:
            # The mean takes minutes to fade, and nothing runs.
            by_room = 0
        now_wanted = min(max(by_work, by_room, waits, limits.least), limits.most)
        return Demand(self._held(now_wanted, now_s), work_s, self._busy_groups)

    def _held(self, wanted: int, now_s: float) -> int:
        """The most that was wanted during the quiet time, in at most WINDOWS entries."""
        recent = self._recent
        while recent and recent[-1][1] <= wanted:
            recent.pop()
        if not recent or now_s - recent[-1][0] >= self._limits.quiet_s / WINDOWS or len(recent) < 2:
            recent.append((now_s, wanted))
        while now_s - recent[0][0] > self._limits.quiet_s and len(recent) > 1:
            recent.popleft()
        return recent[0][1]
