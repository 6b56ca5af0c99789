"""The scheduler's shell over real gRPC on loopback: its workers, its KV manager, its status."""

import asyncio
from array import array

import grpc
import pytest

from fastserve.v1 import admin_pb2
from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import (
    InvalidFieldError,
    NotReadyError,
    PeerMismatchError,
    SupersededError,
)
from services.domain.generation import EndReason
from services.domain.guide import Guide, GuideKind
from services.domain.ids import Epoch, JobId
from services.domain.protocol import Jobs
from services.domain.server_status import NO_POOLS, PoolStatus
from services.domain.submission import ServingLimits
from services.runtime.error_statuses import from_grpc
from services.scheduler import driver as driver_module
from services.scheduler import job_store as books
from services.scheduler.driver import SchedulerDriver
from services.scheduler.outgoing_streams import GatewayStream, WorkerStream
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.scheduler_inbox import GatewayJoined, WorkerArrived
from services.scheduler.scheduler_link import SchedulerLink
from tests.builders.channels import patient_channel
from tests.builders.stream_ends import error_at_end
from tests.builders.waits import LIMIT_S, until
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.fake_kv_manager_for_scheduler import kv_manager
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler, steps, tokens_of
from tests.scheduler.running_scheduler import running_scheduler, scheduler_with_peers
from tests.scheduler.served_setup import BLOCK_SIZE, served_with


async def test_a_gateway_gets_every_token_of_its_jobs_in_order_and_their_end() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        for name in ("a", "b", "c"):
            await gateway.submit(name, prompt=range(1, 30), output=5)
        running_worker = asyncio.create_task(worker.serve())
        await gateway.until_ended("a", "b", "c")
        running_worker.cancel()
        for name in ("a", "b", "c"):
            assert gateway.outputs[name] == tokens_of(name, 5)
            assert gateway.last[name].finish is EndReason.LENGTH
            timings = gateway.last[name].timings
            assert timings is not None
            assert timings.decode_s > 0
        await until(lambda: len(served.kv.kv.released) == 3)


async def test_jobs_that_come_right_after_others_wait_for_more_or_for_the_next_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "GATHER_S", 3600.0)
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=4)
        plans = [await worker.read_plan(), await worker.read_plan()]
        for name in ("b", "c"):
            await gateway.submit(name)
        await until(lambda: len(served.driver.inbox) == 2)
        assert served.driver.status().jobs == 1
        await worker.run(plans[0])
        await until(lambda: served.driver.status().jobs == 3)


async def test_each_token_is_told_in_the_iteration_that_made_it() -> None:
    async with scheduler_with_peers() as (_, worker, gateway):
        await gateway.submit("a", output=3)
        for made in (1, 2, 3):
            await worker.step()
            while len(gateway.outputs.get("a", [])) < made:
                await gateway.read()
            assert gateway.outputs["a"] == tokens_of("a", made)


async def test_the_worker_gets_prompt_and_sampling_once_and_no_tokens_to_decode() -> None:
    async with scheduler_with_peers() as (_, worker, gateway):
        await gateway.submit("a", prompt=[5, 6, 7], output=3)
        await steps(worker, 3)
        first, *others = [plan.entries[0] for plan in worker.plans]
        assert tuple(first.token_ids) == (5, 6, 7)
        assert first.spec is not None
        assert (first.spec.prompt_tokens, first.spec.known_tokens) == (3, 3)
        assert first.spec.sampling.max_tokens == 3
        assert [(entry.token_ids, entry.spec) for entry in others] == [((), None)] * 2


async def test_plans_ahead_are_recalled_for_a_job_that_comes_and_made_anew_with_it() -> None:
    async with scheduler_with_peers() as (_, worker, gateway):
        await gateway.submit("a", prompt=[5, 6, 7], output=200)
        await steps(worker, 2)
        await worker.read_ahead(8)
        await gateway.submit("b", prompt=[5, 6, 7], output=5)
        await worker.read_recall()
        assert worker.recalled != [None]
        while "b" not in {entry.job_id for entry in (await worker.step()).entries}:
            pass
        positions = [entry.from_token for plan in worker.plans for entry in plan.entries if entry.job_id == "a"]
        assert positions == [0, *range(3, 2 + len(positions))]
        running_worker = asyncio.create_task(worker.serve())
        await gateway.until_ended("a", "b")
        running_worker.cancel()
        assert (gateway.outputs["a"], gateway.outputs["b"]) == (tokens_of("a", 200), tokens_of("b", 5))


async def test_a_stop_token_ends_the_job() -> None:
    async with scheduler_with_peers() as (_, worker, gateway):
        worker.ends_at["a"] = 1
        await gateway.submit("a", output=10)
        await steps(worker, 3)
        await gateway.until_ended("a")
        assert gateway.outputs["a"] == tokens_of("a", 2)
        assert gateway.last["a"].finish is EndReason.STOP


async def test_log_probabilities_are_passed_on_where_asked_for() -> None:
    async with scheduler_with_peers() as (_, worker, gateway):
        await gateway.submit("a", output=2, logprobs=1)
        await steps(worker, 2)
        await gateway.until_ended("a")
        assert [one.token_id for one in gateway.logprobs["a"]] == tokens_of("a", 2)


async def test_a_job_whose_guide_can_not_be_followed_any_further_fails_and_says_why() -> None:
    guide = Guide(GuideKind.REGEX, "(a|b)*a(a|b){30}")
    async with scheduler_with_peers() as (_, worker, gateway):
        worker.ends_at["a"], worker.failures[JobId("a")] = 1, "too many states"
        await gateway.submit("a", output=10, guide=guide)
        await steps(worker, 2)
        await gateway.until_ended("a")
        error = gateway.last["a"].error
        assert isinstance(error, InvalidFieldError)
        assert (error.field, str(error)) == ("sampling.guide", "sampling.guide: too many states")
        spec = worker.plans[0].entries[0].spec
        assert spec is not None
        assert spec.sampling.guide == guide


async def test_a_dead_workers_jobs_go_on_from_their_last_token_on_the_next_one() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", prompt=[5, 6, 7], output=5)
        await steps(worker, 2)
        while len(gateway.outputs.get("a", [])) < 2:
            await gateway.read()
        worker.call.cancel()
        await until(lambda: served.ready == [True, False])
        second = FakeWorkerForScheduler(served.channel)
        await second.join()
        await steps(second, 3)
        await gateway.until_ended("a")
        assert gateway.outputs["a"] == tokens_of("a", 5)
        again = second.plans[0].entries[0]
        assert tuple(again.token_ids) == (5, 6, 7, *tokens_of("a", 2))
        assert again.spec is not None
        assert (again.spec.prompt_tokens, again.spec.known_tokens) == (3, 5)


async def test_a_second_worker_of_a_group_is_refused_and_the_first_goes_on() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await FakeWorkerForScheduler(served.channel).join()
        assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "group 0 has a worker already, on cpu" in (error.value.details() or "")
        await gateway.submit("a", output=2)
        await steps(worker, 2)
        await gateway.until_ended("a")
        assert served.driver.status().groups[0].worker_joins == 1


async def test_a_worker_that_dials_again_takes_its_own_place_and_its_older_stream_is_aborted() -> None:
    async with scheduler_with_peers() as (served, worker, _):
        again = FakeWorkerForScheduler(served.channel, worker_id=worker.facts.worker_id, last_epoch=worker.epoch)
        await again.join()
        assert again.epoch > worker.epoch
        assert isinstance(await error_at_end(worker.call), SupersededError)


async def test_the_next_worker_gets_the_group_when_the_first_ones_stream_is_gone_and_a_greater_epoch() -> None:
    async with scheduler_with_peers() as (served, worker, _):
        worker.call.cancel()
        await until(lambda: served.ready == [True, False])
        second = FakeWorkerForScheduler(served.channel)
        await second.join()
        assert second.epoch > worker.epoch


async def test_a_worker_that_has_met_a_greater_epoch_gets_one_that_is_greater_still() -> None:
    async with running_scheduler() as served:
        worker = FakeWorkerForScheduler(served.channel, last_epoch=99)
        await worker.join()
        assert worker.epoch == 100


async def test_workers_begin_anew_when_the_kv_manager_has_met_greater_epochs() -> None:
    async with scheduler_with_peers() as (served, worker, _):
        await until(lambda: served.kv.streams == 1)
        await served.kv.say(kv_wire.SchedulerLinkResponse(newest_epoch=41))
        assert isinstance(await error_at_end(worker.call), NotReadyError)
        await until(lambda: served.ready == [True, False])
        again = FakeWorkerForScheduler(served.channel)
        await again.join()
        assert again.epoch == 42


async def test_the_epochs_of_a_later_term_are_greater() -> None:
    async with running_scheduler() as served:
        served.driver.term = 3
        worker = FakeWorkerForScheduler(served.channel, last_epoch=(2 << 32) + 500)
        await worker.join()
        assert worker.epoch == (3 << 32) + 1


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"model_fingerprint": "other"}, "model_fingerprint"),
        ({"block_size": BLOCK_SIZE * 2}, "block_size"),
        ({"group": 1}, "group"),
        ({"max_model_len": 4096}, "max_model_len"),
        ({"device_blocks": 0}, "device_blocks"),
    ],
)
async def test_a_worker_that_differs_is_refused_by_the_name_of_the_field(facts: dict[str, object], field: str) -> None:
    async with running_scheduler() as served:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await FakeWorkerForScheduler(served.channel, **facts).join()
        failure = from_grpc(error.value)
        assert isinstance(failure, PeerMismatchError)
        assert failure.field == field


async def test_a_stream_without_a_hello_is_refused() -> None:
    async with running_scheduler() as served:
        gateway = FakeGatewayForScheduler(served.channel)
        await gateway.submit("a")
        assert isinstance(await error_at_end(gateway.call), InvalidFieldError)


async def test_a_kv_manager_that_comes_back_makes_the_worker_come_back_with_empty_pools() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=4)
        await worker.step()
        await served.kv.end_first_stream()
        await until(lambda: served.kv.streams == 2)
        assert isinstance(await error_at_end(worker.call), NotReadyError)
        second = FakeWorkerForScheduler(served.channel)
        await second.join()
        serve = asyncio.create_task(second.serve())
        await gateway.until_ended("a")
        serve.cancel()
        assert gateway.outputs["a"] == tokens_of("a", 4)
        jobs = [message for message in served.kv.heard if isinstance(message, Jobs)]
        assert [message.epoch for message in jobs] == [1, 2]


async def test_a_worker_that_breaks_the_protocol_is_dropped_and_jobs_go_on_with_the_next() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=4)
        await worker.step()
        nonsense = wire.IterationResults(results=[wire.IterationResult(epoch=1, plan_number=99)])
        await worker.call.write(wire.WorkerLinkRequest(results=nonsense))
        assert isinstance(await error_at_end(worker.call), NotReadyError)
        second = FakeWorkerForScheduler(served.channel)
        await second.join()
        serve = asyncio.create_task(second.serve())
        await gateway.until_ended("a")
        serve.cancel()
        assert gateway.outputs["a"] == tokens_of("a", 4)


async def test_a_gateway_that_does_not_read_loses_its_stream_to_its_next_one_although_writing_to_it_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(books, "MOST_TOKENS_IN_UPDATE", 1_000_000)
    async with scheduler_with_peers() as (served, worker, gateway):
        await gateway.submit("a", output=50)
        await worker.step()
        while "a" not in gateway.outputs:
            await gateway.read()
        entry = served.driver.jobs.get(JobId("a"))
        assert entry is not None
        entry.output.extend(array("I", [2_000_000]) * 16_000_000)
        followers = entry.followers
        await gateway.submit("a", output=50, resume=1)
        await until(lambda: followers.get("g1", 0) > 1)
        again = FakeGatewayForScheduler(served.channel)
        await again.join()
        await until(lambda: "g1" not in followers)
        assert again.limits[-1].ready
        assert isinstance(await error_at_end(gateway.call), SupersededError)


async def test_a_gateway_that_says_hello_while_a_worker_joins_is_told_the_limits() -> None:
    async with kv_manager() as (_, kv_address), patient_channel(kv_address) as channel:
        driver = SchedulerDriver(served_with(SchedulerConfig()), SchedulerLink(channel, kv_address), lambda ready: None)
        gateway = GatewayStream("g")
        driver.inbox.post(WorkerArrived(WorkerStream(Epoch(1)), FakeWorkerForScheduler(channel).facts))
        welcome = driver.limits
        driver.inbox.post(GatewayJoined(gateway))
        turns = asyncio.create_task(driver.run())
        try:
            async with asyncio.timeout(LIMIT_S):
                await gateway.wait()
            assert welcome == ServingLimits(True, 2048, 2048)
            assert gateway.take_limits() == driver.limits == ServingLimits(True, 2048, 16_000)
        finally:
            turns.cancel()
            await asyncio.gather(turns, return_exceptions=True)


async def test_the_pools_of_a_lost_worker_are_nobodys() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        for job in ("a", "b"):
            await gateway.submit(job, output=50)
        served.kv.extra = [PoolStatus(900, 3900, "proactive", (JobId("b"),), ())]
        await gateway.submit("c", output=50)
        await worker.step()
        await until(lambda: served.driver.status().kv_policy == "proactive")
        worker.call.cancel()
        await until(lambda: served.ready[-1] is False)
        status = served.driver.status()
        (group,) = status.groups
        assert group.pools == NO_POOLS
        assert (group.swapped_out, group.waiting) == (0, 3)
        assert status.kv_policy == "proactive"


async def test_status_counts_every_job_once_and_adds_up_the_lives_of_the_worker() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        for number in range(20):
            await gateway.submit(f"j{number}", output=50)
        await until(lambda: served.driver.status().counters.jobs_admitted == 20)
        served.kv.extra = [PoolStatus(900, 3900, "proactive", (JobId("j18"), JobId("j19")), ())]
        await steps(worker, 4)
        await until(lambda: served.driver.status().kv_policy == "proactive")
        await until(lambda: served.driver.status().counters.busy_s == pytest.approx(1.0))
        status = (await served.admin.GetStatus(admin_pb2.GetStatusRequest())).status
        (group,) = status.groups
        assert group.ready
        assert group.running + group.waiting + group.swapped_out == 20
        assert sum(level.running for level in group.levels) == group.running > 0
        assert (group.device_blocks_total, group.device_blocks_free) == (1000, 900)
        assert (status.model, status.policy) == ("tiny", "gittins")
        assert len(status.iteration_tokens.counts) == len(status.iteration_tokens.bounds) + 1
        assert status.counters.busy_s == pytest.approx(1.0)
        worker.call.cancel()
        await until(lambda: served.ready[-1] is False)
        second = FakeWorkerForScheduler(served.channel)
        await second.join()
        await steps(second, 2)
        await until(lambda: served.driver.status().counters.busy_s == pytest.approx(1.5))


async def test_the_status_lists_the_first_jobs_by_rank_with_their_tokens_and_where_their_kv_is() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        for number in range(20):
            await gateway.submit(f"j{number}", output=50)
        await until(lambda: served.driver.status().counters.jobs_admitted == 20)
        served.kv.extra = [PoolStatus(900, 3900, "proactive", (JobId("j18"), JobId("j19")), ())]
        await steps(worker, 4)
        await until(lambda: served.driver.status().kv_policy == "proactive")
        everything = (await served.admin.GetStatus(admin_pb2.GetStatusRequest(max_jobs=1000))).status
        first = (await served.admin.GetStatus(admin_pb2.GetStatusRequest(max_jobs=3))).status.jobs
        assert not (await served.admin.GetStatus(admin_pb2.GetStatusRequest())).status.jobs
    jobs = everything.jobs
    (group,) = everything.groups
    assert len({job.alias for job in jobs}) == 20
    assert [job.alias for job in first] == [job.alias for job in jobs[:3]]
    states = [job.state for job in jobs]
    assert states.count(admin_pb2.JOB_STATE_RUNNING) == group.running
    assert states.count(admin_pb2.JOB_STATE_SWAPPED_OUT) == group.swapped_out
    assert all(job.kv == admin_pb2.KV_PLACE_DEVICE for job in jobs if job.state == admin_pb2.JOB_STATE_RUNNING)
    assert all(job.kv == admin_pb2.KV_PLACE_HOST for job in jobs if job.state == admin_pb2.JOB_STATE_SWAPPED_OUT)
    assert sum(job.output_tokens for job in jobs) == everything.counters.generation_tokens > 0


async def test_watching_the_status_keeps_its_interval_within_limits() -> None:
    async with running_scheduler() as served:
        for interval_s in (0.01, 61.0, float("nan")):
            call = served.admin.WatchStatus(admin_pb2.WatchStatusRequest(interval_s=interval_s))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call.read()
            failure = from_grpc(error.value)
            assert isinstance(failure, InvalidFieldError)
            assert failure.field == "interval_s"
        call = served.admin.WatchStatus(admin_pb2.WatchStatusRequest(interval_s=0.05))
        for _ in range(3):
            assert (await call.read()).status.model == "tiny"
        call.cancel()
