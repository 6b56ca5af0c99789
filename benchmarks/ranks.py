"""Groups of ranks on two cores, without services: a stage per core, and a share of every layer per core, against one
rank with both cores.

Theory of operation
-------------------
Every group is saturated: jobs without end, a batch for every plan under way (saturated_lanes.py). Tokens are counted
over the same time in each, after a warm-up. The groups take turns, because the speed of shared machines drifts by the
minute; of the repeats the medians are shown. A stage is busy while it computes, sums included; it is not while it waits
for hidden states, for its next plan or for the processor's attention between the two.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_least
from benchmarks.model_folders import ROOT, random_model
from benchmarks.ranks_picture import draw_timeline
from benchmarks.settings import BenchError, BenchSettings

PRESET = "M"
TRACE = ROOT / "benchmarks" / "traces" / "zipf120.jsonl"
COUNTED_S = 12
LIMIT_S = 300.0
MOST_PLAN_TOKENS = 128
"""Tokens of a plan: long prompts are computed in chunks, since plans of equal size keep stages evenly busy."""
LEAST_BUSY_SHARE = 0.85
LEAST_SHARE_OF_ONE_RANK = 0.85
SHOWN_S = 1.5
"""Of the timeline of a group of stages."""

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """A group to measure; one thread a rank unless it is alone."""

    name: str
    tp: int = 1
    pp: int = 1
    threads: int = 1
    shares_memory: bool = True


ONE_RANK = MeasuredGroup("one rank, two threads", threads=2)
STAGES = MeasuredGroup("pp 2", pp=2)
GROUPS = (
    ONE_RANK,
    STAGES,
    MeasuredGroup("tp 2, sums in shared memory", tp=2),
    MeasuredGroup("tp 2, sums by Gloo", tp=2, shares_memory=False),
)


def measure(settings: BenchSettings) -> Figures:
    """All groups in turn, several times."""
    model = random_model(settings.pick(PRESET, "S"))
    seconds = settings.pick(COUNTED_S, 3)
    runs: dict[str, list[Figures]] = {group.name: [] for group in GROUPS}
    for _ in range(settings.pick(3, 1)):
        for group in GROUPS:
            runs[group.name].append(_run(settings, group, model, seconds))
    return {
        "model": model.name,
        "dtype": "bfloat16",
        "trace": TRACE.name,
        "max_batch": settings.max_batch,
        "max_plan_tokens": MOST_PLAN_TOKENS,
        "counted_s": seconds,
        "groups": {name: _medians(figures) for name, figures in runs.items()},
        "timeline": _first_moments(runs[STAGES.name][-1]["ranks"], runs[STAGES.name][-1]["from_s"]),
        "lanes": runs[STAGES.name][-1]["lanes"],
    }


def _run(settings: BenchSettings, group: MeasuredGroup, model: Path, seconds: int) -> Figures:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "benchmarks.rank_process", "--parent", str(os.getpid()), "--port", str(port)]
    argv += ["--tp", str(group.tp), "--pp", str(group.pp), "--threads", str(group.threads), "--model", str(model)]
    argv += ["--seconds", str(seconds), "--max-batch", str(settings.max_batch), "--trace", str(TRACE)]
    argv += ["--max-batch-tokens", str(MOST_PLAN_TOKENS)]
    argv += [] if group.shares_memory else ["--no-shared-memory"]
    ranks = [
        subprocess.Popen([*argv, "--rank", str(rank)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in range(group.tp * group.pp)
    ]
    try:
        answers = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        raise BenchError(f"{group.name}: no end within {LIMIT_S:.0f} s") from None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise BenchError(f"{group.name}: a rank failed")
    leader, *others = [json.loads(answer) for answer in answers]
    return run_figures(leader, [leader, *others])


def run_figures(leader: Figures, ranks: list[Figures]) -> Figures:
    """Of one run: tokens/s, and for every rank the shares of the counted time in which it computed, and summed."""
    from_s, to_s = leader["from_s"], leader["to_s"]
    return {
        "from_s": from_s,
        "lanes": leader["lanes"],
        "output_tokens_per_s": round(leader["output_tokens"] / (to_s - from_s), 2),
        "layers": [rank["layers"] for rank in ranks],
        "busy_shares": [round(busy_share(rank["spans"], from_s, to_s), 4) for rank in ranks],
        "sum_shares": [_sum_share(rank) for rank in ranks if rank["sums"] is not None],
        "sum_ms": [
            round(1000 * rank["sums"]["seconds"] / rank["sums"]["count"], 4)
            for rank in ranks
            if rank["sums"] is not None
        ],
        "ranks": ranks,
    }


def busy_share(spans: list[tuple[int, float, float]], from_s: float, to_s: float) -> float:
    """Share of a time in which spans of it were computed."""
    return sum(max(0.0, min(end_s, to_s) - max(start_s, from_s)) for _, start_s, end_s in spans) / (to_s - from_s)


def _sum_share(rank: Figures) -> float:
    computed_s = sum(end_s - start_s for _, start_s, end_s in rank["spans"])
    share: float = rank["sums"]["seconds"] / computed_s
    return round(share, 4)


def _medians(runs: list[Figures]) -> Figures:
    """The runs without their timelines, and the medians of their figures."""
    kept = [{name: value for name, value in run.items() if name not in ("ranks", "from_s")} for run in runs]

    def per_rank(name: str) -> list[float]:
        return [median(values) for values in zip(*(run[name] for run in kept), strict=True)]

    return {
        "output_tokens_per_s": median(run["output_tokens_per_s"] for run in kept),
        "layers": kept[0]["layers"],
        "busy_shares": per_rank("busy_shares"),
        "sum_shares": per_rank("sum_shares"),
        "sum_ms": per_rank("sum_ms"),
        "runs": kept,
    }


def _first_moments(ranks: list[Figures], from_s: float) -> list[list[tuple[int, float, float]]]:
    """What each stage computed in the first moments of the counted time, in seconds since its begin."""
    return [
        [
            (plan, round(start_s - from_s, 5), round(end_s - from_s, 5))
            for plan, start_s, end_s in rank["spans"]
            if end_s > from_s and start_s < from_s + SHOWN_S
        ]
        for rank in ranks
    ]


def goals(measured: Figures) -> list[Goal]:
    """Both stages are kept busy, and little is lost against one rank."""
    stages, alone = measured["groups"][STAGES.name], measured["groups"][ONE_RANK.name]
    share = stages["output_tokens_per_s"] / alone["output_tokens_per_s"]
    return [
        at_least(
            "pp 2: share of the time in which the less busy stage computes",
            min(stages["busy_shares"]),
            LEAST_BUSY_SHARE,
        ),
        at_least("pp 2: output tokens/s, of those of one rank with two threads", share, LEAST_SHARE_OF_ONE_RANK),
    ]


def tables(measured: Figures) -> list[Table]:
    """This part of the summary."""
    alone = measured["groups"][ONE_RANK.name]["output_tokens_per_s"]
    rows = []
    for name, figures in measured["groups"].items():
        sums = figures["sum_shares"]
        rows.append(
            (
                name,
                " + ".join(str(layers) for layers in figures["layers"]),
                f"{figures['output_tokens_per_s']:.0f}",
                f"{figures['output_tokens_per_s'] / alone:.3f}",
                ", ".join(f"{share:.1%}" for share in figures["busy_shares"]),
                ", ".join(f"{share:.1%}" for share in sums) if sums else "-",
                f"{max(figures['sum_ms']):.3f}" if sums else "-",
            )
        )
    title = (
        f"Groups of ranks on two cores, model {measured['model']}, {measured['dtype']}, batch {measured['max_batch']}, "
        f"at most {measured['max_plan_tokens']} tokens a plan, saturated for {measured['counted_s']} s"
    )
    heading = ("group", "layers", "output tokens/s", "of one rank", "busy", "in sums", "ms a sum")
    note = (
        "One thread a rank; jobs of zipf120 without end. Busy and sums: share of the time, and of its compute, rank by "
        "rank. The waits for the other rank count as sums."
    )
    return [Table(title, heading, rows, note)]


def draw(measured: Figures, out: Path) -> list[Path]:
    """The timeline of the stages."""
    return [draw_timeline(measured, out)]
