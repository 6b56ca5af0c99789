"""`fastserve plan`: does this model fit on these GPUs, laid out so, and how much KV has room beside it?

Needs the model's config alone: no weights, no GPU, and no torch.
"""

import argparse
import json
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from services.domain.errors import InvalidFieldError, ModelFolderError
from services.runtime.command_line import CommandError, ExitCode, at_most, parser, positive_int
from services.runtime.model_files import CONFIG, read_config_file
from services.worker.model.config_json import parse_config
from services.worker.model.model_config import ModelConfig
from services.worker.model.parameter_counts import parameter_counts
from services.worker.parallel.layout import MOST_RANKS, Layout, check_layout
from services.worker.parallel.memory_plan import (
    RANKS_OF_A_MACHINE,
    VALUE_BYTES,
    GroupPlan,
    Memory,
    job_kv_bytes,
    plan_group,
    smallest_layout,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]i?)B?", re.IGNORECASE)
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_UNITS = _BINARY | {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_MOST_BYTES = 1 << 50
_MOST_BLOCK_SIZE = 1024


def parse_size(text: str) -> int:
    """An argparse type: bytes of a size such as 80GiB or 40960MB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a size such as 80GiB or 40960MiB")
    count = int(Decimal(found[1]) * _UNITS[found[2].lower()])
    if not 0 < count <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not more than 0 and at most {size(_MOST_BYTES)}")
    return count


def size(count: int) -> str:
    """Bytes as GiB, or as MiB below one."""
    unit, name = (1 << 30, "GiB") if count >= 1 << 30 else (1 << 20, "MiB")
    return f"{(Decimal(count) / unit).quantize(Decimal('0.1'), ROUND_HALF_UP):,} {name}"


def _rank_count(text: str) -> int:
    return at_most(positive_int(text), MOST_RANKS)


def _block_size(text: str) -> int:
    return at_most(positive_int(text), _MOST_BLOCK_SIZE)


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "plan",
        "Show what each rank of a layout holds of a model: weights, KV blocks, one job's KV. A layout that does not "
        "fit is refused, and the smallest that does is named.",
    )
    made.add_argument(
        "--model-config", type=Path, required=True, metavar="FILE", help=f"a model's {CONFIG}, or its folder"
    )
    made.add_argument(
        "--gpu", type=parse_size, required=True, metavar="SIZE", help="memory of each rank's GPU, such as 80GiB"
    )
    made.add_argument("--tp", type=_rank_count, default=1, help="ranks a stage (tensor parallel) [1]")
    made.add_argument("--pp", type=_rank_count, default=1, help="stages (pipeline parallel) [1]")
    made.add_argument(
        "--dtype", choices=sorted(VALUE_BYTES), help="type of weights and KV [float16 if the checkpoint's, or bfloat16]"
    )
    made.add_argument("--block-size", type=_block_size, default=16, help="tokens in a KV block [16]")
    made.add_argument(
        "--length",
        type=positive_int,
        metavar="TOKENS",
        help="prompt and output of a job, which must fit [the model's context]",
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def _read(path: Path) -> ModelConfig:
    file = path / CONFIG if path.is_dir() else path
    try:
        return parse_config(read_config_file(file))
    except ModelFolderError as error:
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise CommandError(message, ExitCode.REFUSED) from error


def _memory(arguments: argparse.Namespace, config: ModelConfig, dtype: str) -> Memory:
    length: int = config.max_position if arguments.length is None else arguments.length
    if length > config.max_position:
        raise CommandError(
            f"--length: must be at most the model's context of {config.max_position} tokens, not {length}",
            ExitCode.REFUSED,
        )
    return Memory(arguments.gpu, VALUE_BYTES[dtype], arguments.block_size, length)


def _smallest(config: ModelConfig, layout: Layout, memory: Memory) -> str:
    most_tp = max(RANKS_OF_A_MACHINE, layout.tp)
    found = smallest_layout(config, memory, most_tp)
    if found is None:
        return f"no layout of up to {most_tp} ranks a stage fits into {size(memory.gpu_bytes)} each"
    return f"the smallest layout that fits is {found} ({found.rank_count} ranks)"


def _planned(config: ModelConfig, layout: Layout, memory: Memory) -> GroupPlan:
    """The plan. Raises CommandError, with the smallest layout that fits, if this one can't be or does not fit."""
    try:
        check_layout(config, layout)
    except InvalidFieldError as error:
        raise CommandError(f"{error}; {_smallest(config, layout, memory)}", ExitCode.REFUSED) from error
    plan = plan_group(config, layout, memory)
    if plan.fits:
        return plan
    heaviest, poorest = plan.heaviest, plan.poorest
    if heaviest.weight_bytes >= memory.gpu_bytes:
        reason = f"rank {heaviest.rank.number} has {size(heaviest.weight_bytes)} of weights"
        hint = ""
    else:
        reason = (
            f"rank {poorest.rank.number} has {size(poorest.weight_bytes)} of weights and room for KV of "
            f"{poorest.block_count * memory.block_size} tokens, less than one job of {memory.length}"
        )
        hint = ", or a shorter --length" if plan.block_count else ""
    raise CommandError(
        f"{layout} does not fit into {size(memory.gpu_bytes)} each: {reason}; "
        f"{_smallest(config, layout, memory)}{hint}",
        ExitCode.REFUSED,
    )


def _text(config: ModelConfig, plan: GroupPlan, dtype: str) -> str:
    memory, parameters = plan.memory, parameter_counts(config).total
    job_bytes = job_kv_bytes(config, memory.length, memory.value_bytes)
    lines = [
        f"{config.family}, {config.layer_count} layers: {parameters:,} parameters, "
        f"{size(parameters * memory.value_bytes)} in {dtype}",
        f"KV of one job of {memory.length:,} tokens: {size(job_bytes)} ({job_bytes:,} bytes)",
        f"{plan.layout}: {plan.layout.rank_count} {'rank' if plan.layout.rank_count == 1 else 'ranks'} "
        f"of {size(memory.gpu_bytes)}",
        "",
        " rank  stage   layers      weights    KV blocks  one job's KV",
    ]
    for rank in plan.ranks:
        layers = f"{rank.layers.start}-{rank.layers.stop - 1}"
        lines.append(
            f"{rank.rank.number:5}  {rank.rank.stage:5}  {layers:>7}  {size(rank.weight_bytes):>11}  "
            f"{rank.block_count:>11,}  {size(rank.job_kv_bytes):>12}"
        )
    tokens = plan.block_count * memory.block_size
    return "\n".join(
        [
            *lines,
            "",
            f"The group has {plan.block_count:,} blocks of {memory.block_size} tokens: --kv-device-tokens {tokens}, "
            f"{plan.job_count:,} such jobs at a time.",
        ]
    )


def _json(config: ModelConfig, plan: GroupPlan, dtype: str) -> str:
    memory = plan.memory
    content = {
        "family": config.family,
        "parameters": parameter_counts(config).total,
        "dtype": dtype,
        "tp": plan.layout.tp,
        "pp": plan.layout.pp,
        "gpu_bytes": memory.gpu_bytes,
        "block_size": memory.block_size,
        "length": memory.length,
        "job_kv_bytes": job_kv_bytes(config, memory.length, memory.value_bytes),
        "kv_blocks": plan.block_count,
        "kv_tokens": plan.block_count * memory.block_size,
        "jobs": plan.job_count,
        "ranks": [
            {
                "rank": rank.rank.number,
                "stage": rank.rank.stage,
                "first_layer": rank.layers.start,
                "layers": len(rank.layers),
                "weight_bytes": rank.weight_bytes,
                "kv_blocks": rank.block_count,
                "block_bytes": rank.block_bytes,
                "job_kv_bytes": rank.job_kv_bytes,
            }
            for rank in plan.ranks
        ],
    }
    return json.dumps(content)


def main(argv: list[str] | None = None) -> int:
    """Prints the plan and returns 0. A layout that can't be or does not fit is a refusal (exit code 2)."""
    arguments = _parser().parse_args(argv)
    config = _read(arguments.model_config)
    dtype = arguments.dtype or ("float16" if config.dtype == "float16" else "bfloat16")
    plan = _planned(config, Layout(arguments.tp, arguments.pp), _memory(arguments, config, dtype))
    print(_json(config, plan, dtype) if arguments.json else _text(config, plan, dtype))
    return ExitCode.OK
