"""Log probabilities of a prompt's tokens: of each but the first, by the logits after the row before it.

Logits of many rows take room, those of a vocabulary of 128,000 half a megabyte a row. So a part of a prompt is computed
in several passes, each of as many rows as MOST_LOGIT_BYTES hold. That changes no bit in float32, where a row is the
same in every batch (model/exact.py), and each pass gives a part that fits into a message. Finding the log probabilities
takes about three times as much room for a moment.

Shape legend: R rows, V vocabulary, M alternatives.
"""

from array import array
from collections.abc import Iterator

import torch
from torch import Tensor

from services.domain.ids import JobId
from services.domain.prompt_logprobs import PromptLogprobs, ScoredPrompt
from services.worker.engine.batch_parts import BatchPart, scored_rows
from services.worker.sampling.sampler import most_probable
from services.worker.step import Step

MOST_LOGIT_BYTES = 64 * 1024 * 1024
MOST_ROWS = 2048
"""With 20 alternatives each, log probabilities of so many take 400 kB."""


def passes_of(part: BatchPart, vocabulary_size: int) -> Iterator[BatchPart]:
    """The part, cut where its logits would take too much room. The rows without logits are in its last piece."""
    first = part.entry.from_token
    for rows in _rows_of_passes(part.row_count, part.scored_rows, vocabulary_size):
        yield _piece(part, first, first + rows)
        first += rows


def _rows_of_passes(rows: int, scored: int, vocabulary_size: int) -> Iterator[int]:
    most = max(1, min(MOST_ROWS, MOST_LOGIT_BYTES // (4 * vocabulary_size)))
    while scored > most:
        yield most
        rows, scored = rows - most, scored - most
    yield rows


class ComingPasses:
    """Rows of the passes of steps that a rank hears of before it runs those ahead of them, when its jobs' progress does
    not tell yet. Asked in the order of the steps.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._prompts: dict[JobId, int] = {}
        """Tokens of the prompts of which some are still to be scored."""

    def rows_of(self, step: Step) -> list[int]:
        """As Engine.step will run them, if the plan is right."""
        together = 0
        alone: list[int] = []
        for entry in step.plan.entries:
            job_id, rows = entry.job_id, entry.to_token - entry.from_token
            if job_id in step.passed_over_job_ids:
                continue
            if (spec := entry.spec) is not None:
                self._prompts[job_id] = 0 if spec.sampling.prompt_logprobs is None else spec.prompt_tokens
            prompt_tokens = self._prompts.get(job_id, 0)
            if entry.to_token >= prompt_tokens:
                self.forget(job_id)
            if scored := scored_rows(entry, prompt_tokens):
                alone += _rows_of_passes(rows, scored, self._vocabulary_size)
            else:
                together += rows
        return [together, *alone] if together else alone

    def forget(self, job_id: JobId) -> None:
        """The job's blocks are released, or nothing of its prompt is left."""
        self._prompts.pop(job_id, None)


def _piece(part: BatchPart, first: int, stop: int) -> BatchPart:
    """Its positions first to stop - 1."""
    entry, tokens = part.entry, part.token_ids[first - part.entry.from_token : stop - part.entry.from_token]
    after = entry.next_token_id if stop == entry.to_token else part.token_ids[stop - entry.from_token]
    piece = entry._replace(from_token=first, to_token=stop, token_ids=tokens, next_token_id=after)
    return part._replace(entry=piece, token_ids=tokens)


def scored_prompt(part: BatchPart, logits_RV: Tensor) -> ScoredPrompt:
    """What the logits after the part's scored rows say of the tokens that follow these. `logits_RV`: float32."""
    entry, wanted = part.entry, part.progress.sampler.sampling.prompt_logprobs
    assert wanted is not None, "only what is wanted is scored"
    assert logits_RV.shape[0] == part.scored_rows, "a row of logits for each that is scored"
    following = list(part.token_ids[1 : part.scored_rows + 1])
    if len(following) < part.scored_rows:
        assert entry.next_token_id is not None, "checked with the plan"
        following.append(entry.next_token_id)
    if not bool(logits_RV.sum().isfinite()):
        # A job that left the range of float16: what is said of it means nothing, but it ends nobody's step.
        logits_RV = logits_RV.nan_to_num(nan=torch.finfo(torch.float32).min)
    logprobs_RV = logits_RV.log_softmax(-1)
    next_R = torch.tensor(following, device=logits_RV.device)
    own = array("f", logprobs_RV.gather(1, next_R[:, None])[:, 0].tolist())
    top_ids, tops = array("I"), array("f")
    alternatives = min(wanted, logits_RV.shape[1])
    if alternatives:
        ids_RM = most_probable(logits_RV, alternatives)
        top_ids = array("I", ids_RM.flatten().tolist())
        tops = array("f", logprobs_RV.gather(1, ids_RM).flatten().tolist())
    return ScoredPrompt(entry.job_id, PromptLogprobs(entry.from_token + 1, own, top_ids, tops))
