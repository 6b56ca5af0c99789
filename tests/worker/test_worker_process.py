"""A worker as its own process, between a fake scheduler and a fake KV manager: loads, measures, joins, works, ends."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.domain.errors import PeerMismatchError
from services.domain.ids import BlockId, CommandNumber, JobId
from services.domain.iteration import JobSpec, PlanWork
from services.domain.protocol import Assign, BlockMove, Offload, Upload
from services.runtime.model_files import fingerprint
from tests.builders.model_folders import tiny_model_folder
from tests.builders.module_processes import running_module
from tests.e2e.cluster import free_port
from tests.worker.peers_of_worker import PeersOfWorker
from tests.worker.tiny_engine import alone, prompt_of, sampling
from tests.worker.worker_stream import LIMIT_S

pytestmark = pytest.mark.timeout(180)

JOB = JobId("a/0")
PROMPT = prompt_of(1, 10)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models"))


def worker_of(peers: PeersOfWorker, model: Path, folder: Path, *flags: str) -> AbstractAsyncContextManager[Process]:
    return running_module(
        "services.worker", "--model", str(model), "--scheduler", peers.scheduler_address,
        "--kv-manager", peers.kv_manager_address, "--dtype", "float32", "--threads", "1", "--block-size", "4",
        "--kv-device-tokens", "256", "--kv-host-tokens", "512", "--max-batch", "2", "--state-dir", str(folder),
        "--ready-file", str(folder / "ready.json"), *flags, stderr=PIPE,
    )  # fmt: skip


async def ended(process: Process) -> tuple[int | None, str]:
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    return process.returncode, errors.decode()


async def health_of(address: str, name: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(request, timeout=LIMIT_S)).status)


async def read_metrics(address: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(LIMIT_S):
        text = await reader.read()
    writer.close()
    return text.decode()


async def test_a_worker_serves_a_job_through_offload_and_upload(model: Path, tmp_path: Path) -> None:
    how = sampling(max_tokens=4, seed=3, temperature=1.0)
    async with PeersOfWorker() as peers, worker_of(peers, model, tmp_path) as process:
        scheduler, kv_manager = await peers.scheduler.next(), await peers.kv_manager.next()
        facts = scheduler.facts
        assert scheduler.epoch == kv_manager.facts.pools.epoch
        assert (facts.device_blocks, facts.host_blocks, facts.block_size, facts.max_model_len) == (64, 128, 4, 512)
        assert facts.model_fingerprint == fingerprint(model)
        assert facts.profile.prefill_s(500) >= facts.profile.smallest_iteration_s > 0
        assert len(list((tmp_path / "profiles").iterdir())) == 1  # kept for the next start

        blocks = tuple(BlockId(block) for block in (5, 9, 7, 2))
        kv_manager.send_commands(Assign(CommandNumber(1), JOB, blocks))
        assert await kv_manager.next_acknowledgements() == ["Applied 1"]
        scheduler.send_plan(1, PlanWork(JOB, 0, 10, PROMPT, JobSpec(10, 10, how), None))
        scheduler.send_plan(2, PlanWork(JOB, 10, 11, (), None, None))
        results = [await scheduler.next_result() for _ in range(2)]

        moves = tuple(BlockMove(index, blocks[index], BlockId(20 + index)) for index in range(3))
        kv_manager.send_commands(Offload(CommandNumber(2), JOB, moves, 11))
        seen: list[str] = []
        while "Done 2" not in seen:
            seen.extend(await kv_manager.next_acknowledgements())
        fresh = tuple(BlockId(block) for block in (11, 12, 13, 14))
        back = tuple(BlockMove(index, fresh[index], BlockId(20 + index)) for index in range(3))
        kv_manager.send_commands(Upload(CommandNumber(3), JOB, fresh, back, 11))
        assert (await kv_manager.next_acknowledgements())[0] == "Applied 3"
        scheduler.send_plan(3, PlanWork(JOB, 11, 12, (), None, None))
        scheduler.send_plan(4, PlanWork(JOB, 12, 13, (), None, None))
        results += [await scheduler.next_result() for _ in range(2)]
        assert [one.result.tokens[0].token_id for one in results] == alone(PROMPT, how)
        assert results[-1].counters.offloaded_bytes == 3 * facts.block_bytes
        assert results[-1].counters.busy_s > 0

        addresses = json.loads((tmp_path / "ready.json").read_text())
        serving = health_pb2.HealthCheckResponse.SERVING
        assert await health_of(addresses["grpc"], "liveness") == serving
        assert await health_of(addresses["grpc"], "readiness") == serving
        labels = f'{{group="0",model_name="{model.name}"}}'
        assert f"fastserve:worker_lives_total{labels} 1.0" in await read_metrics(addresses["metrics"])

        process.send_signal(signal.SIGTERM)
        status, errors = await ended(process)
        assert status == 0, errors


async def test_a_worker_that_is_refused_ends_with_one_line(model: Path, tmp_path: Path) -> None:
    async with PeersOfWorker() as peers:
        peers.scheduler.refusal = PeerMismatchError("model_fingerprint", "is another than the scheduler's")
        async with worker_of(peers, model, tmp_path, "--log-level", "error") as process:
            status, errors = await ended(process)
    assert status == 1
    assert errors == "fastserve worker: model_fingerprint: is another than the scheduler's\n"


async def test_the_first_rank_of_a_pod_starts_the_others_and_ends_with_them(model: Path, tmp_path: Path) -> None:
    flags = ("--tp", "2", "--pod-ranks", "--leader", f"127.0.0.1:{free_port()}", "--kernels", "torch")
    async with PeersOfWorker() as peers, worker_of(peers, model, tmp_path, *flags) as process:
        assert (await peers.scheduler.next()).facts.group == 0  # has joined, so the ranks have met
        (other,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(other), signal.SIGKILL)
        status, errors = await ended(process)
    assert status == 1
    assert errors.splitlines()[-1].endswith("rank 1 of this pod ended with status -9")
