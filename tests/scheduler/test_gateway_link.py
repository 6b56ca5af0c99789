"""The scheduler's side of its gateways over real gRPC on loopback: jobs in, tokens out, joins, resumes, cancels."""

import asyncio

import grpc
import pytest

from services.domain.errors import (
    AdmissionFullError,
    DeadlineError,
    DuplicateRequestError,
    InvalidFieldError,
    NotReadyError,
    PeerMismatchError,
)
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.protocol import Finished, Release
from services.domain.submission import ServingLimits
from services.runtime.error_statuses import from_grpc
from services.scheduler.scheduler_config import SchedulerConfig
from tests.builders.stream_ends import error_at_end
from tests.builders.waits import LIMIT_S, until
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler, steps, tokens_of
from tests.scheduler.running_scheduler import running_scheduler, scheduler_with_peers


async def test_a_gateway_with_another_model_is_refused() -> None:
    async with running_scheduler() as served:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await FakeGatewayForScheduler(served.channel, fingerprint="other").join()
        failure = from_grpc(error.value)
        assert isinstance(failure, PeerMismatchError)
        assert failure.field == "model_fingerprint"


async def test_before_a_worker_joined_the_models_context_is_the_limit_and_afterwards_the_pool_too() -> None:
    async with running_scheduler() as served:
        gateway = FakeGatewayForScheduler(served.channel)
        await gateway.join()
        assert gateway.limits[-1] == ServingLimits(True, 2048, 2048)
        await FakeWorkerForScheduler(served.channel, device_blocks=10).join()
        while gateway.limits[-1].device_pool_tokens == 2048:
            await gateway.read()
        assert gateway.limits[-1] == ServingLimits(True, 2048, 160)


async def test_refusals_reach_the_gateway_as_typed_errors_and_the_id_is_free_again() -> None:
    async with scheduler_with_peers(SchedulerConfig(max_queued_jobs=1)) as (_, worker, gateway):
        await gateway.submit("a", output=4000)
        await gateway.until_ended("a")
        error = gateway.last["a"].error
        assert isinstance(error, InvalidFieldError)
        assert error.field == "sampling.max_tokens"
        await gateway.submit("bad", prompt=[60_000])
        await gateway.until_ended("bad")
        assert isinstance(gateway.last["bad"].error, InvalidFieldError)
        await gateway.submit("a", output=2)
        await gateway.submit("b", output=2)
        await gateway.until_ended("b")
        full = gateway.last["b"].error
        assert isinstance(full, AdmissionFullError)
        assert full.retry_after_s > 0
        await steps(worker, 2)
        await gateway.until_ended("a")
        assert gateway.outputs["a"] == tokens_of("a", 2)


async def test_the_same_id_and_body_joins_the_job_and_another_body_is_refused() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=4)
        await steps(worker, 1)
        other = FakeGatewayForScheduler(served.channel, "g2")
        await other.join()
        await other.submit("a", output=4, body=b"another")
        await other.until_ended("a")
        assert isinstance(other.last["a"].error, DuplicateRequestError)
        await other.submit("a", output=4)
        await steps(worker, 3)
        await gateway.until_ended("a")
        await other.until_ended("a")
        assert gateway.outputs["a"] == other.outputs["a"] == tokens_of("a", 4)
        assert (gateway.last["a"].is_joined, other.last["a"].is_joined) == (False, True)
        assert served.driver.status().counters.jobs_admitted == 1


async def test_a_job_that_ended_is_replayed_from_the_token_asked_for() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=4)
        await steps(worker, 4)
        await gateway.until_ended("a")
        other = FakeGatewayForScheduler(served.channel, "g2")
        await other.join()
        await other.submit("a", output=4, resume=2)
        await other.until_ended("a")
        assert other.first_numbers["a"] == 2
        assert other.outputs["a"] == tokens_of("a", 2, first=2)
        assert other.last["a"].finish is EndReason.LENGTH
        assert other.last["a"].is_joined


async def test_a_lost_gateways_jobs_go_on_and_the_next_one_resumes_them() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=6)
        await steps(worker, 2)
        while len(gateway.outputs.get("a", [])) < 2:
            await gateway.read()
        gateway.call.cancel()
        await steps(worker, 2)
        other = FakeGatewayForScheduler(served.channel, "g2")
        await other.join()
        await other.submit("a", output=6, resume=2)
        await steps(worker, 2)
        await other.until_ended("a")
        assert other.outputs["a"] == tokens_of("a", 4, first=2)


async def test_a_cancelled_job_frees_its_kv_and_its_id_can_be_used_again() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=50)
        await worker.step()
        await gateway.cancel("a")
        await gateway.until_ended("a")
        assert gateway.finish_of("a") is EndReason.ABORT
        gateway.outputs.clear()
        await gateway.submit("a", output=2)  # while a plan still names the cancelled one
        serve = asyncio.create_task(worker.serve())
        await gateway.until_ended("a")
        serve.cancel()
        assert served.kv.kv.released[0] == "a"
        assert gateway.finish_of("a") is EndReason.LENGTH
        assert gateway.outputs["a"] == tokens_of("a", 2)


async def test_a_stop_string_found_by_the_gateway_ends_the_job_as_stopped() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=50)
        await worker.step()
        await gateway.cancel("a", EndReason.STOP)
        await gateway.until_ended("a")
        assert gateway.last["a"].finish is EndReason.STOP
        assert gateway.last["a"].timings is not None
        assert served.driver.status().counters.jobs_finished == 1


async def test_one_of_two_gateways_that_leaves_a_job_does_not_end_it() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        other = FakeGatewayForScheduler(served.channel, "g2")
        await other.join()
        await gateway.submit("a", output=3)
        await worker.step()
        await other.submit("a", output=3)
        await other.read()
        await other.cancel("a")
        await other.until_ended("a")
        assert other.last["a"].finish is EndReason.ABORT
        await steps(worker, 2)
        await gateway.until_ended("a")
        assert gateway.outputs["a"] == tokens_of("a", 3)


async def test_a_deadline_ends_the_job_by_the_clock_alone() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=50, deadline_in_s=0.05)
        await gateway.until_ended("a")
        assert isinstance(gateway.last["a"].error, DeadlineError)
        await steps(worker, 2)
        await until(lambda: served.kv.kv.released == ["a"])


async def test_draining_refuses_new_jobs_and_leaves_those_that_do_not_end_to_the_next_scheduler() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=50)
        await worker.step()
        drain = asyncio.create_task(served.driver.drain(1.0))
        await asyncio.sleep(0)
        await gateway.submit("b")
        await gateway.until_ended("b")
        assert isinstance(gateway.last["b"].error, NotReadyError)
        await drain
        assert isinstance(await error_at_end(gateway.call), NotReadyError)
        assert "a" not in gateway.last
        # Who dials again before the process has ended is sent to the next one.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await FakeGatewayForScheduler(served.channel).join()
        assert isinstance(from_grpc(caught.value), NotReadyError)


async def test_draining_does_not_wait_for_jobs_that_no_gateway_follows() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=50)
        await worker.step()
        other = FakeGatewayForScheduler(served.channel, "g2")
        await other.join()
        await other.submit("b", output=50)
        await until(lambda: served.driver.status().counters.jobs_admitted == 2)
        await worker.step()
        drain = asyncio.create_task(served.driver.drain(20 * LIMIT_S))
        gateway.call.cancel()
        await worker.step()
        assert not drain.done()
        other.call.cancel()
        await asyncio.wait_for(drain, LIMIT_S)


async def test_release_is_told_to_the_kv_manager_only_after_the_last_plan_of_a_cancelled_job() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=50)
        await worker.step()
        await gateway.cancel("a")
        await gateway.until_ended("a")
        assert not any(isinstance(message, Release) for message in served.kv.heard)
        serve = asyncio.create_task(worker.serve())
        await until(lambda: Release(JobId("a")) in served.kv.heard)
        serve.cancel()
        assert isinstance(served.kv.heard[-2], Finished)
