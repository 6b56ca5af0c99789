"""Pictures of trace runs, side by side: `python -m services.cli.bench.pictures OUT LABEL=FOLDER LABEL=FOLDER`.

A folder is what `fastserve bench` writes: result.json, jobs.jsonl, status.jsonl.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from services.runtime.command_line import ExitCode

_COLOURS = ("#6c757d", "#d1495b", "#30638e", "#3d9970")
_SHORTEST_S = 1e-4
_STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "font.size": 10,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
}


@dataclass(frozen=True, slots=True)
class PicturedRun:
    """A trace run as its files hold it; `status` has one entry per sample."""

    label: str
    result: dict[str, Any]
    jobs: list[dict[str, Any]]
    status: list[dict[str, Any]]

    @property
    def times_s(self) -> list[float]:
        """When the samples were taken."""
        return [sample["time_s"] for sample in self.status]

    def group_series(self, name: str) -> list[float]:
        """A field summed over the groups, one value per sample."""
        return [sum(group[name] for group in sample["groups"]) for sample in self.status]


def read_run(label: str, folder: Path) -> PicturedRun:
    """Reads the files of one trace run; failed jobs are left out."""
    jobs = [json.loads(line) for line in (folder / "jobs.jsonl").read_text(encoding="utf-8").splitlines()]
    status = [json.loads(line) for line in (folder / "status.jsonl").read_text(encoding="utf-8").splitlines()]
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return PicturedRun(label, result, [job for job in jobs if job["error"] is None], status)


def _cdf(axes: Axes, runs: Sequence[PicturedRun], title: str, field: str, values: Mapping[str, list[float]]) -> None:
    """Share of jobs within a time, log x; the dashed line is the mean."""
    for run, colour in zip(runs, _COLOURS, strict=False):
        ascending = np.maximum(np.sort(np.array(values[run.label])), _SHORTEST_S)
        mean = run.result[field]["mean"]
        axes.step(
            ascending, np.arange(1, len(ascending) + 1) / max(len(ascending), 1), where="post", color=colour, lw=2
        )
        if mean is not None:
            axes.axvline(mean, color=colour, ls="--", lw=1.2, label=f"{run.label}: mean {mean:.3g} s")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("seconds (log)")
    axes.set_ylabel("share of jobs")
    axes.set_title(title)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8.5)


def draw_latency(runs: Sequence[PicturedRun], path: Path) -> None:
    """Distributions of JCT, TTFT and latency per output token."""

    def of_jobs(end: str, per_token: bool) -> dict[str, list[float]]:
        return {
            run.label: [(job[end] - job["arrival_s"]) / (job["output_tokens"] if per_token else 1) for job in run.jobs]
            for run in runs
        }

    figure, (jct, ttft, per_token) = plt.subplots(1, 3, figsize=(15, 5.2), layout="constrained")
    _cdf(jct, runs, "Job completion time", "jct_s", of_jobs("last_token_s", per_token=False))
    _cdf(ttft, runs, "Time to first token", "ttft_s", of_jobs("first_token_s", per_token=False))
    _cdf(per_token, runs, "Latency per output token", "per_output_token_s", of_jobs("last_token_s", per_token=True))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panels(runs: Sequence[PicturedRun]) -> tuple[Any, list[Axes]]:
    """One panel per run, on the same scales."""
    figure, panels = plt.subplots(
        len(runs), 1, figsize=(12, 3.4 * len(runs)), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    panels[-1][0].set_xlabel("seconds since the start of the run")
    return figure, [row[0] for row in panels]


def draw_levels(runs: Sequence[PicturedRun], path: Path) -> None:
    """Jobs in the system over time, stacked by level."""
    figure, panels = _panels(runs)
    for run, axes in zip(runs, panels, strict=True):
        count = max((len(group["levels"]) for sample in run.status for group in sample["groups"]), default=1)
        jobs = np.zeros((count, len(run.status)))
        for column, sample in enumerate(run.status):
            for group in sample["groups"]:
                for row, level in enumerate(group["levels"]):
                    jobs[row, column] += level["running"] + level["waiting"] + level["swapped_out"]
        shades = [_shade(row / (count - 1)) for row in range(count)] if count > 1 else [to_rgb(_COLOURS[0])]
        labels = [f"level {row}" for row in range(count)] if count > 1 else ["jobs"]
        axes.stackplot(run.times_s, jobs, colors=shades, labels=labels, step="post", lw=0)
        axes.plot(run.times_s, run.group_series("running"), color="black", lw=0.9, label="of these running")
        axes.set_ylabel("jobs")
        axes.set_title(f"{run.label}: jobs per level" if count > 1 else f"{run.label}: jobs")
        axes.legend(loc="upper right", ncols=2, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _shade(depth: float) -> tuple[float, float, float]:
    """From a warm colour (the highest level) to a cold, dark one (the lowest)."""
    ends = np.array([to_rgb("#f6c85f"), to_rgb("#d1495b"), to_rgb("#4a2c6d")])
    at = depth * (len(ends) - 1)
    low = min(int(at), len(ends) - 2)
    red, green, blue = ends[low] + (ends[low + 1] - ends[low]) * (at - low)
    return (float(red), float(green), float(blue))


def draw_kv(runs: Sequence[PicturedRun], path: Path) -> None:
    """KV in the device pool and, stacked above it, in the host pool, in tokens."""
    figure, panels = _panels(runs)
    for run, axes in zip(runs, panels, strict=True):
        size = np.array([sample["groups"][0]["block_size"] if sample["groups"] else 0 for sample in run.status])
        device_total = np.array(run.group_series("device_blocks_total")) * size
        device = device_total - np.array(run.group_series("device_blocks_free")) * size
        host = (np.array(run.group_series("host_blocks_total")) - np.array(run.group_series("host_blocks_free"))) * size
        labels = ["on the device", "offloaded to the host"]
        axes.stackplot(run.times_s, device, host, colors=["#30638e", "#edae49"], labels=labels, step="post", lw=0)
        axes.plot(run.times_s, device_total, color="black", ls="--", lw=1, label="device pool")
        axes.set_ylabel("tokens of KV cache")
        axes.set_title(f"{run.label}: where the KV cache is")
        axes.legend(loc="upper right", fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw(folders: Mapping[str, Path], out: Path) -> list[Path]:
    """Draws all pictures of these trace runs (label -> folder) into `out` and returns their paths."""
    runs = [read_run(label, folder) for label, folder in folders.items()]
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / name for name in ("latency.png", "levels.png", "kv.png")]
    with mpl.rc_context(_STYLE):
        for picture, path in zip((draw_latency, draw_levels, draw_kv), paths, strict=True):
            picture(runs, path)
    return paths


def main(argv: list[str]) -> int:
    """Draws the pictures and prints their paths."""
    if len(argv) < 2 or not all("=" in given for given in argv[1:]):
        print(
            "usage: python -m services.cli.bench.pictures OUT LABEL=FOLDER [LABEL=FOLDER ...]",
            file=sys.stderr,
        )
        return ExitCode.REFUSED
    folders = {label: Path(folder) for label, _, folder in (given.partition("=") for given in argv[1:])}
    for path in draw(folders, Path(argv[0])):
        print(path)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
