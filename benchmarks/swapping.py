"""Checks that moving KV beside compute changes no token, and that it would show if compute did not wait for uploads.

Jobs decode in one batch; between plans a third of them is offloaded and brought back into other blocks, and planned at
once, while the upload still runs. The tokens must be those of a run without moves. Then the same without the wait
for uploads, and with late uploads: the tokens must differ, or the first comparison would prove nothing.
"""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.device_models import BLOCK_SIZE, Shape, make_model, pools_of, served
from services.domain.copying import CopyDirection
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.job_sampling import JobSampling
from services.domain.protocol import Assign, BlockMove, Offload, Upload
from services.worker.engine.engine import Engine
from services.worker.kv.copier import Copier, CpuCopier, Ticket
from services.worker.kv.copier_choice import make_copier
from services.worker.kv.cuda_copier import CudaCopier
from services.worker.kv.pools import KvPools
from services.worker.model.batch import PagedKv

WAIT_LIMIT_S = 60.0


class Careless:
    """A copier whose `wait` is broken on purpose: uploads are late, and compute does not wait for them."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self.start, self.launched, self.drain = copier.start, copier.launched, copier.drain
        self.take_stall_s, self.close = copier.take_stall_s, copier.close

    def wait(self, tickets: Iterable[Ticket]) -> None:
        """Waits for nothing."""


class Swapper:
    """Jobs that decode in one batch; between plans some are offloaded and brought back into other blocks, if
    `swaps`.
    """

    def __init__(self, engine: Engine, job_count: int, prompt_tokens: int, output_tokens: int) -> None:
        self.engine = engine
        self.jobs = [JobId(f"{number}/0") for number in range(job_count)]
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks_per_job = -(-(prompt_tokens + output_tokens) // BLOCK_SIZE)
        self.uploads: dict[JobId, CommandNumber] = {}
        """Each job's last one, until it was awaited."""
        self._done: set[int] = set()
        self._commands = 0
        self._epoch = 0

    def run(self, swaps: bool) -> dict[JobId, list[int]]:
        """Outputs. A job brought back is planned at once, while its upload still runs."""
        engine, vocabulary = self.engine, self.engine.model.config.vocabulary_size
        engine.begin_epoch(Epoch(engine.epoch + 1), lambda done: self._done.add(done.command_number))
        self._done.clear()
        self.uploads.clear()
        free = deque(BlockId(block) for block in range(engine.pools.device_block_count))
        tables = {job_id: [free.popleft() for _ in range(self.blocks_per_job)] for job_id in self.jobs}
        for job_id, blocks in tables.items():
            engine.apply(Assign(self._number(), job_id, tuple(blocks)))
        outputs: dict[JobId, list[int]] = {job_id: [] for job_id in self.jobs}
        how = JobSampling(max_tokens=self.output_tokens, seed=1, temperature=0.0)
        spec = JobSpec(self.prompt_tokens, self.prompt_tokens, how)
        for step in range(self.output_tokens):
            valid = self.prompt_tokens + step - 1
            if swaps and step > 0:
                for number in range(step % 3, len(self.jobs), 3):
                    self._move(self.jobs[number], number, tables, free, valid)
            entries = []
            for number, job_id in enumerate(self.jobs):
                prompt = tuple((number * 97 + place * 31) % vocabulary for place in range(self.prompt_tokens))
                first = PlanWork(job_id, 0, self.prompt_tokens, prompt, spec, None)
                entries.append(first if step == 0 else PlanWork(job_id, valid, valid + 1, (), None, None))
            result = engine.run(Plan(engine.epoch, PlanNumber(step), tuple(entries)))
            for job_id, token_id, _ in result.result.tokens:
                outputs[job_id].append(token_id)
        return outputs

    def _move(
        self, job_id: JobId, number: int, tables: dict[JobId, list[BlockId]], free: deque[BlockId], valid: int
    ) -> None:
        """Offloads a job and uploads it into other blocks. Like the KV manager it awaits the previous upload, since a
        job has one copy at a time, and the offload; the worker awaits the new upload.
        """
        self.await_upload(job_id)
        used = -(-valid // BLOCK_SIZE)
        host = [BlockId(number * self.blocks_per_job + index) for index in range(used)]
        old, tables[job_id] = tables[job_id], [free.popleft() for _ in range(self.blocks_per_job)]
        out = tuple(BlockMove(index, old[index], host[index]) for index in range(used))
        command_number = self._number()
        self.engine.apply(Offload(command_number, job_id, out, valid))
        self._await(command_number)
        free.extend(old)
        back = tuple(BlockMove(index, tables[job_id][index], host[index]) for index in range(used))
        self.uploads[job_id] = self._number()
        self.engine.apply(Upload(self.uploads[job_id], job_id, tuple(tables[job_id]), back, valid))

    def await_upload(self, job_id: JobId) -> None:
        """Waits for the job's last upload, if any, whether or not compute does."""
        if job_id in self.uploads:
            self._await(self.uploads.pop(job_id))

    def _await(self, command_number: CommandNumber) -> None:
        until_s = time.monotonic() + WAIT_LIMIT_S
        while command_number not in self._done:
            assert time.monotonic() < until_s, f"copy {command_number} does not end"
            time.sleep(0)

    def _number(self) -> CommandNumber:
        self._commands += 1
        return CommandNumber(self._commands)


def check_swapping(shape: Shape, device: torch.device, job_count: int, output_tokens: int) -> dict[str, Any]:
    """The same plans with and without moves give the same tokens; with the wait for uploads broken they do not."""
    plain = make_model(shape, device, torch.float32)
    per_job = -(-(40 + output_tokens) // BLOCK_SIZE)
    pools = pools_of(plain, job_count * per_job * 2, job_count * per_job)
    model = served(plain, PagedKv(pools.device), job_count)

    def outputs(copier: Copier, swaps: bool) -> dict[JobId, list[int]]:
        pools.device.zero_()  # what an earlier run left must not stand in for what this one did not bring
        engine = Engine(model, pools, copier)
        try:
            return Swapper(engine, job_count, 40, output_tokens).run(swaps)
        finally:
            engine.close()

    unmoved, swapped = outputs(make_copier(pools), False), outputs(make_copier(pools), True)
    broken = outputs(Careless(slow_uploads(pools)), True)
    result = {
        "jobs": job_count,
        "output_tokens": output_tokens,
        "same_tokens": unmoved == swapped,
        "broken_shows": broken != unmoved,
    }
    return {**result, "passed": result["same_tokens"] and result["broken_shows"]}


def slow_uploads(pools: KvPools) -> Copier:
    """A copier whose uploads come a little late, which is allowed."""
    if not pools.device.is_cuda:
        return CpuCopier(pools, lambda direction: time.sleep(0.02 if direction is CopyDirection.UPLOAD else 0))
    copier = CudaCopier(pools)
    lane = copier._lanes[CopyDirection.UPLOAD]
    enqueue = lane._enqueue

    def enqueue_late(ticket: Any) -> None:
        with torch.cuda.stream(lane._stream):
            torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
        enqueue(ticket)

    lane._enqueue = enqueue_late  # type: ignore[method-assign]
    return copier
