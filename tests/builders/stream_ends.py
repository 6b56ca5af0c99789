"""How a stream ends that a test holds at the client's end."""

import asyncio
from typing import Any

import grpc

from services.domain.errors import FastServeError
from services.runtime.error_statuses import from_grpc
from tests.builders.waits import LIMIT_S


async def error_at_end(call: Any) -> FastServeError:
    """The error with which a stream ends."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return from_grpc(error)
    raise AssertionError("it ended well")


async def status_at_end(call: Any) -> grpc.StatusCode:
    """The status that a stream ends with."""
    async with asyncio.timeout(LIMIT_S):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        code: grpc.StatusCode = await call.code()
        return code
