"""The flags that choose a workload, shared by `bench` and `simulate`."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from services.domain.errors import InvalidFieldError
from services.runtime.command_line import CommandError, ExitCode, at_most, not_negative_float, positive_int
from services.workloads.any_workload import FIGURES_WITHOUT, AnyWorkload, TraceFile
from services.workloads.lengths import DATASET_LARGEST
from services.workloads.workload import (
    MOST_JOBS,
    Workload,
    WorkloadKind,
    read_trace,
    wrong_with,
)

_ZIPF = Workload(jobs=200, rate=4.0, cv=4.0, theta=1.1, max_prompt_tokens=512, max_output_tokens=256, seed=0)
_DATASET = replace(_ZIPF, cv=1.0, max_prompt_tokens=DATASET_LARGEST, max_output_tokens=DATASET_LARGEST)
DEFAULTS: Mapping[WorkloadKind, Workload] = {
    WorkloadKind.ZIPF: _ZIPF,
    WorkloadKind.RATIO: replace(_ZIPF, kind=WorkloadKind.RATIO),
    WorkloadKind.SHAREGPT: replace(_DATASET, kind=WorkloadKind.SHAREGPT),
    WorkloadKind.ALPACA: replace(_DATASET, kind=WorkloadKind.ALPACA),
}
"""Values of flags that are not given. Datasets have Poisson arrivals, as in the papers."""

_GENERATED = ("jobs", "rate", "cv", "theta", "ratio", "max_prompt_tokens", "max_output_tokens")


LONGEST_TOKENS = 1_000_000


def _job_count(text: str) -> int:
    return at_most(positive_int(text), MOST_JOBS)


def _length(text: str) -> int:
    return at_most(positive_int(text), LONGEST_TOKENS)


def _figure(name: str) -> Callable[[str], float]:
    """An argparse type: a number within the limits of that field of a workload."""

    def read(text: str) -> float:
        value = not_negative_float(text)
        wrong = wrong_with(name, value)
        if wrong is not None:
            raise argparse.ArgumentTypeError(wrong)
        return value

    return read


def add_workload(to: argparse.ArgumentParser, *, with_seed: bool = True) -> None:
    """Adds the flags. Without `with_seed` the command has its own flag for seeds."""
    either = "(not with --trace)"
    to.add_argument(
        "--trace", type=Path, metavar="FILE", help="a trace: JSON lines of arrival_s, prompt_tokens, output_tokens, ..."
    )
    to.add_argument(
        "--workload",
        choices=[kind.value for kind in WorkloadKind],
        help=f"distribution of lengths of a generated workload {either} [{_ZIPF.kind}]",
    )
    to.add_argument("--jobs", type=_job_count, help=f"number of jobs of a generated workload {either} [{_ZIPF.jobs}]")
    to.add_argument("--rate", type=_figure("rate"), help=f"arrivals per second {either} [{_ZIPF.rate}]")
    to.add_argument(
        "--cv",
        type=_figure("cv"),
        help=f"coefficient of variation of the gaps between arrivals {either} [{_ZIPF.cv}; datasets {_DATASET.cv}]",
    )
    to.add_argument(
        "--theta", type=_figure("theta"), help=f"skew of the Zipf distribution of lengths {either} [{_ZIPF.theta}]"
    )
    to.add_argument(
        "--ratio",
        type=_figure("ratio"),
        help=f"ratio of prompt to output tokens, with --workload ratio [{_ZIPF.ratio}]",
    )
    for name in ("prompt", "output"):
        zipf, dataset = (getattr(one, f"max_{name}_tokens") for one in (_ZIPF, _DATASET))
        to.add_argument(
            f"--max-{name}-tokens", type=_length, help=f"longest {name} in tokens {either} [{zipf}; datasets {dataset}]"
        )
    if with_seed:
        to.add_argument("--seed", type=int, default=0, help="seed of lengths, arrivals and random prompts [0]")


def chosen_workload(arguments: argparse.Namespace, seed: int) -> AnyWorkload:
    """The workload that the flags choose. Raises CommandError."""
    given = {name: value for name in _GENERATED if (value := getattr(arguments, name)) is not None}
    named: str | None = arguments.workload
    if arguments.trace is not None:
        extra = next(iter(given), None) if named is None else "workload"
        if extra is not None:
            raise CommandError(f"--trace and {_flag(extra)} can't be used together", ExitCode.REFUSED)
        return _read(arguments.trace, seed)
    kind = WorkloadKind.ZIPF if named is None else WorkloadKind(named)
    for name in FIGURES_WITHOUT[kind]:
        if name in given:
            raise CommandError(f"{_flag(name)} does not apply to --workload {kind}", ExitCode.REFUSED)
    return replace(DEFAULTS[kind], seed=seed, **given)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _read(path: Path, seed: int) -> TraceFile:
    try:
        with path.open(encoding="utf-8") as lines:
            return TraceFile(str(path), tuple(read_trace(lines)), seed)
    except InvalidFieldError as error:
        raise CommandError(f"{path}: {error}", ExitCode.REFUSED) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--trace {path} can't be read: {error}", ExitCode.REFUSED) from error
