"""Two pipeline stages through the real services, and simulated: how busy are they?

    python -m benchmarks.run --only pipeline
    python -m benchmarks.pipeline RESULT.json    # simulate its runs again and print; writes nothing

Theory of operation
-------------------
A group of two stages, a core each, serves traces; the same traces are simulated with the profile that the group has
measured of itself at its start and keeps: the cost of an iteration, each stage's share in it, and the way of hidden
states between the two. Utilisation is the compute of a stage in the time from the first arrival to the last token, the
mean of both stages; waits for hidden states, copies and plans are none of it.

Services and load generator run on the same two cores, and both are computing: iterations take longer than when they
were measured, and messages longer than on an idle machine. One part is in proportion to what is computed (the
`slowdown`: caches and memory are shared), another is the same for every iteration (the `overhead`: the services handle
as many messages for a small batch as for a large one). Both are found on two traces of their own, an overload and a
light load, whose iterations are long and short: the ones at which the simulated stages are busy as long as the live
ones were. So is the `hop`, by the share of the time for which they were.

With several plans under way it is a matter of microseconds which plan a job gets into, and all that follows depends on
it. A simulated figure is the mean of a few runs with slightly different hops.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks import policies
from benchmarks.goals_and_tables import Goal, Table, at_most, goals_table, section, tell
from benchmarks.model_folders import random_model
from benchmarks.servers import bench, demand_no_failures, trace_server, write_trace
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.simulated_runs import (
    Figures,
    Iterated,
    ServedBy,
    figures_of,
    fitted_slowdown,
    iterated_by_slowdown,
    simulated_figures,
    trace_for,
    trace_of,
)
from services.domain.errors import InvalidFieldError
from services.runtime.profile_file import Profile, profile_of, profile_text, read_profile
from services.workloads.calibration import Need
from services.workloads.workload import TraceJob, Workload

PRESET = "M"
STAGES = 2
PAIR = ("gittins", "proactive")
DEVICE_TOKENS = 16_384
HOST_TOKENS = 16_384
SHAPE = replace(policies.SHAPE, max_prompt_tokens=256, max_output_tokens=256)
CALIBRATIONS = (
    ("calibration, load 3", 3.0, replace(SHAPE, cv=2.0, theta=1.2, seed=1_001)),
    ("calibration, load 0.4", 0.4, replace(SHAPE, cv=2.0, theta=1.2, seed=1_002)),
)
HOP_FACTORS = (0.9, 0.95, 1.0, 1.05, 1.1)
HOPS_S = (0.0003, 0.001, 0.002, 0.004, 0.008, 0.016)
"""Where the simulator is asked."""
ASKED = (
    ("Poisson, load 0.5", 0.5, replace(SHAPE, cv=1.0)),
    ("bursty, load 0.9", 0.9, SHAPE),
    ("overload, load 3", 3.0, replace(SHAPE, cv=1.0, theta=0.9)),
)
FIT_ROUNDS = 3
"""Slower iterations have fuller batches, so there are fewer of them."""
LEAST_SLOWDOWN = 0.5
LEAST_S = 20.0
LEAST_JOBS = 50
OVERLOAD_LEAST_S = 8.0
WARM_UP_JOBS = 8
MOST_POINTS_OFF = 5.0

Measured = dict[str, Any]
LiveRun = tuple[Sequence[TraceJob], Figures]
"""A trace and the figures of its live run."""


def utilisation(figures: Figures) -> float:
    """Of the stages, on average."""
    return figures["busy_s"] / figures["duration_s"]


def kept_profile(settings: BenchSettings) -> Profile:
    """What the group has measured of itself. Raises BenchError if it kept nothing."""
    for file in sorted(settings.folder("state", "profiles").glob("*.json")):
        profile = read_profile(file)
        if profile.pipeline is not None and profile.stages == STAGES:
            return profile
    raise BenchError("the group kept no profile of its stages")


def simulated(by: ServedBy, profile: Profile, trace: Sequence[TraceJob]) -> Figures:
    """Mean figures of simulated runs of the trace with hops about that of `by`."""
    runs = [simulated_figures(replace(by, hop_s=by.hop_s * factor), profile, PAIR, trace) for factor in HOP_FACTORS]
    return {name: mean(run[name] for run in runs) for name in runs[0]}


def fitted(by: ServedBy, profile: Profile, seen: Sequence[LiveRun]) -> ServedBy:
    """The server with the slowdown, the overhead and the hop at which simulated runs are like the live ones that were
    seen. By a single run slowdown and overhead can't be told apart: all is slowdown.
    """
    served = _fitted_slowdown(by, profile, seen)
    for _ in range(FIT_ROUNDS if len(seen) > 1 else 0):
        served = _with_overhead(served, profile, seen)
    return _fitted_hop(served, profile, seen)


def _fitted_slowdown(by: ServedBy, profile: Profile, seen: Sequence[LiveRun]) -> ServedBy:
    simulated = [iterated_by_slowdown(by, profile, PAIR, trace) for trace, _ in seen]
    return replace(by, slowdown=fitted_slowdown(simulated, [Iterated.of(live) for _, live in seen]))


def _with_overhead(by: ServedBy, profile: Profile, seen: Sequence[LiveRun]) -> ServedBy:
    """Slowdown and overhead by least squares, at the iterations that are simulated with those of `by`."""
    rows, wanted_s = [], []
    for trace, live in seen:
        figures = simulated(by, profile, trace)
        measured_s = (figures["busy_s"] - by.overhead_s * figures["iterations"]) / by.slowdown
        rows.append((measured_s, figures["iterations"]))
        wanted_s.append(live["busy_s"])
    (slowdown, overhead_s), *_ = np.linalg.lstsq(np.array(rows), np.array(wanted_s), rcond=None)
    if overhead_s < 0.0:
        return _fitted_slowdown(replace(by, overhead_s=0.0), profile, seen)
    return replace(by, slowdown=round(max(float(slowdown), LEAST_SLOWDOWN), 4), overhead_s=round(float(overhead_s), 6))


def _fitted_hop(served: ServedBy, profile: Profile, seen: Sequence[LiveRun]) -> ServedBy:
    def share(hop_s: float) -> float:
        by = replace(served, hop_s=hop_s)
        return mean(utilisation(simulated(by, profile, trace)) for trace, _ in seen)

    shares = [share(hop_s) for hop_s in HOPS_S]
    wanted = mean(utilisation(live) for _, live in seen)
    for (low_s, low), (high_s, high) in pairwise(zip(HOPS_S, shares, strict=True)):
        if high <= wanted < low:
            return replace(served, hop_s=round(low_s + (high_s - low_s) * (low - wanted) / (low - high), 6))
    return replace(served, hop_s=HOPS_S[0] if wanted >= shares[0] else HOPS_S[-1])


def _workload(settings: BenchSettings, by: ServedBy, profile: Profile, load: float, shape: Workload) -> Workload:
    least_s = OVERLOAD_LEAST_S if load > 1 else LEAST_S
    need = Need(load, settings.pick(LEAST_JOBS, 10), settings.pick(least_s, 3.0), DEVICE_TOKENS, 0.0)
    return trace_for(by, profile, shape, need)[1].workload


class _LiveRuns:
    """Runs of traces, each on a server of its own that has served a warm-up."""

    def __init__(self, settings: BenchSettings, by: ServedBy) -> None:
        self._settings = settings
        self._flags = [*by.flags(*PAIR), "--pp", str(STAGES), "--model", str(random_model(settings.pick(PRESET, "S")))]
        self._files = settings.folder("traces")
        jobs = trace_of(replace(SHAPE, jobs=WARM_UP_JOBS))
        self._warm_up = write_trace(self._files / "pipeline-warm-up.jsonl", jobs)

    async def run(self, name: str, jobs: Sequence[TraceJob]) -> Figures:
        tell(f"live: {name}")
        label = f"pipeline-{name.replace(' ', '-').replace(',', '')}"
        trace, out = write_trace(self._files / f"{label}.jsonl", jobs), self._settings.folder("raw", label)
        async with trace_server(self._settings, label, self._flags, self._warm_up) as ready:
            result = await bench(ready, trace, out)
        demand_no_failures(result, out)
        return figures_of(result)

    async def first_start(self) -> None:
        """Has the group measure itself."""
        async with trace_server(self._settings, "pipeline-first", self._flags, self._warm_up):
            pass


async def _measure(settings: BenchSettings) -> Measured:
    by = ServedBy(settings.max_batch, DEVICE_TOKENS, HOST_TOKENS)
    live = _LiveRuns(settings, by)
    await live.first_start()
    try:
        profile = kept_profile(settings)
    except InvalidFieldError as error:
        raise BenchError(str(error)) from None
    served, calibrations, runs = by, list[Measured](), list[Measured]()

    async def run(name: str, load: float, shape: Workload) -> Measured:
        workload = _workload(settings, served, profile, load, shape)
        figures = await live.run(name, trace_of(workload))
        return {"trace": name, "load": load, "workload": asdict(workload), "live": figures}

    for each in settings.pick(CALIBRATIONS, CALIBRATIONS[:1]):
        calibrations.append(await run(*each))
        served = fitted(by, profile, [_seen(calibration) for calibration in calibrations])
    for each in settings.pick(ASKED, ASKED[:1]):
        runs.append(await run(*each))
    return simulated_anew(
        {
            "model": settings.pick(PRESET, "S"),
            "pair": list(PAIR),
            "server": asdict(by),
            "profile": json.loads(profile_text(profile)),
            "calibrations": calibrations,
            "runs": runs,
        }
    )


def _seen(run: Measured) -> LiveRun:
    return trace_of(Workload(**run["workload"])), run["live"]


def simulated_anew(measured: Measured) -> Measured:
    """A result with its live runs unchanged and its simulations made by the present simulator."""
    profile = profile_of(measured["profile"])
    by = replace(ServedBy(**measured["server"]), slowdown=1.0, overhead_s=0.0, hop_s=HOPS_S[0])
    served = fitted(by, profile, [_seen(calibration) for calibration in measured["calibrations"]])
    runs = [{**run, "simulated": simulated(served, profile, _seen(run)[0])} for run in measured["runs"]]
    return {**measured, "server": asdict(served), "runs": runs}


def measure(settings: BenchSettings) -> Measured:
    """Every trace once live and once simulated."""
    return asyncio.run(_measure(settings))


def points_off(run: Measured) -> float:
    """Simulated minus live utilisation, in percentage points."""
    return 100 * (utilisation(run["simulated"]) - utilisation(run["live"]))


def goals(measured: Measured) -> list[Goal]:
    """The simulated stages are as busy as the live ones."""
    worst = max(abs(points_off(run)) for run in measured["runs"])
    text = "pp 2: simulated utilisation off the live one, at worst, percentage points"
    return [at_most(text, worst, MOST_POINTS_OFF)]


def tables(measured: Measured) -> list[Table]:
    """This part of the summary."""
    pipeline, server = measured["profile"]["pipeline"], measured["server"]
    rows = [
        (
            run["trace"],
            str(run["workload"]["jobs"]),
            f"{utilisation(run['live']):.1%}",
            f"{utilisation(run['simulated']):.1%}",
            f"{points_off(run):+.1f}",
            f"{run['live']['mean_jct_s']:.2f}",
            f"{run['simulated']['mean_jct_s']:.2f}",
            f"{run['live']['plan_wait_s']:.2f}",
            f"{run['simulated']['plan_wait_s']:.2f}",
        )
        for run in measured["runs"]
    ]
    heading = (
        "trace", "jobs", "utilisation live", "simulated", "points off", "mean JCT live, s", "simulated",
        "without a plan live, s", "simulated",
    )  # fmt: skip
    shares = {
        kind: " + ".join(f"{share:.3f}" for share in pipeline[f"{kind}_shares"]) for kind in ("prefill", "decode")
    }
    note = (
        f"Shares of the stages as measured: prefill {shares['prefill']}, decode {shares['decode']}; hidden states need "
        f"{1e3 * pipeline['hand_over_s']:.2f} ms, and {1e6 * pipeline['row_s']:.2f} us a further row. By two "
        f"other traces, iterations take {server['slowdown']:.2f} times as long as measured without services and "
        f"{1e3 * server['overhead_s']:.1f} ms more in each stage, messages {1e3 * server['hop_s']:.1f} ms."
    )
    title = f"Two stages live and simulated, model {measured['model']}, {' + '.join(measured['pair'])}"
    return [Table(title, heading, rows, note)]


def main() -> None:
    """Simulates the runs of a result again and prints its goals and tables."""
    parser = argparse.ArgumentParser(description="Simulate the runs of a result again, beside its live ones.")
    parser.add_argument("result", type=Path, help="a pipeline.json")
    content = json.loads(parser.parse_args().result.read_text(encoding="utf-8"))
    measured = simulated_anew(content["measured"])
    print("\n\n".join([goals_table(goals(measured)), *map(section, tables(measured))]))


if __name__ == "__main__":
    main()
