"""Two schedulers never both command: peers obey the newest term, and a standby takes no peers."""

import asyncio

import grpc
import pytest
from prometheus_client import CollectorRegistry

from services.domain.errors import NotReadyError, SupersededError
from services.domain.ids import EPOCHS_OF_A_TERM
from services.runtime.channel import open_channel
from services.scheduler.__main__ import export_metrics
from services.scheduler.demand_watch import DemandWatch
from services.scheduler.driver import SchedulerDriver
from services.scheduler.policies.group_demand import DemandLimits
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.scheduler_link import SchedulerLink
from tests.builders.waits import LIMIT_S
from tests.kvmanager.machine.checked_kv_manager import resident
from tests.kvmanager.running_kv_manager import running_kv_manager
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.running_scheduler import running_scheduler
from tests.scheduler.served_setup import served_with


async def test_the_kv_manager_refuses_a_leader_that_was_paused_and_wakes_when_another_leads() -> None:
    async with running_kv_manager() as served:
        paused = served.scheduler(term=4)
        await paused.jobs(4 * EPOCHS_OF_A_TERM + 5, "one")
        next_leader = served.scheduler(term=5)
        epoch = 5 * EPOCHS_OF_A_TERM + 1
        await next_leader.jobs(epoch, "two")
        # What the paused one still has is closed, and it is not let in again.
        assert await paused.end() is grpc.StatusCode.ABORTED
        assert await served.scheduler(term=4).end() is grpc.StatusCode.ABORTED
        # A worker that the paused one took in is to ask the new leader.
        assert await (await served.worker(4 * EPOCHS_OF_A_TERM + 6)).end() is grpc.StatusCode.UNAVAILABLE
        worker = await served.worker(epoch)
        await worker.obey()
        assert await next_leader.hear() == resident("two", 2)


async def test_a_leader_whose_term_is_over_ends_and_does_not_dial_again() -> None:
    async with running_kv_manager() as served, open_channel("127.0.0.1:1") as _:
        await served.scheduler(term=5).jobs(6, "one")
        link = SchedulerLink(served.channel, "the KV manager")
        link.term = 4
        driver = SchedulerDriver(served_with(SchedulerConfig()), link, lambda ready: None)
        with pytest.raises(SupersededError, match="term 5 leads; term 4 is over"):
            await asyncio.wait_for(link.run(driver.inbox.post), LIMIT_S)


async def test_a_scheduler_on_standby_exports_no_figure_of_the_server() -> None:
    async with running_scheduler() as served:
        registry, driver = CollectorRegistry(), served.driver
        demand = DemandWatch(DemandLimits(5.0, 60.0, 1, 1), driver.backlogs, driver.ready_groups)
        export_metrics(registry, "m", driver, demand, old_metrics=True)
        shown = await asyncio.to_thread(lambda: {family.name for family in registry.collect()})
        assert {"fastserve:num_requests_waiting", "fastserve:groups_wanted"} <= shown
        driver.term = None
        assert await asyncio.to_thread(lambda: list(registry.collect())) == []


async def test_a_scheduler_on_standby_takes_no_peers_until_it_leads() -> None:
    async with running_scheduler() as served:
        served.driver.term = None
        with pytest.raises(NotReadyError, match="on standby"):
            served.driver.check_gateway("any")
        served.driver.term = 1
        gateway = FakeGatewayForScheduler(served.channel)
        await gateway.join()
