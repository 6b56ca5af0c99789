"""A client that goes away, or whose deadline passes, frees its job's KV: through the real services, over gRPC and over
REST, while other jobs go on.

The services are observed (see observed). From the turn in which the scheduler learns of a job's end, until the turn in
which it gives back the job's KV, it takes the results of at most three plans: of iterations as short as these four are
planned, and the ones behind the next two are recalled (PROTOCOL 42); but the results of two travel together, and those
may be on their way. Until neither the KV manager nor the worker holds a block of it one more iteration may end, since
messages take time; where several jobs run on, an iteration of this model takes much longer than they do.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import grpc.aio
import httpx2
import pytest

from tests.builders.generate_requests import ids_request
from tests.builders.model_folders import tiny_model_folder
from tests.builders.waits import wait_until
from tests.e2e.client import LIMIT_S, Choice, Client, client_of
from tests.e2e.cluster import Cluster
from tests.e2e.group_cluster import EVERY_JOB_TAKES_TURNS
from tests.e2e.observed import NONE, lines_of
from tests.rest.running_front import running_front

pytestmark = pytest.mark.timeout(240)  # a start of all services

ITERATION_S = 0.025
"""As of 160 million parameters of float32 on one thread."""
POOL_TOKENS = 400
"""Three of the jobs below fit."""
PLANS_KEPT = 2
"""Those behind them are recalled."""
PROMPT_TOKENS = 40
TOKENS = 90
JOBS = 10
DEADLINES_S = {2: 1.0, 5: 1.7, 8: 2.4}
SERVICES = ("scheduler", "kvmanager", "worker")
STAYING = frozenset({0, 1})
BEGUN_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that the scheduler ended before its time. `plans`: how many ended before the scheduler gave its KV back;
    `iterations`: how many ended while it still held blocks.
    """

    job: str
    reason: str
    device_blocks: int
    host_blocks: int
    plans: int
    iterations: int


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    model = tiny_model_folder(tmp_path_factory.mktemp("model"))
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "4096")
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(model, folder, flags, observed=SERVICES)
    try:
        cluster.set_policies("skip-join-mlfq", "proactive", ("--max-batch", "4", *EVERY_JOB_TAKES_TURNS))
        paced = ("tests.e2e.paced_worker", str(ITERATION_S), str(cluster.trace_of("worker")))
        cluster.processes["worker"] = cluster.start_other_worker(module=paced)
        cluster.start_gateway()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


def held_at(lines: Sequence[dict[str, Any]], job: str, at_s: float) -> tuple[int, int]:
    """Blocks of the job in both pools at a moment."""
    told = [line["blocks"][job] for line in lines if job in line.get("blocks", ()) and line["at_s"] <= at_s]
    device, host = told[-1] if told else NONE
    return device, host


def free_from_s(lines: Sequence[dict[str, Any]], job: str) -> float:
    """The moment from which on no block is the job's."""
    told = [line for line in lines if job in line.get("blocks", ())]
    assert not told or sum(told[-1]["blocks"][job]) == 0, f"{job} holds blocks to the end"
    return float(told[-1]["at_s"]) if told else 0.0


def plans_before_release(lines: Sequence[dict[str, Any]], job: str, learnt_s: float) -> int:
    """Of the scheduler's trace: the iterations whose results it took from the job's end to its release."""
    turns = [line for line in lines if "released" in line and line["at_s"] >= learnt_s]
    released_s = next(line["at_s"] for line in turns if job in line["released"])
    return sum(line["iterations"] for line in turns if learnt_s < line["at_s"] <= released_s)


def ended_early(cluster: Cluster, since_s: float) -> list[Ended]:
    """All jobs that were cancelled or ran out of time since then."""
    ends, manager, worker = (lines_of(cluster.trace_of(name)) for name in ("scheduler", "kvmanager", "worker"))
    iterations_s = [line["at_s"] for line in worker if "plan" in line]
    found = []
    for line in ends:
        if line.get("reason") not in ("cancelled", "deadline") or line["at_s"] < since_s:
            continue
        job, learnt_s = line["job"], line["at_s"]
        free_s = max(free_from_s(manager, job), free_from_s(worker, job))
        iterations = sum(learnt_s < end_s <= free_s for end_s in iterations_s)
        plans = plans_before_release(ends, job, learnt_s)
        found.append(Ended(job, line["reason"], *held_at(manager, job, learnt_s), plans, iterations))
    return found


def assert_given_back_in_time(found: Sequence[Ended]) -> None:
    assert [one for one in found if one.plans > PLANS_KEPT + 1] == []
    assert any(one.device_blocks and one.plans for one in found), "some had to wait for plans under way"


class LeavingReader:
    """Reads one stream. Named ones can be found in the traces; those with a deadline leave it to the scheduler."""

    def __init__(self, client: Client, number: int) -> None:
        self.job = f"job-{number}/0"
        self.choice = Choice()
        deadline_s = DEADLINES_S.get(number)
        request = ids_request(range(20 + number, 20 + number + PROMPT_TOKENS), max_tokens=TOKENS, ignore_eos=True)
        if deadline_s is None:
            request.request_id = f"job-{number}"
        self.stream = client.open(request, timeout=deadline_s or LIMIT_S)
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.stream:
            self.choice.add(message)


async def go_away(cluster: Cluster, readers: dict[int, LeavingReader]) -> None:
    """The first two go as soon as their KV is in the host pool alone, the others while they run."""

    def runs(reader: LeavingReader) -> bool:
        return len(reader.choice.token_ids) >= BEGUN_TOKENS and blocks(reader)[0] > 0

    def is_swapped_out(reader: LeavingReader) -> bool:
        device, host = blocks(reader)
        return device == 0 and host > 0

    def blocks(reader: LeavingReader) -> tuple[int, int]:
        return held_at(lines_of(cluster.trace_of("kvmanager")), reader.job, float("inf"))

    left = list(readers.values())
    for condition in (is_swapped_out, is_swapped_out, *[runs] * (len(left) - 2)):
        found: list[LeavingReader] = []

        def one_is_found(condition: Any = condition, found: list[LeavingReader] = found) -> bool:
            found[:] = [reader for reader in left if condition(reader)]
            return bool(found)

        await asyncio.to_thread(wait_until, one_is_found, condition.__name__)
        found[0].stream.cancel()
        left.remove(found[0])


async def test_a_client_that_goes_or_is_out_of_time_frees_its_blocks_within_two_iterations(cluster: Cluster) -> None:
    began_s = time.monotonic()
    async with client_of(cluster.gateway_address) as client:
        readers = {number: LeavingReader(client, number) for number in range(JOBS)}
        going = {number: readers[number] for number in readers if number not in STAYING | DEADLINES_S.keys()}
        await go_away(cluster, going)
        ends = await asyncio.gather(*(reader.reading for reader in readers.values()), return_exceptions=True)
    assert [ends[number] for number in STAYING] == [None] * len(STAYING)
    assert all(len(readers[number].choice.token_ids) == TOKENS for number in STAYING)
    codes = [end.code() for end in (ends[number] for number in DEADLINES_S) if isinstance(end, grpc.aio.AioRpcError)]
    assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED] * len(DEADLINES_S)
    wait_until(cluster.is_idle, "every block free")

    found = ended_early(cluster, began_s)
    assert_given_back_in_time(found)
    # A service that the machine keeps waiting hears of an end late: most do not.
    assert median(one.iterations for one in found) <= PLANS_KEPT + 1, found
    assert len(found) == JOBS - len(STAYING)
    assert {one.reason for one in found} == {"cancelled", "deadline"}
    assert any(one.host_blocks and not one.device_blocks for one in found), "some were swapped out"


async def newcomer_that_runs(cluster: Cluster, known: set[str]) -> str:
    """The one job beside the known ones, once an iteration has ended since it got device blocks."""
    found: list[str] = []

    def runs() -> bool:
        lines = lines_of(cluster.trace_of("worker"))
        ended_s = max(line["at_s"] for line in lines if "plan" in line)
        for line in lines:
            found.extend(job for job in line.get("blocks", ()) if job not in known and line["at_s"] < ended_s)
        return bool(found)

    await asyncio.to_thread(wait_until, runs, "the job runs")
    return found[0]


async def come_and_go(cluster: Cluster, http: httpx2.AsyncClient, known: set[str], *, stream: bool) -> str:
    """A completion whose client closes its connection while the job runs. Returns the job."""
    prompt = list(range(20 + len(known), 20 + len(known) + PROMPT_TOKENS))
    body = {"prompt": prompt, "model": "tiny", "max_tokens": TOKENS, "ignore_eos": True, "stream": stream}
    if not stream:
        asking = asyncio.create_task(http.post("/v1/completions", json=body))
        job = await newcomer_that_runs(cluster, known)
        asking.cancel()
        await asyncio.wait([asking])
        return job
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert (await anext(response.aiter_lines())).startswith("data: {")
        return await newcomer_that_runs(cluster, known)


async def test_so_does_a_client_that_goes_over_rest_streaming_or_waiting_for_a_whole_answer(
    cluster: Cluster, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    async with (
        client_of(cluster.gateway_address) as client,
        running_front(cluster.gateway_address, tmp_path) as (_, address),
        httpx2.AsyncClient(base_url=f"http://{address}", timeout=LIMIT_S, trust_env=False) as http,
    ):
        staying = LeavingReader(client, JOBS)
        known = {job for line in lines_of(cluster.trace_of("kvmanager")) for job in line["blocks"]} | {staying.job}
        left: list[str] = []
        for stream in (True, False, True, False):
            left.append(await come_and_go(cluster, http, known | {*left}, stream=stream))
        await staying.reading
    assert len(staying.choice.token_ids) == TOKENS
    wait_until(cluster.is_idle, "every block free")

    found = ended_early(cluster, began_s)
    assert_given_back_in_time(found)
    assert [(one.job, one.reason) for one in found] == [(job, "cancelled") for job in left]
