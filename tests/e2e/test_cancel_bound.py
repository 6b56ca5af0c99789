"""A client that goes away, or whose deadline passes, frees its job's KV everywhere within plans in flight + 1
iterations: through the real services, while other jobs go on.

The services are observed (see observed): the iterations that end between the turn in which the scheduler learns of a
job's end and the moment from which neither the KV manager nor the worker holds a block of it are counted exactly. The
model is so slow that an iteration takes much longer than the messages.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest

from models.make_random import RandomModel, write_random_model
from tests.builders.generate_requests import ids_request
from tests.builders.waits import wait_until
from tests.e2e.client import LIMIT_S, Choice, Client, client_of
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.observed import NONE, lines_of

pytestmark = pytest.mark.timeout(240)  # a start of all services

SLOW = RandomModel(1024, 12, 16, 4, intermediate=3584, vocabulary=512, context=192)
"""160 million parameters: some 25 ms an iteration of float32 on one thread."""
POOL_TOKENS = 400
"""Three of the jobs below fit."""
PLANS_IN_FLIGHT = 3
PROMPT_TOKENS = 40
TOKENS = 90
JOBS = 10
DEADLINES_S = {2: 1.0, 5: 1.7, 8: 2.4}
SERVICES = ("scheduler", "kvmanager", "worker")
STAYING = frozenset({0, 1})
BEGUN_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that the scheduler ended before its time. `iterations`: how many ended while it still held blocks."""

    job: str
    reason: str
    device_blocks: int
    host_blocks: int
    iterations: int


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    model = tmp_path_factory.mktemp("model") / "slow"
    write_random_model(SLOW, model)
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "4096")
    plans = ("--plans-in-flight", str(PLANS_IN_FLIGHT), "--max-batch", "4")
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(model, folder, worker_flags=flags, scheduler_flags=plans, observed=SERVICES) as running:
        yield running


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


def ended_early(cluster: Cluster) -> list[Ended]:
    """All jobs that were cancelled or ran out of time."""
    ends, manager, worker = (lines_of(cluster.trace_of(name)) for name in ("scheduler", "kvmanager", "worker"))
    iterations_s = [line["at_s"] for line in worker if "plan" in line]
    found = []
    for line in ends:
        if line["reason"] not in ("cancelled", "deadline"):
            continue
        job, learnt_s = line["job"], line["at_s"]
        free_s = max(free_from_s(manager, job), free_from_s(worker, job))
        iterations = sum(learnt_s < end_s <= free_s for end_s in iterations_s)
        found.append(Ended(job, line["reason"], *held_at(manager, job, learnt_s), iterations))
    return found


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


async def test_a_client_that_goes_or_is_out_of_time_frees_its_blocks_within_plans_in_flight_plus_one_iterations(
    cluster: Cluster,
) -> None:
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

    found = ended_early(cluster)
    assert [one for one in found if one.iterations > PLANS_IN_FLIGHT + 1] == []
    assert len(found) == JOBS - len(STAYING)
    assert {one.reason for one in found} == {"cancelled", "deadline"}
    assert any(one.device_blocks and one.iterations for one in found), "some had to wait for plans under way"
    assert any(one.host_blocks and not one.device_blocks for one in found), "some were swapped out"
