"""Does the simulator tell the truth? Traces run through the real services, and simulated, side by side.

    python -m benchmarks.run --only live_against_simulated
    python -m benchmarks.live_against_simulated RESULT.json    # simulate its runs again and print; writes nothing

Theory of operation
-------------------
`fastserve profile` measures the cost model and the copies on this machine first, with the flags that the workers get
afterwards. The live scheduler and the simulated one then use that same profile: it replaces the one that the worker
measured for itself, so that both have the same quanta and only the course of events differs.

Traces have arrivals relative to FCFS's capacity on that profile according to the simulator. Every trace is run
under every pair of policies, each time on a server of its own that has served a short warm-up and is empty, and all of
it more than once: the repeats are apart in time, so that their range shows how much this machine differs from itself.
The profile is measured again at the end, which shows how far the machine has drifted.

A profile is measured on an idle machine. In service the worker's event loop, the other services, the load generator and
the copies want the same cores, caches and memory, and everything takes a few per cent longer. How much that is on this
machine is one number, the `slowdown`, and a trace's is never found on the trace itself: it is the one at which the
iterations of the simulated workers of all other traces take as long as the live ones did. The traces' rates are set
before, with the slowdown of yet another trace; with the better one, known at the end, loads come out a little
different, and both are shown.

A shared machine is slower in one minute than in another. So every live run is also simulated at the slowdown of its own
iterations: what is off then is the course of events, not the machine's pace. No goal is about that.

The model has one thread unless `--threads` says otherwise: the other core is for gateway, scheduler, KV manager and
the load generator, which a real deployment would not put on the worker's cores either. With as many threads of the
model as cores, every message would take time away from an iteration, and no cost profile knows of messages.

`busy_s` is the same in both: seconds inside iterations, from the batch's layout to its tokens, without the waits for
copies (`stall_s`) and for plans (`plan_wait_s`).
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import policies, truth_comparison
from benchmarks.goals_and_tables import goals_table, section, tell
from benchmarks.model_folders import random_model
from benchmarks.servers import bench, demand_no_failures, fastserve, server, trace_server, write_trace
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.simulated_runs import (
    Figures,
    Iterated,
    ServedBy,
    capacity_per_s,
    figures_of,
    fitted_slowdown,
    iterated_by_slowdown,
    simulated_figures,
    trace_for,
    trace_of,
)
from services.domain.cost import CostProfile
from services.runtime.profile_file import Profile, profile_of, profile_text, read_profile, write_profile
from services.workloads.calibration import Need
from services.workloads.workload import TraceJob, Workload, make_trace

PRESET = "M"
"""Its iterations take tens of milliseconds; with iterations of a few, the share of two cores that services and load
generator take would be most of what is measured, not noise."""
DEVICE_TOKENS = 768
HOST_TOKENS = 16_384
SHAPE = replace(policies.SHAPE, max_prompt_tokens=256, max_output_tokens=256)
THREADS = 1
REPEATS = 2
LEAST_S = 30.0
QUICK_S = 5.0
LEAST_JOBS = 50
WARM_UP_JOBS = 8
PROFILE_LIMIT_S = 180.0

Jobs = dict[str, list[TraceJob]]

PAIRS = (("fcfs", "recompute"), ("skip-join-mlfq", "proactive"), ("mlfq", "reactive"), ("gittins", "proactive"))
"""Each can go wrong in its own way: FCFS copies nothing and computes again what did not fit; the quanta of skip-join
depend on the cost model, and its copies run ahead; naive MLFQ waits for its copies; the default orders by what it
has learnt on the way, and lends by the clock."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested trace. `pools_in_peak`: how many device pools its jobs need at the peak, at least."""

    name: str
    load: float
    shape: Workload
    pools_in_peak: float = 0.0


CALIBRATION = Asked("calibration", 0.8, replace(SHAPE, cv=2.0, theta=1.2, seed=1_001))
ASKED = (
    Asked("bursty, load 0.7", 0.7, SHAPE, 2.0),
    Asked("bursty, load 0.9", 0.9, SHAPE, 2.0),
    Asked("Poisson, load 0.5", 0.5, replace(SHAPE, cv=1.0)),
    Asked("long jobs, load 0.9", 0.9, replace(SHAPE, cv=1.0, theta=0.9), 2.0),
)
"""theta 1.35 has mostly short jobs and a heavy tail; with 0.9 the mean is several times longer."""


def _model_flags() -> list[str]:
    return ["--model", str(random_model(PRESET))]


async def _measured_profile(settings: BenchSettings, by: ServedBy, name: str) -> Profile:
    """The profile that `fastserve profile` measures for a worker of this server."""
    file = settings.folder("profiles") / f"{name}.json"
    argv = (*settings.measuring_flags(), *by.pools(), *_model_flags(), "--out", str(file))
    await fastserve("profile", *argv, limit_s=PROFILE_LIMIT_S)
    return read_profile(file)


def put_in_place(profile: Profile, folder: Path) -> int:
    """Makes workers use the profile's cost model: it replaces those kept for workers of the same kind. Returns how many
    were replaced.
    """
    replaced = 0
    for file in sorted(folder.glob("*.json")):
        kept = read_profile(file)
        if all(profile.source.get(name) == value for name, value in kept.source.items()):
            write_profile(file, replace(kept, cost=profile.cost, mixed=profile.mixed))
            replaced += 1
    return replaced


async def _share_profile(settings: BenchSettings, by: ServedBy, profile: Profile) -> None:
    """Lets a worker keep its own profile, then replaces it by this one."""
    async with server(settings, "live-first", [*by.flags(*PAIRS[0]), *_model_flags()]):
        pass
    if not put_in_place(profile, settings.folder("state", "profiles")):
        raise BenchError("the worker kept no cost model that could be replaced")


def drift(before: CostProfile, after: CostProfile) -> float:
    """By how much the median point of the tables took longer the second time: 0.02 is 2 %."""
    first_s, second_s = _seconds_by_place(before), _seconds_by_place(after)
    return median(second_s[place] / first_s[place] - 1 for place in first_s if place in second_s)


def _seconds_by_place(cost: CostProfile) -> dict[tuple[int, ...], float]:
    prefill: dict[tuple[int, ...], float] = {(point.tokens,): point.seconds for point in cost.prefill}
    return prefill | {(point.batch, point.context_tokens): point.seconds for point in cost.decode}


def _trace(settings: BenchSettings, by: ServedBy, profile: Profile, asked: Asked) -> dict[str, Any]:
    """The requested trace as the result shows it."""
    need = Need(asked.load, LEAST_JOBS, settings.pick(LEAST_S, QUICK_S), by.device_tokens, asked.pools_in_peak)
    capacity, loaded = trace_for(by, profile, asked.shape, need)
    return {
        "name": asked.name,
        "load": asked.load,
        "fcfs_capacity_per_s": round(capacity, 3),
        "cv": round(loaded.cv, 2),
        "span_s": round(loaded.jobs[-1].arrival_s, 2),
        "peak_need_tokens": loaded.peak_need_tokens,
        "workload": asdict(loaded.workload),
    }


class _LiveRuns:
    """Live trace runs with the same server settings, each on a server of its own."""

    def __init__(self, settings: BenchSettings, by: ServedBy) -> None:
        self._settings = settings
        self._by = by
        self._files = settings.folder("traces")
        self._warm_up = write_trace(
            self._files / "live-warm-up.jsonl", make_trace(replace(SHAPE, jobs=WARM_UP_JOBS), stratified=True)
        )

    async def run(self, name: str, jobs: Sequence[TraceJob], pair: tuple[str, str]) -> Figures:
        """The figures of a trace run on a server that has served the warm-up."""
        trace = write_trace(self._files / f"live-{name.replace(' ', '-')}.jsonl", jobs)
        label = f"{trace.stem}-{'-'.join(pair)}"
        out = self._settings.folder("raw", label)
        flags = [*self._by.flags(*pair), *_model_flags()]
        async with trace_server(self._settings, label, flags, self._warm_up) as ready:
            result = await bench(ready, trace, out)
        demand_no_failures(result, out)
        return figures_of(result)


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    by = ServedBy(settings.max_batch, DEVICE_TOKENS, HOST_TOKENS)
    profile = await _measured_profile(settings, by, "before")
    await _share_profile(settings, by, profile)
    live_runs = _LiveRuns(settings, by)
    calibration = trace_of(Workload(**_trace(settings, by, profile, CALIBRATION)["workload"]))
    tell("live, for the traces' loads")
    live_at = [await live_runs.run("calibration", calibration, PAIRS[0]) for _ in range(settings.pick(2, 1))]
    simulated_at = iterated_by_slowdown(by, profile, PAIRS[0], calibration)
    served = replace(by, slowdown=fitted_slowdown([simulated_at], [Iterated.of(each) for each in live_at]))
    traces = [_trace(settings, served, profile, asked) for asked in settings.pick(ASKED, ASKED[:1])]
    jobs = {trace["name"]: trace_of(Workload(**trace["workload"])) for trace in traces}
    pairs, repeats = settings.pick(PAIRS, PAIRS[:2]), settings.pick(REPEATS, 1)
    live: dict[tuple[str, tuple[str, str]], list[Figures]] = {(name, pair): [] for name in jobs for pair in pairs}
    for repeat in range(repeats):
        for (name, pair), figures in live.items():
            tell(f"live, {repeat + 1} of {repeats}: {name}, {' + '.join(pair)}")
            figures.append(await live_runs.run(name, jobs[name], pair))
    after = await _measured_profile(settings, by, "after")
    content = {
        "model": PRESET,
        "threads": settings.threads,
        "server": asdict(served),
        "profile": json.loads(profile_text(profile)),
        "profile_drift": round(drift(profile.cost, after.cost), 4),
        "traces": traces,
        "runs": [{"trace": name, "pair": list(pair), "live": figures} for (name, pair), figures in live.items()],
    }
    return simulated_anew(content)


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Every trace under every pair: simulated once, live as often as repeats are asked for."""
    return asyncio.run(_measure(replace(settings, threads=settings.threads or THREADS)))


def draw(measured: dict[str, Any], out: Path) -> list[Path]:
    """The picture beside the result; its files."""
    from benchmarks.truth_picture import draw_truth  # matplotlib takes a while, and no other part draws

    return [draw_truth(measured, out)]


def _slowdowns(
    by: ServedBy, runs: Sequence[dict[str, Any]], simulated: Sequence[Sequence[Iterated]], jobs: Jobs
) -> dict[str, float]:
    """Each trace's, found on the runs of all others, of which `simulated` has what `iterated_by_slowdown` gives. A
    single trace keeps the one of the server.
    """
    if len(jobs) == 1:
        return dict.fromkeys(jobs, by.slowdown)
    found: dict[str, float] = {}
    for name in jobs:
        others = [number for number, run in enumerate(runs) if run["trace"] != name]
        live = [Iterated.of(figures) for number in others for figures in runs[number]["live"]]
        found[name] = fitted_slowdown([simulated[number] for number in others], live)
    return found


def _at_own_pace(
    by: ServedBy, profile: Profile, run: dict[str, Any], simulated: Sequence[Iterated], trace: Sequence[TraceJob]
) -> list[Figures]:
    """For each live run, what is simulated at the slowdown of its own iterations."""
    made = []
    for live in run["live"]:
        slowdown = fitted_slowdown([simulated], [Iterated.of(live)])
        figures = simulated_figures(replace(by, slowdown=slowdown), profile, tuple(run["pair"]), trace)
        made.append({"slowdown": slowdown, **{name: figures[name] for name in ("mean_jct_s", "busy_s")}})
    return made


def simulated_anew(measured: dict[str, Any]) -> dict[str, Any]:
    """A result with its live runs unchanged and its simulations made by the present simulator."""
    profile = profile_of(measured["profile"])
    by = ServedBy(**measured["server"])
    workloads = {trace["name"]: Workload(**trace["workload"]) for trace in measured["traces"]}
    jobs: Jobs = {name: trace_of(workload) for name, workload in workloads.items()}
    live_runs = measured["runs"]
    simulated = [iterated_by_slowdown(by, profile, tuple(run["pair"]), jobs[run["trace"]]) for run in live_runs]
    slowdowns = _slowdowns(by, live_runs, simulated, jobs)
    served = {name: replace(by, slowdown=slowdown) for name, slowdown in slowdowns.items()}
    loads = {name: work.rate / capacity_per_s(served[name], profile, work) for name, work in workloads.items()}
    traces = [
        {**trace, "slowdown": slowdowns[trace["name"]], "load_met": round(loads[trace["name"]], 3)}
        for trace in measured["traces"]
    ]
    runs = [
        {
            **run,
            "simulated": simulated_figures(served[run["trace"]], profile, tuple(run["pair"]), jobs[run["trace"]]),
            "at_own_pace": _at_own_pace(by, profile, run, at, jobs[run["trace"]]),
        }
        for run, at in zip(live_runs, simulated, strict=True)
    ]
    return {**measured, "traces": traces, "runs": runs}


def main() -> None:
    """Simulates the runs of a result again and prints its goals and tables."""
    parser = argparse.ArgumentParser(
        description="Simulate the runs of a result again and compare them with its live ones."
    )
    parser.add_argument("result", type=Path, help="a live_against_simulated.json")
    content = json.loads(parser.parse_args().result.read_text(encoding="utf-8"))
    measured = simulated_anew(content["measured"])
    tables = [section(table) for table in truth_comparison.tables(measured)]
    print("\n\n".join([goals_table(truth_comparison.goals(measured)), *tables]))


if __name__ == "__main__":
    main()
