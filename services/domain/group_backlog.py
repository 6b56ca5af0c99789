"""What the scheduler expects of one worker group's jobs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """A group at one moment. `work_s`: seconds of the group at full batches that its jobs still cost. `drain_s`:
    seconds until the last of them ends. `busy_share`: its jobs over those that run at once, 1 at most.
    """

    work_s: float
    drain_s: float
    busy_share: float


IDLE = GroupBacklog(0.0, 0.0, 0.0)
