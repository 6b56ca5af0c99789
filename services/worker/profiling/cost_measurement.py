"""Measures the cost model: seconds of an iteration by prompt length, and by batch and context, on the real model.

Theory of operation
-------------------
An iteration is measured as the engine runs it, from the layout of the batch to the sampled tokens, on blocks of the
device pool, which is empty at the start. The values of KV do not matter, so a decode needs no prefill before it;
sequences have separate blocks if the pool has enough. The contexts of a batch are spread around the point's context,
because that costs more than equal ones do. Each point is the median of a few runs, so that one that was disturbed does
not count. Points left above a larger one by a disturbance are levelled: more tokens, or more jobs, never take less
time.

A few iterations of prefill and decode together are measured as well, and kept beside what the cost model gives for
them. They are no points of the model but its check.

It takes a few seconds: points are measured from small to large, and when the time is up the larger ones are left to
extrapolation. The result is kept in a file named after everything it depends on, and read by the next worker of the
same kind.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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

PREFILL_BUDGET_S = 4.0
DECODE_BUDGET_S = 4.0
MIXED_BUDGET_S = 2.0
WARM_UP_TOKENS = 16
SHORT_S = 0.2
SHORT_RUNS, LONG_RUNS = 5, 1
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

    def warm_up(self) -> None:
        """Runs one prefill and one decode: the first of a process also load libraries, on a GPU for seconds, which
        would be counted as the first point and use up the time for the others.
        """
        tokens = min(self._longest, WARM_UP_TOKENS)
        self._run_s([SequenceRows(0, tokens, self._blocks(0, tokens))])
        self._run_s([SequenceRows(tokens - 1, tokens, self._blocks(0, tokens))])

    def prefill_s(self, tokens: int) -> float:
        """Seconds of an iteration that prefills one prompt. No two runs have the same number of rows: kernels are
        made when a number of rows first comes, and few prompts are as long as an earlier one.
        """
        return self._typical_s(lambda run: [SequenceRows(0, rows := max(tokens - run, 1), self._blocks(0, rows))])

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """Seconds of an iteration that decodes a token for each of `batch` jobs, whose contexts are spread around
        `context_tokens` as in a real batch.
        """
        decodes, _ = self._decodes(batch, context_tokens)
        return self._typical_s(lambda _: decodes)

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
        return [(first + number) % self._block_count for number in range(-(-tokens // self._block_size))]

    def _typical_s(self, sequences_of_run: Callable[[int], Sequence[SequenceRows]]) -> float:
        """The median of a few runs, after one that is not counted."""
        first_s = self._run_s(sequences_of_run(0))
        runs = SHORT_RUNS if first_s < SHORT_S else LONG_RUNS
        return median(self._run_s(sequences_of_run(run)) for run in range(1, runs + 1))

    def _run_s(self, sequences: Sequence[SequenceRows]) -> float:
        started_s = time.perf_counter()
        batch = BatchLayout.of(sequences, self._block_size, self._device)
        token_ids_T = torch.arange(batch.row_count, device=self._device) % self._model.config.vocabulary_size
        logits_SV = self._model(token_ids_T, self._cache, batch)
        with torch.inference_mode():
            sample(logits_SV, [SampleRow(self._sampler, 0)] * len(sequences))
        return time.perf_counter() - started_s


def measure(model: ServedDecoder, pools: KvPools, limits: MeasuringLimits, source: Source) -> Profile:
    """Measures the cost model, then mixed iterations as a check of it. Overwrites the device pool, then zeroes it
    again.
    """
    longest = _longest(pools, limits)
    profile = profile_by(Measurer(model, pools, longest), longest, limits.max_batch, source)
    used = limits.max_batch * -(-longest // pools.shape.block_size)
    pools.device[: min(used, pools.device_block_count)].zero_()
    return profile


def profile_by(measurer: Measurer, longest: int, max_batch: int, source: Source) -> Profile:
    """What `measurer` finds for sequences of at most `longest` tokens and batches of at most `max_batch`."""
    measurer.warm_up()
    prefill = _measure_prefill(measurer, longest)
    decode = _measure_decode(measurer, max_batch, longest)
    cost = CostProfile(tuple(prefill), tuple(decode))
    mixed = _measure_mixed(measurer, cost, max_batch, longest)
    return Profile(cost, source, mixed=tuple(mixed))


def _longest(pools: KvPools, limits: MeasuringLimits) -> int:
    """Tokens of the longest sequence that can be measured."""
    return min(limits.max_model_len, pools.device_block_count * pools.shape.block_size)


def _measure_prefill(measurer: Measurer, longest: int) -> list[PrefillCost]:
    prefill: list[PrefillCost] = []
    least_s, until_s = 0.0, time.perf_counter() + PREFILL_BUDGET_S
    for tokens in _doubling(min(16, longest), longest):
        least_s = max(least_s, measurer.prefill_s(tokens))
        prefill.append(PrefillCost(tokens, least_s))
        # The next point takes about twice as long, and runs at least twice.
        if time.perf_counter() + 4 * least_s > until_s and len(prefill) > 1:
            break
    return prefill


def _measure_decode(measurer: Measurer, max_batch: int, longest: int) -> list[DecodeCost]:
    contexts = sorted({min(context, longest) for context in CONTEXTS})
    decode: list[DecodeCost] = []
    least_s = dict.fromkeys(contexts, 0.0)
    until_s = time.perf_counter() + DECODE_BUDGET_S
    for batch in _doubling(1, max_batch):
        row_s = 0.0
        for context in contexts:
            row_s = least_s[context] = max(row_s, least_s[context], measurer.decode_s(batch, context))
            decode.append(DecodeCost(batch, context, row_s))
        if time.perf_counter() + 2 * SHORT_RUNS * sum(least_s.values()) > until_s and batch > 1:
            break
    return decode


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


def _doubling(first: int, last: int) -> list[int]:
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
    longest = _longest(pools, limits)
    return kept_or(state_dir, source, longest, limits.max_batch, lambda: measure(model, pools, limits, source))


def kept_or(
    state_dir: Path | None, source: Source, longest: int, max_batch: int, measured: Callable[[], Profile]
) -> Profile:
    """The profile that `state_dir` keeps for this source and these limits, else the measured one, which it then
    keeps.
    """
    if state_dir is None:
        return measured()
    key = json.dumps([sorted(source.items()), longest, max_batch, CONTEXTS])
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
