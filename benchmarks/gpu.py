"""Checks and measures the engine on a device: parity, swapping beside compute, copy bandwidth, decode and prefill, and
the profile of the last model.

On a machine with a GPU, where it takes 8 minutes at most:

    python benchmarks/gpu.py --out benchmarks/results/HARDWARE/gpu.json

A smoke test anywhere:

    python benchmarks/gpu.py --device cpu --sizes tiny --out gpu.json

It runs the code that serves, without services: no gRPC, no stubs, no files of models. Weights are random, made on the
device. Needs torch, numpy and safetensors; transformers, where it is installed, is a second reference. The JSON is
written after each part; a part that raises has its error there and does not prevent the others from running. The exit
status is 1 if a check or a part fails.
"""

import argparse
import importlib.util
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
    served,
)
from benchmarks.swapping import check_swapping
from services.domain.copying import CopyDirection
from services.domain.ids import BlockId
from services.domain.mixed_cost import model_error
from services.domain.protocol import BlockMove
from services.runtime.profile_file import profile_text
from services.worker.kv.copier_choice import make_copier
from services.worker.kv.pools import BlockShape, make_pools
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.config_json import parse_config
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import prepare
from services.worker.profiling.cost_measurement import Measurer, profile_by
from services.worker.profiling.link_speed import measure_link

FLOAT32_TOLERANCE = 2e-3
BFLOAT16_TOLERANCE = 0.5


# --- parity ------------------------------------------------------------


def parity_plan(vocabulary: int) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """Token sequences, and for each pass the positions that each sequence computes: prefills, chunks, decodes."""
    tokens = [[(7 * row + 13 * column + 5) % vocabulary for column in range(60)] for row in range(3)]
    passes = [[(0, 33), (0, 8), (0, 17)], [(33, 34), (8, 40), (17, 18)], [(34, 35), (40, 41), (18, 19)]]
    return tokens, passes


def run_passes(model: DecoderModel, *, by_triton: bool = False) -> torch.Tensor:
    """Logits of every sequence after every pass, [passes * sequences, V], through scattered blocks."""
    tokens, passes = parity_plan(model.config.vocabulary_size)
    cache = PagedKv(pools_of(model, 16, 1).device)
    decoder = served(model, cache, len(tokens)) if by_triton else model
    blocks = [[5, 0, 9, 12], [1, 14, 3, 8], [7, 2, 15, 4]]
    found = []
    for ranges in passes:
        order = sorted(range(3), key=lambda row: ranges[row][1] - ranges[row][0] > 1)
        sequences = [SequenceRows(*ranges[row], blocks[row]) for row in order]
        ids = [token for row in order for token in tokens[row][slice(*ranges[row])]]
        layout = BatchLayout.of(sequences, BLOCK_SIZE, model.device)
        logits = decoder(torch.tensor(ids, device=model.device), cache, layout)
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
    if device.type == "cuda":
        for name, model, exact, tolerance in (
            ("float32", copy_of(float32, shape, device, torch.float32), reference, FLOAT32_TOLERANCE),
            ("bfloat16", bfloat16, run_passes(rounded), BFLOAT16_TOLERANCE),
        ):
            difference = float((run_passes(model, by_triton=True) - exact).abs().max())
            result[f"triton_{name}_max_difference"] = difference
            result["passed"] = result["passed"] and difference < tolerance
    if importlib.util.find_spec("transformers") is not None:
        difference = float((run_passes(float32) - transformers_logits(float32, shape)).abs().max())
        result["transformers_float32_max_difference"] = difference
        result["passed"] = result["passed"] and difference < FLOAT32_TOLERANCE
    return result


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

    def run(*copies: tuple[CopyDirection, Sequence[BlockMove]]) -> None:
        for direction, blocks in copies:
            copier.start(direction, blocks, None, lambda: None)
        copier.drain()

    scattered = next(step for step in (7, 11, 13, 17) if count % step)
    near, far, other = moves(0, 0, 1), moves(0, 0, scattered), moves(count, count, 1)
    out, back = CopyDirection.OFFLOAD, CopyDirection.UPLOAD
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
    pools = pools_of(model, max(batches) * -(-context // BLOCK_SIZE) + -(-max(prompts) // BLOCK_SIZE), 1)
    measurer = Measurer(served(model, PagedKv(pools.device), max(batches)), pools, max(context, *prompts))
    measurer.warm_up()
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


def measure_profile(
    shape: Shape, device: torch.device, max_batch: int, longest: int, device_tokens: int
) -> dict[str, Any]:
    """What `fastserve profile` writes of a model: iterations by length, batch and context, mixed ones, and the link."""
    model = make_model(shape, device, torch.bfloat16)
    pools = pools_of(model, device_tokens // BLOCK_SIZE, device_tokens // BLOCK_SIZE // 4)
    decoder = served(model, PagedKv(pools.device), max_batch)
    profile = profile_by(Measurer(decoder, pools, longest), longest, max_batch, {"kind": "measured"})
    document: dict[str, Any] = json.loads(profile_text(replace(profile, link=measure_link(pools))))
    error = model_error(profile.mixed)
    return {
        "kv_bytes_per_token": pools.shape.block_bytes // BLOCK_SIZE,
        "mixed_error_median": error.median,
        "mixed_error_worst": error.worst,
        **{name: document[name] for name in ("prefill", "decode", "mixed", "link")},
    }


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


class PartResults:
    """The JSON, part by part."""

    def __init__(self, out: Path, device: torch.device) -> None:
        self.parts: dict[str, Any] = {"hardware": hardware(device), "passed": True}
        self._out = out
        self._started_s = time.perf_counter()

    def add(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Runs a part and writes all results so far."""
        try:
            made = work()
        except Exception as error:  # written down; the other parts may still tell something
            made = {"passed": False, "error": repr(error), "traceback": traceback.format_exc().splitlines()}
        self.parts[name] = made
        self.parts["passed"] = self.parts["passed"] and made.get("passed", True)
        self.parts["seconds"] = time.perf_counter() - self._started_s
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._out.write_text(self.text())

    def text(self) -> str:
        return json.dumps(self.parts, indent=1) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks and measures the engine on a device.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="S,M,8B", help="models to measure, comma-separated: " + ", ".join(SHAPES))
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    device, names = torch.device(arguments.device), arguments.sizes.split(",")
    torch.backends.cuda.matmul.allow_tf32 = False
    small = names == ["tiny"]
    checked = SHAPES["tiny" if small else "S"]
    limits = ((1, 2), (16, 64), 64) if small else ((1, 16, 64), (512, 2048), 512)
    results = PartResults(arguments.out, device)
    results.add("parity", lambda: check_parity(checked, device))
    results.add("swapping", lambda: check_swapping(checked, device, 6 if small else 24, 12 if small else 48))
    results.add("copies", lambda: measure_copies(SHAPES[names[-1]], device, (1 << 20) if small else (2 << 30)))
    for name in names:
        results.add(f"speed_{name}", partial(measure_speed, SHAPES[name], device, *limits))
    limits_of_profile = (4, 64, 512) if small else (256, 8192, 1 << 18)
    results.add(f"profile_{names[-1]}", lambda: measure_profile(SHAPES[names[-1]], device, *limits_of_profile))
    print(results.text(), end="")
    return 0 if results.parts["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
