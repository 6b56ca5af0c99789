"""Copies between the pools, beside compute: one interface, for CPU and for CUDA.

Theory of operation
-------------------
A copy moves some blocks in one direction. `start` hands it over and returns at once; the ticket tells when it ended,
and `on_end` is called then, from a thread of the copier. Blocks that are neighbours in both pools travel as one
piece.

What may not overlap is kept apart by the protocol: an Offload comes only when every plan naming the job has its
result (rule 4), a block is given away only when the copies that name it are Done (rule 9), and a job has one copy at
a time (rule 10). What remains for the worker, and is done here:

- An iteration starts when the uploads of the jobs in it ended [rule 17, wait-own-upload]: `wait`, called by the
  stepping thread.
- A copy starts after the compute that was launched before it (on CUDA, where launching is not ending).
- Copies of one job never pass each other: a copy starts after the ticket named by `after`.
- A copy's end is reported after its last byte arrived.

On a CPU one thread copies, first come, first served: a copy is bound by the memory, which two threads would only
share. It uses numpy, whose copies release the interpreter's lock and run on one thread; torch's would start a team of
OpenMP threads that fights the model's own.

On CUDA each direction has a stream and a thread that feeds it; both directions run at once, and compute waits on an
event on the device only.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from services.domain.errors import ProtocolError
from services.domain.protocol import BlockMove
from services.worker.pools import KvPools


class Direction(Enum):
    """Which way blocks go."""

    OFFLOAD = "offload"
    UPLOAD = "upload"


class Ticket(Protocol):
    """A copy under way."""

    def ended(self) -> bool: ...


class Copier(Protocol):
    """Moves blocks beside compute. `start` is called by one thread, `wait` and `launched` by the stepping thread."""

    def start(
        self, direction: Direction, moves: Sequence[BlockMove], after: Ticket | None, on_end: Callable[[], None]
    ) -> Ticket:
        """Begins a copy after `after`. Raises ProtocolError when more copies are under way than blocks exist."""
        ...

    def wait(self, tickets: Iterable[Ticket]) -> None:
        """Compute launched from now on sees what these copies bring."""
        ...

    def launched(self) -> None:
        """An iteration's compute has been launched: copies that start later come after it."""
        ...

    def take_stall_s(self) -> float:
        """Seconds for which compute was held up by `wait` since the last call. On CUDA the iteration's results
        must be on the host already.
        """
        ...

    def drain(self) -> None:
        """Returns when no copy is under way."""
        ...

    def close(self) -> None:
        """Ends the threads, after the copies under way."""
        ...


class Run(NamedTuple):
    """Neighbouring blocks of both pools."""

    device_block: int
    host_block: int
    block_count: int


def runs_of(moves: Sequence[BlockMove]) -> list[Run]:
    """Moves joined where both sides go on with the next block. The order of blocks within a copy means nothing."""
    runs: list[Run] = []
    for move in sorted(moves, key=lambda move: move.device_block):
        if runs:
            last = runs[-1]
            if (
                move.device_block == last.device_block + last.block_count
                and move.host_block == last.host_block + last.block_count
            ):
                runs[-1] = last._replace(block_count=last.block_count + 1)
                continue
        runs.append(Run(move.device_block, move.host_block, 1))
    return runs


class _CpuTicket:
    __slots__ = ("_event", "direction", "moves", "on_end")

    def __init__(self, direction: Direction, moves: Sequence[BlockMove], on_end: Callable[[], None]) -> None:
        self.direction = direction
        self.moves = moves
        self.on_end = on_end
        self._event = threading.Event()

    def ended(self) -> bool:
        return self._event.is_set()

    def end(self) -> None:
        self._event.set()
        self.on_end()

    def wait(self) -> None:
        self._event.wait()


def _bytes_of(pool: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The same memory as rows of bytes, one per block."""
    view: npt.NDArray[np.uint8] = pool.view(pool.shape[0], -1).view(torch.uint8).numpy()
    return view


class CpuCopier:
    """One thread, first come, first served. `gate` is called by that thread before each copy: tests hold copies
    with it.
    """

    def __init__(self, pools: KvPools, gate: Callable[[Direction], None] | None = None) -> None:
        self._device = _bytes_of(pools.device)
        self._host = _bytes_of(pools.host)
        self._gate = gate
        self._stall_s = 0.0
        # One copy a job at a time, and a job in a copy holds a block: no honest peer can fill it.
        self._waiting: queue.Queue[_CpuTicket | None] = queue.Queue(
            pools.device_block_count + pools.host_block_count + 1
        )
        self._thread = threading.Thread(target=self._run, name="kv-copier", daemon=True)
        self._thread.start()

    def start(
        self, direction: Direction, moves: Sequence[BlockMove], after: Ticket | None, on_end: Callable[[], None]
    ) -> Ticket:
        ticket = _CpuTicket(direction, moves, on_end)  # one queue: whatever `after` names is ahead of it
        try:
            self._waiting.put_nowait(ticket)
        except queue.Full:
            raise ProtocolError("more copies are under way than there are blocks") from None
        return ticket

    def wait(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            if ticket.ended():
                continue
            assert isinstance(ticket, _CpuTicket)
            started_s = time.perf_counter()
            ticket.wait()
            self._stall_s += time.perf_counter() - started_s

    def launched(self) -> None:
        """Nothing to do: compute on a CPU has ended when its call returns."""

    def take_stall_s(self) -> float:
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    def drain(self) -> None:
        self._waiting.join()

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (ticket := self._waiting.get()) is not None:
            if self._gate is not None:
                self._gate(ticket.direction)
            self._copy(ticket)
            ticket.end()
            self._waiting.task_done()
            del ticket  # no reference to an ended copy's callback while waiting for the next
        self._waiting.task_done()

    def _copy(self, ticket: _CpuTicket) -> None:
        device, host = self._device, self._host
        for device_block, host_block, count in runs_of(ticket.moves):
            on_device, on_host = device[device_block : device_block + count], host[host_block : host_block + count]
            if ticket.direction is Direction.OFFLOAD:
                np.copyto(on_host, on_device)
            else:
                np.copyto(on_device, on_host)
