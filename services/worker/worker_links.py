"""The worker's two streams: to the scheduler, plans in and results out; to the KV manager, commands in and
acknowledgements out.

Each `run` is one stream of one life of the worker: it dials, says hello, then reads and writes until the stream ends.
It always ends with an error, which tells why: the typed error of the peer's status, UnreachableError where the peer
is gone or closed the stream, ProtocolError for a message that is none. What is to be sent is put into an outbox from
the event loop and written by one task, in order; acknowledgements that wait together travel together.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import grpc

from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import kvmanager_pb2_grpc, scheduler_pb2_grpc
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import ProtocolError, UnreachableError
from services.domain.ids import Epoch
from services.domain.iteration import Plan, WorkerResult
from services.domain.protocol import Applied, Done, KvToWorker
from services.domain.worker_facts import KvWorkerFacts, WorkerFacts
from services.runtime.channel import open_channel
from services.runtime.error_statuses import from_grpc
from services.wire.kvmanager_worker import acknowledgements_to_wire, commands_from_wire, kv_hello_to_wire
from services.wire.scheduler_worker import plan_from_wire, result_to_wire, worker_facts_to_wire

HELLO_LIMIT_S = 10.0
MOST_UNSENT = 100_000

ItemT = TypeVar("ItemT")

_SchedulerCall = grpc.aio.StreamStreamCall[wire.WorkerLinkRequest, wire.WorkerLinkResponse]
_KvCall = grpc.aio.StreamStreamCall[
    kv_wire.KvManagerServiceWorkerLinkRequest, kv_wire.KvManagerServiceWorkerLinkResponse
]


class Outbox(Generic[ItemT]):
    """What waits to be sent on a stream, in order. Used from the event loop only."""

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()
        self._filled = asyncio.Event()

    def put(self, item: ItemT) -> None:
        """Raises ProtocolError when the peer has stopped reading long ago."""
        if len(self._items) >= MOST_UNSENT:
            raise ProtocolError(f"{MOST_UNSENT} messages wait to be sent: the peer does not read")
        self._items.append(item)
        self._filled.set()

    async def take(self) -> list[ItemT]:
        """Waits for items, then takes all of them."""
        await self._filled.wait()
        self._filled.clear()
        items = list(self._items)
        self._items.clear()
        return items


async def run_scheduler_link(
    address: str,
    facts: WorkerFacts,
    results: Outbox[WorkerResult],
    on_welcome: Callable[[], None],
    on_plan: Callable[[Plan], None],
) -> None:
    """The stream to the scheduler of the life `facts.epoch`, until it ends. Plans of other epochs are dropped.
    Always raises.
    """

    async def write(call: _SchedulerCall) -> None:
        while True:
            for result in await results.take():
                await call.write(wire.WorkerLinkRequest(result=result_to_wire(result)))

    async with open_channel(address) as channel:
        call: _SchedulerCall = scheduler_pb2_grpc.SchedulerServiceStub(channel).WorkerLink()
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                await call.write(wire.WorkerLinkRequest(hello=worker_facts_to_wire(facts)))
                first = await call.read()
            if not isinstance(first, wire.WorkerLinkResponse):
                raise await _end_of(call, "scheduler")
            if first.WhichOneof("message") != "welcome":
                raise ProtocolError("the scheduler's first message is no welcome")
            on_welcome()
            async with _writing(write(call)):
                while isinstance(message := await call.read(), wire.WorkerLinkResponse):
                    if message.HasField("plan") and message.plan.epoch == facts.epoch:
                        on_plan(plan_from_wire(message.plan))
            raise await _end_of(call, "scheduler")
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None
        except TimeoutError:
            raise UnreachableError(f"the scheduler at {address} does not answer") from None
        finally:
            call.cancel()


async def run_kv_link(
    address: str,
    facts: KvWorkerFacts,
    acknowledgements: Outbox[Applied | Done],
    on_open: Callable[[], None],
    on_commands: Callable[[Sequence[KvToWorker]], None],
) -> None:
    """The stream to the KV manager of the life `facts.pools.epoch`, until it ends. Commands of other epochs are
    dropped. Always raises.
    """
    epoch: Epoch = facts.pools.epoch

    async def write(call: _KvCall) -> None:
        while True:
            await call.write(acknowledgements_to_wire(epoch, await acknowledgements.take()))

    async with open_channel(address) as channel:
        call: _KvCall = kvmanager_pb2_grpc.KvManagerServiceStub(channel).WorkerLink()
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                await call.write(kv_hello_to_wire(facts))
            on_open()
            async with _writing(write(call)):
                while isinstance(batch := await call.read(), kv_wire.KvManagerServiceWorkerLinkResponse):
                    if batch.epoch == epoch:
                        on_commands(commands_from_wire(batch)[1])
            raise await _end_of(call, "KV manager")
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None
        except TimeoutError:
            raise UnreachableError(f"the KV manager at {address} does not answer") from None
        finally:
            call.cancel()


class _writing:  # noqa: N801 (used as a statement)
    """Runs the writing task beside the body. An error of it is not raised here: the stream has ended, and reading
    tells why.
    """

    def __init__(self, writer: Awaitable[None]) -> None:
        self._task = asyncio.ensure_future(writer)

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _end_of(
    call: "grpc.aio.StreamStreamCall[wire.WorkerLinkRequest, wire.WorkerLinkResponse] | _KvCall", peer: str
) -> Exception:
    """Why a stream ended that gave no further message."""
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return UnreachableError(f"the {peer} closed the stream")
    initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
    return grpc.aio.AioRpcError(code, initial, trailing, await call.details())
