"""How long outputs are, learnt from the jobs that were served, and what follows from it for a job's index. Pure.

Theory of operation. Output lengths fall into buckets whose edges are the powers of the square root of two, so that
memory is bounded whatever the lengths. A job passes through the buckets while it makes tokens. For each bucket two
numbers are kept: the jobs that ended in it and the jobs that passed it. Their ratio is the hazard, the probability that
a job that entered the bucket ends in it, and the product of what the hazards leave is the survival function. This is
the Kaplan-Meier estimate (Kaplan and Meier, 1958): a job that is still running counts in every bucket that it has
passed, as one that did not end there. Completed jobs alone would be biased, because while a queue builds up the short
ones complete first.

Both numbers fade by half in an hour (HALF_LIFE_S), so that the estimate follows the traffic. Before there is data, and
in buckets that few jobs have reached, a prior decides: the hazard per token goes on as in the bucket before, but not so
low that who has made many tokens would be expected to make many times as many. With a constant hazard no job is better
than another for what it has made so far, and the order is first come, first served.

The Gittins index of a job with attained work a is the least that one can pay for a completion from here on,

    index(a) = min over D > 0 of  E[min(X - a, D) | X > a] / P(X - a <= D | X > a)

(Gittins, 1979; as a rule for queues Aalto, Ayesta and Righter, 2009). With tokens as the work it depends on the bucket
alone; a job that has not begun pays for its prefill as well, which is known.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf

HALF_LIFE_S = 3600.0
FADE_PERIOD_S = 60.0
"""How often data fades."""
PRIOR_JOBS = 8.0
"""Weight of the prior in each bucket, in jobs."""
PRIOR_MEAN_TOKENS = 128.0
"""Mean length where nothing is known, which is one token's hazard in the first bucket."""
LONG_PRIOR = 1.0 - 0.5**0.5
"""Least prior of the hazard of a bucket beyond that mean: half of the jobs end before they are twice as long. Without
it jobs seem to run for ever while many have run for long and none has ended, as in a burst at the start: each bucket
has a fraction of the hazard of the one before.
"""
POOL_JOBS = 64.0
"""Weight of the distribution of all jobs in each bucket of a class's distribution, in jobs."""
LEAST_HAZARD, MOST_HAZARD = 1e-6, 0.999
LONGEST_TOKENS = 10_000_000
LEAST_SURVIVAL = 1e-9
"""Buckets that fewer jobs reach have the index of the bucket before."""
LEAST_FRESH = 16
MOST_FRESH = 1024
"""The tables are computed anew after a sixteenth of the data is new, within these limits."""


def _edges() -> tuple[int, ...]:
    edges = [0]
    step = 0
    while edges[-1] < LONGEST_TOKENS:
        edge = round(2 ** (step / 2))
        step += 1
        if edge > edges[-1]:
            edges.append(edge)
    return tuple(edges)


EDGES = _edges()
"""Bucket k is entered with EDGES[k] tokens and left with EDGES[k + 1]."""
BUCKETS = len(EDGES) - 1


def bucket_of(tokens: int) -> int:
    """The bucket in which a job ends whose output is `tokens` long, 1 at least."""
    return min(bisect_left(EDGES, tokens) - 1, BUCKETS - 1)


def bucket_entered(tokens: int) -> int:
    """The bucket that a job with so many tokens has entered."""
    return min(bisect_right(EDGES, tokens) - 1, BUCKETS - 1)


class FadeClock:
    """Says when data fades."""

    def __init__(self) -> None:
        self.faded_s: float | None = None
        """When it last did, or when the clock was first asked."""

    def due_s(self, now_s: float) -> float:
        """The seconds by which data fades now; 0.0 for as long as it does not."""
        if self.faded_s is None:
            self.faded_s = now_s
        elapsed_s = now_s - self.faded_s
        if elapsed_s < FADE_PERIOD_S:
            return 0.0
        self.faded_s = now_s
        return elapsed_s


class LengthDistribution:
    """Lengths of one class of jobs. `pool` is the distribution of all jobs, which stands in where data is scarce; None
    for that distribution itself.
    """

    def __init__(self, pool: "LengthDistribution | None" = None) -> None:
        self._pool = pool
        self._ended = [0.0] * BUCKETS
        self._passed = [0.0] * BUCKETS
        self._weight = 0.0
        self._fresh = 0.0
        self._survival: Sequence[float] = ()
        self._used: Sequence[float] = ()
        """Mean tokens made before each edge, by all jobs."""
        self._index: list[float | None] = []
        """By bucket, as far as it was asked for since the tables were computed."""
        self._square = 0.0
        """Mean square of the lengths."""
        self._compute()

    # --- data --------------------------------------------------------------------------------------------------------

    def passed(self, bucket: int) -> None:
        """A job made the last token of the bucket and goes on."""
        self._passed[bucket] += 1.0
        self._count()

    def ended(self, bucket: int) -> None:
        """A job ended with a token of the bucket."""
        self._ended[bucket] += 1.0
        self._count()

    def fade(self, elapsed_s: float) -> None:
        """Weigh all data less; `elapsed_s` seconds have passed since this was last called."""
        share = 0.5 ** (elapsed_s / HALF_LIFE_S)
        self._ended = [count * share for count in self._ended]
        self._passed = [count * share for count in self._passed]
        self._weight *= share

    def _count(self) -> None:
        self._weight += 1.0
        fresh = self._fresh = self._fresh + 1.0
        if fresh >= LEAST_FRESH and (fresh >= self._weight / 16 or fresh >= MOST_FRESH):
            self._compute()

    # --- answers -----------------------------------------------------------------------------------------------------

    def hazards(self) -> list[float]:
        """For each bucket, the probability that a job that entered it ends in it, within (0, 1)."""
        counts = zip(self._ended, self._passed, strict=True)
        if self._pool is not None:
            return [
                (ended + POOL_JOBS * prior) / (ended + passed + POOL_JOBS)
                for (ended, passed), prior in zip(counts, self._pool.hazards(), strict=True)
            ]
        hazards: list[float] = []
        goes_on = 1.0 - 1.0 / PRIOR_MEAN_TOKENS
        for (ended, passed), (edge, next_edge) in zip(counts, pairwise(EDGES), strict=True):
            width = next_edge - edge
            prior = 1.0 - goes_on**width
            if edge >= PRIOR_MEAN_TOKENS:
                prior = max(prior, LONG_PRIOR)
            hazard = (ended + PRIOR_JOBS * prior) / (ended + passed + PRIOR_JOBS)
            hazards.append(min(max(hazard, LEAST_HAZARD), MOST_HAZARD))
            goes_on = (1.0 - hazards[-1]) ** (1 / width)
        return hazards

    def mean_rest_tokens(self, bucket: int) -> float:
        """Mean tokens still to come of a job that entered the bucket."""
        bucket = min(bucket, len(self._index) - 1)
        return max(1.0, (self._used[-1] - self._used[bucket]) / self._survival[bucket])

    def survival(self) -> Sequence[float]:
        """For each edge of EDGES, the probability that a job makes more tokens; the last edges may be missing."""
        return self._survival

    @property
    def completed_jobs(self) -> float:
        """Jobs that ended, as far as they have not faded."""
        return sum(self._ended)

    @property
    def variance_tokens(self) -> float:
        """Variance of the lengths, in tokens squared."""
        return max(0.0, self._square - self._used[-1] ** 2)

    def quantile_tokens(self, share: float) -> int:
        """A length that at least `share` (0 to 1) of all jobs do not exceed, at the edge of a bucket."""
        for edge, survival in zip(EDGES, self._survival, strict=False):
            if survival <= 1.0 - share:
                return edge
        return EDGES[len(self._survival) - 1]

    def index_tokens(self, bucket: int) -> float:
        """The Gittins index of a job that entered the bucket and has nothing left to prefill, in tokens."""
        bucket = min(bucket, len(self._index) - 1)
        known = self._index[bucket]
        if known is None:
            known = self._index[bucket] = self._computed_index(bucket)
        return known

    def index_s(self, bucket: int, prefill_s: float, token_s: float) -> float:
        """The Gittins index in seconds of a job that entered the bucket, has to spend `prefill_s` before its next
        token, and `token_s` on each token.
        """
        bucket = min(bucket, len(self._index) - 1)
        if prefill_s <= 0.0:
            return token_s * self.index_tokens(bucket)
        survival, used = self._survival[bucket], self._used[bucket]
        prefill_s *= survival
        return min(
            (prefill_s + token_s * (used_then - used)) / (survival - survival_then)
            for survival_then, used_then in zip(self._survival[bucket + 1 :], self._used[bucket + 1 :], strict=True)
            if survival_then < survival
        )

    def state_key(self) -> tuple[object, ...]:
        """All that the answers depend on."""
        index = tuple(self.index_tokens(bucket) for bucket in range(len(self._index)))
        return tuple(self._ended), tuple(self._passed), self._fresh, index

    def _compute(self) -> None:
        """Survival and used tokens at each edge, from the hazards. O(BUCKETS)."""
        self._fresh = 0.0
        survival, used = [1.0], [0.0]
        square = 0.0
        for hazard, (edge, next_edge) in zip(self.hazards(), pairwise(EDGES), strict=True):
            # Within a bucket each token has the same hazard, so the tokens made there follow a geometric distribution.
            token_hazard = 1.0 - (1.0 - hazard) ** (1 / (next_edge - edge))
            before = used[-1]
            used.append(used[-1] + survival[-1] * hazard / token_hazard)
            # The mean square is twice the integral of length times survival.
            square += (edge + next_edge) * (used[-1] - before)
            survival.append(survival[-1] * (1.0 - hazard))
            if survival[-1] < LEAST_SURVIVAL:
                break
        self._survival, self._used, self._square = survival, used, square
        self._index = [None] * (len(survival) - 1)

    def _computed_index(self, bucket: int) -> float:
        """The index of a bucket in tokens, from the tables. O(BUCKETS)."""
        survival, used = self._survival, self._used
        stops = range(bucket + 1, len(survival))
        gained = ((used[stop] - used[bucket], survival[bucket] - survival[stop]) for stop in stops)
        return min((cost / completed for cost, completed in gained if completed > 0.0), default=inf)


def pass_buckets(bucket: int, output_tokens: int, *learning: LengthDistribution) -> int:
    """Teach that a job that had entered this bucket has made so many tokens. Returns the bucket that it has entered."""
    while output_tokens >= EDGES[bucket + 1] and bucket < BUCKETS - 1:
        for lengths in learning:
            lengths.passed(bucket)
        bucket += 1
    return bucket


def end_in_bucket(bucket: int, output_tokens: int, *learning: LengthDistribution) -> None:
    """Teach that a job that had entered this bucket completed with so many tokens, 1 at least."""
    ended = bucket_of(output_tokens)
    for passed in range(bucket, ended):
        for lengths in learning:
            lengths.passed(passed)
    for lengths in learning:
        lengths.ended(ended)
