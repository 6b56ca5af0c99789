"""KEDA's external scaler over real gRPC: activity that is pushed, the metric of the HPA, and metadata that is wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from fastserve.keda import externalscaler_pb2 as wire
from fastserve.keda import externalscaler_pb2_grpc
from services.domain.errors import InvalidFieldError
from services.runtime.error_statuses import from_grpc
from services.runtime.server import RpcServer
from services.scheduler.demand_watch import DemandWatch
from services.scheduler.policies.group_demand import DemandLimits
from services.scheduler.scaler_service import EXTERNAL_SCALER, ExternalScaler, register_scaler
from tests.builders.channels import patient_channel
from tests.builders.waits import LIMIT_S
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler, steps
from tests.scheduler.running_scheduler import RunningScheduler, running_scheduler

TARGET_S = 5.0
ACTIVITY_LIMIT_S = 0.2
LEAST_TRIES, MOST_TRIES = 3, 20
ADDRESS = {"scalerAddress": "fastserve-scheduler:50052"}


@dataclass
class ServedScaler:
    """A scaler over a running scheduler, and KEDA's stub for it."""

    scheduler: RunningScheduler
    scaler: ExternalScaler
    stub: Any

    async def metric(self, metadata: dict[str, str]) -> tuple[str, float, float]:
        """As KEDA asks: the metric's name, its target and its value."""
        reference = reference_with(metadata)
        (spec,) = (await self.stub.GetMetricSpec(reference, timeout=LIMIT_S)).metricSpecs
        asked = wire.GetMetricsRequest(scaledObjectRef=reference, metricName=spec.metricName)
        (value,) = (await self.stub.GetMetrics(asked, timeout=LIMIT_S)).metricValues
        assert value.metricName == spec.metricName
        return spec.metricName, spec.targetSizeFloat, value.metricValueFloat


def reference_with(metadata: dict[str, str]) -> wire.ScaledObjectRef:
    return wire.ScaledObjectRef(name="fastserve-worker", namespace="fastserve", scalerMetadata=metadata)


@asynccontextmanager
async def served_scaler(least: int = 0, most: int = 4) -> AsyncIterator[ServedScaler]:
    """Fewer groups are wanted at once when less is to be done."""
    async with running_scheduler() as scheduler:
        driver = scheduler.driver
        demand = DemandWatch(DemandLimits(TARGET_S, 0.0, least, most), driver.backlogs, driver.ready_groups)
        scaler = ExternalScaler(demand.update, driver.check_leads, TARGET_S)
        server = RpcServer("127.0.0.1:0", (EXTERNAL_SCALER,), lambda one: register_scaler(one, scaler))
        await server.start()
        try:
            async with patient_channel(server.address) as channel:
                yield ServedScaler(scheduler, scaler, externalscaler_pb2_grpc.ExternalScalerStub(channel))
        finally:
            await server.stop(0)


@asynccontextmanager
async def with_peers(served: ServedScaler) -> AsyncIterator[tuple[FakeWorkerForScheduler, FakeGatewayForScheduler]]:
    worker = FakeWorkerForScheduler(served.scheduler.channel)
    await worker.join()
    gateway = FakeGatewayForScheduler(served.scheduler.channel)
    await gateway.join()
    await gateway.until_ready()
    yield worker, gateway


async def said(stream: Any) -> bool:
    """The next activity that is told."""
    async with asyncio.timeout(LIMIT_S):
        response: wire.IsActiveResponse = await stream.read()
    return response.result


async def test_activity_is_pushed_within_200_ms_of_the_first_waiting_job_and_again_when_nothing_is_left() -> None:
    async with served_scaler() as served, with_peers(served) as (worker, gateway):
        stream = served.stub.StreamIsActive(reference_with(ADDRESS))
        assert await said(stream) is False
        loop = asyncio.get_running_loop()
        took_s: list[float] = []
        # The best of several: the machine may be busy with other tests.
        while len(took_s) < LEAST_TRIES or (min(took_s) >= ACTIVITY_LIMIT_S and len(took_s) < MOST_TRIES):
            number = len(took_s)
            began_s = loop.time()
            await gateway.submit(f"job-{number}", output=1)
            assert await said(stream) is True
            took_s.append(loop.time() - began_s)
            assert (await served.stub.IsActive(reference_with(ADDRESS))).result
            await steps(worker, 1)
            await gateway.until_ended(f"job-{number}")
            assert await said(stream) is False
        assert min(took_s) < ACTIVITY_LIMIT_S
        assert not (await served.stub.IsActive(reference_with(ADDRESS))).result


async def test_a_job_that_waits_for_the_first_group_of_all_is_activity() -> None:
    async with served_scaler() as served:
        stream = served.stub.StreamIsActive(reference_with(ADDRESS))
        assert await said(stream) is False
        gateway = FakeGatewayForScheduler(served.scheduler.channel)
        await gateway.join()
        await gateway.submit("a")
        assert await said(stream) is True
        assert await served.metric(ADDRESS) == ("groups_wanted", 1.0, 1.0)


async def test_a_stream_ends_with_ok_at_the_hand_over_so_that_keda_asks_the_next_leader_soon() -> None:
    async with served_scaler() as served:
        stream = served.stub.StreamIsActive(reference_with(ADDRESS))
        assert await said(stream) is False
        served.scaler.hand_over()
        async with asyncio.timeout(LIMIT_S):
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK


async def test_groups_that_are_always_wanted_are_activity() -> None:
    async with served_scaler(least=2) as served:
        assert (await served.stub.IsActive(reference_with(ADDRESS))).result
        assert await served.metric(ADDRESS) == ("groups_wanted", 1.0, 2.0)


async def test_the_metric_is_the_pods_that_are_wanted_at_a_target_of_one_a_pod() -> None:
    async with served_scaler() as served, with_peers(served) as (_, gateway):
        assert await served.metric(ADDRESS) == ("groups_wanted", 1.0, 0.0)
        await gateway.submit("a", output=4)
        await gateway.submit("b", prompt=[0] * 9, output=400)
        stream = served.stub.StreamIsActive(reference_with(ADDRESS))
        while not await said(stream):
            pass
        wanted = (await served.metric(ADDRESS))[2]
        assert wanted >= 1.0
        assert await served.metric({**ADDRESS, "podsPerGroup": "3"}) == ("groups_wanted", 1.0, 3.0 * wanted)
        name, target, backlog_s = await served.metric({**ADDRESS, "metric": "backlog_seconds", "podsPerGroup": "2"})
        assert (name, target) == ("backlog_seconds", TARGET_S / 2)
        assert backlog_s == sum(one.work_s for one in served.scheduler.driver.backlogs() if one is not None) > 0.0


@pytest.mark.parametrize(
    ("metadata", "key", "limit"),
    [
        ({"podsPerGroup": "0"}, "podsPerGroup", "from 1 to 64"),
        ({"podsPerGroup": "65"}, "podsPerGroup", "from 1 to 64"),
        ({"podsPerGroup": "two"}, "podsPerGroup", "from 1 to 64"),
        ({"podsPerGroup": ""}, "podsPerGroup", "from 1 to 64"),
        ({"metric": "queue_length"}, "metric", "groups_wanted, backlog_seconds"),
        ({"podsPergroup": "2"}, "podsPergroup", "no such key"),
    ],
)
async def test_metadata_that_is_wrong_is_refused_by_every_call_and_the_key_is_named(
    metadata: dict[str, str], key: str, limit: str
) -> None:
    async with served_scaler() as served:
        reference = reference_with({**ADDRESS, **metadata})
        calls = (
            served.stub.IsActive(reference),
            served.stub.GetMetricSpec(reference),
            served.stub.GetMetrics(wire.GetMetricsRequest(scaledObjectRef=reference, metricName="groups_wanted")),
            served.stub.StreamIsActive(reference).read(),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call, LIMIT_S)
            error = from_grpc(caught.value)
            assert isinstance(error, InvalidFieldError)
            assert error.field == f"scalerMetadata.{key}"
            assert limit in str(error)


async def test_another_metric_than_the_one_of_the_spec_is_refused() -> None:
    async with served_scaler() as served:
        asked = wire.GetMetricsRequest(scaledObjectRef=reference_with(ADDRESS), metricName="backlog_seconds")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.GetMetrics(asked, timeout=LIMIT_S)
        error = from_grpc(caught.value)
        assert isinstance(error, InvalidFieldError)
        assert error.field == "metricName"


async def test_a_scheduler_that_does_not_lead_says_nothing() -> None:
    async with served_scaler() as served:
        served.scheduler.driver.term = None
        for call in (
            served.stub.IsActive(reference_with(ADDRESS)),
            served.stub.StreamIsActive(reference_with(ADDRESS)).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call, LIMIT_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
