"""The batch of an iteration: ready jobs in their order, to the maximum batch and the token budget (PAPER 2, step 4).

Prefill and decode mix. A decode costs one token of the budget. A prefill costs its tokens:

- without chunks it is taken whole or not at all; the first prefill of a batch is always taken, so that one longer than
  the budget runs too, and no prefill overtakes one of a higher rank that did not fit;
- with chunks it gets what is left of the budget, at most a chunk, and may be preempted before the next one.

The walk ends after at most twice the maximum batch, however many jobs are queued.
"""

from collections.abc import Iterable

from services.scheduler.job import Job


def build_batch(
    ready: Iterable[Job],
    *,
    max_batch: int,
    max_batch_tokens: int,
    prefill_chunk_tokens: int | None,
    closed_level: int | None,
) -> list[tuple[Job, int, int]]:
    """The jobs of the next plan by rank, each with its entry's from_token and to_token."""
    parts: list[tuple[Job, int, int]] = []
    tokens_left = max_batch_tokens
    has_prefill = False
    passed_over = 0
    for job in ready:
        if tokens_left <= 0 or (closed_level is not None and job.place.level >= closed_level):
            break
        from_token = job.planned_tokens
        to_token = job.expected_tokens
        need = to_token - from_token
        if need > 1:
            if prefill_chunk_tokens is not None:
                to_token = from_token + min(need, prefill_chunk_tokens, tokens_left, job.capacity_tokens - from_token)
            elif has_prefill and (passed_over or need > tokens_left):
                passed_over += 1
                if passed_over >= max_batch:
                    break
                continue
            has_prefill = True
        parts.append((job, from_token, to_token))
        if len(parts) == max_batch:
            break
        tokens_left -= to_token - from_token
    return parts
