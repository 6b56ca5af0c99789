"""The batch of an iteration: ready jobs by rank, up to the maximum batch size and the token budget (PAPER 2, step 4).

Prefills and decodes share a batch. A decode costs one token of the budget, a lent one nothing. A prefill costs all its
tokens:

- without chunks it is taken whole or not at all. The first prefill of a batch is always taken, so that one longer than
the budget can run. No prefill overtakes a higher-ranked one that did not fit;
- with chunks it gets the rest of the budget, at most one chunk, and may be preempted before the next chunk.

The walk visits at most twice the maximum batch size, however many jobs are queued.
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
    """The jobs of the next plan by rank, each with the from_token and to_token of its entry."""
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
        if need > 1 or job.lent_to_token is None:
            tokens_left -= to_token - from_token
    return parts
