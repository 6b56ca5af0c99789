"""What the scheduler expects of one worker group's jobs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """A group at one moment. `work_s`: seconds of the group at full batches that its jobs still cost. `drain_s`:
    seconds until the last of them ends. `busy_share`: its jobs over those that run at once, 1 at most. `full_groups`:
    groups that its jobs would keep at the pace of full batches; one at half of that pace counts as a half.
    """

    work_s: float
    drain_s: float
    busy_share: float
    full_groups: float


IDLE = GroupBacklog(0.0, 0.0, 0.0, 0.0)
