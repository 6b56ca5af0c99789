"""From a plan to the parts of a batch: its entries checked against the worker's tables, those to compute kept.

A plan is checked before anything is computed: an entry that reads KV which is not valid, or writes beyond the job's
blocks, is a bug of a peer and is refused with the job's story [PROTOCOL rule 17]. Job states change only once every
entry has been found right.

Plans are made before the results of earlier ones are known, so an entry may name a job whose last token ended it, or
one whose guide is not compiled yet. The leader says which these are (step.py); they are passed over.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.domain.errors import ProtocolError
from services.domain.ids import JobId, request_id_of
from services.domain.iteration import Plan, PlanWork
from services.worker.job_progress import JobProgress
from services.worker.kv.tables import KvPlace, KvTables
from services.worker.model.batch import SequenceRows
from services.worker.sampling.guide_states import GuideStates
from services.worker.step import Step

_log = logging.getLogger(__name__)


def scored_rows(entry: PlanWork, prompt_tokens: int) -> int:
    """How many of an entry's first rows tell the log probability of the prompt's token after them."""
    return max(0, min(entry.to_token, prompt_tokens - 1) - entry.from_token)


class BatchPart(NamedTuple):
    """An entry of a plan that is to be computed: the tokens of its rows, the job's progress and the place of its KV."""

    entry: PlanWork
    token_ids: Sequence[int]
    progress: JobProgress
    place: KvPlace

    @property
    def row_count(self) -> int:
        return self.entry.to_token - self.entry.from_token

    @property
    def samples(self) -> bool:
        return self.entry.to_token == self.progress.known_tokens

    @property
    def scored_rows(self) -> int:
        """How many of its first rows tell the log probability of a prompt's token that is wanted."""
        if self.progress.sampler.sampling.prompt_logprobs is None:
            return 0
        return scored_rows(self.entry, self.progress.prompt_tokens)

    @property
    def runs_alone(self) -> bool:
        """Whether it has passes of its own: it may be given up, or the logits of many rows are wanted."""
        return self.entry.cut_after_s is not None or self.scored_rows > 0

    def sequence(self) -> SequenceRows:
        entry, blocks = self.entry, self.place.blocks
        longest, scored_rows = self.progress.most_tokens, self.scored_rows
        return SequenceRows(entry.from_token, entry.to_token, blocks, self.samples, longest, scored_rows)


def checked_parts(
    step: Step, tables: KvTables, block_size: int, vocabulary_size: int, guides: GuideStates, *, samples: bool
) -> list[BatchPart]:
    """The entries to compute, in the plan's order; their jobs' progress takes in the tokens that the plan brings. On
    the rank that samples, jobs that start take their guides' states.

    Raises ProtocolError, having changed nothing, for a plan that can't be right.
    """
    plan, parts, fresh = step.plan, [], []
    for entry, place in zip(plan.entries, tables.places(entry.job_id for entry in plan.entries), strict=True):
        if place is None:
            raise ProtocolError(f"{_named(plan, entry)}: the job has no blocks")
        progress = place.tables.progress
        if entry.job_id in step.passed_over_job_ids and (progress is not None or entry.from_token == 0):
            continue
        if entry.from_token == 0:
            if entry.spec is None:
                raise ProtocolError(f"{_named(plan, entry)}: a job's first entry must say how to sample")
            progress = JobProgress(entry.spec)
            fresh.append((place.tables, progress))
        elif progress is None:
            raise ProtocolError(f"{_named(plan, entry)}: the job is unknown: {tables.story(place.tables)}")
        token_ids = entry.token_ids
        if not token_ids and (input_token := step.input_token_ids.get(entry.job_id)) is not None:
            token_ids = (input_token,)
        wrong = _wrong_with(entry, token_ids, progress, place, block_size, vocabulary_size)
        if wrong is not None:
            raise ProtocolError(f"{_named(plan, entry)}: {wrong}: {tables.story(place.tables)}")
        part = BatchPart(entry, token_ids, progress, place)
        after = entry.next_token_id
        if part.scored_rows == part.row_count and (after is None or not 0 <= after < vocabulary_size):
            raise ProtocolError(f"{_named(plan, entry)}: part of a scored prompt, the token after it is {after}")
        parts.append(part)
    for job_tables, progress in fresh:
        job_tables.progress, job_tables.valid_tokens = progress, 0
    if samples:
        for part in parts:
            spec = part.entry.spec
            if spec is not None and spec.sampling.guide is not None:
                part.progress.guide = guides.take(part.entry.job_id, spec.sampling.guide)
    for part in parts:
        if part.entry.token_ids:
            part.progress.learn(part.entry.from_token, part.entry.token_ids, guides)
    return parts


def computed_together(parts: Iterable[BatchPart]) -> list[BatchPart]:
    """The parts of one forward pass, those of one row first: all but those that run alone."""
    return sorted((part for part in parts if not part.runs_alone), key=lambda part: part.row_count > 1)


def failures_of(parts: Iterable[BatchPart]) -> dict[JobId, str]:
    """The jobs whose guides can't be followed any further, and why."""
    return {
        part.entry.job_id: part.progress.guide.fault
        for part in parts
        if part.progress.guide is not None and part.progress.guide.fault is not None
    }


def log_overflows(parts: Iterable[BatchPart]) -> None:
    """Logs the jobs whose logits are not finite, each once."""
    for part in parts:
        if not part.progress.overflowed:
            part.progress.overflowed = True
            _log.warning(
                "job %s, tokens up to %d: its numbers exceed the range of float16, so its output from here on is "
                "meaningless; other jobs are not affected; bfloat16 has the range",
                part.entry.job_id,
                part.entry.to_token,
                extra={"request_id": request_id_of(part.entry.job_id), "job_id": part.entry.job_id},
            )


def _wrong_with(
    entry: PlanWork,
    token_ids: Sequence[int],
    progress: JobProgress,
    place: KvPlace,
    block_size: int,
    vocabulary_size: int,
) -> str | None:
    from_token, to_token = entry.from_token, entry.to_token
    valid_tokens = 0 if from_token == 0 else place.tables.valid_tokens
    if not from_token < to_token <= progress.known_tokens:
        return f"the job has {progress.known_tokens} tokens"
    if from_token != valid_tokens:
        return f"the KV of {valid_tokens} tokens is valid"
    if to_token > len(place.blocks) * block_size:
        return f"the entry goes beyond the job's table of {len(place.blocks)} blocks"
    if not token_ids:
        return "a prefill comes without its tokens"
    if len(token_ids) != to_token - from_token:
        return f"the entry brings {len(token_ids)} tokens"
    if not 0 <= min(token_ids) <= max(token_ids) < vocabulary_size:
        return f"a token is outside the vocabulary of {vocabulary_size}"
    return None


def _named(plan: Plan, entry: PlanWork) -> str:
    return f"plan {plan.plan_number}, job {entry.job_id}, tokens {entry.from_token} to {entry.to_token}"
