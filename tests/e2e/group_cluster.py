"""A real FastServe whose worker is a group of ranks, each a process; and what its jobs must give."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from fastserve.v1 import inference_pb2 as api
from services.domain.guide import Guide, GuideKind
from services.wire.shared_fields import guide_to_wire
from tests.builders.generate_requests import ids_request
from tests.builders.waits import wait_until
from tests.e2e.client import Choice, Client, client_of
from tests.e2e.cluster import Cluster, Process, free_port
from tests.e2e.observed import lines_of
from tests.worker.tiny_engine import alone, prompt_of, sampling

TOKENS = 40
POOL_TOKENS = 192
"""Three or four of the jobs fit."""
ROUND_LIMIT_S = 600.0
"""Of all jobs together, however often ranks die meanwhile."""
EVERY_JOB_TAKES_TURNS = ("--starvation-limit", "0.3")
LEAST_SWAPS = 2
"""Of each job, in a run."""
MOST_RUNS = 5
"""How often a job is swapped depends on when the others come: in one run it may be too seldom. In some run each must be
swapped often enough, and each run must give the same tokens.
"""


class StartedBy(Enum):
    """How the ranks learn which ones they are, and where their leader is."""

    FLAGS = "flags"
    TORCHRUN = "torchrun"
    LEADER_WORKER_SET = "variables of a LeaderWorkerSet"


class GroupCluster(Cluster):
    """Rank 0 is the cluster's worker, or torchrun is, which starts all ranks."""

    def __init__(self, model: Path, folder: Path, tp: int, pp: int, started_by: StartedBy) -> None:
        self.rank_count = tp * pp
        self.started_by = started_by
        flags = (
            "--tp", str(tp), "--pp", str(pp), "--dtype", "float32", "--threads", "1",
            "--workers-here", str(self.rank_count), "--block-size", "4",
            "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "4096", "--state-dir", str(folder),
            "--max-model-len", "64", "--max-batch", "4",
        )  # fmt: skip
        super().__init__(model, folder, flags)
        self.ranks: dict[int, Process] = {}
        self._leader_port = free_port()
        # The port of a leader in a LeaderWorkerSet is always the same, so each has an address of its own.
        self._leader_pod = f"127.{os.getpid() // 250 % 250}.{os.getpid() % 250}.{free_port() % 250 + 2}"
        self._observed_worker = ("tests.e2e.observed", "worker", str(self.trace_of("worker")))

    def start_ranks(self) -> None:
        """Starts all ranks."""
        if self.started_by is StartedBy.TORCHRUN:
            self.processes["worker"] = self.start_other_worker(module=self._torchrun())
            return
        for rank in range(self.rank_count):
            self.start_rank(rank)

    def _torchrun(self) -> tuple[str, ...]:
        at = ("--master-addr", "127.0.0.1", "--master-port", str(self._leader_port))
        ranks = ("--nnodes", "1", "--nproc-per-node", str(self.rank_count))
        return ("torch.distributed.run", *at, *ranks, "-m", *self._observed_worker)

    def new_rank(self, rank: int, *flags: str) -> Process:
        """A process that takes itself for this rank."""
        module = self._observed_worker if rank == 0 else ()
        if self.started_by is StartedBy.FLAGS:
            placed = ("--rank", str(rank), "--leader", f"127.0.0.1:{self._leader_port}")
            return self.start_other_worker(*placed, *flags, module=module)
        variables = {
            "LWS_LEADER_ADDRESS": self._leader_pod,
            "LWS_WORKER_INDEX": str(rank),
            "LWS_GROUP_SIZE": str(self.rank_count),
        }
        return self.start_other_worker(*flags, module=module, variables=variables)

    def start_rank(self, rank: int) -> Process:
        """Starts a rank, or starts it again."""
        self.ranks[rank] = self.new_rank(rank)
        if rank == 0:
            self.processes["worker"] = self.ranks[0]
        return self.ranks[rank]

    def kill_rank(self, rank: int) -> None:
        """Ends a rank's process at once, and starts it again."""
        self.ranks[rank].stop(signal.SIGKILL)
        self.start_rank(rank)


@contextmanager
def running_group(
    model: Path, folder: Path, tp: int, pp: int, started_by: StartedBy = StartedBy.FLAGS
) -> Iterator[GroupCluster]:
    """All services, ready to serve; stopped at the end."""
    cluster = GroupCluster(model, folder, tp, pp, started_by)
    try:
        cluster.set_policies("skip-join-mlfq", "reactive", ("--block-size", "4", *EVERY_JOB_TAKES_TURNS), ())
        cluster.start_ranks()
        cluster.start_gateway()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


def prompts(count: int) -> list[tuple[int, ...]]:
    """Of 5 to 20 tokens."""
    return [prompt_of(number, 5 + number * 7 % 16) for number in range(count)]


def requests(count: int) -> list[api.GenerateRequest]:
    """Every third one is sampled, the others are greedy; every fourth one has a guide."""
    return [
        ids_request(
            prompt,
            max_tokens=TOKENS,
            ignore_eos=True,
            seed=number,
            temperature=temperature_of(number),
            guide=None if (guide := guide_of(number)) is None else guide_to_wire(guide),
        )
        for number, prompt in enumerate(prompts(count))
    ]


def temperature_of(number: int) -> float:
    return 0.8 if number % 3 == 2 else 0.0


def guide_of(number: int) -> Guide | None:
    """Words enough for more tokens than any job makes."""
    return Guide(GuideKind.REGEX, "([a-z]+ ){60,}") if number % 4 == 1 else None


def unsplit(count: int) -> list[list[int]]:
    """What one rank gives for each job by itself, in this process."""
    return [
        alone(prompt, sampling(TOKENS, seed=number, temperature=temperature_of(number), guide=guide_of(number)))
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


async def swapped_together(cluster: GroupCluster, expected: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """All jobs at once, and again until each was swapped often enough in some run. Returns the numbers of the jobs that
    gave other tokens in any run, and how often each was swapped in its best one.
    """
    wrong: set[int] = set()
    most = [0] * len(expected)
    for _ in range(MOST_RUNS):
        seen = len(lines_of(cluster.trace_of("worker")))
        choices = await together(cluster, len(expected))
        wrong.update(different(choices, expected))
        lines = lines_of(cluster.trace_of("worker"))[seen:]
        swaps = Counter(job for line in lines for job in line.get("offloaded", ()))
        most = [max(before, swaps[f"{one.request_id}/0"]) for before, one in zip(most, choices, strict=True)]
        if min(most) >= LEAST_SWAPS:
            break
    return sorted(wrong), most


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
