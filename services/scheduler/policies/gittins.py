"""`gittins`: by age and by the Gittins index of the work that is left. The default.

No fixed order is right for all traffic (docs/choices.md). Where the hazard rate of lengths rises, first come, first
served is best; where it falls, least attained service is; where sizes are known at arrival, as those of prefills are,
shortest first is. The Gittins index is all three, given the distribution of lengths, and that is learnt from the jobs
that are served (length_distribution.py). But an order by index alone makes some jobs wait without bound, and in
overload that is where most of the gain of the others comes from. So a job's key is the time at which it would have
arrived if the order were first come, first served:

    key = arrival + stretch x pace x (backlog + long job) x (ln(index) - mean of ln(index) at arrival)

This is a boost in the sense of Yu and Scully ("Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1", 2024): a
short job overtakes those that came a certain time before it, and no job is overtaken by one that came much later.
There the unit of that time is the inverse of the decay rate of response times. Here it is what a response time is made
of: the backlog, which is the expected seconds of work of all jobs in the system, and the time that a long job
(LONG_SHARE) runs in a full batch. Both are the cost model's seconds; the pace makes them those of the clock, which
arrivals are. Twice the backlog allows twice the overtaking, so the tail stays about the same
multiple of what it is under first come, first served. How far to stretch depends on the spread of the work, its squared
coefficient of variation (an exponential's is 1). Up to ORDINARY_SPREAD, P99 of completion times rises with the stretch,
and is kept near that of first come, first served. Beyond GREAT_SPREAD it hardly does in a deep queue: the jobs that are
overtaken are the few that would be the last in any order that does not know them, and 95 of 100 gain the more, the
further one goes. In a shallow one, whose backlog is less than the time of a long job, who is overtaken could have ended
soon: there the stretch stays.

There the few longest jobs are also much of the work. Who has made more tokens than all but LAST_SHARE of the jobs do is
one of them, and goes far behind the others: LAST_UNITS of the same unit. P99 of completion times is the others' then,
and they have the time that the longest would have had.

The index is in seconds of the server's time: a prefill takes what it adds to an iteration of a full batch, a token its
share of an iteration that decodes a full batch. A job that has the device keeps it unless another is ahead by a factor
of RESIDENT_FACTOR, so that neighbours in the order do not swap each other out.

A move of KV takes messages besides its copies, and where the services share the worker's cores these take time from all
jobs. That is where iterations take longer than the cost model says. There, while the device has no room for jobs that
had begun, it is kept also from a job that is less than SCARCE_SHARE of the backlog and a long job ahead: where the
stretch is small, a factor is little time.

Ranks change when a job goes from one bucket of lengths to the next, not with every token. All ranks are on level 1;
level 0 is for jobs that are lent an iteration (services.scheduler.machine.lending).
"""

from collections import OrderedDict
from math import log

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.protocol import Rank
from services.scheduler.job import RESIDENT, Job
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.length_classes import LengthClasses
from services.scheduler.policies.length_distribution import (
    EDGES,
    FadeClock,
    LengthDistribution,
    bucket_entered,
    end_in_bucket,
    pass_buckets,
)
from services.scheduler.policies.scheduling_policy import WorkShape, way_between
from services.scheduler.policies.without_levels import WithoutLevels

STRETCH, MOST_STRETCH = 0.25, 4.0
"""How far index differences carry where the spread of the work is ordinary, and where it is great. At 0 the order is
that of FCFS.
"""
ORDINARY_SPREAD, GREAT_SPREAD = 7.0, 10.0
"""Squared coefficients of variation of the work, between which the stretch grows by the same factor for each step, and
the longest jobs come to be the last.
"""
SHALLOW_QUEUE, DEEP_QUEUE = 0.5, 1.0
"""Backlogs, in times of a long job, between which the stretch of a great spread grows from STRETCH to its own."""
LAST_SHARE, LAST_UNITS = 0.008, 20.0
"""Less than one job in a hundred, so that P99 is not theirs. With 2 units P99 is up to 0.3 of FCFS's later."""
LONG_SHARE = 0.99
"""A long job is longer than this share of all jobs."""
RESIDENT_FACTOR = 2.0
SCARCE_SHARE = 0.5
"""Where iterations take twice as long as the model says, or longer; in proportion where they take less."""
ORDERED_LEVEL = 1
MOST_AVERAGED = 256
"""Arrivals over which means are taken, once there are as many."""
TRUSTED_JOBS = 64
"""Before so many jobs have completed the stretch is less, in proportion: the first jobs teach by running on, and all
would seem longer than they are.
"""
ARRIVALS_PER_SETTING = 16
"""Seconds a token and the stretch are computed anew this often."""
MOST_CLASSES = 512
"""Of so many classes lengths are learnt apart: those of the jobs that came last. Each takes some kilobytes."""


class Gittins(WithoutLevels):
    """Ranks jobs by arrival, moved by the Gittins index of their remaining work."""

    lends = True

    def __init__(self, batch: BatchLimit, classes: LengthClasses) -> None:
        self._batch = batch
        self._classes = classes
        self._all_jobs = LengthDistribution()
        self._of_class: OrderedDict[int, LengthDistribution] = OrderedDict()
        """By class; the one that a job joined longest ago is first."""
        self._profile: CostProfile | None = None
        self._token_s = 0.0
        self._long_job_s = 0.0
        self._stretch = self._scarce_share = self._last_units = 0.0
        self._last_from_tokens = EDGES[-1]
        """With so many output tokens a job is one of the longest."""
        self._swapped_out: set[int] = set()
        """Arrival numbers of the jobs that had begun and lost the device."""
        self._pace = 1.0
        self._mean_prefill_s = self._mean_square_prefill_s2 = 0.0
        self.backlog_s = 0.0
        """Expected seconds of work of all living jobs."""
        self._arrivals = 0
        self._mean_log_index = 0.0
        self._mean_prompt_tokens = 0.0
        self._fade_clock = FadeClock()

    @property
    def lengths(self) -> LengthDistribution:
        """Of all jobs."""
        return self._all_jobs

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """Take the seconds of prefills and tokens from the profile."""
        self._profile = profile
        self._set_units()

    def paced(self, factor: float) -> None:
        """Arrivals are times of the clock, so the backlog that moves them must be, too."""
        self._pace = factor

    def join(self, job: Job) -> Rank:
        """The place of a new job: by its prefill, and by what jobs of its class make."""
        self._fade(job.arrived_s)
        self._arrivals += 1
        weight = 1.0 / min(self._arrivals, MOST_AVERAGED)
        self._mean_prompt_tokens += weight * (job.prompt_tokens - self._mean_prompt_tokens)
        if self._arrivals % ARRIVALS_PER_SETTING == 1:
            self._set_units()
        job.length_class = self._classes.class_of(job)
        job.bucket, job.bucket_end = 0, EDGES[1]
        self._expect(job)
        self._of_class.move_to_end(job.length_class)
        prefill_s = self._prefill_s(job)
        self._mean_prefill_s += weight * (prefill_s - self._mean_prefill_s)
        self._mean_square_prefill_s2 += weight * (prefill_s**2 - self._mean_square_prefill_s2)
        log_index = log(self._index_s(job))
        self._mean_log_index += weight * (log_index - self._mean_log_index)
        return self._place(job, job.bucket, log_index)

    def rejoin(self, job: Job, level: int) -> Rank:
        """The place of a job that comes from another group: by its tokens, and by its age."""
        job.length_class = self._classes.class_of(job)
        job.bucket = bucket_entered(job.output_tokens)
        job.bucket_end = EDGES[job.bucket + 1]
        return self._placed_again(job)

    def foresee(self, job: Job, level: int | None) -> Rank:
        distribution = self._of_class.get(self._classes.class_of(job), self._all_jobs)
        bucket = bucket_entered(job.output_tokens)
        return self._place(job, bucket, log(distribution.index_s(bucket, self._prefill_s(job), self._token_s)))

    def ran(self, job: Job, service_s: float) -> Rank | None:
        """A new place when the job enters the next bucket, and as long as it is prefilled in chunks."""
        made = job.known_tokens - job.prompt_tokens
        if made < job.bucket_end:
            return None if made else self._placed_again(job)
        job.bucket = pass_buckets(job.bucket, made, self._all_jobs, self._distribution(job))
        job.bucket_end = EDGES[job.bucket + 1]
        return self._placed_again(job)

    def residency_changed(self, job: Job) -> Rank | None:
        """The device is kept by whoever has it, unless somebody is clearly ahead."""
        if job.state is not RESIDENT and job.finished_tokens:
            self._swapped_out.add(job.arrival_number)
        else:
            self._swapped_out.discard(job.arrival_number)
        return self._placed_again(job)

    def leave(self, job: Job, reason: EndReason) -> None:
        """Learn from a job that completed. From one that was given up we know that it passed its buckets."""
        self.backlog_s = max(0.0, self.backlog_s - job.expected_s)
        self._swapped_out.discard(job.arrival_number)
        made = job.known_tokens - job.prompt_tokens
        if not reason.completes or not made:
            return
        end_in_bucket(job.bucket, made, self._all_jobs, self._distribution(job))
        self._classes.learn(job, made)

    def hazards(self) -> list[float]:
        """The probability that a job ends in each bucket of lengths that it enters, of all jobs together."""
        return self._all_jobs.hazards()

    def state_key(self) -> tuple[object, ...]:
        """All that future ranks depend on besides the jobs, as long as there are fewer than MOST_CLASSES classes."""
        tables = [(number, one.state_key()) for number, one in sorted(self._of_class.items())]
        means = (self._mean_log_index, self._mean_prompt_tokens, self._mean_prefill_s, self._mean_square_prefill_s2)
        units = (
            self._arrivals,
            self.backlog_s,
            self._token_s,
            self._long_job_s,
            self._stretch,
            self._last_units,
            self._last_from_tokens,
            self.work,
            self._scarce_share,
            self._pace,
            self._fade_clock.faded_s,
        )
        return (
            *means,
            *units,
            tuple(sorted(self._swapped_out)),
            self._all_jobs.state_key(),
            tuple(tables),
            self._classes.state_key(),
        )

    # --- index and place ---------------------------------------------------------------------------------------------

    def _placed_again(self, job: Job) -> Rank:
        self._expect(job)
        return self._place(job, job.bucket, log(self._index_s(job)))

    def _place(self, job: Job, bucket: int, log_index: float) -> Rank:
        behind_s = self.behind_s(log_index - self._mean_log_index)
        if EDGES[bucket] >= self._last_from_tokens:
            behind_s += self._last_units * self.unit_s
        if job.state is RESIDENT and job.finished_tokens:
            behind_s -= self.margin_s
        return Rank(ORDERED_LEVEL, job.arrived_s + behind_s, job.arrival_number)

    def behind_s(self, log_factor: float) -> float:
        """How much later than another a job would have to have come, as its index is larger by a factor."""
        return self._stretch * self.unit_s * log_factor

    @property
    def margin_s(self) -> float:
        """How much ahead of a job that has the device another must be to take it."""
        factor_s = self.behind_s(log(RESIDENT_FACTOR))
        if not self._swapped_out:
            return factor_s
        slowness = way_between(self._pace, 1.0, 2.0)
        return max(factor_s, slowness * self._scarce_share * self.unit_s)

    @property
    def unit_s(self) -> float:
        """What a response time is made of: the backlog, and the time that a long job runs."""
        return self._pace * (self.backlog_s + self._long_job_s)

    def _index_s(self, job: Job) -> float:
        return self._distribution(job).index_s(job.bucket, self._prefill_s(job), self._token_s)

    def _expect(self, job: Job) -> None:
        """Count the job's expected work into the backlog, in place of what was expected of it before."""
        rest_tokens = self._distribution(job).mean_rest_tokens(job.bucket)
        expected_s = self._prefill_s(job) + self._token_s * rest_tokens
        self.backlog_s = max(0.0, self.backlog_s + expected_s - job.expected_s)
        job.expected_s = expected_s

    def _prefill_s(self, job: Job) -> float:
        """What the rest of the job's prefill adds to an iteration of a full batch; 0 once it decodes."""
        assert self._profile is not None, "calibrate must be called first"
        if job.known_tokens - job.finished_tokens <= 1:
            return 0.0
        return self._profile.prefill_beside_s(job.known_tokens, self._batch.jobs, job.finished_tokens)

    def _set_units(self) -> None:
        """A job's share of an iteration that decodes a full batch at the mean context, the time of a long job, and the
        stretch.
        """
        assert self._profile is not None, "calibrate must be called first"
        lengths = self._all_jobs
        context_tokens = self._mean_prompt_tokens + lengths.mean_rest_tokens(0) / 2
        iteration_s = self._profile.decode_s(self._batch.jobs, context_tokens)
        self._token_s = iteration_s / self._batch.jobs
        self._long_job_s = iteration_s * lengths.quantile_tokens(LONG_SHARE)
        mean_s = self._mean_prefill_s + self._token_s * lengths.mean_rest_tokens(0)
        variance_s2 = self._mean_square_prefill_s2 - self._mean_prefill_s**2
        variance_s2 += self._token_s**2 * lengths.variance_tokens
        spread = variance_s2 / mean_s**2
        way = way_between(spread, ORDINARY_SPREAD, GREAT_SPREAD)
        deep = way_between(self.backlog_s / self._long_job_s, SHALLOW_QUEUE, DEEP_QUEUE)
        trust = min(1.0, lengths.completed_jobs / TRUSTED_JOBS)
        if lengths.completed_jobs >= TRUSTED_JOBS:
            self.work = WorkShape(spread, self._mean_prefill_s / mean_s)
        self._stretch = trust * STRETCH * (MOST_STRETCH / STRETCH) ** (way * deep)
        self._last_units = trust * way * LAST_UNITS
        self._last_from_tokens = lengths.quantile_tokens(1.0 - LAST_SHARE)
        self._scarce_share = trust * SCARCE_SHARE

    # --- what was learnt ---------------------------------------------------------------------------------------------

    def _distribution(self, job: Job) -> LengthDistribution:
        known = self._of_class.get(job.length_class)
        if known is None:
            if len(self._of_class) >= MOST_CLASSES:
                self._of_class.popitem(last=False)
            known = self._of_class[job.length_class] = LengthDistribution(self._all_jobs)
        return known

    def _fade(self, now_s: float) -> None:
        if elapsed_s := self._fade_clock.due_s(now_s):
            for distribution in (self._all_jobs, *self._of_class.values()):
                distribution.fade(elapsed_s)
