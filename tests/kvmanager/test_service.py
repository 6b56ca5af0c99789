"""The KV manager's shell over real gRPC on loopback, with a minimal scheduler and worker."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fastserve.v1 import kvmanager_pb2 as wire
from services.domain.errors import NotReadyError
from services.domain.ids import Epoch, JobId
from services.domain.protocol import Assign, Grown, Offload, Resident, Upload
from services.domain.server_status import PoolStatus, PoolUsage
from services.kvmanager.__main__ import main
from services.kvmanager.kv_manager_inbox import Inbound, SchedulerArrived, SchedulerLeft
from services.kvmanager.kv_streams import SchedulerStream
from services.kvmanager.metrics import PoolCollector
from services.kvmanager.service import register
from services.kvmanager.settings import KvManagerSettings
from services.runtime.server import RpcServer
from services.runtime.settings import load
from tests.builders.channels import patient_channel
from tests.builders.waits import LIMIT_S, until
from tests.kvmanager.fake_scheduler_for_kv_manager import FakeSchedulerForKvManager
from tests.kvmanager.machine.checked_kv_manager import reclaim, resident
from tests.kvmanager.running_kv_manager import running_kv_manager

START_LIMIT_S = 90.0


async def test_a_job_gets_blocks_is_swapped_out_for_another_and_comes_back() -> None:
    async with running_kv_manager() as served:
        scheduler = served.scheduler()
        await scheduler.jobs(5, "low")
        worker = await served.worker(5)
        assert isinstance(await worker.obey(), Assign)
        assert await scheduler.hear() == resident("low", 2)
        await scheduler.run(5, 0, "low", 0, 2)
        await worker.obey()
        await scheduler.arrive(5, "high", key=-1.0)
        await scheduler.hear()
        assert await scheduler.hear() == reclaim("low", "high")
        await scheduler.consent(5, "low")
        assert isinstance(await worker.obey(), Offload)
        assert isinstance(await worker.obey(), Assign)
        assert await scheduler.hear() == resident("high", 2)
        await scheduler.release(5, "high")
        while not isinstance(command := await worker.obey(), Upload):
            pass
        assert command.valid_tokens == 2
        assert await scheduler.hear() == resident("low", 3, valid=2)


async def test_figures_and_swaps_come_at_most_every_tenth_of_a_second() -> None:
    async with running_kv_manager() as served:
        scheduler = served.scheduler()
        await scheduler.jobs(5, "low")
        worker = await served.worker(5)
        assert await scheduler.hear_pools() == PoolStatus(2, 8, "reactive")
        began_s = asyncio.get_running_loop().time()
        await worker.obey()
        await scheduler.run(5, 0, "low", 0, 2)
        await worker.obey()
        await scheduler.arrive(5, "high", key=-1.0)
        while await scheduler.hear() != reclaim("low", "high"):
            pass
        await scheduler.consent(5, "low")
        await worker.obey()
        await worker.obey()
        told = [await scheduler.hear_pools()]
        while not told[-1].swapped_out_job_ids:
            told.append(await scheduler.hear_pools())
        assert told[-1].swapped_out_job_ids == (JobId("low"),)
        # On a busy machine the first may have been heard late; unlimited ones would come within milliseconds.
        assert asyncio.get_running_loop().time() - began_s >= 0.1 * len(told) * 0.5


async def test_a_worker_of_a_newer_epoch_supersedes_the_older_and_an_older_is_refused() -> None:
    async with running_kv_manager() as served:
        scheduler = served.scheduler()
        await scheduler.jobs(5, "a")
        first = await served.worker(5)
        await first.obey()
        assert await scheduler.hear() == resident("a", 2)
        second = await served.worker(6)
        assert await first.end() is grpc.StatusCode.ABORTED
        older = await served.worker(4)
        assert await older.end() is grpc.StatusCode.ABORTED
        same = await served.worker(6)
        assert await same.end() is grpc.StatusCode.ABORTED
        await scheduler.jobs(6, "a")
        await second.obey()
        assert await scheduler.hear() == resident("a", 2)


async def test_rule_40_the_next_scheduler_hears_first_which_epoch_was_the_greatest() -> None:
    async with running_kv_manager() as served:
        first = served.scheduler()
        await first.jobs(5, "a")
        worker = await served.worker(5)
        await worker.obey()
        await first.hear()
        assert first.newest_epoch == 0
        next_one = served.scheduler()
        assert await next_one.hear_newest_epoch() == 5
        await next_one.jobs(6, "a")
        await (await served.worker(6)).obey()
        await next_one.hear()
        assert next_one.newest_epoch == 5


async def test_a_newer_stream_of_the_scheduler_supersedes_the_older_and_ends_the_workers_life() -> None:
    async with running_kv_manager() as served:
        first = served.scheduler()
        await first.jobs(5, "a")
        worker = await served.worker(5)
        await worker.obey()
        assert await first.hear() == resident("a", 2)
        second = served.scheduler()
        await second.jobs(5, "a")
        assert await first.end() is grpc.StatusCode.ABORTED
        assert await worker.end() is grpc.StatusCode.UNAVAILABLE
        again = await served.worker(6)
        await second.jobs(6, "a")
        await again.obey()
        assert await second.hear() == resident("a", 2)


class FakeDriver:
    """In the driver's place: takes what the handlers of streams put into its inbox."""

    def __init__(self) -> None:
        self.items: list[Inbound] = []
        self.inbox = self
        self.newest_epoch = Epoch(0)

    def post(self, item: Inbound) -> None:
        self.items.append(item)

    async def put(self, item: Inbound) -> None:
        self.post(item)

    async def next(self) -> Inbound:
        """Waits for the next one."""
        await until(lambda: self.items)
        return self.items.pop(0)


async def test_a_peer_that_does_not_read_loses_its_stream_although_writing_to_it_is_stuck() -> None:
    heard = FakeDriver()
    server = RpcServer("127.0.0.1:0", (), lambda one: register(one, heard))  # type: ignore[arg-type]
    await server.start()
    try:
        async with patient_channel(server.address) as channel:
            scheduler = FakeSchedulerForKvManager(channel)
            arrived = await heard.next()
            assert isinstance(arrived, SchedulerArrived)
            batch = [Grown(JobId("x" * 100), number, 0) for number in range(40)]
            sent = 0
            while not arrived.stream.is_closed:
                for _ in range(1000):
                    arrived.stream.put((0, Epoch(1), batch))
                sent += 1000
                assert sent < 1_000_000
                await asyncio.sleep(0)
            left = await heard.next()
            assert isinstance(left, SchedulerLeft)
            assert left.stream is arrived.stream
            assert await scheduler.end() is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(0)


async def test_nothing_is_kept_for_a_peer_whose_stream_is_to_end() -> None:
    peer = SchedulerStream()
    peer.put((0, Epoch(1), []))
    peer.close(NotReadyError("enough", 1.0))
    peer.put((0, Epoch(1), []))
    assert await peer.take() == []


async def test_when_the_scheduler_hangs_up_the_worker_is_told_to_begin_anew() -> None:
    async with running_kv_manager() as served:
        scheduler = served.scheduler()
        await scheduler.jobs(5, "a")
        worker = await served.worker(5)
        await worker.obey()
        await scheduler.hear()
        scheduler.hang_up()
        assert await worker.end() is grpc.StatusCode.UNAVAILABLE


async def test_when_the_worker_hangs_up_all_that_its_pools_held_is_forgotten() -> None:
    async with running_kv_manager() as served:
        scheduler = served.scheduler()
        await scheduler.jobs(5, "a")
        worker = await served.worker(5)
        given = await worker.obey()
        await scheduler.hear()
        assert served.driver.pool_usages() == [(0, PoolUsage(4, 2, 8, 8))]
        worker.hang_up()
        await scheduler.jobs(6, "a")
        again = await served.worker(6)
        assert await again.obey() == given


@pytest.mark.parametrize(
    "changes",
    [{"device_block_count": 0}, {"block_size": 0}, {"group": 1024}, {"device_block_count": 2**32 - 1}],
    ids=str,
)
async def test_pools_that_can_not_be_used_are_refused(changes: dict[str, int]) -> None:
    async with running_kv_manager() as served:
        worker = await served.worker(5, **changes)
        assert await worker.end() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_stream_that_does_not_begin_with_a_hello_is_refused() -> None:
    async with running_kv_manager() as served:
        worker = await served.worker(0)
        assert await worker.end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_worker_that_breaks_the_protocol_loses_its_stream_and_the_next_epoch_is_served() -> None:
    async with running_kv_manager() as served:
        scheduler = served.scheduler()
        await scheduler.jobs(5, "a")
        worker = await served.worker(5)
        assert isinstance(await worker.take(), Assign)
        await worker.acknowledge(99)
        assert await worker.end() is grpc.StatusCode.INTERNAL
        await scheduler.jobs(6, "a")
        worker = await served.worker(6)
        await worker.obey()
        assert isinstance(await scheduler.hear(), Resident)


async def test_a_message_that_is_none_ends_the_stream() -> None:
    async with running_kv_manager() as served:
        worker = await served.worker(5)
        nonsense = wire.KvAcknowledgement(command_number=1)
        await worker.write(wire.KvManagerServiceWorkerLinkRequest(epoch=5, acknowledgements=[nonsense]))
        assert await worker.end() is grpc.StatusCode.INTERNAL


async def test_its_health_says_that_it_is_ready() -> None:
    async with running_kv_manager() as served:
        health: Any = health_pb2_grpc.HealthStub(served.channel)
        for name in ("", "liveness", "readiness", "fastserve.v1.KvManagerService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_share_of_the_pools_in_use_is_what_metrics_say() -> None:
    samples = {
        sample.name: sample
        for metric in PoolCollector("m", lambda: [(0, PoolUsage(8, 2, 10, 10))]).collect()
        for sample in metric.samples
    }
    assert samples["fastserve:kv_cache_usage_perc"].value == 0.75
    assert samples["fastserve:kv_offload_cpu_cache_usage_perc"].value == 0.0
    assert samples["fastserve:kv_cache_usage_perc"].labels == {"model_name": "m", "group": "0"}


def test_the_settings_make_the_knobs() -> None:
    argv = ["--kv-policy", "proactive", "--kv-idle-slots", "7", "--kv-burst-levels", "3", "--kv-lookahead-tokens", "8"]
    knobs = load(KvManagerSettings, "kvmanager", argv, {}).knobs
    assert (knobs.policy.name, knobs.burst_levels, knobs.lookahead_tokens) == ("proactive", 3, 8)


def test_a_policy_that_is_none_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kv-policy", "best"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "--kv-policy" in lines[0]


def test_the_process_serves_metrics_imports_no_torch_and_ends_on_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    program = (
        "import sys; from services.kvmanager.__main__ import main; code = main(sys.argv[1:]); "
        "sys.exit(3 if 'torch' in sys.modules else code)"
    )
    argv = [sys.executable, "-c", program, "--ready-file", str(ready), "--served-model-name", "m"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "ready kvmanager" in first
        addresses = json.loads(ready.read_text())
        with urlopen(f"http://{addresses['metrics']}/metrics", timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        assert 'fastserve:kv_cache_usage_perc{group="0",model_name="m"} 0.0' in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_LIMIT_S) == 0
