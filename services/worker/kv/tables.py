"""Which blocks each job has, in either pool: the KV manager's commands, applied on arrival.

Theory of operation
-------------------
`apply` takes a command from the thread that talks to the KV manager, while an iteration may run on another; `places`
returns to the stepping thread, at the start of an iteration, where the KV of its jobs is. Both hold a lock for
microseconds. Neither disturbs the other, because a plan names no job that is being taken away (PROTOCOL rule 4) and
because block lists are never changed in place but by appending.

A command takes effect at once (the caller then reports Applied); its copies run beside compute, and `on_done` is
called at their end, from a thread of the copier. A command without copies is done when it is applied.

The tables watch the KV manager: a block that is given twice or while a copy still uses it, a copy of a block that is
not the job's, a plan beyond the table are bugs of a peer. They raise ProtocolError with the job's story, before any
memory is touched.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from services.domain.copying import CopyDirection
from services.domain.errors import ProtocolError
from services.domain.ids import JobId
from services.domain.protocol import (
    Applied,
    Assign,
    Done,
    KvToWorker,
    Offload,
    ReleaseBlocks,
    Upload,
)
from services.worker.job_progress import JobProgress
from services.worker.kv.copier import Copier, Ticket

STORY_LENGTH = 12
"""How many commands of a job are kept for its story in an error message."""


def _described(command: KvToWorker) -> str:
    if isinstance(command, Assign):
        return f"Assign {command.command_number} of {len(command.device_blocks)} blocks"
    if isinstance(command, ReleaseBlocks):
        return f"ReleaseBlocks {command.command_number}"
    kind = type(command).__name__
    return f"{kind} {command.command_number} of {len(command.moves)} blocks with {command.valid_tokens} tokens"


class JobTables:
    """One job's blocks. `device_blocks` is indexed like the job's table, `host_blocks` keyed by that index;
    `valid_tokens` have their KV in one of the pools. `progress` is the stepping thread's, kept here because both are
    forgotten together.
    """

    __slots__ = ("copy", "device_blocks", "host_blocks", "progress", "story", "upload", "valid_tokens")

    def __init__(self) -> None:
        self.device_blocks: list[int] = []
        self.host_blocks: dict[int, int] = {}
        self.valid_tokens = 0
        self.copy: Ticket | None = None
        self.upload: Ticket | None = None
        self.progress: JobProgress | None = None
        self.story: deque[KvToWorker] = deque(maxlen=STORY_LENGTH)


class KvPlace(NamedTuple):
    """Where a job's KV is. `tables.valid_tokens` and `tables.progress` are the stepping thread's to change while it
    runs a plan with the job.
    """

    tables: JobTables
    blocks: list[int]
    upload: Ticket | None


class BlockUses:
    """How often each block of a pool is used: by a job's table, by a copy under way. A block in use may not be
    given away.
    """

    def __init__(self, block_count: int) -> None:
        self._uses = [0] * block_count

    def free(self, blocks: Sequence[int]) -> bool:
        """Whether all of them exist, none is used and none is named twice."""
        uses = self._uses
        return len(set(blocks)) == len(blocks) and all(0 <= block < len(uses) and uses[block] == 0 for block in blocks)

    def add(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._uses[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._uses[block] -= 1
            assert self._uses[block] >= 0, f"block {block} is dropped once too often"

    def check(self, in_tables: Counter[int]) -> None:
        assert all(count == 1 for count in in_tables.values()), "a block in two tables"
        assert all(self._uses[block] >= 1 for block in in_tables), "a block in a table that counts as free"


class KvTables:
    """The tables of one epoch of the worker."""

    def __init__(
        self,
        copier: Copier,
        block_size: int,
        device_block_count: int,
        host_block_count: int,
        on_done: Callable[[Done], None],
    ) -> None:
        self._copier = copier
        self._block_size = block_size
        self._on_done = on_done
        self._lock = threading.Lock()
        self._jobs: dict[JobId, JobTables] = {}
        self.offloaded_blocks = self.uploaded_blocks = 0
        self._device_uses = BlockUses(device_block_count)
        self._host_uses = BlockUses(host_block_count)

    def apply(self, command: KvToWorker) -> Applied:
        """Takes effect at once. Raises ProtocolError for a command that can't be right."""
        with self._lock:
            tables = self._jobs.get(command.job_id)
            if isinstance(command, ReleaseBlocks):
                if tables is not None:
                    self._release(command.job_id, tables)
                return Applied(command.command_number)
            if tables is None:
                if not isinstance(command, Assign):
                    raise ProtocolError(f"job {command.job_id} has no tables: {_described(command)}")
                tables = self._jobs[command.job_id] = JobTables()
            tables.story.append(command)
            if isinstance(command, Assign):
                self._assign(tables, command)
            elif isinstance(command, Offload):
                self._offload(tables, command)
            else:
                self._upload(tables, command)
            return Applied(command.command_number)

    def places(self, jobs: Iterable[JobId]) -> list[KvPlace | None]:
        """Where the jobs' KV is now; None for a job that has no tables."""
        with self._lock:
            found = [self._jobs.get(job_id) for job_id in jobs]
            return [
                None if tables is None else KvPlace(tables, tables.device_blocks, tables.upload) for tables in found
            ]

    def check(self) -> None:
        """Raises AssertionError unless every block in a table counts as used, and none is in two."""
        with self._lock:
            jobs = self._jobs.values()
            self._device_uses.check(Counter(block for tables in jobs for block in tables.device_blocks))
            self._host_uses.check(Counter(block for tables in jobs for block in tables.host_blocks.values()))

    def story(self, tables: JobTables) -> str:
        """The KV manager's latest commands for the job, for an error message."""
        return ", then ".join(_described(command) for command in tables.story) or "no command has named it"

    # --- commands, under the lock -------------------------------------------------------------------------------------

    def _assign(self, tables: JobTables, command: Assign) -> None:
        if tables.host_blocks:
            raise self._broken(tables, "blocks are assigned to a job whose KV is on the host")
        self._take(tables, command.device_blocks, self._device_uses)
        tables.device_blocks.extend(command.device_blocks)

    def _offload(self, tables: JobTables, command: Offload) -> None:
        self._no_copy_runs(tables)
        moves, blocks = command.moves, tables.device_blocks
        if any(move.table_index >= len(blocks) or blocks[move.table_index] != move.device_block for move in moves):
            raise self._broken(tables, "an offloaded block is not the job's")
        self._covers(tables, command, {move.table_index for move in moves} | tables.host_blocks.keys())
        on_device = [int(move.device_block) for move in moves]
        on_host = [int(move.host_block) for move in moves]
        self._take(tables, on_host, self._host_uses)
        tables.host_blocks.update((move.table_index, int(move.host_block)) for move in moves)
        tables.device_blocks = []
        tables.upload = None
        self._device_uses.add(on_device)
        self._device_uses.drop(blocks)
        self._host_uses.add(on_host)

        def end() -> None:
            self._device_uses.drop(on_device)
            self._host_uses.drop(on_host)
            self.offloaded_blocks += len(moves)

        if moves:
            self._start(tables, CopyDirection.OFFLOAD, command, end)

    def _upload(self, tables: JobTables, command: Upload) -> None:
        self._no_copy_runs(tables)
        moves, blocks = command.moves, command.device_blocks
        if tables.device_blocks:
            raise self._broken(tables, "the uploaded job is already on the device")
        for move in moves:
            in_table = move.table_index < len(blocks) and blocks[move.table_index] == move.device_block
            if not in_table or tables.host_blocks.get(move.table_index) != move.host_block:
                raise self._broken(tables, "an uploaded block is not the job's")
        self._covers(tables, command, {move.table_index for move in moves})
        self._take(tables, blocks, self._device_uses)
        on_device, on_host = [int(move.device_block) for move in moves], list(tables.host_blocks.values())
        tables.device_blocks = [int(block) for block in blocks]
        tables.host_blocks = {}
        self._device_uses.add(on_device)

        def end() -> None:  # the host copy is void (rule 18)
            self._device_uses.drop(on_device)
            self._host_uses.drop(on_host)
            self.uploaded_blocks += len(moves)

        if moves:
            tables.upload = self._start(tables, CopyDirection.UPLOAD, command, end)
        else:
            end()

    def _release(self, job_id: JobId, tables: JobTables) -> None:
        self._device_uses.drop(tables.device_blocks)
        self._host_uses.drop(tables.host_blocks.values())
        del self._jobs[job_id]

    def _start(
        self, tables: JobTables, direction: CopyDirection, command: Offload | Upload, end: Callable[[], None]
    ) -> Ticket:
        done = Done(command.command_number)

        def on_end() -> None:
            with self._lock:
                end()
            self._on_done(done)

        tables.copy = self._copier.start(direction, command.moves, tables.copy, on_end)
        return tables.copy

    # --- checks -------------------------------------------------------------------------------------------------------

    def _take(self, tables: JobTables, blocks: Sequence[int], uses: BlockUses) -> None:
        if not uses.free(blocks):
            raise self._broken(tables, "a block is given that is in use, given twice or beyond the pool")
        uses.add(blocks)

    def _covers(self, tables: JobTables, command: Offload | Upload, kept: Set[int]) -> None:
        needed = -(-command.valid_tokens // self._block_size)
        if command.valid_tokens > tables.valid_tokens or any(index not in kept for index in range(needed)):
            raise self._broken(tables, f"a copy leaves valid tokens behind (the worker counts {tables.valid_tokens})")
        tables.valid_tokens = command.valid_tokens

    def _no_copy_runs(self, tables: JobTables) -> None:
        if tables.copy is not None and not tables.copy.ended():
            raise self._broken(tables, "a copy of the job is still under way")

    def _broken(self, tables: JobTables, what: str) -> ProtocolError:
        return ProtocolError(f"{what}: {self.story(tables)}")
