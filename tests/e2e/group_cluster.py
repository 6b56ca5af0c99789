"""A real FastServe whose worker is a group of ranks, each a process; and what its jobs must give."""

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastserve.v1 import inference_pb2 as api
from tests.builders.generate_requests import ids_request
from tests.builders.waits import wait_until
from tests.e2e.client import Choice, Client, client_of
from tests.e2e.cluster import Cluster, Process, free_port
from tests.worker.tiny_engine import alone, prompt_of, sampling

TOKENS = 40
POOL_TOKENS = 192
"""Three or four of the jobs fit."""
ROUND_LIMIT_S = 600.0
"""Of all jobs together, however often ranks die meanwhile."""


class GroupCluster(Cluster):
    """Rank 0 is the cluster's worker."""

    def __init__(self, model: Path, folder: Path, tp: int, pp: int) -> None:
        self.rank_count = tp * pp
        flags = (
            "--tp", str(tp), "--pp", str(pp), "--leader", f"127.0.0.1:{free_port()}", "--dtype", "float32",
            "--threads", "1", "--workers-here", str(self.rank_count), "--block-size", "4",
            "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "4096", "--state-dir", str(folder),
        )  # fmt: skip
        super().__init__(model, folder, flags)
        self.ranks: dict[int, Process] = {}

    def start_rank(self, rank: int) -> Process:
        """Starts a rank, or starts it again."""
        self.ranks[rank] = self.start_other_worker("--rank", str(rank))
        if rank == 0:
            self.processes["worker"] = self.ranks[0]
        return self.ranks[rank]

    def kill_rank(self, rank: int) -> None:
        """Ends a rank's process at once, and starts it again."""
        self.ranks[rank].stop(signal.SIGKILL)
        self.start_rank(rank)

    def is_group_ready(self) -> bool:
        return self.status().groups[0].ready


@contextmanager
def running_group(model: Path, folder: Path, tp: int, pp: int) -> Iterator[GroupCluster]:
    """All services, ready to serve; stopped at the end."""
    cluster = GroupCluster(model, folder, tp, pp)
    try:
        cluster.set_policies("skip-join-mlfq", "reactive", ("--block-size", "4"), ())
        for rank in range(cluster.rank_count):
            cluster.start_rank(rank)
        cluster.start_gateway()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


def prompts(count: int) -> list[tuple[int, ...]]:
    """Of 5 to 20 tokens."""
    return [prompt_of(number, 5 + number * 7 % 16) for number in range(count)]


def requests(count: int) -> list[api.GenerateRequest]:
    """Every third one is sampled, the others are greedy."""
    return [
        ids_request(prompt, max_tokens=TOKENS, ignore_eos=True, seed=number, temperature=temperature_of(number))
        for number, prompt in enumerate(prompts(count))
    ]


def temperature_of(number: int) -> float:
    return 0.8 if number % 3 == 2 else 0.0


def unsplit(count: int) -> list[list[int]]:
    """What one rank gives for each job by itself, in this process."""
    return [
        alone(prompt, sampling(TOKENS, seed=number, temperature=temperature_of(number)))
        for number, prompt in enumerate(prompts(count))
    ]


async def together(cluster: GroupCluster, count: int) -> list[Choice]:
    """All jobs at once."""

    async def read(client: Client, request: api.GenerateRequest) -> Choice:
        choice = Choice()
        async for message in client.open(request, timeout=ROUND_LIMIT_S):
            choice.add(message)
        return choice

    async with client_of(cluster.gateway_address) as client:
        return list(await asyncio.gather(*(read(client, request) for request in requests(count))))


async def one_by_one(cluster: GroupCluster, count: int) -> list[Choice]:
    """Each job alone."""
    async with client_of(cluster.gateway_address) as client:
        return [await client.one(request) for request in requests(count)]


def different(given: Sequence[Choice], expected: Sequence[Sequence[int]]) -> list[int]:
    """Numbers of the jobs whose tokens are not the expected ones."""
    pairs = enumerate(zip(given, expected, strict=True))
    return [number for number, (choice, tokens) in pairs if choice.token_ids != list(tokens)]


async def under_way(cluster: GroupCluster, count: int) -> "asyncio.Task[list[Choice]]":
    """All jobs at once, as soon as some have tokens."""
    before = cluster.status().counters.generation_tokens
    running = asyncio.create_task(together(cluster, count))
    await asyncio.to_thread(
        wait_until,
        lambda: running.done() or cluster.status().counters.generation_tokens >= before + count,
        "jobs are under way",
    )
    return running
