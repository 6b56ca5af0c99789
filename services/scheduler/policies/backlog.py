"""How long a worker group will be busy with the jobs that it has, foreseen from counts. Pure.

Theory of operation. What a job still costs is its prefill, which is known, and the rest of its output, which is not:
its mean follows from how many tokens it has made and from the lengths of the jobs that ended (length_distribution.py,
the policy's own learner where it has one). So it is enough to count the jobs in each bucket of output lengths: the
expected rest of all of them is one sum over the buckets, however many jobs there are, and it is always that of the
newest learning. A job costs something here only when it comes, enters a bucket, and ends.

    work  = prefills + tokens x (an iteration that decodes a full batch / its jobs)
    drain = the work of the jobs that do not fit in the batch + the longest rest of those that do

Work is what the jobs cost while batches are full: it can be shared among groups. The drain time is when the last job
ends if no other comes. It is longer, because a job makes one token an iteration, however empty the batch. The longest
rest of n jobs is the one that is exceeded with probability one half: where n times the probability to make more tokens
is ln 2. Iterations are then those of as many jobs as are left on average.
"""

from collections.abc import Iterable
from math import ceil, log

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.group_backlog import IDLE, GroupBacklog
from services.scheduler.job import Job
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.length_distribution import (
    BUCKETS,
    EDGES,
    FadeClock,
    LengthDistribution,
    bucket_entered,
    end_in_bucket,
    pass_buckets,
)

HALF = log(2.0)
"""Of n rare events none happens with probability one half if so many are expected."""


class Backlog:
    """Counts the jobs of one group. `lengths` is the policy's learner; None: the backlog learns by itself."""

    def __init__(self, batch: BatchLimit, lengths: LengthDistribution | None) -> None:
        self._batch = batch
        self._lengths = LengthDistribution() if lengths is None else lengths
        self._learning = (self._lengths,) if lengths is None else ()
        """What is taught here."""
        self._fade_clock = FadeClock()
        self._profile: CostProfile | None = None
        self._pool_tokens = 0
        self._stages = 1
        self._jobs_in = [0] * BUCKETS
        self._jobs = 0
        self._prefill_s = 0.0
        """Of the jobs that have to be prefilled, again or for the first time."""
        self._prompt_tokens = 0
        self._most_tokens = 0
        """Sum of max_tokens."""
        self._longest_tokens = 0
        """The greatest max_tokens since there was no job."""

    # --- what happens ------------------------------------------------------------------------------------------------

    def calibrate(self, profile: CostProfile, pool_tokens: int, stage_count: int, jobs: Iterable[Job]) -> None:
        """A worker joined, whose device pool holds `pool_tokens` tokens of KV and whose stages run a batch each at a
        time; `jobs` are counted already.
        """
        self._profile, self._pool_tokens, self._stages = profile, pool_tokens, stage_count
        self._prefill_s = 0.0
        for job in jobs:
            # The KV that they had was the last worker's.
            self._count_prefill(job)

    def enter(self, job: Job) -> None:
        """A job was admitted, or came from another group."""
        if elapsed_s := self._fade_clock.due_s(job.arrived_s):
            for lengths in self._learning:
                lengths.fade(elapsed_s)
        self._longest_tokens = max(self._longest_tokens if self._jobs else 0, job.max_tokens)
        self._jobs += 1
        job.length_bucket = bucket_entered(job.output_tokens)
        self._jobs_in[job.length_bucket] += 1
        self._prompt_tokens += job.prompt_tokens
        self._most_tokens += job.max_tokens
        self._count_prefill(job)

    def advance(self, job: Job) -> None:
        """The job has reached `next_length_tokens`: it is prefilled, and may have entered the next bucket."""
        self._count_prefill_as_done(job)
        bucket = pass_buckets(job.length_bucket, job.output_tokens, *self._learning)
        self._jobs_in[job.length_bucket] -= 1
        self._jobs_in[bucket] += 1
        job.length_bucket, job.next_length_tokens = bucket, job.prompt_tokens + EDGES[bucket + 1]

    def leave(self, job: Job, reason: EndReason) -> None:
        """The job ended; from one that completed the lengths are learnt."""
        self._count_prefill_as_done(job)
        self._jobs -= 1
        self._jobs_in[job.length_bucket] -= 1
        self._prompt_tokens -= job.prompt_tokens
        self._most_tokens -= job.max_tokens
        if reason.completes and job.output_tokens:
            end_in_bucket(job.length_bucket, job.output_tokens, *self._learning)

    def _count_prefill(self, job: Job) -> None:
        """All its tokens are to be computed; its next one shows that they are."""
        job.prefill_cost_s, job.next_length_tokens = self._cost_of_prefill_s(job), job.known_tokens + 1
        self._prefill_s += job.prefill_cost_s

    def _count_prefill_as_done(self, job: Job) -> None:
        if job.prefill_cost_s:
            self._prefill_s = max(0.0, self._prefill_s - job.prefill_cost_s)
            job.prefill_cost_s = 0.0

    # --- what follows ------------------------------------------------------------------------------------------------

    def predicted(self) -> GroupBacklog | None:
        """The group's backlog; None while jobs wait and no worker has said what they cost. O(1) in jobs."""
        if not self._jobs:
            return IDLE
        profile = self._profile
        if profile is None:
            return None
        lengths, jobs = self._lengths, self._jobs
        rest_tokens = 0.0
        made_tokens = 0
        for bucket, count in enumerate(self._jobs_in):
            if count:
                rest_tokens += count * lengths.mean_rest_tokens(bucket)
                made_tokens += count * EDGES[bucket]
        rest_tokens = min(rest_tokens, max(jobs, self._most_tokens - made_tokens))
        context_tokens = (self._prompt_tokens + made_tokens + rest_tokens / 2) / jobs
        batch = self._full_batch(context_tokens)
        # Each of the stages has a batch of its own, and an iteration passes through all of them.
        full_s = profile.decode_s(-(-batch // self._stages), context_tokens)
        token_s = full_s / batch
        work_s = self._prefill_s / self._stages + token_s * rest_tokens
        queue_s = work_s * max(0, jobs - batch) / jobs
        longest_tokens = self._longest_rest_tokens(batch)
        left = min(batch, max(1, ceil(rest_tokens * min(1.0, batch / jobs) / longest_tokens)))
        last_s = longest_tokens * profile.decode_s(-(-left // self._stages), context_tokens)
        if jobs <= batch:
            last_s += self._prefill_s
        pace = full_s / profile.decode_s(-(-jobs // self._stages), context_tokens) if jobs < batch else 1.0
        return GroupBacklog(work_s, max(work_s, queue_s + last_s), min(1.0, jobs / batch), pace * jobs / batch)

    def _longest_rest_tokens(self, batch: int) -> float:
        """Tokens that the job with the longest rest makes, of those that run at once."""
        survival = self._lengths.survival()
        longest = 1.0
        for bucket, count in enumerate(self._jobs_in):
            if count:
                # One that is longer than all that is known of is expected to go on as those of the last known bucket.
                known = min(bucket, len(survival) - 2)
                rest = self._reached_by(HALF * survival[known] / min(count, batch), known) - EDGES[known]
                longest = max(longest, min(rest, self._longest_tokens - EDGES[bucket]))
        return longest

    def _reached_by(self, share: float, bucket: int) -> float:
        """The length that this share of all jobs exceeds, from this bucket on, which is not the last known edge; within
        a bucket it falls geometrically.
        """
        survival = self._lengths.survival()
        while bucket + 2 < len(survival) and survival[bucket + 1] > share:
            bucket += 1
        fallen, step = share / survival[bucket], survival[bucket + 1] / survival[bucket]
        return EDGES[bucket] + (EDGES[bucket + 1] - EDGES[bucket]) * max(0.0, log(fallen) / log(step))

    def _full_batch(self, context_tokens: float) -> int:
        """The jobs that run at once: as many as may, or as many as the device has room for."""
        return max(1, min(self._batch.jobs * self._stages, int(self._pool_tokens / max(1.0, context_tokens))))

    def _cost_of_prefill_s(self, job: Job) -> float:
        """What the prefill of all its tokens adds to an iteration of a full batch."""
        if self._profile is None:
            return 0.0
        return self._profile.prefill_beside_s(job.known_tokens, self._batch.jobs)
