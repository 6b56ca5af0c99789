"""Checks and measures the engine on a device: parity, swapping beside compute, copy bandwidth, decode and prefill.

On a machine with a GPU, where it takes 8 minutes at most:

    python benchmarks/gpu.py --out benchmarks/results/HARDWARE/gpu.json

A smoke test anywhere:

    python benchmarks/gpu.py --device cpu --sizes tiny --out gpu.json

It runs the code that serves, without services: no gRPC, no stubs, no files of models. Weights are random, made on the
device. Needs torch, numpy and safetensors; transformers, where it is installed, is a second reference. Exits with 1
when a check fails; the JSON says which.
"""

import argparse
import importlib.util
import json
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.device_models import (
    BLOCK_SIZE,
    SHAPES,
    Shape,
    copy_of,
    make_model,
    parameter_count,
    pools_of,
)
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import Assign, BlockMove, Offload, Upload
from services.domain.sampling import JobSampling
from services.domain.work import JobSpec, Plan, PlanWork
from services.worker.copier import Copier, CpuCopier, Direction, Ticket
from services.worker.cuda_copier import CudaCopier
from services.worker.engine import Engine, make_copier
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.config import parse_config
from services.worker.model.llama import DecoderModel
from services.worker.model.loader import prepare
from services.worker.pools import BlockShape, KvPools, make_pools
from services.worker.profile import Measurer

FLOAT32_TOLERANCE = 2e-3
BFLOAT16_TOLERANCE = 0.5
WAIT_LIMIT_S = 60.0


# --- parity ------------------------------------------------------------


def parity_plan(vocabulary: int) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """Token sequences, and for each pass the positions that each sequence computes: prefills, chunks, decodes."""
    tokens = [[(7 * row + 13 * column + 5) % vocabulary for column in range(60)] for row in range(3)]
    passes = [[(0, 33), (0, 8), (0, 17)], [(33, 34), (8, 40), (17, 18)], [(34, 35), (40, 41), (18, 19)]]
    return tokens, passes


def run_passes(model: DecoderModel) -> torch.Tensor:
    """Logits of every sequence after every pass, [passes * sequences, V], through scattered blocks."""
    tokens, passes = parity_plan(model.config.vocabulary_size)
    cache = PagedKv(pools_of(model, 16, 1).device)
    blocks = [[5, 0, 9, 12], [1, 14, 3, 8], [7, 2, 15, 4]]
    found = []
    for ranges in passes:
        order = sorted(range(3), key=lambda row: ranges[row][1] - ranges[row][0] > 1)
        sequences = [SequenceRows(*ranges[row], blocks[row]) for row in order]
        ids = [token for row in order for token in tokens[row][slice(*ranges[row])]]
        layout = BatchLayout.of(sequences, BLOCK_SIZE, model.device)
        logits = model(torch.tensor(ids, device=model.device), cache, layout)
        found.append(logits[torch.tensor([order.index(row) for row in range(3)], device=model.device)])
    return torch.cat(found).double().cpu()


def transformers_logits(model: DecoderModel, shape: Shape) -> torch.Tensor:
    """The same rows by transformers, whole sequences at once."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(model.device):
        reference: Any = LlamaForCausalLM(LlamaConfig.from_dict(shape.config()))
    reference = reference.to(model.device, model.dtype).eval()
    missing = reference.load_state_dict(model.destinations(), strict=False)
    assert not missing.unexpected_keys, missing
    tokens, passes = parity_plan(shape.vocabulary)
    with torch.inference_mode():
        whole = reference(torch.tensor(tokens, device=model.device)).logits.double().cpu()
    return torch.stack([whole[row, ranges[row][1] - 1] for ranges in passes for row in range(3)])


def check_parity(shape: Shape, device: torch.device) -> dict[str, Any]:
    """Largest differences of logits against float64 on the CPU, and against transformers in float32."""
    float32 = make_model(shape, device, torch.float32)
    reference = run_passes(copy_of(float32, shape, torch.device("cpu"), torch.float64))
    bfloat16 = copy_of(float32, shape, device, torch.bfloat16)
    rounded = copy_of(bfloat16, shape, torch.device("cpu"), torch.float64)
    prepare(bfloat16)
    result: dict[str, Any] = {
        "logit_deviation": float(reference.std()),
        "float32_max_difference": float((run_passes(float32) - reference).abs().max()),
        "bfloat16_max_difference": float((run_passes(bfloat16) - run_passes(rounded)).abs().max()),
    }
    result["passed"] = (
        result["float32_max_difference"] < FLOAT32_TOLERANCE and result["bfloat16_max_difference"] < BFLOAT16_TOLERANCE
    )
    if importlib.util.find_spec("transformers") is not None:
        difference = float((run_passes(float32) - transformers_logits(float32, shape)).abs().max())
        result["transformers_float32_max_difference"] = difference
        result["passed"] = result["passed"] and difference < FLOAT32_TOLERANCE
    return result


# --- swapping ------------------------------------------------------------


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
        self._done: set[int] = set()
        self._commands = 0
        self._epoch = 0

    def run(self, swaps: bool) -> dict[JobId, list[int]]:
        """Outputs. A job brought back is planned at once, while its upload still runs."""
        engine, vocabulary = self.engine, self.engine.model.config.vocabulary_size
        engine.begin_life(Epoch(engine.epoch + 1), lambda done: self._done.add(done.command))
        self._done.clear()
        free = deque(BlockId(block) for block in range(engine.pools.device_block_count))
        tables = {job: [free.popleft() for _ in range(self.blocks_per_job)] for job in self.jobs}
        for job, blocks in tables.items():
            engine.apply(Assign(self._number(), job, tuple(blocks)))
        outputs: dict[JobId, list[int]] = {job: [] for job in self.jobs}
        how = JobSampling(max_tokens=self.output_tokens, seed=1, temperature=0.0)
        spec = JobSpec(self.prompt_tokens, self.prompt_tokens, how)
        for step in range(self.output_tokens):
            valid = self.prompt_tokens + step - 1
            if swaps and step > 0:
                for number in range(step % 3, len(self.jobs), 3):
                    self._move(self.jobs[number], number, tables, free, valid)
            entries = []
            for number, job in enumerate(self.jobs):
                prompt = tuple((number * 97 + place * 31) % vocabulary for place in range(self.prompt_tokens))
                first = PlanWork(job, 0, self.prompt_tokens, prompt, spec, None)
                entries.append(first if step == 0 else PlanWork(job, valid, valid + 1, (), None, None))
            result = engine.run(Plan(engine.epoch, PlanNumber(step), tuple(entries)))
            for job, token_id, _ in result.result.tokens:
                outputs[job].append(token_id)
        return outputs

    def _move(
        self, job: JobId, number: int, tables: dict[JobId, list[BlockId]], free: deque[BlockId], valid: int
    ) -> None:
        """Out, and in again elsewhere; the copy out is awaited, as the KV manager would, the copy in is not."""
        used = -(-valid // BLOCK_SIZE)
        host = [BlockId(number * self.blocks_per_job + index) for index in range(used)]
        old, tables[job] = tables[job], [free.popleft() for _ in range(self.blocks_per_job)]
        out = tuple(BlockMove(index, old[index], host[index]) for index in range(used))
        command = self._number()
        self.engine.apply(Offload(command, job, out, valid))
        until_s = time.monotonic() + WAIT_LIMIT_S
        while command not in self._done:
            assert time.monotonic() < until_s, "an offload does not end"
            time.sleep(0)
        free.extend(old)
        back = tuple(BlockMove(index, tables[job][index], host[index]) for index in range(used))
        self.engine.apply(Upload(self._number(), job, tuple(tables[job]), back, valid))

    def _number(self) -> CommandNumber:
        self._commands += 1
        return CommandNumber(self._commands)


def check_swapping(shape: Shape, device: torch.device, job_count: int, output_tokens: int) -> dict[str, Any]:
    """The same plans with and without moves give the same tokens; with the wait for uploads broken they do not."""
    model = make_model(shape, device, torch.float32)
    per_job = -(-(40 + output_tokens) // BLOCK_SIZE)
    pools = pools_of(model, job_count * per_job * 2, job_count * per_job)

    def outputs(copier: Copier, swaps: bool) -> dict[JobId, list[int]]:
        pools.device.zero_()  # what an earlier run left must not stand in for what this one did not bring
        engine = Engine(model, pools, copier)
        try:
            return Swapper(engine, job_count, 40, output_tokens).run(swaps)
        finally:
            engine.close()

    plain, swapped = outputs(make_copier(pools), False), outputs(make_copier(pools), True)
    broken = outputs(Careless(slow_uploads(pools)), True)
    result = {
        "jobs": job_count,
        "output_tokens": output_tokens,
        "same_tokens": plain == swapped,
        "broken_shows": broken != plain,
    }
    return {**result, "passed": result["same_tokens"] and result["broken_shows"]}


def slow_uploads(pools: KvPools) -> Copier:
    """A copier whose uploads come a little late, as they may."""
    if not pools.device.is_cuda:
        return CpuCopier(pools, lambda direction: time.sleep(0.02 if direction is Direction.UPLOAD else 0))
    copier = CudaCopier(pools)
    lane = copier._lanes[Direction.UPLOAD]
    enqueue = lane._enqueue

    def enqueue_late(ticket: Any) -> None:
        with torch.cuda.stream(lane._stream):
            torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
        enqueue(ticket)

    lane._enqueue = enqueue_late  # type: ignore[method-assign]
    return copier


# --- speed ------------------------------------------------------------


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest_s(device: torch.device, work: Callable[[], object], runs: int = 5) -> float:
    best = float("inf")
    for _ in range(runs):
        synchronize(device)
        started_s = time.perf_counter()
        work()
        synchronize(device)
        best = min(best, time.perf_counter() - started_s)
    return best


def measure_copies(shape: Shape, device: torch.device, total_bytes: int) -> dict[str, float]:
    """GB/s of the engine's copier, neighbouring and scattered blocks, one way and both, against one plain copy."""
    config = parse_config(shape.config())
    block = BlockShape(config.layer_count, BLOCK_SIZE, config.kv_head_count, config.head_dim, torch.bfloat16)
    count = max(total_bytes // block.block_bytes, 8)
    pools = make_pools(block, 2 * count, 2 * count, device)
    pools.host.fill_(1.0)
    moved_gb = count * block.block_bytes / 1e9
    copier = make_copier(pools)

    def moves(device_first: int, host_first: int, step: int) -> tuple[BlockMove, ...]:
        places = [(number * step) % count for number in range(count)]
        return tuple(
            BlockMove(number, BlockId(device_first + place), BlockId(host_first + number))
            for number, place in enumerate(places)
        )

    def run(*copies: tuple[Direction, Sequence[BlockMove]]) -> None:
        for direction, blocks in copies:
            copier.start(direction, blocks, None, lambda: None)
        copier.drain()

    scattered = next(step for step in (7, 11, 13, 17) if count % step)
    near, far, other = moves(0, 0, 1), moves(0, 0, scattered), moves(count, count, 1)
    out, back = Direction.OFFLOAD, Direction.UPLOAD
    whole = slice(0, count)
    try:
        seconds = {
            "plain_device_to_host": fastest_s(
                device, lambda: pools.host[whole].copy_(pools.device[whole], non_blocking=True)
            ),
            "plain_host_to_device": fastest_s(
                device, lambda: pools.device[whole].copy_(pools.host[whole], non_blocking=True)
            ),
            "offload": fastest_s(device, lambda: run((out, near))),
            "upload": fastest_s(device, lambda: run((back, near))),
            "offload_scattered": fastest_s(device, lambda: run((out, far))),
            "upload_scattered": fastest_s(device, lambda: run((back, far))),
        }
        both_s = fastest_s(device, lambda: run((out, near), (back, other)))
    finally:
        copier.close()
    rates = {f"{name}_gb_per_s": moved_gb / one_s for name, one_s in seconds.items()}
    return {"block_bytes": block.block_bytes, **rates, "both_ways_gb_per_s": 2 * moved_gb / both_s}


def measure_speed(
    shape: Shape, device: torch.device, batches: Sequence[int], prompts: Sequence[int], context: int
) -> dict[str, Any]:
    """Seconds and tokens per second of iterations as the engine runs them, bfloat16."""
    model = make_model(shape, device, torch.bfloat16)
    prepare(model)
    pools = pools_of(model, max(batches) * -(-context // BLOCK_SIZE) + -(-max(prompts) // BLOCK_SIZE), 1)
    measurer = Measurer(model, pools, max(context, *prompts))
    result: dict[str, Any] = {"parameters": parameter_count(shape), "decode": [], "prefill": []}
    for batch in batches:
        seconds = measurer.decode_s(batch, context)
        result["decode"].append(
            {"batch": batch, "context_tokens": context, "seconds": seconds, "tokens_per_s": batch / seconds}
        )
    for tokens in prompts:
        seconds = measurer.prefill_s(tokens)
        result["prefill"].append({"tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds})
    return result


# --- all of it ------------------------------------------------------------


def hardware(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        return {
            "name": facts.name,
            "memory_bytes": facts.total_memory,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }
    return {"name": f"cpu {platform.machine()}", "threads": torch.get_num_threads(), "torch": torch.__version__}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks and measures the engine on a device.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="S,M,8B", help="models to measure, of " + ", ".join(SHAPES))
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    device, names = torch.device(arguments.device), arguments.sizes.split(",")
    torch.backends.cuda.matmul.allow_tf32 = False
    small = names == ["tiny"]
    started_s = time.perf_counter()
    report: dict[str, Any] = {"hardware": hardware(device)}
    checked = SHAPES["tiny" if small else "S"]
    report["parity"] = check_parity(checked, device)
    report["swapping"] = check_swapping(checked, device, 6 if small else 24, 12 if small else 48)
    report["copies"] = measure_copies(SHAPES[names[-1]], device, (1 << 20) if small else (2 << 30))
    limits = ((1, 2), (16, 64), 64) if small else ((1, 16, 64), (512, 2048), 512)
    report["speed"] = {name: measure_speed(SHAPES[name], device, *limits) for name in names}
    report["passed"] = report["parity"]["passed"] and report["swapping"]["passed"]
    report["seconds"] = time.perf_counter() - started_s
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
