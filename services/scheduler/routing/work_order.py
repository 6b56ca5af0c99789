"""The jobs of a group in the order in which they would run, and the sums of the work that is left in them.

The router asks how much work is ahead of a rank, for every arrival and every group, and the queue may hold 10,000 jobs.
So the order is kept in parts of bounded length, each with its own sums: the answer adds up whole parts and walks only
one. A token that a job made changes the sums of its part and those of the whole, in O(1).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice

from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.scheduler.policies.length_distribution import EDGES, bucket_entered

MOST_IN_PART = 128


class Load:
    """Sums over some jobs, in jobs and in tokens.

    `prefill_tokens` are those that `unstarted` jobs will compute in their first iteration here; `rest_tokens` is the
    output that is expected to come; `known_tokens` are prompts and output so far.
    """

    __slots__ = ("jobs", "known_tokens", "prefill_tokens", "rest_tokens", "unstarted")

    def __init__(self) -> None:
        self.jobs = 0
        self.unstarted = 0
        self.prefill_tokens = 0
        self.rest_tokens = 0.0
        self.known_tokens = 0

    def add(self, job: "RoutedJob", sign: int = 1) -> None:
        """Count a job in, or with `sign` -1 out."""
        self.jobs += sign
        self.rest_tokens += sign * job.rest_tokens
        self.known_tokens += sign * job.known_tokens
        if job.prefill_tokens:
            self.unstarted += sign
            self.prefill_tokens += sign * job.prefill_tokens

    def merge(self, other: "Load") -> None:
        """Add the sums of other jobs."""
        self.jobs += other.jobs
        self.unstarted += other.unstarted
        self.prefill_tokens += other.prefill_tokens
        self.rest_tokens += other.rest_tokens
        self.known_tokens += other.known_tokens


class RoutedJob:
    """A job as the router knows it. `rank` is its place in its group; `arrival_number` counts over all groups."""

    __slots__ = (
        "arrival_number",
        "arrived_s",
        "bucket",
        "bucket_end",
        "client_number",
        "group",
        "job_id",
        "known_tokens",
        "max_tokens",
        "moves",
        "part",
        "prefill_tokens",
        "prompt_tokens",
        "rank",
        "rest_tokens",
    )

    def __init__(
        self,
        job_id: JobId,
        arrival_number: int,
        prompt_tokens: int,
        max_tokens: int,
        arrived_s: float,
        client_number: int = 0,
    ) -> None:
        self.job_id = job_id
        self.arrival_number = arrival_number
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.arrived_s = arrived_s
        self.client_number = client_number
        self.group = -1
        """The group that has it; -1 before it is routed."""
        self.rank = Rank(0, 0.0, arrival_number)
        self.part: OrderPart | None = None
        self.known_tokens = prompt_tokens
        self.prefill_tokens = prompt_tokens
        """Tokens of its first iteration in its group; 0 once it has made a token there."""
        self.rest_tokens = 0.0
        """Expected output still to come."""
        self.bucket = 0
        """The bucket of output lengths that it has entered, and the output with which it enters the next one."""
        self.bucket_end = 0
        self.moves = 0
        """How often it moved to a group that idled."""

    @property
    def output_tokens(self) -> int:
        return self.known_tokens - self.prompt_tokens

    def catch_up(self, rank: Rank, known_tokens: int, prefill_tokens: int) -> None:
        """Take over how far its group has come with it. It must be in no order."""
        assert self.part is None, f"{self.job_id} is in an order"
        self.rank, self.known_tokens, self.prefill_tokens = rank, known_tokens, prefill_tokens
        self.bucket = bucket_entered(self.output_tokens)
        self.bucket_end = EDGES[self.bucket + 1]

    @property
    def whole_tokens(self) -> int:
        """Prompt and the longest output."""
        return self.prompt_tokens + self.max_tokens


class OrderPart:
    """A run of neighbours in the order, and their sums."""

    __slots__ = ("jobs", "load", "ranks")

    def __init__(self, jobs: list[RoutedJob]) -> None:
        self.jobs = jobs
        self.ranks = [job.rank for job in jobs]
        self.load = Load()
        for job in jobs:
            job.part = self
            self.load.add(job)


class WorkOrder:
    """All jobs of a group by rank. Ranks are distinct, because arrival numbers are. A part with more than
    `most_in_part` jobs is cut in two; neighbours with no more than half of that become one.
    """

    def __init__(self, most_in_part: int = MOST_IN_PART) -> None:
        self._most_in_part = most_in_part
        self.whole = Load()
        """The sums over all jobs."""
        self._parts: list[OrderPart] = []
        self._starts: list[Rank] = []
        """For each part a rank that is not above its first job's, and above all of the part before."""

    def __len__(self) -> int:
        return self.whole.jobs

    def __iter__(self) -> Iterator[RoutedJob]:
        """All jobs, best first. The order must not be changed meanwhile."""
        return (job for part in self._parts for job in part.jobs)

    def add(self, job: RoutedJob) -> None:
        """Add a job at its rank."""
        self.whole.add(job)
        if not self._parts:
            self._parts, self._starts = [OrderPart([job])], [job.rank]
            return
        at = self._at(job.rank)
        part = self._parts[at]
        self._starts[at] = min(self._starts[at], job.rank)
        place = bisect_left(part.ranks, job.rank)
        part.ranks.insert(place, job.rank)
        part.jobs.insert(place, job)
        part.load.add(job)
        job.part = part
        if len(part.jobs) > self._most_in_part:
            half = len(part.jobs) // 2
            self._parts[at : at + 1] = [OrderPart(part.jobs[:half]), OrderPart(part.jobs[half:])]
            self._starts.insert(at + 1, part.ranks[half])

    def remove(self, job: RoutedJob) -> None:
        """Remove a job, by the rank at which it was added."""
        part = job.part
        assert part is not None, f"{job.job_id} is in no order"
        self.whole.add(job, -1)
        part.load.add(job, -1)
        place = bisect_left(part.ranks, job.rank)
        assert part.jobs[place] is job, f"{job.job_id} is not at the place of its rank"
        del part.ranks[place], part.jobs[place]
        job.part = None
        if len(part.jobs) <= self._most_in_part // 4:
            self._merge(self._at(job.rank))

    def move(self, job: RoutedJob, rank: Rank) -> None:
        """Give a job another rank."""
        if rank != job.rank:
            self.remove(job)
            job.rank = rank
            self.add(job)

    def made_token(self, job: RoutedJob, rest_tokens: float) -> None:
        """The job made a token, and so much is expected to come."""
        assert job.part is not None, f"{job.job_id} is in no order"
        for load in (self.whole, job.part.load):
            load.rest_tokens += rest_tokens - job.rest_tokens
            load.known_tokens += 1
            if job.prefill_tokens:
                load.unstarted -= 1
                load.prefill_tokens -= job.prefill_tokens
        job.known_tokens += 1
        job.rest_tokens = rest_tokens
        job.prefill_tokens = 0

    def ahead_of(self, rank: Rank) -> Load:
        """The sums over all jobs that rank before this one."""
        ahead = Load()
        if not self._parts:
            return ahead
        at = self._at(rank)
        for part in self._parts[:at]:
            ahead.merge(part.load)
        for job in self._parts[at].jobs[: bisect_left(self._parts[at].ranks, rank)]:
            ahead.add(job)
        return ahead

    def after(self, count: int, most: int) -> list[RoutedJob]:
        """At most `most` jobs behind the first `count`, best first."""
        for at, part in enumerate(self._parts):
            if count < len(part.jobs):
                rest = (job for later in self._parts[at:] for job in later.jobs)
                return list(islice(rest, count, count + most))
            count -= len(part.jobs)
        return []

    def restart(self) -> None:
        """Nothing of any job is computed any more. O(jobs)."""
        jobs = list(self)
        self.whole, self._parts, self._starts = Load(), [], []
        for job in jobs:
            job.prefill_tokens = job.known_tokens
            self.add(job)

    def check(self) -> None:
        """Assert that the order and all sums are right. O(jobs), for tests."""
        jobs = list(self)
        assert [job.rank for job in jobs] == sorted(job.rank for job in jobs)
        whole = Load()
        for part in self._parts:
            assert part.jobs, "an empty part was kept"
            assert part.ranks == [job.rank for job in part.jobs]
            assert len(part.jobs) <= self._most_in_part
            whole.merge(part.load)
        for sums, of in [(self.whole, jobs), *((part.load, part.jobs) for part in self._parts)]:
            assert (sums.jobs, sums.known_tokens) == (len(of), sum(job.known_tokens for job in of))
            assert sums.prefill_tokens == sum(job.prefill_tokens for job in of)
            assert sums.unstarted == sum(job.prefill_tokens > 0 for job in of)
            assert abs(sums.rest_tokens - sum(job.rest_tokens for job in of)) < 1e-3 * (1 + len(of))

    def _at(self, rank: Rank) -> int:
        """The place of the part that holds this rank, or would."""
        return max(0, bisect_right(self._starts, rank) - 1)

    def _merge(self, at: int) -> None:
        """Drop an empty part, or join a short one with a neighbour."""
        parts, starts = self._parts, self._starts
        if not parts[at].jobs:
            del parts[at], starts[at]
            return
        for first in (at - 1, at):
            if first < 0 or first + 1 == len(parts):
                continue
            together = parts[first].jobs + parts[first + 1].jobs
            if len(together) <= self._most_in_part // 2:
                parts[first : first + 2] = [OrderPart(together)]
                del starts[first + 1]
                return
