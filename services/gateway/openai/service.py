"""OpenAiService over gRPC, and its calls over the link of a REST front."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import grpc
from google.api import httpbody_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from fastserve.v1 import openai_pb2
from services.domain.errors import FastServeError, InvalidFieldError
from services.gateway.access.key_interceptor import entered
from services.gateway.access.key_ring import KeyRing, Metadata
from services.gateway.openai.calls import Answer, OpenAiCalls
from services.gateway.openai.error_kinds import kind_of
from services.gateway.request_traces import RequestTraces
from services.runtime.error_statuses import ErrorInformation, ErrorStatus, status_of, to_grpc, to_status

_log = logging.getLogger(__name__)

OPENAI_SERVICE = openai_pb2.DESCRIPTOR.services_by_name["OpenAiService"].full_name
_DOMAIN = "openai"

Begin = Callable[[OpenAiCalls, Any, float | None], Awaitable[Answer]]


async def _completion(calls: OpenAiCalls, request: httpbody_pb2.HttpBody, deadline_in_s: float | None) -> Answer:
    return await calls.create_completion(request.data, deadline_in_s)


async def _chat(calls: OpenAiCalls, request: httpbody_pb2.HttpBody, deadline_in_s: float | None) -> Answer:
    return await calls.create_chat_completion(request.data, deadline_in_s)


async def _models(calls: OpenAiCalls, request: Message, deadline_in_s: float | None) -> Answer:
    return await calls.list_models()


async def _model(calls: OpenAiCalls, request: openai_pb2.GetOpenAiModelRequest, deadline_in_s: float | None) -> Answer:
    return await calls.get_model(request.model)


async def _openapi(calls: OpenAiCalls, request: Message, deadline_in_s: float | None) -> Answer:
    return await calls.get_openapi()


METHODS: dict[str, tuple[type[Message], Begin]] = {
    "CreateCompletion": (httpbody_pb2.HttpBody, _completion),
    "CreateChatCompletion": (httpbody_pb2.HttpBody, _chat),
    "ListOpenAiModels": (openai_pb2.ListOpenAiModelsRequest, _models),
    "GetOpenAiModel": (openai_pb2.GetOpenAiModelRequest, _model),
    "GetOpenApi": (openai_pb2.GetOpenApiRequest, _openapi),
}


async def begin(calls: OpenAiCalls, method: str, request: bytes, deadline_in_s: float | None) -> Answer:
    """Begins a call by its name. Raises the error that refuses it."""
    if method not in METHODS:
        raise InvalidFieldError("call.method", f"is not one of {', '.join(METHODS)}")
    message, run = METHODS[method]
    try:
        decoded = message.FromString(request)
    except DecodeError:
        raise InvalidFieldError("request", "can't be decoded") from None
    return await run(calls, decoded, deadline_in_s)


def error_status(error: Exception, method: str) -> ErrorStatus:
    """The status that ends a call, with OpenAI's names of the error. A bug is logged."""
    if isinstance(error, FastServeError):
        status, kind = status_of(error), kind_of(error)
    else:
        status = ErrorStatus(grpc.StatusCode.INTERNAL, "internal error; see the server's log")
        kind = kind_of(FastServeError())
    if status.code is grpc.StatusCode.INTERNAL:
        _log.error("%s failed", method, exc_info=error)
    metadata = {"type": kind.type} if kind.param is None else {"type": kind.type, "param": kind.param}
    return status._replace(information=ErrorInformation(kind.code or "", _DOMAIN, metadata))


def final_status(error: Exception, method: str) -> status_pb2.Status:
    """error_status as a message."""
    return to_status(error_status(error, method))


class _CallSink:
    """The answer goes to a gRPC client of its own."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._is_first = True
        # gRPC takes one message at a time; the prompts of a call may write at the same time.
        self._turn = asyncio.Lock()

    async def write(self, data: bytes, content_type: str) -> None:
        async with self._turn:
            kind = content_type if self._is_first else ""
            self._is_first = False
            await self._context.write(httpbody_pb2.HttpBody(content_type=kind, data=data))


class _RequestBytes:
    """Holds the bytes of a request, which can be taken out once: gRPC keeps the request until the call ends."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data

    def take(self) -> bytes:
        data, self._data = self._data, None
        assert data is not None
        return data


OPERATIONS = {"CreateCompletion": "text_completion", "CreateChatCompletion": "chat"}
"""The calls that are traced, by their gen_ai.operation.name."""


def traced(traces: RequestTraces, method: str, metadata: Metadata) -> AbstractContextManager[None]:
    """While a call is handled: its trace, if it has one."""
    return traces.call(OPERATIONS[method], metadata) if method in OPERATIONS else nullcontext()


def _handler(
    calls: OpenAiCalls, method: str, traces: RequestTraces, keys: KeyRing | None
) -> Callable[[_RequestBytes, Any], Awaitable[None]]:
    async def handle(request: _RequestBytes, context: Any) -> None:
        deadline_in_s = context.time_remaining()
        deadline_s = None if deadline_in_s is None else time.monotonic() + deadline_in_s
        try:
            metadata = context.invocation_metadata() or ()
            with traced(traces, method, metadata), entered(keys, method, metadata):
                answer = await begin(calls, method, request.take(), deadline_in_s)
                await answer.send(_CallSink(context), deadline_s)
        except Exception as error:
            told = to_grpc(error_status(error, method))
            await context.abort(told.code, told.details, told.trailing_metadata)

    return handle


def register_openai(
    server: grpc.aio.Server, calls: OpenAiCalls, traces: RequestTraces, keys: KeyRing | None = None
) -> None:
    """Adds OpenAiService to the server. `keys`: those that callers must have; None: nobody needs one."""
    handlers = {
        method: grpc.unary_stream_rpc_method_handler(
            _handler(calls, method, traces, keys),
            request_deserializer=_RequestBytes,
            response_serializer=httpbody_pb2.HttpBody.SerializeToString,
        )
        for method in METHODS
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(OPENAI_SERVICE, handlers),))
