"""The scheduler as a process: its flags, its readiness, its memory, its end."""

import asyncio
import json
import re
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc
from services.domain.ids import Epoch, JobId
from services.domain.protocol import ArrivedJob, Jobs, OrderChange, Rank
from services.runtime.channel import MOST_MESSAGE_BYTES
from services.runtime.model_files import fingerprint, read_facts
from services.scheduler.__main__ import main
from services.scheduler.scheduler_config import Charge, LengthPredictor, PolicyName
from services.scheduler.settings import MOST_QUEUED_JOBS, SchedulerSettings
from services.wire.scheduler_kvmanager import scheduler_batch_to_wire
from tests.builders.channels import patient_channel
from tests.builders.module_processes import running_module
from tests.builders.repository_paths import BUNDLED
from tests.builders.waits import until
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.fake_kv_manager_for_scheduler import kv_manager
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler

LIMIT_S = 60.0
QUEUED_JOBS = 10_000
PROMPT_TOKENS = 512


@asynccontextmanager
async def process(folder: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """A running scheduler process, and its addresses."""
    ready_file = folder / "ready.json"
    argv = ["--model", str(BUNDLED), "--listen", "127.0.0.1:0", "--ready-file", str(ready_file), *flags]
    async with running_module("services.scheduler", *argv) as running:
        await until(lambda: ready_file.exists() or running.returncode is not None, LIMIT_S)
        assert running.returncode is None
        yield running, json.loads(ready_file.read_text())


def resident_mb(pid: int) -> float:
    """The resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) / 1024


async def admitted(admin: Any) -> int:
    """The number of admitted jobs."""
    status: admin_pb2.Status = (await admin.GetStatus(admin_pb2.GetStatusRequest())).status
    return status.counters.jobs_admitted


async def test_ten_thousand_queued_jobs_fit_in_200_mb_and_torch_is_not_loaded(tmp_path: Path) -> None:
    async with (
        kv_manager() as (_, kv_address),
        process(tmp_path, "--kv-manager", kv_address, "--drain-limit", "0") as (running, addresses),
        patient_channel(addresses["grpc"]) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        links = health_pb2.HealthCheckRequest(service="links")
        assert (await health.Check(links)).status == health_pb2.HealthCheckResponse.SERVING
        readiness = health_pb2.HealthCheckRequest(service="readiness")
        assert (await health.Check(readiness)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        context = read_facts(BUNDLED).max_model_len
        worker = FakeWorkerForScheduler(channel, model_fingerprint=fingerprint(BUNDLED), max_model_len=context)
        await worker.join()
        watch = health.Watch(readiness)
        async with asyncio.timeout(LIMIT_S):
            while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
                pass
        gateway = FakeGatewayForScheduler(channel, fingerprint=fingerprint(BUNDLED))
        await gateway.join()
        prompt = [number % 1000 for number in range(PROMPT_TOKENS)]
        for number in range(QUEUED_JOBS):
            await gateway.submit(f"request-{number}/0", prompt, output=128)
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        async with asyncio.timeout(LIMIT_S):
            while await admitted(admin) < QUEUED_JOBS:  # noqa: ASYNC110 (another process counts)
                await asyncio.sleep(0.05)
        for _ in range(5):
            await worker.step()
        assert resident_mb(running.pid) < 200
        assert "libtorch" not in Path(f"/proc/{running.pid}/maps").read_text()
        url = f"http://{addresses['metrics']}/metrics"
        running_jobs = None
        async with asyncio.timeout(LIMIT_S):
            while running_jobs is None:  # a scrape leaves out what is not told within a second
                scraped = (
                    await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=LIMIT_S).read())
                ).decode()
                running_jobs = re.search(
                    r'fastserve:num_requests_running{group="0",model_name="fastserve-bundled"} (\d+)', scraped
                )
        # A batch is 16 jobs, but prefills fill it step by step, and each of two plans under way may lend to others.
        assert 8 <= int(running_jobs[1]) <= 32
        for name in ("num_requests_waiting", "num_preemptions_total", "iteration_tokens_bucket"):
            assert f"fastserve:{name}{{" in scraped
        by_state: dict[str, float] = {}
        for state, jobs in re.findall(r'fastserve:jobs\{[^}]*state="(\w+)"\} (\S+)', scraped):
            by_state[state] = by_state.get(state, 0) + float(jobs)
        assert by_state["running"] == int(running_jobs[1])
        assert sum(by_state.values()) == QUEUED_JOBS
        # Exported by the worker and the KV manager: a sum over services would count them twice.
        assert not re.search("fastserve:(worker_|kv_cache|kv_offload_cpu)", scraped)
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            assert await running.wait() == 0


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--max-batch", "0"], "--max-batch"),
        (["--policy", "best"], "--policy"),
        (["--max-batch", "64", "--max-batch-tokens", "32"], "--max-batch-tokens"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--starvation-limit", "-1"], "--starvation-limit"),
        (["--max-queued-jobs", str(MOST_QUEUED_JOBS + 1)], "--max-queued-jobs"),
    ],
)
def test_bad_settings_end_the_start_with_one_line(
    flags: Sequence[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--kv-manager", "127.0.0.1:1", *([] if "--model" in flags else ["--model", str(BUNDLED)]), *flags]
    assert main(argv) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert word in lines[0]


def test_as_many_jobs_as_may_be_queued_fit_in_one_message_to_the_kv_manager() -> None:
    counted = 1000
    ids = [JobId(f"{number:0128d}/15") for number in range(counted)]
    jobs = tuple(ArrivedJob(job_id, 1 << 20, 1 << 20, 1 << 40) for job_id in ids)
    order = tuple(OrderChange(job_id, Rank(30, 1e6 / 7, 1 << 40)) for job_id in ids)
    epoch = Epoch(time.time_ns())
    size_bytes = scheduler_batch_to_wire(0, epoch, [Jobs(epoch, jobs, order, 4096, (0.1,) * 30, 10.0)]).ByteSize()
    assert size_bytes / counted * MOST_QUEUED_JOBS < MOST_MESSAGE_BYTES


async def test_a_scheduler_that_is_about_to_end_is_not_ready_again_for_a_worker_that_comes(tmp_path: Path) -> None:
    async with (
        kv_manager() as (_, kv_address),
        process(tmp_path, "--kv-manager", kv_address, "--drain-limit", "30") as (running, addresses),
        patient_channel(addresses["grpc"]) as channel,
    ):
        facts: dict[str, Any] = {
            "model_fingerprint": fingerprint(BUNDLED),
            "max_model_len": read_facts(BUNDLED).max_model_len,
        }
        worker = FakeWorkerForScheduler(channel, **facts)
        await worker.join()
        gateway = FakeGatewayForScheduler(channel, fingerprint=fingerprint(BUNDLED))
        await gateway.join()
        await gateway.until_ready()
        await gateway.submit("a", output=8)
        await worker.step()
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
                pass
        worker.call.cancel()
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        async with asyncio.timeout(LIMIT_S):
            while (await admin.GetStatus(admin_pb2.GetStatusRequest())).status.groups[0].ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        second = FakeWorkerForScheduler(channel, **facts)
        await second.join()
        await second.step()
        answer = await health.Check(health_pb2.HealthCheckRequest(service="readiness"))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        serving = asyncio.create_task(second.serve())
        await gateway.until_ended("a")
        async with asyncio.timeout(LIMIT_S):
            assert await running.wait() == 0
        await asyncio.gather(serving, return_exceptions=True)


def test_settings_become_the_policys_configuration() -> None:
    settings = SchedulerSettings.model_validate(
        {
            "kv_manager": "127.0.0.1:1",
            "model": BUNDLED,
            "policy": "srpt",
            "max_batch": 8,
            "prefill_chunk": 64,
            "starvation_limit": None,
            "charge": "marginal",
            "length_predictor": "online",
        }
    )
    config = settings.config
    assert (config.policy, config.max_batch, config.prefill_chunk_tokens) == (PolicyName.SRPT, 8, 64)
    assert (config.starvation_limit_s, config.charge, config.plans_in_flight) == (None, Charge.MARGINAL, None)
    assert config.length_predictor is LengthPredictor.ONLINE
    assert not config.chooses_batch


@pytest.mark.parametrize(("most_tokens", "at_first"), [(2048, 16), (12, 12)])
def test_without_a_batch_each_workers_profile_will_choose_it(most_tokens: int, at_first: int) -> None:
    fields = {"kv_manager": "127.0.0.1:1", "model": BUNDLED, "max_batch_tokens": most_tokens}
    config = SchedulerSettings.model_validate(fields).config
    assert (config.chooses_batch, config.max_batch) == (True, at_first)
