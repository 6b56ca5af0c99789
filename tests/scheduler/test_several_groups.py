"""Several worker groups behind one scheduler, over real gRPC: what ends one of them leaves the others alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import scheduler_pb2 as wire
from services.cli.simulate.replay_command import replay_file
from services.domain.errors import NotReadyError, PeerMismatchError
from services.domain.generation import EndReason
from services.domain.ids import PlanNumber
from services.domain.server_status import NO_POOLS, GroupStatus, ServerCounters, ServerStatus
from services.runtime.error_statuses import from_grpc
from services.runtime.recording.recorder import Recorder, recording
from services.runtime.recording.recording_settings import RecordingSettings
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.scheduler_inbox import Inbound, WorkerSaid
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from services.scheduler.worker_group import STRICT
from tests.builders.stream_ends import error_at_end
from tests.builders.waits import until
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler, steps, tokens_of
from tests.scheduler.machine.checked_scheduler import COST
from tests.scheduler.running_scheduler import RunningScheduler, running_scheduler

NONSENSE_PLAN = PlanNumber(77)


def nonsense_of(worker: FakeWorkerForScheduler) -> wire.WorkerLinkRequest:
    """The result of a plan that there never was."""
    result = wire.IterationResult(epoch=worker.epoch, plan_number=NONSENSE_PLAN)
    return wire.WorkerLinkRequest(results=wire.IterationResults(results=[result]))


def result_plans(items: Sequence[Inbound]) -> set[PlanNumber]:
    """The plans whose results are among these."""
    return {item.result.result.plan_number for item in items if isinstance(item, WorkerSaid)}


@asynccontextmanager
async def two_groups(
    recorders: Sequence[Recorder | None] = (),
) -> AsyncIterator[tuple[RunningScheduler, FakeWorkerForScheduler, FakeWorkerForScheduler, FakeGatewayForScheduler]]:
    """Both workers are there. Job "a" is in group 0 and job "b" in group 1."""
    async with running_scheduler(SchedulerConfig(), 2, recorders) as served:
        workers = [FakeWorkerForScheduler(served.channel, group=group) for group in (0, 1)]
        for worker in workers:
            worker.duration_s = COST.decode_s(1, 1)
            await worker.join()
        await until(lambda: all(group.ready for group in served.driver.status().groups))
        gateway = FakeGatewayForScheduler(served.channel)
        await gateway.join()
        await gateway.submit("a", output=6, logprobs=0)
        await gateway.submit("b", output=6, logprobs=0)
        for worker in workers:
            await worker.step()
        assert [entry.job_id for entry in workers[0].plans[0].entries] == ["a"]
        assert [entry.job_id for entry in workers[1].plans[0].entries] == ["b"]
        yield served, workers[0], workers[1], gateway


async def test_jobs_are_shared_out_and_each_group_is_told_apart_in_the_status() -> None:
    async with two_groups() as (served, zero, one, gateway):
        await until(lambda: [group.running for group in served.driver.status().groups] == [1, 1])
        await asyncio.gather(steps(zero, 5), steps(one, 5))
        await gateway.until_ended("a", "b")
        for name in ("a", "b"):
            assert gateway.outputs[name] == tokens_of(name, 6)
            assert [one.token_id for one in gateway.logprobs[name]] == tokens_of(name, 6)
        assert [group.group for group in served.driver.status().groups] == [0, 1]


async def test_a_worker_that_breaks_the_protocol_ends_its_group_and_its_job_goes_on_in_the_other() -> None:
    async with two_groups() as (served, zero, one, gateway):
        await zero.step()
        await one.call.write(nonsense_of(one))
        assert isinstance(await error_at_end(one.call), NotReadyError)
        serving = asyncio.create_task(zero.serve())
        await gateway.until_ended("a", "b")
        serving.cancel()
        moved = next(entry for plan in zero.plans for entry in plan.entries if entry.job_id == "b")
        assert moved.spec is not None
        assert (moved.from_token, moved.spec.prompt_tokens, moved.spec.known_tokens) == (0, 3, 4)
        assert list(moved.token_ids) == [1, 2, 3, *tokens_of("b", 1)]
        for name in ("a", "b"):
            assert gateway.outputs[name] == tokens_of(name, 6)
            assert [one.token_id for one in gateway.logprobs[name]] == tokens_of(name, 6)
            assert gateway.finish_of(name) is EndReason.LENGTH
        counters = [group.counters for group in served.driver.status().groups]
        assert [(each.jobs_admitted, each.moves, each.jobs_finished) for each in counters] == [(1, 0, 2), (1, 1, 0)]
        assert served.driver.status().counters.jobs_finished == 2


async def test_what_ends_a_group_leaves_the_other_the_log_probabilities_of_that_turn_its_stream_and_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RecordingSettings.model_validate({"record": tmp_path})
    with ExitStack() as recordings:
        recorders = [
            recordings.enter_context(recording(settings, SCHEDULER_FORMAT, SchedulerConfig(), strict=STRICT, group=one))
            for one in (0, 1)
        ]
        async with two_groups(recorders) as (served, zero, one, gateway):
            inbox = served.driver.inbox
            held: list[Inbound] = []
            plan = await zero.read_plan()
            await one.read_plan()
            with monkeypatch.context() as patch:
                patch.setattr(inbox, "post", held.append)
                await one.call.write(nonsense_of(one))
                await zero.run(plan)
                awaited = {NONSENSE_PLAN, plan.plan_number}  # results of plans before may be among those held
                await until(lambda: awaited <= result_plans(held))
            for item in held:  # all of it is taken in one turn
                inbox.post(item)
            assert isinstance(await error_at_end(one.call), NotReadyError)
            serving = asyncio.create_task(zero.serve())
            await gateway.until_ended("a", "b")
            serving.cancel()
            assert [one.token_id for one in gateway.logprobs["a"]] == tokens_of("a", 6)
            assert [group.worker_joins for group in served.driver.status().groups] == [1, 1]
            plans = [plan.plan_number for plan in zero.plans]
            assert plans == list(range(plans[0], plans[0] + len(plans)))
    for name in ("scheduler", "scheduler-group-1"):
        _, outcome = replay_file(tmp_path / f"{name}-001.jsonl.gz")
        assert (outcome.difference, outcome.last_fault) == (None, None)
        assert outcome.turns > 3


async def test_a_message_of_the_kv_manager_that_can_not_be_read_ends_its_group_alone() -> None:
    async with two_groups() as (served, zero, one, gateway):
        unreadable = kv_wire.SchedulerLinkResponse(epoch=one.epoch, group=1, messages=[kv_wire.KvToScheduler()])
        await served.kv.say(unreadable)
        assert isinstance(await error_at_end(one.call), NotReadyError)
        await until(lambda: not served.driver.status().groups[1].ready)
        serving = asyncio.create_task(zero.serve())
        await gateway.until_ended("a", "b")
        serving.cancel()
        assert gateway.outputs["b"] == tokens_of("b", 6)
        assert served.kv.streams == 1
        assert served.driver.status().groups[0].worker_joins == 1


async def test_a_worker_that_is_back_gets_jobs_again() -> None:
    async with two_groups() as (served, zero, one, gateway):
        one.call.cancel()
        await until(lambda: served.driver.status().groups[0].jobs == 2)
        again = FakeWorkerForScheduler(served.channel, group=1)
        await again.join()
        await until(lambda: served.driver.status().groups[1].ready)
        await gateway.submit("c", output=2)
        await steps(again, 2)
        await gateway.until_ended("c")
        assert gateway.outputs["c"] == tokens_of("c", 2)
        assert {entry.job_id for plan in zero.plans for entry in plan.entries} <= {"a", "b"}


async def test_a_cancelled_job_is_cancelled_in_its_group() -> None:
    async with two_groups() as (served, _, one, gateway):
        await gateway.cancel("b")
        await one.step()
        await gateway.until_ended("b")
        await until(lambda: [group.jobs for group in served.driver.status().groups] == [1, 0])


@pytest.mark.parametrize(
    ("facts", "field"), [({"group": 2}, "group"), ({"group": 1, "model_fingerprint": "beef"}, "model_fingerprint")]
)
async def test_a_worker_of_an_unknown_group_or_another_model_is_refused_by_name(
    facts: dict[str, object], field: str
) -> None:
    async with running_scheduler(most_groups=2) as served:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await FakeWorkerForScheduler(served.channel, **facts).join()
        failure = from_grpc(error.value)
        assert isinstance(failure, PeerMismatchError)
        assert failure.field == field


def test_counters_are_exported_for_each_group() -> None:
    groups = tuple(
        GroupStatus(number, True, (), NO_POOLS, 16, "cpu", 1, 16, ServerCounters(iterations=10 + number, moves=number))
        for number in (0, 1)
    )
    status = ServerStatus("m", "fcfs", "", groups, ServerCounters.total(one.counters for one in groups), 1.0, 10)
    samples = [sample for metric in SchedulerCollector(lambda: status).collect() for sample in metric.samples]
    told = {(sample.name, sample.labels.get("group")): sample.value for sample in samples}
    assert [told["fastserve:num_iterations_total", group] for group in "01"] == [10, 11]
    assert [told["fastserve:num_job_moves_total", group] for group in "01"] == [0, 1]
    assert (status.counters.iterations, status.counters.moves) == (21, 1)
