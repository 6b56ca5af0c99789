"""A leader and its ranks over real connections, with threads and event loop as in their processes. The engines are
fakes.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ClassVar

import pytest

from services.domain.errors import FastServeError, PeerMismatchError, UnreachableError
from services.domain.ids import CommandNumber, Epoch, PlanNumber
from services.domain.iteration import WorkerResult
from services.domain.protocol import Applied, Done, PlansGivenBack
from services.domain.worker_facts import WorkerFacts
from services.runtime.settings import split_address
from services.worker.engine.compute_thread import ComputeThread
from services.worker.group.group_wire import hello_frame
from services.worker.group.led_group import LedGroup
from services.worker.group.messages import RankFacts, RankIdentity
from services.worker.group.rank_connection import LeaderConnection, ask_layers
from services.worker.group.rank_server import RankServer
from services.worker.group.rank_worker import RankWorker
from tests.builders.cost_profiles import flat_cost
from tests.builders.waits import LIMIT_S
from tests.worker.group.fake_engine_of_rank import FakeEngineOfRank
from tests.worker.group.group_values import EPOCH, assign, decode, offload, plan, prefill, token

LOADED = {"device_blocks": 8, "host_blocks": 16, "block_bytes": 100, "kernels": "native", "weights": "float32"}
OWN = RankFacts(0, 1, 2, "abc", "float32", 4, 64, (0, 1), model="tiny", **LOADED)  # type: ignore[arg-type]
OTHER = replace(OWN, rank=1, device_blocks=6, host_blocks=20, block_bytes=60)
NEXT = Epoch(EPOCH + 1)


class Heard:
    """What the driver hears."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[WorkerResult] = asyncio.Queue()
        self.answers: asyncio.Queue[Applied | Done] = asyncio.Queue()
        self.given_back: asyncio.Queue[PlansGivenBack] = asyncio.Queue()
        self.failures: asyncio.Queue[tuple[Epoch, Exception]] = asyncio.Queue()

    def results_ready(self, results: Sequence[WorkerResult]) -> None:
        for result in results:
            self.results.put_nowait(result)

    def answered(self, epoch: Epoch, answer: Applied | Done) -> None:
        self.answers.put_nowait(answer)

    def gave_back(self, given_back: PlansGivenBack) -> None:
        self.given_back.put_nowait(given_back)

    def failed(self, epoch: Epoch, error: Exception) -> None:
        self.failures.put_nowait((epoch, error))


class OtherRank:
    """The rank that is not the leader, on threads of its own. It dials until the test is over: later its leader's port
    may be another test's.
    """

    _dialling: ClassVar[list["OtherRank"]] = []

    def __init__(self, address: str, facts: RankFacts = OTHER) -> None:
        self._address: str | None = address
        self.engine = FakeEngineOfRank(samples=True)
        self.connection = LeaderConnection(
            self._leader, facts, lambda said: self.worker.hear(said), lambda: self.worker.lose_leader()
        )
        self.worker = worker_of(self.engine, self.connection.say, lambda error: None)
        self.refusal: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._dialling.append(self)

    def _leader(self) -> str:
        if self._address is None:
            raise PeerMismatchError("leader", "has ended with its test")
        return self._address

    def _run(self) -> None:
        try:
            self.connection.run()
        except FastServeError as error:
            self.refusal = error

    @classmethod
    def stop_dialling(cls) -> None:
        """No rank of the test dials again."""
        while cls._dialling:
            cls._dialling.pop()._address = None


@pytest.fixture(autouse=True)
def _no_rank_dials_after_its_test() -> Iterator[None]:
    yield
    OtherRank.stop_dialling()


def worker_of(engine: FakeEngineOfRank, say: Callable[..., None], on_fatal: Callable[[Exception], None]) -> RankWorker:
    return RankWorker(engine, engine.meet, ComputeThread().post, say, on_fatal)


class LedGroupRig:
    """A leader's group, and where it listens."""

    def __init__(self, silence_limit_s: float) -> None:
        self.engine = FakeEngineOfRank(samples=False)
        self.server = RankServer(OWN, OWN.first_layers, silence_limit_s)
        self.now_s = 0.0
        self.group = LedGroup(
            OWN,
            1.0,
            4000,
            self.server,
            lambda say, on_fatal: worker_of(self.engine, say, on_fatal),
            clock=lambda: self.now_s,
        )
        self.heard = Heard()
        self.group.attach(self.heard)
        self.address = ""

    async def formed(self, epoch: Epoch = EPOCH) -> OtherRank:
        """With another rank that joins."""
        other = OtherRank(self.address)
        async with asyncio.timeout(LIMIT_S):
            await self.group.begin_epoch(epoch)
        return other

    async def failure(self) -> tuple[Epoch, Exception]:
        async with asyncio.timeout(LIMIT_S):
            return await self.heard.failures.get()

    async def result(self) -> WorkerResult:
        async with asyncio.timeout(LIMIT_S):
            return await self.heard.results.get()

    async def answer(self) -> Applied | Done:
        async with asyncio.timeout(LIMIT_S):
            return await self.heard.answers.get()


@asynccontextmanager
async def rig_with(silence_limit_s: float = LIMIT_S) -> AsyncIterator[LedGroupRig]:
    rig = LedGroupRig(silence_limit_s)
    rig.address = await rig.server.start("127.0.0.1:0")
    yield rig
    OtherRank.stop_dialling()
    await rig.group.stop()


async def test_plans_run_on_all_ranks_and_tokens_go_from_the_last_stage_to_the_first() -> None:
    async with rig_with() as rig:
        other = await rig.formed()
        rig.group.take_command(assign(1))
        rig.group.take_plan(plan(1, prefill(2)))
        rig.group.take_plan(plan(2, decode(2)))
        assert await rig.answer() == Applied(CommandNumber(1))
        first, second = await rig.result(), await rig.result()
        assert (first.result.plan_number, second.result.plan_number) == (PlanNumber(1), PlanNumber(2))
        assert first.result.tokens == (token(7),)
        assert first.result.duration_s == 1.0
        assert second.counters.offloaded_bytes == 2 * 2 * 10
        assert rig.engine.steps == other.engine.steps
        assert [step.input_token_ids for step in other.engine.steps] == [{}, {"a/0": 7}]
        assert rig.engine.commands == other.engine.commands == [assign(1)]


async def test_waiting_for_a_plan_counts_while_jobs_are_unfinished_and_no_plan_is_at_hand() -> None:
    async with rig_with() as rig:
        other = await rig.formed()
        rig.now_s = 10.0  # no job is known yet
        rig.group.take_plan(plan(1, prefill(2)))
        assert (await rig.result()).counters.plan_wait_s == 0.0
        rig.now_s += 2.0
        rig.group.take_plan(plan(2, decode(2)))
        assert (await rig.result()).counters.plan_wait_s == 2.0
        other.engine.go_on.clear()
        rig.group.take_plan(plan(3, decode(3)))
        rig.group.take_plan(plan(4, decode(4)))  # is at hand, and waits for the token of the last stage
        rig.now_s += 4.0
        other.engine.go_on.set()
        assert [(await rig.result()).counters.plan_wait_s for _ in range(2)] == [2.0, 2.0]
        rig.now_s += 8.0  # the job has made its last token
        rig.group.take_plan(plan(5, prefill(2)))
        assert (await rig.result()).counters.plan_wait_s == 2.0


async def test_a_recalled_plan_that_waits_for_a_token_of_the_last_stage_is_given_back_and_not_run() -> None:
    async with rig_with() as rig:
        other = await rig.formed()
        other.engine.go_on.clear()
        for one in (plan(1, prefill(2)), plan(2, decode(2)), plan(3, decode(3))):
            rig.group.take_plan(one)
        rig.group.recall(PlanNumber(2))
        assert rig.heard.given_back.get_nowait() == (EPOCH, 2)
        rig.group.take_plan(plan(4, decode(2)))
        other.engine.go_on.set()
        assert [(await rig.result()).result.plan_number for _ in range(2)] == [1, 4]


async def test_a_copy_is_done_when_it_has_ended_on_every_rank() -> None:
    async with rig_with() as rig:
        other = await rig.formed()
        rig.group.take_command(offload(1))
        assert await rig.answer() == Applied(CommandNumber(1))
        rig.engine.end_copies()
        rig.group.take_plan(plan(1, prefill(2)))
        await rig.result()  # the other rank has heard of the command by now
        assert rig.heard.answers.empty()
        other.engine.end_copies()
        assert await rig.answer() == Done(CommandNumber(1))


async def test_the_pools_are_those_that_every_rank_has() -> None:
    async with rig_with() as rig:
        await rig.formed()
        facts = rig.group.narrowed(WorkerFacts(EPOCH, 0, "abc", 4, 8, 16, 64, 100, flat_cost(0.1), "cpu"))
        assert (facts.device_blocks, facts.host_blocks, facts.block_bytes) == (6, 16, 160)
        assert (facts.stage_count, facts.rank_count) == (2, 2)


@pytest.mark.parametrize("failing", [0, 1])
async def test_a_rank_that_loses_a_peer_ends_the_epoch_and_all_ranks_form_the_next_one(failing: int) -> None:
    async with rig_with() as rig:
        other = await rig.formed()
        (rig.engine, other.engine)[failing].fails = RuntimeError("connection closed by peer")
        rig.group.take_plan(plan(1, prefill(2)))
        epoch, error = await rig.failure()
        assert epoch == EPOCH
        assert f"rank {failing}: RuntimeError: connection closed by peer" in str(error)
        rig.group.end_epoch()
        await rig.group.begin_epoch(NEXT)
        rig.group.take_plan(plan(1, prefill(2), epoch=NEXT))
        assert (await rig.result()).result.epoch == NEXT
        assert [begin.epoch for begin in other.engine.met] == [EPOCH, NEXT]


async def test_a_rank_that_dies_ends_the_epoch_and_the_next_one_is_formed_with_its_successor() -> None:
    async with rig_with() as rig:
        reader, writer = await asyncio.open_connection(*split_address(rig.address))
        writer.write(hello_frame(OTHER))
        forming = asyncio.create_task(rig.group.begin_epoch(EPOCH))
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read(1)
        writer.transport.abort()
        with pytest.raises(UnreachableError, match="rank 1 was lost: its connection ended"):
            await forming
        rig.group.end_epoch()
        await rig.formed(NEXT)


async def test_a_rank_that_stands_still_is_lost_after_the_silence_limit() -> None:
    async with rig_with(0.2) as rig:
        _, writer = await asyncio.open_connection(*split_address(rig.address))
        writer.write(hello_frame(OTHER))
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(UnreachableError, match=r"rank 1 was lost: it has been silent for 0\.2 s"):
                await rig.group.begin_epoch(EPOCH)
        writer.close()


async def test_a_rank_whose_leader_stands_still_dials_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as still:
        still.settimeout(LIMIT_S)
        port = still.getsockname()[1]
        OtherRank(f"127.0.0.1:{port}")
        first, _ = await asyncio.to_thread(still.accept)
        await asyncio.to_thread(first.recv, 1)
        first.close()
        second, _ = await asyncio.to_thread(still.accept)
        second.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "bfloat16"}, "dtype: is 'bfloat16' on rank 1, but the leader has 'float32'"),
        ({"first_layers": (0, 2)}, "first_layers"),
        (
            {"model_fingerprint": "abd", "model": "small"},
            "model: is 'small' (fingerprint abd) on rank 1, but the leader has 'tiny' (fingerprint abc)",
        ),
        ({"kernels": "torch"}, "kernels: is 'torch' on rank 1, but the leader has 'native'"),
        ({"weights": "int8"}, "weights: is 'int8' on rank 1, but the leader has 'float32'"),
        ({"pp": 3}, "pp: is 3 on rank 1, but the leader has 2"),
        ({"rank": 2}, "rank: is 2"),
        ({"rank": 0}, "rank: is 0"),
        ({"device_blocks": 0}, "device_blocks: is 0 on rank 1"),
    ],
    ids=str,
)
async def test_a_rank_that_does_not_fit_is_refused_by_name_and_dials_no_more(
    changes: dict[str, object], reason: str
) -> None:
    async with rig_with() as rig:
        other = OtherRank(rig.address, replace(OTHER, **changes))  # type: ignore[arg-type]
        await asyncio.to_thread(other.thread.join, LIMIT_S)
        assert isinstance(other.refusal, PeerMismatchError)
        assert reason in str(other.refusal)


async def test_a_rank_that_asks_and_fits_is_told_the_layers_of_the_stages_before_any_is_taken() -> None:
    server = RankServer(OWN, (0, 3), LIMIT_S)
    address = await server.start("127.0.0.1:0")
    asking = RankIdentity(1, 1, 2, "abc", "float32", 4, model="a copy of tiny")
    assert await asyncio.to_thread(ask_layers, lambda: address, asking) == (0, 3)
    for stranger, reason in (
        (replace(asking, dtype="bfloat16"), "dtype: is 'bfloat16' on rank 1, but the leader has 'float32'"),
        (
            replace(asking, model_fingerprint="abd"),
            r"model: is 'a copy of tiny' \(fingerprint abd\) on rank 1, but the",
        ),
        (replace(asking, block_size=16), "block_size: is 16 on rank 1, but the leader has 4"),
    ):
        with pytest.raises(PeerMismatchError, match=reason):
            await asyncio.to_thread(ask_layers, lambda: address, stranger)
    await server.stop()


async def test_a_newer_connection_of_a_rank_takes_the_place_of_the_older_one() -> None:
    async with rig_with() as rig:
        await rig.formed()
        OtherRank(rig.address)
        _, error = await rig.failure()
        assert "it connected again" in str(error)
        rig.group.end_epoch()


async def test_a_command_that_can_not_be_right_ends_the_epoch() -> None:
    async with rig_with() as rig:
        rig.engine.refuses_commands = True
        await rig.formed()
        rig.group.take_command(assign(1))
        _, error = await rig.failure()
        assert "rank 0: a command that can't be right" in str(error)


async def test_an_error_after_which_the_process_is_of_no_use_is_passed_on_as_it_is() -> None:
    async with rig_with() as rig:
        await rig.formed()
        rig.engine.fails = KeyError("a bug")
        rig.group.take_plan(plan(1, prefill(2)))
        _, error = await rig.failure()
        assert isinstance(error, KeyError)
