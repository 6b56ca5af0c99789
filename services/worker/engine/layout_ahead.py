"""Layouts of batches, that of the next iteration made while a GPU computes this one.

Theory of operation
-------------------
Between two iterations a GPU waits for the host, which lays out the batch, cuts its attention into pieces and brings
both to the device: a millisecond of Python with some tens of jobs, on the hosts that were measured, beside 7 ms of
computing. What is laid out follows from the plan and the jobs' blocks, not from the tokens that are being computed. So
once an iteration has been launched, the layout of the plan behind it is made, and brought to where a recorded pass
reads it: the device does that after what it was given before.

It is a guess: the plan may be recalled, a job may end with the token that is being computed, its guide may not be
compiled. The batch that comes is compared with the expected one, and laid out anew if it is another.
"""

from collections.abc import Collection, Sequence

from services.domain.iteration import Plan
from services.worker.engine.batch_parts import BatchPart, scored_rows
from services.worker.kernels.gpu.recorded_decoder import RecordedDecoder
from services.worker.kv.tables import KvTables
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.served_decoder import ServedDecoder


class LayoutAhead:
    """Makes the layouts of a decoder's batches on one pool. Used on the stepping thread."""

    def __init__(self, model: ServedDecoder, cache: PagedKv) -> None:
        self._recorded = model if isinstance(model, RecordedDecoder) else None
        self._cache = cache
        self._expected: Sequence[SequenceRows] = ()
        self._batch: BatchLayout | None = None

    @property
    def looks_ahead(self) -> bool:
        """Whether `make` is of use: a device computes meanwhile."""
        return self._recorded is not None

    def of(self, sequences: Sequence[SequenceRows]) -> BatchLayout:
        """The layout of these sequences, those of one row first."""
        expected, batch = self._expected, self._batch
        self._expected, self._batch = (), None
        if batch is not None and _are_the_same(expected, sequences):
            return batch
        return self._laid_out(sequences)

    def make(self, plan: Plan, tables: KvTables, running: Collection[BatchPart]) -> None:
        """Makes the layout of what will be computed together if the plan is the next to be run, once the parts that are
        running have their tokens.
        """
        assert self._recorded is not None, "nothing computes meanwhile"
        expected = expected_sequences(plan, tables, self._cache.block_size, running)
        if expected:
            batch = self._laid_out(expected)
            self._recorded.prepare(self._cache, batch)
            self._expected, self._batch = expected, batch

    def _laid_out(self, sequences: Sequence[SequenceRows]) -> BatchLayout:
        return BatchLayout.of(sequences, self._cache.block_size, self._cache.pool.device)


def expected_sequences(
    plan: Plan, tables: KvTables, block_size: int, running: Collection[BatchPart]
) -> list[SequenceRows]:
    """What of the plan will be computed together, those of one row first. Empty if it can't be told."""
    sampled = {part.entry.job_id for part in running if part.samples}
    found = []
    for entry, place in zip(plan.entries, tables.places(entry.job_id for entry in plan.entries), strict=True):
        progress = place.tables.progress if place is not None else None
        if entry.from_token == 0 and entry.spec is not None:
            known_tokens, prompt_tokens, sampling = (
                entry.spec.known_tokens,
                entry.spec.prompt_tokens,
                entry.spec.sampling,
            )
            longest = prompt_tokens + sampling.max_tokens
        elif progress is not None:
            known_tokens, prompt_tokens = progress.known_tokens + (entry.job_id in sampled), progress.prompt_tokens
            sampling, longest = progress.sampler.sampling, progress.most_tokens
        else:
            return []
        if place is None or not entry.from_token < entry.to_token <= len(place.blocks) * block_size:
            return []
        is_scored = sampling.prompt_logprobs is not None and scored_rows(entry, prompt_tokens) > 0
        if entry.cut_after_s is None and not is_scored:
            samples = entry.to_token == known_tokens
            found.append(SequenceRows(entry.from_token, entry.to_token, place.blocks, samples, longest))
    return sorted(found, key=lambda rows: rows.to_token - rows.from_token > 1)


def _are_the_same(expected: Sequence[SequenceRows], sequences: Sequence[SequenceRows]) -> bool:
    """Whether they have the same rows in the same blocks: a list of blocks is changed by appending alone
    (kv/tables.py).
    """
    return len(expected) == len(sequences) and all(
        one.blocks is other.blocks and one[:2] == other[:2] and one[3:] == other[3:]
        for one, other in zip(expected, sequences, strict=True)
    )
