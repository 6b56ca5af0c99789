"""The interface of scheduling policies. A policy decides a place for each job.

A place is Rank(level, key, arrival number); the smaller one runs sooner. A policy is asked when a job joins, when an
iteration with the job ends (`service_s` is what that iteration is charged), and when the starvation limit promotes the
job. It keeps no list of jobs: the machine keeps them sorted by place, so that no decision walks the queue.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.length_distribution import LengthDistribution


class WorkShape(NamedTuple):
    """What the work of jobs is like: its squared coefficient of variation, and the share of it that is prefills."""

    spread: float
    prefill_share: float


UNKNOWN_WORK = WorkShape(0.0, 1.0)
"""As long as too few jobs have ended, and under a policy that learns nothing: the shape for which least is lent."""


def way_between(value: float, begin: float, end: float) -> float:
    """How far a value has come from one to the other: 0 to 1. So limits on a shape of the work begin to hold."""
    return min(max((value - begin) / (end - begin), 0.0), 1.0)


class SchedulingPolicy(Protocol):
    """Decides ranks. All methods cost O(1), except `settle`, which costs O(jobs it moves)."""

    quanta_s: tuple[float, ...]
    """Quantum of each level in seconds, highest level first; empty for a policy without quanta."""
    closed_level: int | None
    """Jobs at this level and below are not planned; None: all levels are open."""
    displaces: bool
    """Whether a waiting job may take the device from a job that ranks below it. If not, a job keeps its KV until a job
    above it that has begun needs the room.
    """
    lends: bool
    """Whether jobs that wait too long for a token are lent an iteration at the head of the order."""

    work: WorkShape
    """Of the jobs served lately."""

    @property
    def lengths(self) -> LengthDistribution | None:
        """What it learnt of the lengths of all jobs; None: it learns nothing."""

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """A worker joined: take its cost model. `stage_count` batches run at a time. Called before any other method."""

    def paced(self, factor: float) -> None:
        """Iterations take so many times as long as the cost model says."""

    def join(self, job: Job) -> Rank:
        """The place of a new job."""

    def rejoin(self, job: Job, level: int) -> Rank:
        """The place of a job that comes from another group, where it was on this level. It is computed anew here, but
        keeps its age.
        """

    def foresee(self, job: Job, level: int | None) -> Rank:
        """The place that `join` (level None) or `rejoin` would give the job. Changes nothing."""

    def ran(self, job: Job, service_s: float) -> Rank | None:
        """The new place of a job that was in an iteration and has not ended; None: it keeps its place."""

    def cut(self, job: Job) -> Rank:
        """The new place of a job whose prefill was cut."""

    def cut_after_s(self, job: Job, tokens: int) -> float | None:
        """How long a prefill of `tokens` tokens may run before it is cut; None: without a limit."""

    def promote(self, job: Job) -> Rank | None:
        """The place of a job that has waited for the starvation limit; None: there is no better one."""

    def residency_changed(self, job: Job) -> Rank | None:
        """The new place of a job whose KV came to the device or left it; None: it keeps its place."""

    def leave(self, job: Job, reason: EndReason) -> None:
        """The job ended."""

    def state_key(self) -> tuple[object, ...]:
        """All that later answers depend on besides the jobs and their places; for the explorer."""

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        """New places, once all events of a turn have been taken."""
