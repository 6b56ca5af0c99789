"""Everything besides Generate: models, AdminService, health, reflection."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fastserve.v1 import admin_pb2
from fastserve.v1 import inference_pb2 as api
from services.domain.errors import AddressInUseError
from services.domain.submission import ServingLimits
from tests.builders.status_details import violated_field
from tests.gateway.fake_scheduler_for_gateway import SOON_S, FakeSchedulerForGateway
from tests.gateway.running_gateway import Pair, running_gateway
from tests.gateway.tiny_model import CONTEXT_TOKENS, VOCABULARY_SIZE
from tests.runtime.ipv6 import has_ipv6

SERVICES = ("fastserve.v1.InferenceService", "fastserve.v1.AdminService")


async def test_the_served_model_is_listed_with_its_limits(pair: Pair) -> None:
    (model,) = (await pair[0].inference.ListModels(api.ListModelsRequest())).models
    assert (model.id, model.owned_by) == ("tiny", "fastserve")
    assert (model.max_model_len, model.vocabulary_size) == (CONTEXT_TOKENS, VOCABULARY_SIZE)
    assert model.created > 0


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_gateway_listens_on_ipv6_where_the_machine_has_it(
    host: str, model: Path, scheduler: FakeSchedulerForGateway
) -> None:
    if not has_ipv6():
        with pytest.raises(AddressInUseError, match=r"\[::1\]:0: "):
            async with running_gateway(model, scheduler.address, host=host):
                raise AssertionError("the gateway listens on IPv6 all the same")
        return
    async with running_gateway(model, scheduler.address, host=host) as gateway:
        assert gateway.address.startswith("[::1]:")
        assert gateway.metrics_address.startswith("[::1]:")
        assert [one.id for one in (await gateway.inference.ListModels(api.ListModelsRequest())).models] == ["tiny"]


async def test_status_is_the_scheduler_s(pair: Pair) -> None:
    gateway, scheduler = pair
    scheduler.status.groups.add(group=0, ready=True, running=3)
    response = await gateway.admin.GetStatus(admin_pb2.GetStatusRequest())
    assert response.status == scheduler.status


async def test_status_is_watched_through_the_gateway(pair: Pair) -> None:
    gateway, scheduler = pair
    watch = gateway.admin.WatchStatus(admin_pb2.WatchStatusRequest(interval_s=0.05), timeout=SOON_S)
    seen = []
    async for response in watch:
        seen.append(response.status.uptime_s)
        scheduler.status.uptime_s = len(seen)
        if len(seen) == 3:
            watch.cancel()
            break
    assert seen == [0, 1, 2]


async def test_a_refusal_by_the_scheduler_comes_through_with_its_field(pair: Pair) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in pair[0].admin.WatchStatus(admin_pb2.WatchStatusRequest(interval_s=0.001)):
            pass
    assert violated_field(caught.value) == "interval_s"


async def test_health_tells_alive_from_ready(pair: Pair) -> None:
    gateway, scheduler = pair
    for name in ("", "liveness", "readiness", *SERVICES):
        assert await gateway.health(name) == "SERVING"
    scheduler.set_limits(ServingLimits(ready=False, max_model_len=0, device_pool_tokens=0))
    for name in ("readiness", *SERVICES):
        await gateway.until_health(name, "NOT_SERVING")
    assert await gateway.health("liveness") == "SERVING"


async def test_reflection_names_the_services(pair: Pair) -> None:
    channel: Any = pair[0].channel
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=SOON_S)
    response = await asyncio.wait_for(call.read(), SOON_S)
    names = {service.name for service in response.list_services_response.service}
    assert names >= {*SERVICES, "grpc.health.v1.Health"}
    call.cancel()
