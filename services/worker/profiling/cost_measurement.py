"""Measures the cost model: seconds of an iteration by prompt length, and by batch and context, on the real model.

Theory of operation
-------------------
An iteration is measured as the engine runs it, from the layout of the batch to the sampled tokens, on blocks of the
device pool, which is empty at the start. The values of KV do not matter, so a decode needs no prefill before it;
sequences have separate blocks if the pool has enough. The contexts of a batch are spread around the point's context,
because that costs more than equal ones do.

Whoever shares the cores, as other pods that start do, makes runs longer and never shorter, for seconds on end. So the
runs of a point are not made one after the other: each round runs every point once, and a point is the lower quartile of
its runs. More tokens, or more jobs, never take less time: a point above a larger one was disturbed, and is lowered to
it.

Beyond the largest point the last slope continues, and what two points are off grows with the distance. So all sizes for
which there is time are run before any of them is run again: those that were disturbed, by the sign above, and then the
largest first.

A few iterations of prefill and decode together are measured as well, and kept beside what the cost model gives for
them. They are no points of the model but its check.

It takes some ten seconds: the first round goes from small to large, and when the time is up the larger points are left
to extrapolation. The result is kept in a file named after everything it depends on, and read by the next worker of the
same kind.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import InvalidFieldError
from services.domain.job_sampling import JobSampling
from services.domain.mixed_cost import MixedCost
from services.runtime.profile_file import Profile, Source, read_profile, write_profile
from services.worker.kv.pools import KvPools
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.served_decoder import ServedDecoder
from services.worker.sampling.sampler import JobSampler, SampleRow, sample

_log = logging.getLogger(__name__)

PREFILL_BUDGET_S = 6.0
DECODE_BUDGET_S = 4.0
MIXED_BUDGET_S = 2.0
METHOD = "all sizes first, the disturbed again"
"""What an earlier version kept was measured in another way, and is measured again."""
WARM_UP_TOKENS = 16
SHORT_S = 0.2
SHORT_RUNS, LONG_RUNS = 5, 1
DISTURBED_RUNS = 2
"""The most further runs of a point that took longer than a larger one."""
MOST_GROWTH = 2.5
"""A point takes at most about twice as long as the one half as large. A first run that took longer than this many times
that has loaded or made kernels, and does not count. A lesser disturbance stays in a point that has no further run.
"""
CONTEXTS = (64, 256, 1024)
"""Where decode is measured; between them and beyond it is nearly linear in the context."""
MIXED_PROMPTS = (64, 256, 1024)
MIXED_FEW_DECODES = 4
MIXED_CONTEXT = 256
"""Mixed iterations prefill one of these prompts beside a few decodes, and beside as many as fit into the batch."""


@dataclass(frozen=True, slots=True)
class MeasuringLimits:
    """The longest sequence and the largest batch that the worker will be asked for."""

    max_model_len: int
    max_batch: int


SequencesOfRun = Callable[[int], Sequence[SequenceRows]]
"""The sequences of an iteration, of its first run (0) and of each further one."""


class Measurer:
    """Runs iterations on a model and the blocks of an idle pool."""

    def __init__(self, model: ServedDecoder, pools: KvPools, longest: int) -> None:
        self._model = model
        self._longest = longest
        self._cache = PagedKv(pools.device)
        self._block_size = pools.shape.block_size
        self._block_count = pools.device_block_count
        self._device = pools.device.device
        self._sampler = JobSampler(JobSampling(max_tokens=1, seed=0, temperature=0.0))
        self._used_blocks = 0

    def warm_up(self) -> None:
        """Runs one prefill and one decode: the first of a process also load libraries, on a GPU for seconds, which
        would be counted as the first point and use up the time for the others.
        """
        tokens = min(self._longest, WARM_UP_TOKENS)
        self.run_s([SequenceRows(0, tokens, self._blocks(0, tokens))])
        self.run_s([SequenceRows(tokens - 1, tokens, self._blocks(0, tokens))])

    def prefill_s(self, tokens: int) -> float:
        """Seconds of an iteration that prefills one prompt."""
        return self._typical_s(self.prefill(tokens))

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """Seconds of an iteration that decodes a token for each of `batch` jobs."""
        return self._typical_s(self.decode(batch, context_tokens))

    def prefill(self, tokens: int) -> SequencesOfRun:
        """A prompt. No two runs have the same number of rows: kernels are made when a number of rows first comes, and
        few prompts are as long as an earlier one.
        """
        return lambda run: [SequenceRows(0, rows := max(tokens - run, 1), self._blocks(0, rows))]

    def decode(self, batch: int, context_tokens: int) -> SequencesOfRun:
        """Jobs whose contexts are spread around `context_tokens` as in a real batch."""
        decodes, _ = self._decodes(batch, context_tokens)
        return lambda _: decodes

    def mixed_s(self, prefill_tokens: int, batch: int, context_tokens: int) -> float:
        """Seconds of an iteration that prefills one prompt as `prefill_s` does, and decodes as `decode_s` does."""
        decodes, used_blocks = self._decodes(batch, context_tokens)

        def sequences(run: int) -> list[SequenceRows]:
            rows = max(prefill_tokens - run, 1)
            return [*decodes, SequenceRows(0, rows, self._blocks(used_blocks, rows))]

        return self._typical_s(sequences)

    def _decodes(self, batch: int, context_tokens: int) -> tuple[list[SequenceRows], int]:
        """A decode for each of `batch` jobs, and how many blocks they have."""
        decodes, used_blocks = [], 0
        for tokens in spread_contexts(batch, context_tokens, self._longest):
            decodes.append(SequenceRows(tokens - 1, tokens, self._blocks(used_blocks, tokens)))
            used_blocks += -(-tokens // self._block_size)
        return decodes, used_blocks

    def _blocks(self, first: int, tokens: int) -> list[int]:
        stop = first - (-tokens // self._block_size)
        self._used_blocks = min(max(self._used_blocks, stop), self._block_count)
        return [block % self._block_count for block in range(first, stop)]

    def _typical_s(self, sequences_of_run: SequencesOfRun) -> float:
        """What a few runs take, one after the other, after one that is not counted."""
        first_s = self.run_s(sequences_of_run(0))
        runs = SHORT_RUNS if first_s < SHORT_S else LONG_RUNS
        return typical_s([self.run_s(sequences_of_run(run)) for run in range(1, runs + 1)])

    def run_s(self, sequences: Sequence[SequenceRows]) -> float:
        """Seconds of one iteration."""
        started_s = time.perf_counter()
        batch = BatchLayout.of(sequences, self._block_size, self._device)
        token_ids_T = torch.arange(batch.row_count, device=self._device) % self._model.config.vocabulary_size
        logits_SV = self._model(token_ids_T, self._cache, batch)
        with torch.inference_mode():
            sample(logits_SV, [SampleRow(self._sampler, 0)] * len(sequences))
        return time.perf_counter() - started_s

    def clean(self) -> None:
        """Zeroes the blocks that were used."""
        self._cache.pool[: self._used_blocks].zero_()


def typical_s(runs_s: Sequence[float]) -> float:
    """The lower quartile: what disturbs a run makes it longer."""
    return sorted(runs_s)[(len(runs_s) - 1) // 4]


def seconds_in_rounds(
    measurer: Measurer, rows: Iterable[Sequence[SequencesOfRun]], budget_s: float
) -> list[list[float]]:
    """What each point takes, row by row of points: of the first two rows, and of as many more as there is time for. A
    row takes at most about twice as long as the one before. Points that took longer than a larger one are run again,
    whatever the time. What is left of it goes to further runs of all points, the largest first. A single run of a short
    point is not trusted: each has a second one, whatever the time.
    """
    spent_s = 0.0

    def run_s(point: SequencesOfRun, number: int) -> float:
        nonlocal spent_s
        seconds = measurer.run_s(point(number))
        spent_s += seconds
        return seconds

    measured: list[list[tuple[SequencesOfRun, list[float]]]] = []
    for points in rows:
        row: list[tuple[SequencesOfRun, list[float]]] = []
        for place, point in enumerate(points):
            first_s = run_s(point, 0)
            if not measured or first_s > MOST_GROWTH * measured[-1][place][1][0]:
                first_s = run_s(point, 1)
            row.append((point, [first_s]))
        measured.append(row)
        if len(measured) > 1 and spent_s + 2 * sum(runs_s[0] for _, runs_s in row) > budget_s:
            break
    for _ in range(DISTURBED_RUNS):
        least_s = levelled([[min(runs_s) for _, runs_s in row] for row in measured])
        for row, row_least_s in zip(measured, least_s, strict=True):
            for (point, runs_s), point_least_s in zip(row, row_least_s, strict=True):
                if min(runs_s) > point_least_s:
                    runs_s.append(run_s(point, len(runs_s) + 1))
    largest_first = [one for row in measured for one in row][::-1]
    for _ in range(SHORT_RUNS - 1):
        for point, runs_s in largest_first:
            is_single_short = len(runs_s) == 1 and runs_s[0] < SHORT_S
            if len(runs_s) < SHORT_RUNS and (is_single_short or spent_s + min(runs_s) < budget_s):
                runs_s.append(run_s(point, len(runs_s) + 1))
    return [[typical_s(runs_s) for _, runs_s in row] for row in measured]


def levelled(seconds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Each point lowered to the least of those that are larger in one way and not smaller in the other."""
    columns = zip(*(_least_from_here(row) for row in seconds), strict=True)
    return [list(row) for row in zip(*(_least_from_here(column) for column in columns), strict=True)]


def _least_from_here(values: Sequence[float]) -> list[float]:
    """Of each value and all that follow it."""
    return list(accumulate(reversed(values), min))[::-1]


def measure(model: ServedDecoder, pools: KvPools, limits: MeasuringLimits, source: Source) -> Profile:
    """Measures the cost model, then mixed iterations as a check of it. Overwrites the device pool, then zeroes it
    again.
    """
    longest = longest_measured(pools, limits)
    measurer = Measurer(model, pools, longest)
    profile = profile_by(measurer, longest, limits.max_batch, source)
    measurer.clean()
    return profile


def profile_by(measurer: Measurer, longest: int, max_batch: int, source: Source) -> Profile:
    """What `measurer` finds for sequences of at most `longest` tokens and batches of at most `max_batch`."""
    measurer.warm_up()
    prefill = _measure_prefill(measurer, longest)
    decode = _measure_decode(measurer, max_batch, longest)
    cost = CostProfile(tuple(prefill), tuple(decode))
    mixed = _measure_mixed(measurer, cost, max_batch, longest)
    return Profile(cost, source, mixed=tuple(mixed))


def longest_measured(pools: KvPools, limits: MeasuringLimits) -> int:
    """Tokens of the longest sequence that can be measured."""
    return min(limits.max_model_len, pools.device_block_count * pools.shape.block_size)


def _measure_prefill(measurer: Measurer, longest: int) -> list[PrefillCost]:
    lengths = doubling(min(16, longest), longest)
    rows = ([measurer.prefill(tokens)] for tokens in lengths)
    seconds = levelled(seconds_in_rounds(measurer, rows, PREFILL_BUDGET_S))
    return [PrefillCost(tokens, row[0]) for tokens, row in zip(lengths, seconds, strict=False)]


def _measure_decode(measurer: Measurer, max_batch: int, longest: int) -> list[DecodeCost]:
    contexts = sorted({min(context, longest) for context in CONTEXTS})
    batches = doubling(1, max_batch)
    rows = ([measurer.decode(batch, context) for context in contexts] for batch in batches)
    seconds = levelled(seconds_in_rounds(measurer, rows, DECODE_BUDGET_S))
    return [
        DecodeCost(batch, context, point_s)
        for batch, row in zip(batches, seconds, strict=False)
        for context, point_s in zip(contexts, row, strict=True)
    ]


def _measure_mixed(measurer: Measurer, cost: CostProfile, max_batch: int, longest: int) -> list[MixedCost]:
    """The first point always, and of the others those for which there is time according to the model. None if no batch
    can be mixed, because it holds one job.
    """
    most_decodes = max_batch - 1  # the prefill is one of the batch
    if not most_decodes:
        return []
    context = min(MIXED_CONTEXT, longest)
    mixed: list[MixedCost] = []
    until_s = time.perf_counter() + MIXED_BUDGET_S
    for prompt in sorted({min(prompt, longest) for prompt in MIXED_PROMPTS}):
        for batch in sorted({min(MIXED_FEW_DECODES, most_decodes), most_decodes}):
            modelled_s = cost.iteration_s([(0, prompt)], batch, context)
            runs = SHORT_RUNS if modelled_s < SHORT_S else LONG_RUNS
            if mixed and time.perf_counter() + (1 + runs) * modelled_s > until_s:
                continue
            seconds = measurer.mixed_s(prompt, batch, context)
            mixed.append(MixedCost(prompt, batch, context, seconds, modelled_s))
    return mixed


def spread_contexts(batch: int, mean_tokens: int, longest: int) -> list[int]:
    """Contexts of a batch in falling order: evenly spaced quantiles of the exponential distribution, whose spread is as
    large as its mean, none longer than `longest`, `mean_tokens` on average but for rounding.

    A batch of equal contexts would need no padding and be faster than any real one.
    """
    quantiles = [-math.log((number + 0.5) / batch) for number in range(batch)]
    low, high = 0.0, float(longest) / quantiles[-1]
    for _ in range(50):
        middle = (low + high) / 2
        if sum(min(max(middle * quantile, 1.0), longest) for quantile in quantiles) < mean_tokens * batch:
            low = middle
        else:
            high = middle
    return [min(max(round(high * quantile), 1), longest) for quantile in quantiles]


def doubling(first: int, last: int) -> list[int]:
    """first, 2 first, 4 first, ..., last."""
    values = []
    while first < last:
        values.append(first)
        first *= 2
    return [*values, last]


def measure_or_read(
    model: ServedDecoder, pools: KvPools, limits: MeasuringLimits, source: Source, state_dir: Path | None
) -> Profile:
    """The profile of an earlier worker of the same kind, or a measured one, which is then kept in `state_dir`. An
    earlier one may have no mixed iterations.
    """
    longest = longest_measured(pools, limits)
    return kept_or(state_dir, source, longest, limits.max_batch, lambda: measure(model, pools, limits, source))


def kept_or(
    state_dir: Path | None, source: Source, longest: int, max_batch: int, measured: Callable[[], Profile]
) -> Profile:
    """The profile that `state_dir` keeps for this source and these limits, else the measured one, which it then
    keeps.
    """
    if state_dir is None:
        return measured()
    key = json.dumps([METHOD, sorted(source.items()), longest, max_batch, CONTEXTS])
    file = state_dir / "profiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    if file.exists():
        try:
            return read_profile(file)
        except InvalidFieldError:
            file.unlink(missing_ok=True)  # damaged: measure again
    profile = measured()
    try:
        write_profile(file, profile)
    except InvalidFieldError as error:
        _log.warning("the measured cost model could not be kept, so the next start measures again: %s", error)
    return profile
