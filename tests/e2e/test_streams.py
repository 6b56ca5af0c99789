"""A thousand streams at a time through one gateway: none fails, each gets its own tokens in order."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from fastserve.v1 import inference_pb2 as api
from tests.builders.generate_requests import ids_request
from tests.builders.model_folders import tiny_model_folder
from tests.builders.waits import wait_until
from tests.e2e.client import Choice, Client, client_of
from tests.e2e.cluster import Cluster, running_cluster

pytestmark = pytest.mark.timeout(240)

STREAMS = 1000
MOST_TOKENS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    model = tiny_model_folder(tmp_path_factory.mktemp("model"))
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", "4096", "--max-batch", "64")
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(model, folder, worker_flags=flags, scheduler_flags=("--max-batch", "64")) as running:
        yield running


def request(number: int) -> api.GenerateRequest:
    """Of its own prompt and length."""
    prompt = [20 + number % 400, 20 + number // 400, 30]
    return ids_request(prompt, max_tokens=1 + number % MOST_TOKENS, ignore_eos=True, temperature=0.0)


def open_jobs(cluster: Cluster) -> int:
    group = cluster.status().groups[0]
    return group.running + group.waiting + group.swapped_out


async def test_a_thousand_streams_at_a_time_each_get_their_own_tokens_in_order(cluster: Cluster) -> None:
    async with client_of(cluster.gateway_address) as client:
        alone = await asyncio.gather(*(client.one(request(number)) for number in range(0, STREAMS, 100)))
        streams = await _all_open_at_once(client, cluster)
        given = await asyncio.gather(*streams)
    assert [len(choice.token_ids) for choice in given] == [1 + number % MOST_TOKENS for number in range(STREAMS)]
    assert {choice.finish_reason for choice in given} == {api.FINISH_REASON_LENGTH}
    assert [choice.token_ids for choice in given[::100]] == [choice.token_ids for choice in alone]
    wait_until(cluster.is_idle, "every block free")


async def _all_open_at_once(client: Client, cluster: Cluster) -> "list[asyncio.Task[Choice]]":
    """The worker stands still until all are there."""
    worker = cluster.processes["worker"].popen
    worker.send_signal(signal.SIGSTOP)
    try:
        streams = [asyncio.create_task(client.one(request(number))) for number in range(STREAMS)]
        await asyncio.to_thread(wait_until, lambda: open_jobs(cluster) == STREAMS, "all streams are open")
    finally:
        worker.send_signal(signal.SIGCONT)
    return streams
