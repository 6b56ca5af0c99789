"""A worker of one stage, as small as it can be: tables, two pools whose every slot remembers whose token it holds,
and copies that take a while.

It is harsher than a real worker. Blocks lose their contents when they enter a table; a copy reads its source when it
ends, not when it begins; and a block that is given to somebody while a copy still uses it, a block in two tables, a
plan beyond a table and a read of anything but the job's own token are violations at once. Copies end in any order.
Plans run in order, one when no upload of its jobs is unfinished (PROTOCOL 17).
"""

from typing import NamedTuple

from services.domain.ids import BlockId, JobId
from services.domain.protocol import Assign, BlockMove, KvToWorker, Offload, PlanEntry, ReleaseBlocks, Upload

Tag = tuple[JobId, int]
"""Whose token a slot holds: the job and the position. The KV of a position is the same whenever it is computed."""


class ViolationError(Exception):
    """A breach of the protocol that the worker detects."""


class Copy(NamedTuple):
    """A copy under way."""

    to_host: bool
    job_id: JobId
    moves: tuple[BlockMove, ...]
    valid_tokens: int


class FakeWorkerTables:
    """One life of a worker."""

    def __init__(self, block_size: int, device_blocks: int, host_blocks: int) -> None:
        self.block_size = block_size
        self.device: list[tuple[Tag | None, ...]] = [self._blank(block_size)] * device_blocks
        self.host: list[tuple[Tag | None, ...]] = [self._blank(block_size)] * host_blocks
        self.tables: dict[JobId, tuple[BlockId, ...]] = {}
        self.host_tables: dict[JobId, tuple[BlockId, ...]] = {}
        self.copies: list[Copy] = []

    @staticmethod
    def _blank(block_size: int) -> tuple[Tag | None, ...]:
        return (None,) * block_size

    def key(self) -> tuple[object, ...]:
        """The whole state."""
        tables = (tuple(sorted(self.tables.items())), tuple(sorted(self.host_tables.items())))
        return (tuple(self.device), tuple(self.host), tables, tuple(self.copies))

    # --- commands ----------------------------------------------------------------------------------------------------

    def apply(self, commands: tuple[KvToWorker, ...]) -> tuple[int, ...]:
        """Apply a batch in order. Returns the numbers of the commands that started a copy."""
        return tuple(command.command_number for command in commands if self._apply(command))

    def _apply(self, command: KvToWorker) -> bool:
        job_id = command.job_id
        match command:
            case Assign():
                self._take_device(command.device_blocks)
                self.tables[job_id] = (*self.tables.get(job_id, ()), *command.device_blocks)
                return False
            case Offload():
                table = self._pop(self.tables, job_id, "Offload without a device table")
                if any(table[move.table_index] != move.device_block for move in command.moves):
                    raise ViolationError(f"{command} does not name the blocks of {table}")
                self._take_host(tuple(move.host_block for move in command.moves))
                self.host_tables[job_id] = tuple(move.host_block for move in command.moves)
                self.copies.append(Copy(True, job_id, command.moves, command.valid_tokens))
                return True
            case Upload():
                table = self._pop(self.host_tables, job_id, "Upload without a host table")
                if tuple(move.host_block for move in command.moves) != table or job_id in self.tables:
                    raise ViolationError(f"{command} does not fit host table {table}")
                self._take_device(command.device_blocks)
                self.tables[job_id] = command.device_blocks
                self.copies.append(Copy(False, job_id, command.moves, command.valid_tokens))
                return True
            case ReleaseBlocks():
                self.tables.pop(job_id, None)
                self.host_tables.pop(job_id, None)
                return False

    @staticmethod
    def _pop(tables: dict[JobId, tuple[BlockId, ...]], job_id: JobId, problem: str) -> tuple[BlockId, ...]:
        if job_id not in tables:
            raise ViolationError(f"{problem}: {job_id}")
        return tables.pop(job_id)

    def _take_device(self, blocks: tuple[BlockId, ...]) -> None:
        self._take(blocks, self.device, [block for table in self.tables.values() for block in table], host=False)

    def _take_host(self, blocks: tuple[BlockId, ...]) -> None:
        self._take(blocks, self.host, [block for table in self.host_tables.values() for block in table], host=True)

    def _take(
        self, blocks: tuple[BlockId, ...], pool: list[tuple[Tag | None, ...]], used: list[BlockId], host: bool
    ) -> None:
        copied = [move.host_block if host else move.device_block for copy in self.copies for move in copy.moves]
        for block in blocks:
            if block in used:
                raise ViolationError(f"{'host' if host else 'device'} block {block} is in two tables")
            if block in copied:
                raise ViolationError(f"{'host' if host else 'device'} block {block} is given away under a copy")
            used.append(block)
            pool[block] = self._blank(self.block_size)

    def end_copy(self, index: int) -> None:
        """End a copy: its source must be unchanged."""
        copy = self.copies.pop(index)
        for move in copy.moves:
            source = self.device[move.device_block] if copy.to_host else self.host[move.host_block]
            first = move.table_index * self.block_size
            for offset in range(min(self.block_size, copy.valid_tokens - first)):
                if source[offset] != (copy.job_id, first + offset):
                    raise ViolationError(f"{copy} finds {source[offset]} at position {first + offset}")
            if copy.to_host:
                self.host[move.host_block] = source
            else:
                self.device[move.device_block] = source

    # --- plans -------------------------------------------------------------------------------------------------------

    def can_start(self, entries: tuple[PlanEntry, ...]) -> bool:
        """Whether all uploads of the plan's jobs are finished (PROTOCOL 17)."""
        uploading = [copy.job_id for copy in self.copies if not copy.to_host]
        return not any(entry.job_id in uploading for entry in entries)

    def run(self, entries: tuple[PlanEntry, ...]) -> None:
        """Run an iteration: read all earlier positions, write the computed ones."""
        for job_id, from_token, to_token in entries:
            table = self.tables.get(job_id, ())
            if to_token > len(table) * self.block_size:
                raise ViolationError(
                    f"a plan computes positions {from_token} to {to_token} of {job_id}, whose table is {table}"
                )
            for position in range(from_token):
                found = self.device[table[position // self.block_size]][position % self.block_size]
                if found != (job_id, position):
                    raise ViolationError(f"{job_id} reads {found} at position {position} of {table}")
            for position in range(from_token, to_token):
                self._write(table[position // self.block_size], position % self.block_size, (job_id, position))

    def _write(self, block: BlockId, offset: int, tag: Tag) -> None:
        slots = list(self.device[block])
        slots[offset] = tag
        self.device[block] = tuple(slots)
