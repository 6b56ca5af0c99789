"""Worker groups that come, drain and go, over real gRPC: who is served where, and what operators see of it."""

import asyncio

import pytest

from services.domain.cost import CostProfile, DecodeCost
from services.domain.errors import DeadlineError, NotReadyError
from services.domain.generation import EndReason
from services.scheduler import worker_group
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.scheduler_config import SchedulerConfig
from tests.builders.stream_ends import error_at_end
from tests.builders.waits import until
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler, steps, tokens_of
from tests.scheduler.machine.checked_scheduler import COST
from tests.scheduler.running_scheduler import RunningScheduler, running_scheduler

MANY = 4


async def worker_of(served: RunningScheduler, group: int) -> FakeWorkerForScheduler:
    """A worker that has joined and is linked."""
    worker = FakeWorkerForScheduler(served.channel, group=group)
    worker.duration_s = COST.decode_s(1, 1)
    await worker.join()
    await until(lambda: any(one.group == group and one.ready for one in served.driver.status().groups))
    return worker


async def gateway_of(served: RunningScheduler) -> FakeGatewayForScheduler:
    gateway = FakeGatewayForScheduler(served.channel)
    await gateway.join()
    return gateway


def samples_of(served: RunningScheduler) -> dict[str, float]:
    """What its metrics say; of several samples of a name, the last."""
    metrics = SchedulerCollector(served.driver.status).collect()
    return {sample.name: sample.value for metric in metrics for sample in metric.samples}


async def test_without_a_group_jobs_wait_and_the_first_group_serves_them() -> None:
    async with running_scheduler(most_groups=MANY) as served:
        gateway = await gateway_of(served)
        await gateway.submit("a", output=2)
        await gateway.submit("b", output=2)
        await until(lambda: served.driver.status().unplaced_jobs == 2)
        assert served.driver.status().groups == ()
        assert served.driver.backlogs() == [None]
        worker = await worker_of(served, 3)
        await steps(worker, 2)
        await gateway.until_ended("a", "b")
        assert gateway.outputs == {"a": tokens_of("a", 2), "b": tokens_of("b", 2)}
        assert served.driver.status().unplaced_jobs == 0
        assert served.driver.status().counters.jobs_admitted == 2


async def test_jobs_that_wait_for_a_group_keep_their_deadlines_and_may_be_cancelled_and_joined() -> None:
    async with running_scheduler() as served:
        gateway = await gateway_of(served)
        await gateway.submit("late", deadline_in_s=0.05)
        await gateway.submit("unwanted")
        await gateway.until_ended("late")
        assert isinstance(gateway.last["late"].error, DeadlineError)
        await gateway.submit("unwanted")
        await gateway.cancel("unwanted")
        await gateway.until_ended("unwanted")
        assert gateway.finish_of("unwanted") is EndReason.ABORT
        await gateway.submit("unwanted", body=b"another", output=1)
        worker = await worker_of(served, 0)
        await worker.step()
        await gateway.until_ended("unwanted")
        assert gateway.outputs["unwanted"] == tokens_of("unwanted", 1)


async def test_a_scheduler_that_ends_leaves_those_that_wait_for_a_group_to_the_next_one() -> None:
    async with running_scheduler() as served:
        gateway = await gateway_of(served)
        await gateway.submit("a")
        await until(lambda: served.driver.status().unplaced_jobs == 1)
        await served.driver.drain(0.05)
        assert isinstance(await error_at_end(gateway.call), NotReadyError)
        assert "a" not in gateway.last


async def test_groups_come_and_are_forgotten_and_the_counters_never_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "GROUP_KEPT_S", 0.05)
    async with running_scheduler(SchedulerConfig(), most_groups=MANY) as served:
        gateway = await gateway_of(served)
        two = await worker_of(served, 2)
        assert [group.group for group in served.driver.status().groups] == [2]
        await gateway.submit("a", output=3)
        await steps(two, 3)
        await gateway.until_ended("a")
        one = await worker_of(served, 1)
        assert [group.group for group in served.driver.status().groups] == [1, 2]
        two.call.cancel()
        await until(lambda: [group.group for group in served.driver.status().groups] == [1])
        status = served.driver.status()
        assert (status.counters.jobs_finished, status.counters.generation_tokens) == (1, 3)
        assert sum(status.iteration_tokens.counts) == status.counters.iterations > 0
        await gateway.submit("b", output=1)
        await one.step()
        await gateway.until_ended("b")
        again = await worker_of(served, 2)
        assert again.epoch > max(one.epoch, two.epoch)


async def test_a_worker_that_drains_is_released_when_its_last_job_has_ended_or_left() -> None:
    async with running_scheduler(SchedulerConfig(), most_groups=MANY) as served:
        workers = [await worker_of(served, group) for group in range(3)]
        gateway = await gateway_of(served)
        for name in ("a", "b", "c"):
            await gateway.submit(name, output=400)
        for worker in workers:
            await worker.step()
        elsewhere = [asyncio.create_task(worker.serve()) for worker in workers[1:]]
        leaving = next(entry.job_id for entry in workers[0].plans[0].entries)
        await workers[0].drain(0.01)
        await until(lambda: served.driver.status().groups[0].draining)
        assert served.driver.ready_groups() == 2
        await workers[0].until_released()
        workers[0].call.cancel()
        await until(lambda: [group.group for group in served.driver.status().groups] == [1, 2])
        await gateway.until_ended("a", "b", "c")
        for task in elsewhere:
            task.cancel()
        assert gateway.outputs == {name: tokens_of(name, 400) for name in ("a", "b", "c")}
        assert served.driver.status().counters.moves == 1
        assert any(entry.job_id == leaving for worker in workers[1:] for plan in worker.plans for entry in plan.entries)


async def test_a_worker_without_jobs_that_drains_is_released_at_once_and_its_group_forgotten() -> None:
    async with running_scheduler() as served:
        worker = await worker_of(served, 0)
        gateway = await gateway_of(served)
        await worker.drain(60.0)
        await worker.until_released()
        await gateway.submit("a", output=1)
        await until(lambda: served.driver.status().unplaced_jobs == 1)
        worker.call.cancel()
        await until(lambda: served.driver.status().groups == ())
        again = await worker_of(served, 0)
        await again.step()
        await gateway.until_ended("a")


async def test_the_drain_is_seen_in_the_metrics() -> None:
    async with running_scheduler() as served:
        worker = await worker_of(served, 0)
        gateway = await gateway_of(served)
        await gateway.submit("a", output=400)
        await worker.step()
        await worker.drain(60.0)
        await until(lambda: served.driver.status().groups[0].draining)
        await gateway.submit("b", output=1)
        await until(lambda: served.driver.status().unplaced_jobs == 1)
        samples = samples_of(served)
        assert samples["fastserve:group_draining"] == 1
        assert samples["fastserve:num_requests_unplaced"] == 1


async def test_the_batch_that_a_workers_profile_chose_is_seen_in_status_and_metrics() -> None:
    rates = CostProfile(COST.prefill, tuple(DecodeCost(batch, 256, 0.005) for batch in (16, 32)))
    async with running_scheduler(SchedulerConfig(chooses_batch=True)) as served:
        worker = FakeWorkerForScheduler(served.channel, profile=rates)
        await worker.join()
        await until(lambda: [group.max_batch for group in served.driver.status().groups] == [32])
        assert samples_of(served)["fastserve:max_batch"] == 32
