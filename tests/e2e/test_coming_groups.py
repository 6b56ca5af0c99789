"""Worker groups that come and go for real: jobs wait for the first one; a second worker of a group is refused; one of
three, the slowest, is told to end under load, and nobody misses a token.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import pytest

from fastserve.v1 import inference_pb2 as api
from tests.builders.generate_requests import ids_request
from tests.builders.repository_paths import BUNDLED
from tests.builders.waits import wait_until
from tests.e2e.client import Choice, Client, client_of
from tests.e2e.cluster import Cluster, Process

pytestmark = pytest.mark.timeout(240)  # four starts of a worker

SLOWER = "10"
DRAIN_LIMIT_S = 2.0
"""Less than its longer jobs take on the slow worker, on a fast machine as well."""
ENDING_S = 40.0
"""What the end of a process may take on a busy machine."""
TOKENS = 160


def jobs() -> list[api.GenerateRequest]:
    """Greedy and seeded ones; every third is short."""
    return [
        ids_request(
            range(20 + number, 50 + number),
            max_tokens=8 if number % 3 == 2 else TOKENS,
            ignore_eos=True,
            seed=number,
            temperature=0.8 if number % 2 else 0.0,
        )
        for number in range(18)
    ]


@dataclass
class ScaledRun:
    """What happened. `groups_*`: numbers of the groups that the status shows."""

    served_without_group: bool
    waited: int
    alone: list[Choice]
    together: list[Choice]
    claimant: Process
    drained: Process
    drain_s: float
    moves: int
    draining_seen: bool
    groups_after: list[int] = field(default_factory=list)


def unplaced_jobs(cluster: Cluster) -> int | None:
    """Jobs that wait for a group; None while the scheduler can't be reached."""
    try:
        return cluster.status().unplaced_jobs
    except grpc.RpcError:
        return None


async def first_group(cluster: Cluster, client: Client) -> tuple[bool, int, list[Choice]]:
    """Jobs come before the first group; then the scheduler dies, and the next one has never seen a worker either."""
    await asyncio.to_thread(wait_until, cluster.is_serving, "the gateway is ready")
    coming = asyncio.create_task(client.all(jobs()))
    await asyncio.to_thread(wait_until, lambda: unplaced_jobs(cluster) == len(jobs()), "jobs wait")
    cluster.processes["scheduler"].stop(signal.SIGKILL)
    cluster.restart("scheduler").wait_ready()
    await asyncio.to_thread(wait_until, lambda: unplaced_jobs(cluster) == len(jobs()), "jobs wait again")
    waited = cluster.status().unplaced_jobs
    no_group = not cluster.status().groups
    cluster.start_worker()
    return no_group, waited, await coming


async def scenario(cluster: Cluster) -> ScaledRun:
    async with client_of(cluster.gateway_address) as client:
        no_group, waited, alone = await first_group(cluster, client)
        flags = ("--group", "1", "--drain-limit", str(DRAIN_LIMIT_S))
        slow = cluster.start_other_worker(*flags, module=("tests.e2e.slow_worker", SLOWER))
        cluster.start_other_worker("--group", "2")
        await asyncio.to_thread(
            wait_until, lambda: cluster.is_group_ready(1) and cluster.is_group_ready(2), "three groups"
        )
        claimant = cluster.start_other_worker("--group", "1", "--claim-limit", "0.5")
        await asyncio.to_thread(wait_until, lambda: claimant.popen.poll() is not None, "the claimant ends")
        running = asyncio.create_task(client.all(jobs()))
        await asyncio.to_thread(
            wait_until, lambda: all(group.running for group in cluster.status().groups), "all groups run"
        )
        slow.ask_to_stop(signal.SIGTERM)
        began_s = time.monotonic()
        draining_seen = False
        while slow.popen.poll() is None:
            draining_seen = draining_seen or any(group.draining for group in cluster.status().groups)
            await asyncio.sleep(0.01)
        drain_s = time.monotonic() - began_s
        together = await running
        status = cluster.status()
    numbers = [group.group for group in status.groups]
    return ScaledRun(
        no_group, waited, alone, together, claimant, slow, drain_s, status.counters.moves, draining_seen, numbers
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScaledRun]:
    folder = tmp_path_factory.mktemp("coming-groups")
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", "2048", "--state-dir", str(folder / "state"))
    cluster = Cluster(BUNDLED, folder, flags)
    try:
        cluster.set_policies("gittins", "proactive")
        cluster.start_gateway()
        yield asyncio.run(scenario(cluster))
    finally:
        cluster.stop()


def test_without_a_group_the_gateway_takes_jobs_which_outlast_the_scheduler_until_the_first_group_serves_them(
    run: ScaledRun,
) -> None:
    assert run.served_without_group
    assert run.waited == len(run.alone)
    assert [len(choice.token_ids) for choice in run.alone] == [request.sampling.max_tokens for request in jobs()]


def test_a_second_worker_of_a_group_ends_with_a_line_that_says_why(run: ScaledRun) -> None:
    assert run.claimant.popen.returncode == 1
    assert run.claimant.log().splitlines()[-1].startswith("fastserve worker: group 1 has a worker already, on cpu")


def test_a_worker_that_is_told_to_end_under_load_does_within_its_limit_and_no_token_is_missed(run: ScaledRun) -> None:
    assert run.drained.popen.returncode == 0, run.drained.log()
    assert run.drain_s < DRAIN_LIMIT_S + ENDING_S
    assert run.draining_seen
    assert run.moves > 0, "it did not serve its jobs to their ends"
    assert run.groups_after == [0, 2]
    for alone, together in zip(run.alone, run.together, strict=True):
        assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
        assert together.finish_reason == alone.finish_reason
