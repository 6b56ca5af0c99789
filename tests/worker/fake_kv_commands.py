"""The commands of a KV manager to an engine, without streams."""

import threading
from collections import deque

from services.domain.ids import BlockId, CommandNumber, Epoch, JobId
from services.domain.protocol import Assign, BlockMove, Done, KvToWorker, Offload, ReleaseBlocks, Upload
from services.worker.engine.engine import Engine

WAIT_LIMIT_S = 60.0


class FakeKvCommands:
    """A KV manager moved by hand: hands out blocks of its own free lists, numbers commands, collects Done."""

    def __init__(self, engine: Engine, epoch: int = 1) -> None:
        self.engine = engine
        pools = engine.pools
        self.free_device = deque(BlockId(block) for block in range(pools.device_block_count))
        self.free_host = deque(BlockId(block) for block in range(pools.host_block_count))
        self.device: dict[JobId, list[BlockId]] = {}
        self.host: dict[JobId, list[BlockId]] = {}
        self.copying: dict[JobId, tuple[CommandNumber, deque[BlockId], list[BlockId]]] = {}
        self._moved = threading.Condition()
        self._done: set[CommandNumber] = set()
        self._next = 0
        engine.begin_epoch(Epoch(epoch), self._on_done)

    def _on_done(self, done: Done) -> None:
        with self._moved:
            self._done.add(done.command_number)
            self._moved.notify_all()

    def number(self) -> CommandNumber:
        self._next += 1
        return CommandNumber(self._next)

    def apply(self, command: KvToWorker) -> CommandNumber:
        assert self.engine.apply(command).command_number == command.command_number
        return command.command_number

    def is_done(self, command_number: CommandNumber) -> bool:
        return command_number in self._done

    def wait_done(self, command_number: CommandNumber) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: command_number in self._done, WAIT_LIMIT_S), (
                f"command {command_number} is not done"
            )

    def grow(self, job_id: JobId, tokens: int) -> None:
        """Blocks for so many tokens in all."""
        blocks = self.device.setdefault(job_id, [])
        missing = -(-tokens // self.engine.block_size) - len(blocks)
        if missing > 0:
            fresh = tuple(self.free_device.popleft() for _ in range(missing))
            blocks.extend(fresh)
            self.apply(Assign(self.number(), job_id, fresh))

    def offload(self, job_id: JobId, valid_tokens: int) -> CommandNumber:
        """Begins an offload. The device blocks are free again once `settle` finds it done."""
        blocks = self.device.pop(job_id)
        used = -(-valid_tokens // self.engine.block_size)
        self.host[job_id] = [self.free_host.popleft() for _ in range(used)]
        pairs = zip(blocks, self.host[job_id], strict=False)
        moves = tuple(BlockMove(index, device, host) for index, (device, host) in enumerate(pairs))
        command_number = self.apply(Offload(self.number(), job_id, moves, valid_tokens))
        self.free_device.extend(blocks[used:])
        self.copying[job_id] = (command_number, self.free_device, blocks[:used])
        return command_number

    def upload(self, job_id: JobId, valid_tokens: int) -> CommandNumber:
        """Begins an upload into fresh blocks. The host blocks are free again once `settle` finds it done."""
        hosted = self.host.pop(job_id)
        blocks = [self.free_device.popleft() for _ in hosted]
        self.device[job_id] = blocks
        pairs = zip(blocks, hosted, strict=True)
        moves = tuple(BlockMove(index, device, host) for index, (device, host) in enumerate(pairs))
        command_number = self.apply(Upload(self.number(), job_id, tuple(blocks), moves, valid_tokens))
        self.copying[job_id] = (command_number, self.free_host, hosted)
        return command_number

    def settle(self) -> None:
        """Frees what the copies that have ended used. Does not wait."""
        for job_id, (command_number, pool, blocks) in list(self.copying.items()):
            if self.is_done(command_number):
                pool.extend(blocks)
                del self.copying[job_id]

    def settle_one(self) -> None:
        """Waits for the oldest copy under way."""
        self.wait_done(next(iter(self.copying.values()))[0])
        self.settle()

    def release(self, job_id: JobId) -> None:
        assert job_id not in self.copying, "settle first"
        self.apply(ReleaseBlocks(self.number(), job_id))
        self.free_device.extend(self.device.pop(job_id, ()))
        self.free_host.extend(self.host.pop(job_id, ()))
