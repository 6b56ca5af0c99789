"""Two worker groups for real, one of them ten times slower than the other: it delays no job of the other, and when its
worker is killed, its jobs go on there.
"""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastserve.v1 import inference_pb2 as api
from services.cli.simulate.replay_command import replay_file
from tests.builders.generate_requests import ids_request
from tests.builders.repository_paths import BUNDLED
from tests.builders.waits import wait_until
from tests.e2e.client import Choice, client_of
from tests.e2e.cluster import Cluster

pytestmark = pytest.mark.timeout(240)  # two starts of a worker

SLOWER = "10"
TOKENS = 48


def jobs() -> list[api.GenerateRequest]:
    """Greedy and seeded ones of the same length."""
    ways = ({"temperature": 0.0}, {"temperature": 0.0, "repetition_penalty": 1.2}, {"temperature": 0.8, "logprobs": 1})
    return [
        ids_request(
            range(20 + number, 60 + number), max_tokens=TOKENS, ignore_eos=True, seed=number, **ways[number % 3]
        )
        for number in range(8)
    ]


@dataclass
class Run:
    """What happened. `done`, `running`: tokens of each job when the last one of the fast group had ended."""

    alone: list[Choice]
    together: list[Choice]
    done: list[int]
    running: list[int]
    records: Path


async def follow(address: str, choices: list[Choice]) -> None:
    """Reads all jobs at once, each into its choice."""
    async with client_of(address) as client:

        async def read(choice: Choice, request: api.GenerateRequest) -> None:
            async for message in client.open(request):
                choice.add(message)

        await asyncio.gather(*(read(*pair) for pair in zip(choices, jobs(), strict=True)))


async def run_both(cluster: Cluster) -> Run:
    """The jobs on the fast group alone; then on both, until the fast one has ended its own; then the slow one dies."""
    address = cluster.gateway_address
    alone = [Choice() for _ in jobs()]
    await follow(address, alone)
    slow = cluster.start_other_worker("--group", "1", module=("tests.e2e.slow_worker", SLOWER))
    await asyncio.to_thread(wait_until, lambda: cluster.is_group_ready(1), "the slow group")
    together = [Choice() for _ in jobs()]
    following = asyncio.create_task(follow(address, together))
    done: list[Choice] = []
    while len(done) == 0 or len(done) + cluster.status().groups[1].running < len(together):
        await asyncio.sleep(0.01)
        done = [choice for choice in together if choice.finish_reason]
    tokens_done = [len(choice.token_ids) for choice in done]
    tokens_running = [len(choice.token_ids) for choice in together if not choice.finish_reason]
    slow.stop(signal.SIGKILL)
    await following
    return Run(alone, together, tokens_done, tokens_running, cluster.folder / "records")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("groups")
    record = ("--record", str(folder / "records"))
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", "2048", "--state-dir", str(folder / "state"))
    cluster = Cluster(BUNDLED, folder, flags)
    try:
        cluster.set_policies("gittins", "proactive", (*record, "--groups", "2"), record)
        cluster.start_worker()
        cluster.start_gateway()
        cluster.wait_ready()
        happened = asyncio.run(run_both(cluster))
        for service in ("gateway", "scheduler", "kvmanager"):
            assert cluster.processes[service].stop() == 0, cluster.processes[service].log()
        yield happened
    finally:
        cluster.stop()


def test_a_group_that_is_ten_times_slower_delays_no_job_of_the_other(run: Run) -> None:
    assert set(run.done) == {TOKENS}
    assert run.running
    # In step with the other group they would have come as far.
    assert max(run.running) <= TOKENS * 3 // 4


def test_the_jobs_of_a_group_whose_worker_is_killed_go_on_in_the_other_and_no_token_changes(run: Run) -> None:
    for alone, together in zip(run.alone, run.together, strict=True):
        assert together.token_ids == alone.token_ids
        assert (together.text, together.finish_reason) == (alone.text, alone.finish_reason)
        assert [one.token_id for one in together.logprobs] == [one.token_id for one in alone.logprobs]


@pytest.mark.parametrize("service", ["scheduler", "kvmanager"])
@pytest.mark.parametrize("group", ["", "-group-1"])
def test_the_recording_of_each_group_replays_by_itself(run: Run, service: str, group: str) -> None:
    _, outcome = replay_file(run.records / f"{service}{group}-001.jsonl.gz")
    assert (outcome.difference, outcome.last_fault) == (None, None)
    assert outcome.turns
    assert outcome.commands
