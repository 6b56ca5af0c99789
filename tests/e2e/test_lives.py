"""Services that die while they serve, and clients that go: streams go on where they were, and nothing stays held."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
import pytest

from fastserve.v1 import inference_pb2 as api
from tests.builders.generate_requests import ids_request, text_request
from tests.builders.repository_paths import BUNDLED
from tests.builders.stream_ends import status_at_end
from tests.builders.waits import wait_until
from tests.e2e.client import Choice, Client, client_of
from tests.e2e.cluster import Cluster, running_cluster

pytestmark = pytest.mark.timeout(240)  # a start of all services, and of a worker

POOL_TOKENS = 768
"""Half of the jobs below fit."""
TOKENS = 160
FIRST_TOKENS = 12
"""So far has every running job come when a service is killed."""


GUIDE = api.Guide(regex="([a-z]+ ){60,}")
"""An output of many more tokens: it is never complete."""


def jobs() -> list[api.GenerateRequest]:
    """Greedy and seeded ones, with every kind of state that a worker keeps for a job."""
    greedy: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.2},
        {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0.0, "guide": GUIDE},
    )
    seeded: tuple[dict[str, Any], ...] = (
        {"temperature": 0.8, "guide": GUIDE},
        {"top_p": 0.9, "frequency_penalty": 0.4},
        {"top_k": 30, "presence_penalty": 0.6},
    )
    return [
        ids_request(range(20 + number, 50 + 3 * number), max_tokens=TOKENS, ignore_eos=True, seed=number, **sampling)
        for number, sampling in enumerate((*greedy, *seeded))
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "4096")
    # A scheduler that is told to end gives no job time.
    scheduler_flags = ("--drain-limit", "0")
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(BUNDLED, folder, worker_flags=flags, scheduler_flags=scheduler_flags) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> list[Choice]:
    """What the jobs give when nothing dies."""

    async def run() -> list[Choice]:
        async with client_of(cluster.gateway_address) as client:
            return await client.all(jobs())

    return asyncio.run(run())


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with client_of(cluster.gateway_address) as one:
        yield one
    wait_until(cluster.is_idle, "every block free")


class PausedReader:
    """Reads one stream, and tells when it has so many tokens."""

    def __init__(self, client: Client, request: api.GenerateRequest) -> None:
        self.choice = Choice()
        self.has_begun = asyncio.Event()
        self._stream = client.open(request, timeout=200.0)

    async def read(self) -> Choice:
        async for message in self._stream:
            self.choice.add(message)
            if len(self.choice.token_ids) >= FIRST_TOKENS:
                self.has_begun.set()
        return self.choice


async def give_through(client: Client, cluster: Cluster, service: str, how: signal.Signals) -> list[Choice]:
    """Runs the jobs, and ends and restarts the service when the first of them are under way."""
    readers = [PausedReader(client, request) for request in jobs()]
    reading = [asyncio.create_task(reader.read()) for reader in readers]
    begun = [asyncio.create_task(reader.has_begun.wait()) for reader in readers]
    done, waiting = await asyncio.wait([*begun, *reading], timeout=60.0, return_when=asyncio.FIRST_COMPLETED)
    assert done
    assert not any(task.done() for task in reading)
    for task in waiting.intersection(begun):
        task.cancel()
    status = await asyncio.to_thread(cluster.processes[service].stop, how)
    assert status == (0 if how is signal.SIGTERM else -how)
    assert not any(task.done() for task in reading), "the streams only pause"
    cluster.restart(service)
    return list(await asyncio.gather(*reading))


def same_output(one: Choice, other: Choice) -> bool:
    return (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)


@pytest.mark.parametrize(
    ("service", "how"),
    [
        ("worker", signal.SIGKILL),
        ("kvmanager", signal.SIGKILL),
        ("scheduler", signal.SIGKILL),
        ("scheduler", signal.SIGTERM),
    ],
    ids=["worker", "kvmanager", "scheduler", "scheduler-told-to-end"],
)
async def test_a_killed_service_pauses_the_streams_and_changes_no_token(
    service: str, how: signal.Signals, client: Client, cluster: Cluster, undisturbed: list[Choice]
) -> None:
    joins = 0 if service == "scheduler" else cluster.status().groups[0].worker_joins
    given = await give_through(client, cluster, service, how)
    assert [number for number, pair in enumerate(zip(given, undisturbed, strict=True)) if not same_output(*pair)] == []
    assert all(len(choice.token_ids) == TOKENS for choice in given)
    assert [choice.logprobs for choice in given] == [choice.logprobs for choice in undisturbed]
    assert [choice.prompt_logprobs for choice in given] == [choice.prompt_logprobs for choice in undisturbed]
    assert cluster.status().groups[0].worker_joins > joins


async def test_a_request_that_comes_while_the_worker_is_away_waits_for_the_next_one(
    client: Client, cluster: Cluster
) -> None:
    cluster.processes["worker"].stop(signal.SIGKILL)
    wait_until(lambda: not cluster.status().groups[0].ready, "the loss is noticed")
    coming = asyncio.create_task(client.one(text_request("def main", ignore_eos=True)))
    await asyncio.to_thread(wait_until, lambda: cluster.status().groups[0].waiting == 1, "it is admitted")
    cluster.restart("worker")
    assert len((await coming).token_ids) == 16


async def test_a_client_that_goes_away_frees_its_job(client: Client, cluster: Cluster) -> None:
    room = POOL_TOKENS - 16
    stream = client.open(text_request("def main", max_tokens=room, ignore_eos=True))
    assert await stream.read() != grpc.aio.EOF
    before = cluster.status().counters
    stream.cancel()
    wait_until(cluster.is_idle, "every block free")
    after = cluster.status().counters
    assert after.jobs_finished == before.jobs_finished + 1
    assert after.generation_tokens < before.generation_tokens + room - 100


async def test_a_running_job_whose_deadline_passes_is_ended_and_freed(client: Client, cluster: Cluster) -> None:
    room = POOL_TOKENS - 16
    before = cluster.status().counters
    slow: dict[str, Any] = {"guide": GUIDE, "logprobs": 20}
    stream = client.open(text_request("def main", max_tokens=room, ignore_eos=True, **slow), timeout=3)
    assert await stream.read() != grpc.aio.EOF
    worker = cluster.processes["worker"].popen
    worker.send_signal(signal.SIGSTOP)  # before the job is done, however fast the machine
    try:
        assert await status_at_end(stream) is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        worker.send_signal(signal.SIGCONT)
    wait_until(cluster.is_idle, "every block free")
    after = cluster.status().counters
    assert after.jobs_finished == before.jobs_finished + 1
    assert after.generation_tokens < before.generation_tokens + room - 100


async def test_clients_that_go_while_their_jobs_wait_run_or_are_swapped_out_leave_nothing(
    client: Client, cluster: Cluster
) -> None:
    streams = [client.open(text_request("def " * 9, max_tokens=400, ignore_eos=True)) for _ in range(24)]
    readers = [asyncio.create_task(stream.read()) for stream in streams]
    await asyncio.to_thread(wait_until, lambda: cluster.status().groups[0].swapped_out > 0, "a swapped job")
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    wait_until(cluster.is_idle, "every block free")
