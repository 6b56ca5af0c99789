"""The gateway's RPCs: thin handlers over the driver and the scheduler's AdminService.

gRPC keeps a call's request in memory until the call ends. A gateway holds thousands of calls whose prompts have long
been sent on, so Generate is registered with a deserializer that wraps the request in an envelope, and the handler takes
it out.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc, inference_pb2
from services.domain.errors import NotReadyError
from services.domain.generation import EndReason, ServedModel
from services.gateway.access.metered_call import count_usage, reserve_tokens
from services.gateway.admin_client import AdminClient
from services.gateway.driver import RETRY_S, GatewayDriver
from services.gateway.guides.guide_checker import GuideChecker
from services.gateway.request_log import log_opened
from services.gateway.request_traces import RequestTraces
from services.wire.client_gateway import body_digest, model_to_wire, piece_to_wire, request_from_wire

INFERENCE_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


class _Envelope:
    """Holds a request, which can be taken out once."""

    __slots__ = ("_message",)

    def __init__(self, data: bytes) -> None:
        self._message: inference_pb2.GenerateRequest | None = inference_pb2.GenerateRequest.FromString(data)

    def take(self) -> inference_pb2.GenerateRequest:
        message, self._message = self._message, None
        assert message is not None
        return message


class InferenceService:
    def __init__(self, driver: GatewayDriver, guides: GuideChecker, traces: RequestTraces) -> None:
        self._driver = driver
        self._guides = guides
        self._traces = traces

    async def Generate(self, request: _Envelope, context: Any) -> None:
        # Writes to the context instead of yielding: without a generator, a cancellation is raised where the call waits.
        with self._traces.call("text_completion", context.invocation_metadata() or ()):
            await self._generate(request.take(), context)

    async def _generate(self, message: inference_pb2.GenerateRequest, context: Any) -> None:
        driver = self._driver
        wanted = request_from_wire(message)
        driver.check(wanted)
        await self._guides.check(wanted.sampling.guide)
        deadline_in_s = context.time_remaining()
        reserve_tokens((wanted,))
        listener = driver.open(wanted, body_digest(message, driver.model.name), deadline_in_s)
        count_usage(listener.request)
        log_opened([(listener.request.request_id, wanted)])
        del message, wanted
        try:
            while not listener.finished:
                taken = listener.take()
                if taken is None:
                    await listener.wait()
                else:
                    await context.write(piece_to_wire(listener.request.request_id, taken.piece, taken.usage))
        finally:
            reached = is_late(deadline_in_s, context.time_remaining())
            listener.close(EndReason.DEADLINE if reached else EndReason.CANCELLED)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        model, limits = self._driver.model, self._driver.limits
        if limits is None:
            raise NotReadyError("the scheduler can't be reached", RETRY_S)
        most = min(model.limits.max_model_len, limits.max_model_len) if limits.ready else model.limits.max_model_len
        return model_to_wire(ServedModel(model.name, model.created_s, most, model.limits.vocabulary_size))


def is_late(deadline_in_s: float | None, remaining_s: float | None) -> bool:
    """Whether the deadline has passed. The client's own timer may end the call a little earlier than ours would: gRPC
    rounds up the time that it sends to the server, by a hundredth at most.
    """
    return deadline_in_s is not None and remaining_s is not None and remaining_s <= max(0.05, 0.01 * deadline_in_s)


class AdminForwarder(admin_pb2_grpc.AdminServiceServicer):
    """Forwards AdminService to the scheduler."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        return await self._admin.status(request)

    async def WatchStatus(
        self, request: admin_pb2.WatchStatusRequest, context: Any
    ) -> AsyncIterator[admin_pb2.WatchStatusResponse]:
        async for response in self._admin.watch(request):
            yield response


def register(
    server: grpc.aio.Server, driver: GatewayDriver, guides: GuideChecker, admin: AdminClient, traces: RequestTraces
) -> None:
    """Adds both services to the server."""
    inference = InferenceService(driver, guides, traces)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Generate": grpc.unary_stream_rpc_method_handler(
            inference.Generate,
            request_deserializer=_Envelope,
            response_serializer=inference_pb2.GenerateResponse.SerializeToString,
        ),
        "ListModels": grpc.unary_unary_rpc_method_handler(
            inference.ListModels,
            request_deserializer=inference_pb2.ListModelsRequest.FromString,
            response_serializer=inference_pb2.ListModelsResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers),))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminForwarder(admin), server)
