"""The real handle() of scheduler and KV manager, and a model of the worker, through all interleavings of their links.

Every instance is small and sees every moment at which a mishap may happen. Larger ones: `python -m
tests.protocol.explore --help`.
"""

from dataclasses import replace

import pytest

from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from services.scheduler.scheduler_config import PolicyName
from tests.protocol.explorer import explore
from tests.protocol.instance import STEEP_PROFILE, Instance, JobSize

ONE_FITS = Instance((JobSize(1, 3), JobSize(1, 3)), 3, 2)
"""Two jobs whose KV does not fit at the same time, and a host pool that can't hold a whole job."""

SHORT = Instance((JobSize(1, 2), JobSize(1, 2)), 2, 1)
"""The smallest possible number of blocks."""

INSTANCES = {
    "arrivals, a cancel and an early end at any time": replace(
        ONE_FITS, late_arrivals=True, cancels=frozenset({0}), early_ends=frozenset({1})
    ),
    "cancels, and turns with both peers' messages": replace(
        ONE_FITS, host_blocks=3, cancels=frozenset({0, 1}), merged_turns=True
    ),
    "the worker dies once": replace(ONE_FITS, kills=1),
    "the worker dies twice": replace(SHORT, kills=2),
    "the worker dies, a job is cancelled": replace(SHORT, kills=1, cancels=frozenset({0})),
    "a cancelled job's id comes again": replace(
        SHORT, cancels=frozenset({0}), again=frozenset({0}), late_arrivals=True
    ),
    "scheduler and KV manager lose each other": replace(SHORT, breaks=1, late_arrivals=True),
    "promotions": replace(SHORT, host_blocks=2, waits=2),
    "blocks of two tokens, growth ahead, a batch of two": Instance(
        (JobSize(3, 3), JobSize(2, 3)), 3, 2, block_size=2, lookahead_tokens=1, max_batch=2, late_arrivals=True
    ),
    "two that grow together while there is room": Instance(
        (JobSize(1, 4), JobSize(1, 3)), 6, 3, grant_blocks=2, max_batch=2, cancels=frozenset({1}), late_arrivals=True
    ),
    "one plan at a time, naive MLFQ": replace(ONE_FITS, policy=PolicyName.MLFQ, plans_in_flight=1, host_blocks=1),
    "plans ahead, an early end and a cancel": Instance(
        (JobSize(1, 5), JobSize(1, 2)), 5, 5, plans_in_flight=5, cancels=frozenset({1}), early_ends=frozenset({0})
    ),
    "plans that are recalled": Instance(
        (JobSize(1, 5), JobSize(1, 2)), 5, 5, plans_in_flight=4, plans_ahead=3, late_arrivals=True
    ),
    "plans that are recalled, and mishaps": Instance(
        (JobSize(1, 3), JobSize(1, 2)), 3, 2, plans_in_flight=3, plans_ahead=2, cancels=frozenset({1}), kills=1
    ),
    "prefills that are cut": Instance(
        (JobSize(2, 3), JobSize(2, 2)), 4, 3, policy=PolicyName.MLFQ_KILL, profile=STEEP_PROFILE, cancels=frozenset({0})
    ),
    "guides that are not compiled yet": Instance(
        (JobSize(2, 2, is_guided=True), JobSize(1, 2)), 3, 2, passes=2, cancels=frozenset({0}), late_arrivals=True
    ),
    "guides, chunks, and the worker dies": Instance(
        (JobSize(2, 1, is_guided=True), JobSize(1, 1)), 3, 2, passes=1, prefill_chunk_tokens=1, kills=1
    ),
    "chunks": Instance(
        (JobSize(3, 2), JobSize(2, 2)), 4, 3, prefill_chunk_tokens=1, cancels=frozenset({1}), late_arrivals=True
    ),
    "FCFS, whose waiting jobs take nothing": replace(
        ONE_FITS, policy=PolicyName.FCFS, late_arrivals=True, cancels=frozenset({0}), early_ends=frozenset({1})
    ),
    "gittins, with loans": replace(ONE_FITS, policy=PolicyName.GITTINS, waits=1, late_arrivals=True),
    "gittins, and the worker dies": replace(SHORT, policy=PolicyName.GITTINS, kills=1, waits=1),
    "static batches": Instance((JobSize(1, 3), JobSize(1, 3)), 3, 3, policy=PolicyName.STATIC, lookahead_tokens=1),
}


@pytest.mark.parametrize("kv_policy", KV_POLICY_NAMES)
@pytest.mark.parametrize("name", INSTANCES)
def test_every_interleaving_is_safe_and_ends_with_all_jobs_ended_and_all_blocks_free(name: str, kv_policy: str) -> None:
    explored = explore(replace(INSTANCES[name], kv_policy=kv_policy), most_states=200_000)
    assert explored.ends > 0


MOVES = {
    "one of two": replace(SHORT, moves=1),
    "one twice, and the worker dies": Instance((JobSize(1, 2),), 2, 1, moves=2, kills=1),
    "one of two is held, with what is computed of it": replace(SHORT, holds=1),
    "one is held, and the worker dies": Instance((JobSize(1, 3),), 3, 1, holds=1, kills=1),
}


@pytest.mark.parametrize("name", MOVES)
def test_jobs_may_leave_for_another_group_at_any_moment_that_allows_it_and_come_back(name: str) -> None:
    assert explore(replace(MOVES[name], kv_policy="reactive"), most_states=200_000).ends > 0


@pytest.mark.parametrize("kv_policy", ["recompute", "reactive", "proactive"])
def test_three_jobs_of_which_the_first_needs_nearly_all_blocks_do_not_starve_it(kv_policy: str) -> None:
    jobs = (JobSize(3, 2), JobSize(2, 1), JobSize(2, 1))
    instance = Instance(jobs, 4, 3, kv_policy=kv_policy, policy=PolicyName.SRPT, max_batch=3, late_arrivals=True)
    assert explore(instance, most_states=200_000).ends > 0


def test_the_small_instances_do_swap_and_recompute() -> None:
    """The explored states are interesting: jobs come back from the host, and after their KV was dropped."""
    swapping = explore(replace(ONE_FITS, kv_policy="reactive"), most_states=200_000)
    recomputing = explore(replace(ONE_FITS, kv_policy="recompute"), most_states=200_000)
    deferring = explore(replace(ONE_FITS, kv_policy="defer"), most_states=200_000)
    assert swapping.worker_states > recomputing.worker_states > deferring.worker_states
