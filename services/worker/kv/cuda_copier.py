"""Copies on CUDA: a stream and a feeding thread for each direction. The contract is that of services.worker.kv.copier.

Theory of operation
-------------------
A feeding thread enqueues every copy that waits on its stream, then waits for the oldest one's event, reports its end,
and looks again. So the stream does not run dry while the thread reports, and no other thread ever launches a copy.

Order on the device is made of events alone. A copy's first piece waits for the event of the last compute that was
launched before it, and for the copy named by `after`; its own event is recorded after its last piece. Compute that
needs an upload makes the compute stream wait for that event; the stepping thread itself waits only until the copy is
enqueued, since an event that was not recorded holds nobody.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch

from services.domain.copying import CopyDirection
from services.domain.errors import ProtocolError
from services.domain.protocol import BlockMove
from services.worker.kv.copier import CopyFailure, Ticket, runs_of
from services.worker.kv.pools import KvPools


class _CudaTicket:
    __slots__ = ("_ended", "after", "compute", "direction", "enqueued", "event", "moves", "on_end")

    def __init__(
        self,
        direction: CopyDirection,
        moves: Sequence[BlockMove],
        after: "_CudaTicket | None",
        compute: torch.cuda.Event | None,
        on_end: Callable[[], None],
    ) -> None:
        self.direction = direction
        self.moves = moves
        self.after = after
        self.compute = compute
        self.on_end = on_end
        self.enqueued = threading.Event()
        self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._ended = False

    def ended(self) -> bool:
        return self._ended

    def end(self) -> None:
        """Waits for the copy's last byte."""
        self.event.synchronize()
        self._ended = True
        self.after = None  # a chain of ended copies must not stay alive
        self.on_end()


class _Lane:
    """One direction: its stream, its thread, its waiting copies."""

    def __init__(self, direction: CopyDirection, pools: KvPools, failure: CopyFailure) -> None:
        self._direction = direction
        self._failure = failure
        self._pools = pools
        self._stream = torch.cuda.Stream(device=pools.device.device)  # type: ignore[no-untyped-call]
        self.waiting: queue.Queue[_CudaTicket | None] = queue.Queue(
            pools.device_block_count + pools.host_block_count + 1
        )
        self._thread = threading.Thread(target=self._run, name=f"kv-{direction.name.lower()}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._failure.attempt(torch.cuda.set_device, self._pools.device.device)
        enqueued: deque[_CudaTicket] = deque()
        closing = False
        while enqueued or not closing:
            while not closing and not (enqueued and self.waiting.empty()):
                ticket = self.waiting.get()
                if ticket is None:
                    closing = True
                else:
                    self._failure.attempt(self._enqueue, ticket)
                    ticket.enqueued.set()  # also after a failure: nobody may wait for ever
                    enqueued.append(ticket)
            if enqueued:
                self._failure.attempt(_CudaTicket.end, enqueued.popleft())
                self.waiting.task_done()
        self.waiting.task_done()

    def _enqueue(self, ticket: _CudaTicket) -> None:
        if ticket.compute is not None:
            self._stream.wait_event(ticket.compute)
        if ticket.after is not None:
            ticket.after.enqueued.wait()
            self._stream.wait_event(ticket.after.event)
        device, host = self._pools.device, self._pools.host
        with torch.cuda.stream(self._stream):
            for device_block, host_block, count in runs_of(ticket.moves):
                on_device, on_host = device[device_block : device_block + count], host[host_block : host_block + count]
                if self._direction is CopyDirection.OFFLOAD:
                    on_host.copy_(on_device, non_blocking=True)
                else:
                    on_device.copy_(on_host, non_blocking=True)
            ticket.event.record(self._stream)


class CudaCopier:
    """Both directions at once, on their own streams."""

    def __init__(self, pools: KvPools) -> None:
        self._compute_stream = torch.cuda.current_stream(pools.device.device)
        self._last_compute: torch.cuda.Event | None = None
        self._stalls: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._failure = CopyFailure()
        self._lanes = {direction: _Lane(direction, pools, self._failure) for direction in CopyDirection}

    def start(
        self, direction: CopyDirection, moves: Sequence[BlockMove], after: Ticket | None, on_end: Callable[[], None]
    ) -> Ticket:
        self._failure.check()
        assert after is None or isinstance(after, _CudaTicket)
        earlier = None if after is None or after.ended() else after
        ticket = _CudaTicket(direction, moves, earlier, self._last_compute, on_end)
        try:
            self._lanes[direction].waiting.put_nowait(ticket)
        except queue.Full:
            raise ProtocolError("more copies are under way than there are blocks") from None
        return ticket

    def wait(self, tickets: Iterable[Ticket]) -> None:
        unended = [ticket for ticket in tickets if not ticket.ended()]
        if not unended:
            return
        before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before.record(self._compute_stream)
        for ticket in unended:
            assert isinstance(ticket, _CudaTicket)
            ticket.enqueued.wait()
            self._compute_stream.wait_event(ticket.event)
        after.record(self._compute_stream)
        self._failure.check()
        self._stalls.append((before, after))

    def launched(self) -> None:
        self._failure.check()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._compute_stream)
        self._last_compute = event

    def take_stall_s(self) -> float:
        stalls, self._stalls = self._stalls, []
        for _, after in stalls:
            after.synchronize()
        return float(sum(before.elapsed_time(after) for before, after in stalls)) / 1e3

    def drain(self) -> None:
        for lane in self._lanes.values():
            lane.waiting.join()
        self._failure.check()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
