"""Policies on a device: the default and the paper's beside FCFS, live, through the services, with Llama-3-8B's shape.

    python -m benchmarks.gpu_policies --out benchmarks/results/HARDWARE/policies.json        # 8 minutes with a GPU
    python -m benchmarks.gpu_policies --simulate benchmarks/results/HARDWARE/policies.json   # anywhere, afterwards

Theory of operation
-------------------
`fastserve profile` measures the cost model first. On that profile the simulator finds what FCFS sustains with ample
memory, and each scenario's jobs arrive relative to it. Then a server is started for every pair of policies, serves a
short warm-up and the scenario's jobs. The file is written after each run; if it is there already, what it lacks is
measured.

`--simulate` runs the same jobs through the simulator, and puts its figures and a table beside the live ones. How much
longer an iteration takes in service than in the profile (see live_against_simulated.py) is found on the runs of the
other scenarios.

Weights are random: they take as long as trained ones. Answers have the lengths of the jobs.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.goals_and_tables import Table, seconds, section, tell
from benchmarks.model_folders import ROOT, random_model
from benchmarks.servers import bench, demand_no_failures, fastserve, trace_server, write_trace
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.simulated_runs import (
    Iterated,
    ServedBy,
    as_a_file_holds_it,
    capacity_per_s,
    fitted_slowdown,
    iterated_by_slowdown,
    simulated_content,
)
from services.domain.errors import FastServeError
from services.experiments.cases import simulated_jobs
from services.runtime.profile_file import Profile, profile_of, profile_text, read_profile
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.workloads.calibration import Need, fluid_stays, loaded_trace, peak_need_tokens
from services.workloads.public_traces import convert
from services.workloads.workload import TraceJob, Workload, scale_arrivals

CONV = ROOT / "traces" / "azure-llm-2023-conv-first-60-percent.csv"
PROFILE_LIMIT_S = 180.0
CAPACITY_JOBS = 1500
WARM_UP_JOBS = 32
BLOCK = 16

Content = dict[str, Any]
Jobs = list[TraceJob]
Pair = tuple[str, str]

_FIGURES = (
    ("mean JCT", "jct_s", "mean"),
    ("P95", "jct_s", "p95"),
    ("P99", "jct_s", "p99"),
    ("mean TTFT", "ttft_s", "mean"),
    ("P99 TTFT", "ttft_s", "p99"),
    ("P99 worst gap", "worst_gap_s", "p99"),
)
"""Text, distribution, statistic."""
_KEPT = ("jobs", "failed", "duration_s", "output_tokens_per_s", "jct_s", "ttft_s", "per_output_token_s", "worst_gap_s")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Jobs, and the server that they arrive at. `shape` None: those of the public trace. `pools_in_peak`: how many
    device pools all jobs together would need at the peak; 0: the pool is as large as the model's memory allows.
    """

    name: str
    load: float
    max_batch: int
    pairs: tuple[Pair, ...]
    shape: Workload | None = None
    pools_in_peak: int = 0


@dataclass(frozen=True, slots=True)
class Where:
    """A preset of models/make_random.py on a device, with pools in tokens. Jobs that are made up have prompts and
    outputs of at most `longest`.
    """

    preset: str
    device: str
    device_tokens: int
    host_tokens: int
    longest: tuple[int, int]

    @property
    def flags(self) -> list[str]:
        return ["--device", self.device]


PLACES = {
    "8B": Where("8B", "cuda", 196_608, 65_536, (1024, 2048)),
    "tiny": Where("tiny", "cpu", 4096, 8192, (64, 128)),
}


def scenarios(where: Where) -> tuple[Scenario, ...]:
    """A burst of long tails in little memory; and a real trace, where a queue forms and memory is ample."""
    prompt, output = where.longest
    tails = Workload(1, 1.0, cv=4.0, theta=1.35, max_prompt_tokens=prompt, max_output_tokens=output, seed=1)
    paper = ("skip-join-mlfq", "proactive")
    ours = ("gittins", "proactive")
    return (
        Scenario("long tails in a quarter of peak need", 0.9, 16, (("fcfs", "proactive"), ours, paper), tails, 4),
        Scenario("real chats, memory ample", 1.1, 64, (("fcfs", "recompute"), ours, paper)),
    )


def _public_jobs(most_tokens: int) -> Jobs:
    with CONV.open(encoding="utf-8") as lines:
        jobs = convert(lines).jobs
    return [job for job in jobs if job.prompt_tokens + job.output_tokens <= most_tokens]


def arrivals(scenario: Scenario, where: Where, profile: Profile, span_s: float) -> tuple[Content, Jobs]:
    """What is told of a scenario's jobs, and the jobs: about `span_s` seconds of them."""
    by = ServedBy(scenario.max_batch, where.device_tokens, where.host_tokens)
    if scenario.shape is not None:
        capacity = capacity_per_s(by, profile, scenario.shape)
        need = Need(scenario.load, 50, span_s, by.device_tokens, 0.0)
        loaded = loaded_trace(scenario.shape, capacity, need)
        jobs, peak = as_a_file_holds_it(loaded.jobs), loaded.peak_need_tokens
    else:
        known = _public_jobs(profile.max_model_len or by.device_tokens)
        sample = simulated_jobs(known[:CAPACITY_JOBS])
        capacity = fcfs_capacity_per_s(by.setup(profile, "fcfs", "defer"), sample)
        rate = scenario.load * capacity
        jobs = as_a_file_holds_it(scale_arrivals(known[: max(50, round(rate * span_s))], rate))
        peak = peak_need_tokens(fluid_stays(jobs, capacity))
    told = {
        "name": scenario.name,
        "load": scenario.load,
        "fcfs_capacity_per_s": round(capacity, 3),
        "jobs": len(jobs),
        "span_s": round(jobs[-1].arrival_s, 2),
        "output_tokens": sum(job.output_tokens for job in jobs),
        "peak_need_tokens": peak,
    }
    return told, jobs


def _scenario_told(scenario: Scenario, where: Where, profile: Profile, span_s: float) -> Content:
    """A scenario's jobs and server, without runs."""
    told, jobs = arrivals(scenario, where, profile, span_s)
    tokens = where.device_tokens
    if scenario.pools_in_peak:
        longest = max(job.prompt_tokens + job.output_tokens for job in jobs)
        tokens = min(tokens, max(told["peak_need_tokens"] // scenario.pools_in_peak, longest + BLOCK))
    server = {
        "max_batch": scenario.max_batch,
        "device_tokens": tokens // BLOCK * BLOCK,
        "host_tokens": where.host_tokens,
    }
    trace = [[job.arrival_s, job.prompt_tokens, job.output_tokens] for job in jobs]
    return {**told, **server, "trace": trace, "runs": []}


async def _measured_profile(settings: BenchSettings, where: Where, model: Path) -> Profile:
    file = settings.folder("profiles") / f"{where.preset}.json"
    pools = ServedBy(settings.max_batch, where.device_tokens, where.host_tokens).pools()
    argv = (*settings.measuring_flags(), *pools, "--model", str(model), *where.flags, "--out", str(file))
    await fastserve("profile", *argv, limit_s=PROFILE_LIMIT_S)
    return read_profile(file)


async def _run(settings: BenchSettings, name: str, flags: Sequence[str], jobs: Jobs) -> Content:
    """The figures of the jobs on a new server that has served a warm-up."""
    files, out = settings.folder("traces"), settings.folder("raw", name)
    warm_up = write_trace(files / f"{name}-warm-up.jsonl", jobs[:WARM_UP_JOBS])
    async with trace_server(settings, name, flags, warm_up) as ready:
        result = await bench(ready, write_trace(files / f"{name}.jsonl", jobs), out)
    demand_no_failures(result, out)
    return {**{key: result[key] for key in _KEPT}, "scheduler": result["scheduler"], "kv": result["kv"]}


async def measure(
    where: Where, scratch: Path, span_s: float, before: Content | None, write: Callable[[Content], None]
) -> Content:
    """All scenarios, live. `before` is the content of a measurement that was broken off: its profile, jobs and good
    runs are kept. `write` gets the content after each run; a run that fails has its error there.
    """
    asked = scenarios(where)
    most = BenchSettings(scratch, max_batch=max(one.max_batch for one in asked))
    model = await asyncio.to_thread(random_model, where.preset, where.device)
    tell(f"model in {model}")
    if before is None:
        profile = await _measured_profile(most, where, model)
        before = {"model": where.preset, "profile": json.loads(profile_text(profile)), "scenarios": []}
    content, profile = before, profile_of(before["profile"])
    for scenario in asked:
        told = next((told for told in content["scenarios"] if told["name"] == scenario.name), None)
        if told is None:
            told = _scenario_told(scenario, where, profile, span_s)
            content["scenarios"].append(told)
        told["runs"] = _good_runs(told)
        by, jobs = _by_of(told), _jobs_of(told)
        for pair in scenario.pairs:
            if any(run["pair"] == list(pair) for run in told["runs"]):
                continue
            name = f"{scenario.name.replace(' ', '-').replace(',', '')}-{'-'.join(pair)}"
            tell(f"{scenario.name}: {' + '.join(pair)}, {told['jobs']} jobs in {told['span_s']:.0f} s")
            flags = [*by.flags(*pair), "--model", str(model), *where.flags]
            try:
                live = await _run(replace(most, max_batch=by.max_batch), name, flags, jobs)
            except (BenchError, FastServeError, OSError) as error:
                live = {"error": str(error)}
            told["runs"].append({"pair": list(pair), "live": live})
            write(content)
    return content


# --- simulated ---------------------------------------------------------


def _jobs_of(told: Content) -> Jobs:
    return [TraceJob(str(number), *job) for number, job in enumerate(told["trace"])]


def _by_of(told: Content) -> ServedBy:
    return ServedBy(told["max_batch"], told["device_tokens"], told["host_tokens"])


def _good_runs(told: Content) -> list[Content]:
    return [run for run in told["runs"] if "error" not in run["live"]]


def simulated_beside(content: Content) -> Content:
    """The content with simulated figures beside the live ones."""
    profile = profile_of(content["profile"])
    iterated = {
        told["name"]: [
            (
                iterated_by_slowdown(_by_of(told), profile, tuple(run["pair"]), _jobs_of(told)),
                Iterated.of(run["live"]["scheduler"]),
            )
            for run in _good_runs(told)
        ]
        for told in content["scenarios"]
    }
    made = []
    for told in content["scenarios"]:
        others = [
            each for name, runs in iterated.items() if name != told["name"] or len(iterated) == 1 for each in runs
        ]
        slowdown = fitted_slowdown([at for at, _ in others], [live for _, live in others]) if others else 1.0
        by = replace(_by_of(told), slowdown=slowdown)
        runs = []
        for run in told["runs"]:
            simulated = simulated_content(by, profile, tuple(run["pair"]), _jobs_of(told))
            kept = {key: simulated[key] for key in _KEPT}
            runs.append({**run, "simulated": {**kept, "scheduler": simulated["scheduler"], "kv": simulated["kv"]}})
        made.append({**told, "slowdown": slowdown, "runs": runs})
    return {**content, "scenarios": made}


def tables(content: Content) -> list[Table]:
    """A table of each scenario."""
    return [_table(content, told) for told in content["scenarios"]]


def _table(content: Content, told: Content) -> Table:
    rows = []
    for run in told["runs"]:
        for how in ("live", "simulated"):
            figures = run.get(how)
            if figures is None or "error" in figures:
                continue
            moved = (figures["kv"]["offloaded_bytes"] + figures["kv"]["uploaded_bytes"]) / 1e9
            cells = [seconds(figures[of][statistic]) for _, of, statistic in _FIGURES]
            rows.append((" + ".join(run["pair"]), how, *cells, f"{figures['output_tokens_per_s']:.0f}", f"{moved:.1f}"))
    note = (
        f"Model {content['model']}, batch {told['max_batch']}, a device pool of {told['device_tokens']} tokens of the "
        f"{told['peak_need_tokens']} that all jobs together would need at the peak. {told['jobs']} jobs in "
        f"{told['span_s']:.0f} s, {told['load']:.0%} of what FCFS sustains with ample memory. Simulated iterations "
        f"take {told.get('slowdown', 1.0):.2f} times as long as those of the profile."
    )
    heading = ("system", "", *(text for text, _, _ in _FIGURES), "tokens/s", "GB moved")
    return Table(f"On a device: {told['name']}; seconds", heading, rows, note)


def off(content: Content) -> float:
    """The mean over all runs of how far the simulated mean job completion time is from the live one: 0.05 is 5 %."""
    pairs = [
        (run["simulated"]["jct_s"]["mean"], run["live"]["jct_s"]["mean"])
        for told in content["scenarios"]
        for run in _good_runs(told)
    ]
    return fmean(abs(simulated / live - 1) for simulated, live in pairs)


def _write(out: Path, facts: Content, content: Content) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**content, "hardware": facts}) + "\n", encoding="utf-8")


def _hardware(device: str) -> Content:
    import torch  # not for --simulate

    from benchmarks.gpu import hardware

    return hardware(torch.device(device))


def _earlier(file: Path, flag: str) -> Content:
    """What an earlier run wrote. Raises BenchError, with the flag, if the file can't be read or was not written by this
    program.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{flag}: {error}") from None
    if not isinstance(content, dict) or not {"model", "profile", "scenarios", "hardware"} <= content.keys():
        raise BenchError(f"{flag}: {file} is not a file that this program wrote")
    return content


def main(argv: Sequence[str] | None = None) -> int:
    """Files that are not its own, and a measurement that can't be made, end it with 2 and a line."""
    parser = argparse.ArgumentParser(description="Compares policies live on a device.")
    parser.add_argument("--model", choices=sorted(PLACES), default="8B", help="8B on a GPU, or tiny on the CPU [8B]")
    parser.add_argument("--span", type=float, default=40.0, help="seconds of arrivals of each scenario [40]")
    parser.add_argument("--scratch", type=Path, default=ROOT / "out" / "gpu_policies", help="for logs and traces")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="JSON file to write")
    what.add_argument("--simulate", type=Path, help="a file of --out, to put simulated figures in")
    arguments = parser.parse_args(argv)
    try:
        return _simulate(arguments.simulate) if arguments.simulate is not None else _live(arguments)
    except BenchError as error:
        tell(str(error))
        return 2


def _simulate(file: Path) -> int:
    content = simulated_beside(_earlier(file, "--simulate"))
    _write(file, content.pop("hardware"), content)
    print("\n\n".join(section(table) for table in tables(content)))
    print(f"\nSimulated mean job completion times are {off(content):.1%} off on average.")
    return 0


def _live(arguments: argparse.Namespace) -> int:
    where = PLACES[arguments.model]
    before = _earlier(arguments.out, "--out") if arguments.out.exists() else None
    if before is not None and before["model"] != where.preset:
        raise BenchError(f"--out: {arguments.out} is of model {before['model']}, not of {where.preset}")
    write = partial(_write, arguments.out, _hardware(where.device))
    content = asyncio.run(measure(where, arguments.scratch, arguments.span, before, write))
    print("\n\n".join(section(table) for table in tables(content)))
    return 1 if any("error" in run["live"] for told in content["scenarios"] for run in told["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
