"""Copies between the pools, beside compute: one interface, for CPU and for CUDA.

Theory of operation
-------------------
A copy moves some blocks in one direction. `start` hands it over and returns at once; the ticket says whether it has
ended, and `on_end` is called then, from a thread of the copier. Blocks that are neighbours in both pools travel as one
piece.

The protocol keeps apart what must not overlap: an Offload comes only when every plan naming the job has its
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

A copy that fails ends no thread, since others would then wait for ever: `CopyFailure` keeps why, the copies behind it
are passed over without a Done, and the next call of the stepping thread or of the one that hands over commands raises.
The pools are not to be trusted by then, and the worker ends.

On CUDA each direction has a stream and a thread that feeds it; both directions run at once, and compute waits on an
event on the device only.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from services.domain.copying import CopyDirection
from services.domain.errors import ProtocolError
from services.domain.protocol import BlockMove
from services.worker.kv.pools import KvPools

ItemT = TypeVar("ItemT")

_log = logging.getLogger(__name__)


class Ticket(Protocol):
    """A copy under way."""

    def ended(self) -> bool: ...


class CopyFailedError(Exception):
    """This worker can make no more copies. Not a FastServeError, since dialling again would not help."""


class CopyFailure:
    """The first error of a copier's threads, raised in the threads that wait for them."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def check(self) -> None:
        """Raises CopyFailedError after a failure."""
        if self._error is not None:
            raise CopyFailedError(f"a copy between the pools failed: {self._error!r}") from self._error

    def attempt(self, step: Callable[[ItemT], None], item: ItemT) -> bool:
        """Does a step with an item unless one has failed before; returns whether it was done."""
        if self._error is not None:
            return False
        try:
            step(item)
        except Exception as error:  # raised again by `check`, in a thread whose errors are handled
            _log.exception("a copy between the pools failed; no more copies are made")
            self._error = error
            return False
        return True


class Copier(Protocol):
    """Moves blocks beside compute. `start` is called by one thread, `wait` and `launched` by the stepping thread.

    All but `close` raise CopyFailedError once a copy has failed.
    """

    def start(
        self, direction: CopyDirection, moves: Sequence[BlockMove], after: Ticket | None, on_end: Callable[[], None]
    ) -> Ticket:
        """Begins a copy after `after`. Raises ProtocolError when more copies are under way than blocks exist."""
        ...

    def wait(self, tickets: Iterable[Ticket]) -> None:
        """Makes compute launched from now on see the copied blocks."""
        ...

    def launched(self) -> None:
        """Notes that an iteration's compute has been launched: copies that start later come after it."""
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


class BlockRun(NamedTuple):
    """Neighbouring blocks of both pools."""

    device_block: int
    host_block: int
    block_count: int


def runs_of(moves: Sequence[BlockMove]) -> list[BlockRun]:
    """Moves joined where both sides go on with the next block. The order of blocks within a copy does not matter."""
    runs: list[BlockRun] = []
    for move in sorted(moves, key=lambda move: move.device_block):
        if runs:
            last = runs[-1]
            if (
                move.device_block == last.device_block + last.block_count
                and move.host_block == last.host_block + last.block_count
            ):
                runs[-1] = last._replace(block_count=last.block_count + 1)
                continue
        runs.append(BlockRun(move.device_block, move.host_block, 1))
    return runs


class _CpuTicket:
    __slots__ = ("_event", "direction", "moves", "on_end")

    def __init__(self, direction: CopyDirection, moves: Sequence[BlockMove], on_end: Callable[[], None]) -> None:
        self.direction = direction
        self.moves = moves
        self.on_end = on_end
        self._event = threading.Event()

    def ended(self) -> bool:
        return self._event.is_set()

    def end(self) -> None:
        self._event.set()
        self.on_end()

    def pass_over(self) -> None:
        """Ends the wait without reporting that the blocks arrived."""
        self._event.set()

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

    def __init__(self, pools: KvPools, gate: Callable[[CopyDirection], None] | None = None) -> None:
        self._device = _bytes_of(pools.device)
        self._host = _bytes_of(pools.host)
        self._gate = gate
        self._stall_s = 0.0
        self._failure = CopyFailure()
        # One copy a job at a time, and a job in a copy holds a block: no honest peer can fill it.
        self._waiting: queue.Queue[_CpuTicket | None] = queue.Queue(
            pools.device_block_count + pools.host_block_count + 1
        )
        self._thread = threading.Thread(target=self._run, name="kv-copier", daemon=True)
        self._thread.start()

    def start(
        self, direction: CopyDirection, moves: Sequence[BlockMove], after: Ticket | None, on_end: Callable[[], None]
    ) -> Ticket:
        self._failure.check()
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
        self._failure.check()

    def launched(self) -> None:
        """Compute on a CPU has ended when its call returns."""
        self._failure.check()

    def take_stall_s(self) -> float:
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    def drain(self) -> None:
        self._waiting.join()
        self._failure.check()

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (ticket := self._waiting.get()) is not None:
            if not self._failure.attempt(self._copy, ticket):
                ticket.pass_over()
            self._waiting.task_done()
            del ticket  # no reference to an ended copy's callback while waiting for the next
        self._waiting.task_done()

    def _copy(self, ticket: _CpuTicket) -> None:
        if self._gate is not None:
            self._gate(ticket.direction)
        device, host = self._device, self._host
        for device_block, host_block, count in runs_of(ticket.moves):
            on_device, on_host = device[device_block : device_block + count], host[host_block : host_block + count]
            if ticket.direction is CopyDirection.OFFLOAD:
                np.copyto(on_host, on_device)
            else:
                np.copyto(on_device, on_host)
        ticket.end()
