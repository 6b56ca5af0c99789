"""A tiny random model, an engine around it, and a KV manager that does as the test says."""

import threading
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from models.make_random import PRESETS, write_random_model
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork, WorkerResult
from services.domain.job_sampling import JobSampling
from services.domain.protocol import Assign, BlockMove, Done, KvToWorker, Offload, ReleaseBlocks, Upload
from services.worker.engine.engine import Engine
from services.worker.kv.copier import Copier
from services.worker.kv.pools import BlockShape, KvPools, make_pools
from services.worker.model.llama import DecoderModel
from services.worker.model.loader import load_model

BLOCK_SIZE = 4
WAIT_LIMIT_S = 10.0


@cache
def tiny_model() -> DecoderModel:
    """Float32, 2 layers, vocabulary 512. Loaded once a process: nothing changes it."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        write_random_model(PRESETS["tiny"], Path(folder) / "model")
        return load_model(Path(folder) / "model", "cpu", torch.float32)


def tiny_pools(device_blocks: int = 64, host_blocks: int = 64) -> KvPools:
    config = tiny_model().config
    shape = BlockShape(config.layer_count, BLOCK_SIZE, config.kv_head_count, config.head_dim, torch.float32)
    return make_pools(shape, device_blocks, host_blocks, torch.device("cpu"))


def sampling(max_tokens: int = 16, seed: int = 0, temperature: float = 0.0, **fields: object) -> JobSampling:
    return JobSampling(max_tokens=max_tokens, seed=seed, temperature=temperature, **fields)  # type: ignore[arg-type]


def prompt_of(number: int, tokens: int) -> tuple[int, ...]:
    return tuple((number * 97 + position * 31) % 509 for position in range(tokens))


class KvHand:
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


class Runner:
    """Jobs as a scheduler sees them, on one engine: makes plans, remembers outputs."""

    def __init__(self, kv: KvHand) -> None:
        self.kv = kv
        self.prompts: dict[JobId, tuple[int, ...]] = {}
        self.samplings: dict[JobId, JobSampling] = {}
        self.outputs: dict[JobId, list[int]] = {}
        self.planned: dict[JobId, int] = {}
        self.prefill_ends: dict[JobId, int] = {}
        self.ended: set[JobId] = set()
        self._plan = 0

    def add(self, name: str, prompt: Sequence[int], how: JobSampling) -> JobId:
        job_id = JobId(name)
        self.prompts[job_id], self.samplings[job_id], self.outputs[job_id] = tuple(prompt), how, []
        self.planned[job_id] = 0
        return job_id

    def known(self, job_id: JobId) -> int:
        return len(self.prompts[job_id]) + len(self.outputs[job_id])

    def entry(self, job_id: JobId, to_token: int | None = None, cut_after_s: float | None = None) -> PlanWork:
        """The next entry of a job: its prefill (up to `to_token`), or a decode; speculative if a plan is in flight."""
        done = self.planned[job_id]
        if done == 0:
            self.prefill_ends[job_id] = self.known(job_id)
        if done < self.prefill_ends[job_id]:
            tokens = (*self.prompts[job_id], *self.outputs[job_id])
            end = self.prefill_ends[job_id] if to_token is None else to_token
            spec = JobSpec(len(self.prompts[job_id]), len(tokens), self.samplings[job_id]) if done == 0 else None
            work = PlanWork(job_id, done, end, tokens[done:end], spec, cut_after_s)
        else:
            work = PlanWork(job_id, done, done + 1, (), None, cut_after_s)
        self.planned[job_id] = work.to_token
        self.kv.grow(job_id, work.to_token)
        return work

    def run(self, *entries: PlanWork) -> WorkerResult:
        self._plan += 1
        result = self.kv.engine.run(Plan(self.kv.engine.epoch, PlanNumber(self._plan), tuple(entries)))
        for job_id, token_id, end_of_sequence in result.result.tokens:
            self.outputs[job_id].append(token_id)
            if end_of_sequence or len(self.outputs[job_id]) == self.samplings[job_id].max_tokens:
                self.ended.add(job_id)
        return result

    def finish(self, *jobs: JobId) -> None:
        """Runs the jobs to their ends, all in each plan."""
        while left := [job_id for job_id in jobs if job_id not in self.ended]:
            self.run(*(self.entry(job_id) for job_id in left))


def new_engine(device_blocks: int = 64, host_blocks: int = 64, copier: Copier | None = None) -> Engine:
    pools = tiny_pools(device_blocks, host_blocks)
    return Engine(tiny_model(), pools, copier)


def alone(prompt: Sequence[int], how: JobSampling) -> list[int]:
    """What a job gives when it runs by itself."""
    engine = new_engine()
    try:
        runner = Runner(KvHand(engine))
        job_id = runner.add("alone", prompt, how)
        runner.finish(job_id)
        return runner.outputs[job_id]
    finally:
        engine.close()
