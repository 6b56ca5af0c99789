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
were measured, and messages longer than on an idle machine. By how much, the `slowdown` and the `hop`, is found on a
trace of its own, an overload: the ones at which the simulated stages are busy as long as the live ones were, and for as
large a share of the time.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import policies
from benchmarks.goals_and_tables import Goal, Table, at_most, goals_table, section, tell
from benchmarks.model_folders import random_model
from benchmarks.servers import bench, demand_no_failures, trace_server, write_trace
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.simulated_runs import (
    Figures,
    ServedBy,
    busy_by_slowdown,
    figures_of,
    fitted_slowdown,
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
CALIBRATION = ("calibration", 3.0, replace(SHAPE, cv=2.0, theta=1.2, seed=1_001))
HOPS_S = (0.0003, 0.001, 0.002, 0.004, 0.008, 0.016)
"""Where the simulator is asked."""
ASKED = (
    ("Poisson, load 0.5", 0.5, replace(SHAPE, cv=1.0)),
    ("bursty, load 0.9", 0.9, SHAPE),
    ("overload, load 3", 3.0, replace(SHAPE, cv=1.0, theta=0.9)),
)
LEAST_S = 20.0
LEAST_JOBS = 50
OVERLOAD_LEAST_S = 8.0
WARM_UP_JOBS = 8
MOST_POINTS_OFF = 5.0

Measured = dict[str, Any]


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


def fitted(by: ServedBy, profile: Profile, trace: Sequence[TraceJob], live: Figures) -> ServedBy:
    """The server with the slowdown and the hop at which its simulated run of the trace is like the live one."""
    served = replace(by, slowdown=fitted_slowdown([busy_by_slowdown(by, profile, PAIR, trace)], [live["busy_s"]]))
    shares = [utilisation(simulated_figures(replace(served, hop_s=hop_s), profile, PAIR, trace)) for hop_s in HOPS_S]
    wanted = utilisation(live)
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
    name, load, shape = CALIBRATION
    calibration = _workload(settings, by, profile, load, shape)
    seen = await live.run(name, trace_of(calibration))
    served = fitted(by, profile, trace_of(calibration), seen)
    runs = []
    for name, load, shape in settings.pick(ASKED, ASKED[:1]):
        workload = _workload(settings, served, profile, load, shape)
        figures = await live.run(name, trace_of(workload))
        runs.append({"trace": name, "load": load, "workload": asdict(workload), "live": figures})
    return simulated_anew(
        {
            "model": settings.pick(PRESET, "S"),
            "pair": list(PAIR),
            "server": asdict(by),
            "profile": json.loads(profile_text(profile)),
            "calibration": {"workload": asdict(calibration), "live": seen},
            "runs": runs,
        }
    )


def simulated_anew(measured: Measured) -> Measured:
    """A result with its live runs unchanged and its simulations made by the present simulator."""
    profile, calibration = profile_of(measured["profile"]), measured["calibration"]
    by = replace(ServedBy(**measured["server"]), slowdown=1.0, hop_s=HOPS_S[0])
    served = fitted(by, profile, trace_of(Workload(**calibration["workload"])), calibration["live"])
    runs = [
        {**run, "simulated": simulated_figures(served, profile, PAIR, trace_of(Workload(**run["workload"])))}
        for run in measured["runs"]
    ]
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
        f"{1e3 * pipeline['hand_over_s']:.2f} ms, and {1e6 * pipeline['row_s']:.2f} us a further row. By another trace "
        f"than these, iterations take {server['slowdown']:.2f} times as long as measured without services, messages "
        f"{1e3 * server['hop_s']:.1f} ms."
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
