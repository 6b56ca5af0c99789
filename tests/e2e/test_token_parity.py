"""Preempted, swapped, recomputed or not: every job gives, token for token, what it gives alone (float32, real services,
a tiny model with random weights), and so are the log probabilities of its prompt.

The cluster lasts as long as the test process: a worker of xdist that is given tests of other files in between would
else start it, and run every job alone, anew.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.builders.model_folders import tiny_model_folder
from tests.builders.waits import wait_until
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.jobs import ForcedJob, Given, make_jobs, run_alone, run_in_waves, run_together
from tests.e2e.observed import lines_of

JOB_COUNT = 60
CANDIDATES = 68
VOCABULARY = 512
LONG_EVERY = 10
POOL_TOKENS = 256
"""One or two long jobs fill it; sixteen run at a time."""
CLEAR_MARGIN = 1e-3

POLICIES = ("gittins", "skip-join-mlfq", "fcfs", "static", "mlfq", "mlfq-kill", "fixed-priority", "srpt")
PREEMPTIVE = frozenset({"gittins", "skip-join-mlfq", "mlfq", "mlfq-kill", "fixed-priority", "srpt"})
BY_LENGTH = frozenset({"fixed-priority", "srpt"})
"""These preempt only for jobs that come later."""
CHUNKED = (("skip-join-mlfq", "proactive", "16"), ("mlfq", "recompute", "7"), ("fcfs", "defer", "33"))
OTHER_KV_POLICIES = ("reactive", "recompute", "defer")
CASES = (
    *((policy, "proactive") for policy in POLICIES),
    *((policy, kv_policy) for policy in ("gittins", "skip-join-mlfq", "fcfs") for kv_policy in OTHER_KV_POLICIES),
)
"""Every order with the KV policy that moves the most, and every KV policy under three orders."""
SWAPPING = frozenset({"proactive", "reactive"})
LEAST_SWAPS = 2
"""Of each long job, in a run."""
SELDOM_SWAPPED = frozenset({"gittins", "fixed-priority", "srpt"})
"""Under these a long job is swapped once at least: what preempts it comes seldom."""
MOST_RUNS = 5
"""How often a long job is swapped depends on when the others come: in one run it may be too seldom. In some run each
must be swapped often enough, and each run must give the same tokens.
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    flags = (
        "--dtype",
        "float32",
        "--threads",
        "1",
        "--kv-device-tokens",
        str(POOL_TOKENS),
        "--kv-host-tokens",
        "16384",
    )
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(
        tiny_model_folder(folder), folder, "fcfs", "defer", worker_flags=flags, observed=("worker",)
    ) as running:
        yield running


@pytest.fixture(scope="session")
def alone(cluster: Cluster) -> dict[ForcedJob, Given]:
    """What each of sixty jobs gives alone. Greedy jobs with a step too close to call (rounding may decide it) are left
    out.
    """
    candidates = make_jobs(CANDIDATES, VOCABULARY, long_every=LONG_EVERY)
    given = asyncio.run(run_alone(cluster.gateway_address, candidates))
    pairs = zip(candidates, given, strict=True)
    clear = {job: one for job, one in pairs if not job.is_greedy or min(one.top_gaps) > CLEAR_MARGIN}
    assert len(clear) >= JOB_COUNT
    return dict(list(clear.items())[:JOB_COUNT])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "kv_policy"), CASES)
def test_sixty_jobs_in_a_pool_for_two_give_what_each_gives_alone(
    policy: str, kv_policy: str, cluster: Cluster, alone: dict[ForcedJob, Given]
) -> None:
    cluster.set_policies(policy, kv_policy)
    cluster.wait_ready()

    before = cluster.status().counters
    must_swap = policy in PREEMPTIVE and kv_policy in SWAPPING
    least_swaps = 1 if policy in SELDOM_SWAPPED else LEAST_SWAPS
    swaps = [0] * sum(job.is_long for job in alone)
    for _ in range(MOST_RUNS if must_swap else 1):
        seen = len(lines_of(cluster.trace_of("worker")))
        together = run_as_alone(cluster, alone, run_in_waves if policy in BY_LENGTH else run_together)
        lines = lines_of(cluster.trace_of("worker"))[seen:]
        swaps = list(map(max, swaps, swaps_of_long_jobs(lines, alone, together)))
        if min(swaps) >= least_swaps:
            break

    counters = cluster.status().counters
    if policy in PREEMPTIVE and kv_policy != "defer":
        assert counters.preemptions > 0
    if must_swap:
        assert min(swaps) >= least_swaps, swaps
        assert counters.uploaded_bytes > before.uploaded_bytes
    if kv_policy not in SWAPPING:
        assert counters.offloaded_bytes == before.offloaded_bytes


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "kv_policy", "chunk_tokens"), CHUNKED)
def test_prompts_in_chunks_give_what_whole_ones_give(
    policy: str, kv_policy: str, chunk_tokens: str, cluster: Cluster, alone: dict[ForcedJob, Given]
) -> None:
    cluster.set_policies(policy, kv_policy, scheduler_flags=("--prefill-chunk", chunk_tokens))
    cluster.wait_ready()
    run_as_alone(cluster, alone, run_together)


def swaps_of_long_jobs(lines: list[dict[str, Any]], alone: dict[ForcedJob, Given], together: list[Given]) -> list[int]:
    """How often each long job went to the host, as the worker wrote it down."""
    swaps = Counter(job for line in lines for job in line.get("offloaded", ()))
    return [swaps[given.job] for job, given in zip(alone, together, strict=True) if job.is_long]


def run_as_alone(
    cluster: Cluster,
    alone: dict[ForcedJob, Given],
    run: Callable[[str, list[ForcedJob]], Awaitable[list[Given]]],
) -> list[Given]:
    """Runs all jobs, sharing the device; each must give what it gave alone."""

    async def give() -> list[Given]:
        return await run(cluster.gateway_address, list(alone))

    together = asyncio.run(give())
    pairs = zip(alone.items(), together, strict=True)
    different = [job.number for (job, by_itself), given in pairs if given.token_ids != by_itself.token_ids]
    assert different == []
    assert [given.text for given in together] == [by_itself.text for by_itself in alone.values()]
    assert [given.prompt_logprobs for given in together] == [by_itself.prompt_logprobs for by_itself in alone.values()]
    wait_until(cluster.is_idle, "every block free again")
    return together
