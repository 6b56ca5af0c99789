"""Groups of ranks on two cores, without services: a stage per core, and a share of every layer per core, against one
rank with both cores.

Theory of operation
-------------------
Every group is saturated: jobs without end, a batch of as many jobs for every plan under way (saturated_lanes.py). Plans
have a limit of tokens at which they are nearly equal in size, because stages wait for each other when a long plan is
among short ones. A single rank has no such need and reads its weights less often with larger plans, so it is measured
with these too; stages are compared with the better of the two.

Tokens are counted over the same time in each group, after a warm-up. A group of two stages begins three times as many
prompts at once as a single rank, so a short count, or an early one, would find it with more prompts and less output
than it has in the long run. Tokens of prompts are counted too, which would show it.

The groups take turns, because the speed of shared machines drifts by the minute; of the repeats the medians are shown.
A stage is busy while it computes, sums included; it is not while it waits for hidden states, for its next plan or for
the processor's attention between the two.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_least
from benchmarks.model_folders import ROOT, random_model
from benchmarks.ranks_picture import draw_timeline
from benchmarks.settings import BenchError, BenchSettings

PRESET = "M"
TRACE = ROOT / "benchmarks" / "traces" / "zipf120.jsonl"
COUNTED_S = 20
LIMIT_S = 300.0
EVEN_PLAN_TOKENS = 48
"""Beside 16 decodes they leave room for as many tokens of prompts as the trace has for as much output, so that plans
are full; longer prompts are computed in chunks.
"""
LARGE_PLAN_TOKENS = 128
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
    plan_tokens: int = EVEN_PLAN_TOKENS
    repeats: int = 1


ONE_RANK = MeasuredGroup("one rank, two threads", threads=2, repeats=2)
LARGE_PLANS = replace(ONE_RANK, name="one rank, two threads, large plans", plan_tokens=LARGE_PLAN_TOKENS)
STAGES = MeasuredGroup("pp 2", pp=2, repeats=3)
GROUPS = (
    STAGES,
    ONE_RANK,
    LARGE_PLANS,
    MeasuredGroup("tp 2, sums in shared memory", tp=2),
    MeasuredGroup("tp 2, sums by Gloo", tp=2, shares_memory=False),
)


def measure(settings: BenchSettings) -> Figures:
    """All groups in turn, several times."""
    model = random_model(settings.pick(PRESET, "S"))
    seconds = settings.pick(COUNTED_S, 3)
    runs: dict[str, list[Figures]] = {group.name: [] for group in GROUPS}
    for turn in range(settings.pick(max(group.repeats for group in GROUPS), 1)):
        for group in GROUPS:
            if turn < group.repeats:
                runs[group.name].append(_run(settings, group, model, seconds))
    named = {group.name: group for group in GROUPS}
    return {
        "model": model.name,
        "dtype": "bfloat16",
        "trace": TRACE.name,
        "max_batch": settings.max_batch,
        "counted_s": seconds,
        "groups": {
            name: {"plan_tokens": named[name].plan_tokens, **_medians(figures)} for name, figures in runs.items()
        },
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
    argv += ["--max-batch-tokens", str(group.plan_tokens)]
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
        "prompt_tokens_per_s": round(leader["prompt_tokens"] / (to_s - from_s), 2),
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
        "prompt_tokens_per_s": median(run["prompt_tokens_per_s"] for run in kept),
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
    stages = measured["groups"][STAGES.name]
    share = stages["output_tokens_per_s"] / _alone_per_s(measured)
    return [
        at_least(
            "pp 2: share of the time in which the less busy stage computes",
            min(stages["busy_shares"]),
            LEAST_BUSY_SHARE,
        ),
        at_least("pp 2: output tokens/s, of those of one rank with two threads", share, LEAST_SHARE_OF_ONE_RANK),
    ]


def _alone_per_s(measured: Figures) -> float:
    """Output tokens/s of one rank, with the plans that suit it best."""
    best: float = max(measured["groups"][group.name]["output_tokens_per_s"] for group in (ONE_RANK, LARGE_PLANS))
    return best


def tables(measured: Figures) -> list[Table]:
    """This part of the summary."""
    alone = _alone_per_s(measured)
    rows = []
    for name, figures in measured["groups"].items():
        sums = figures["sum_shares"]
        rows.append(
            (
                name,
                str(figures["plan_tokens"]),
                " + ".join(str(layers) for layers in figures["layers"]),
                f"{figures['output_tokens_per_s']:.0f}",
                f"{figures['output_tokens_per_s'] / alone:.3f}",
                f"{figures['prompt_tokens_per_s']:.0f}",
                ", ".join(f"{share:.1%}" for share in figures["busy_shares"]),
                ", ".join(f"{share:.1%}" for share in sums) if sums else "-",
                f"{max(figures['sum_ms']):.3f}" if sums else "-",
            )
        )
    title = (
        f"Groups of ranks on two cores, model {measured['model']}, {measured['dtype']}, batch {measured['max_batch']}, "
        f"saturated for {measured['counted_s']} s"
    )
    heading = (
        "group", "most tokens a plan", "layers", "output tokens/s", "of one rank", "prompt tokens/s", "busy", "in sums",
        "ms a sum",
    )  # fmt: skip
    note = (
        "One thread a rank; jobs of zipf120 without end. Of one rank: with the plans that suit it best. Busy and sums: "
        "share of the time, and of its compute, rank by rank. The waits for the other rank count as sums."
    )
    return [Table(title, heading, rows, note)]


def draw(measured: Figures, out: Path) -> list[Path]:
    """The timeline of the stages."""
    return [draw_timeline(measured, out)]
