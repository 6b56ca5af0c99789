"""`make demo`: FastServe against FCFS on this machine, in a few minutes.

One server of four processes with the bundled model: a completion, then a short saturated run under FCFS that measures
what FCFS sustains here; from that a bursty trace at 0.9 of it, run under `fcfs` + `defer` (Orca's way: run to
completion, KV reserved) and, after a restart, under `skip-join-mlfq` + `proactive`. Same engine, same pools. The device
pool is at most a third of the trace's peak need, which is estimated beforehand (calibration.fluid_stays) and measured
from the FCFS run afterwards.
"""

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from services.cli.bench.bench_command import measure
from services.cli.bench.comparison import Result, counter_table, headline, latency_table
from services.cli.bench.progress import with_progress
from services.domain.generation import GenerateRequest, SamplingRequest
from services.loadgen.gateway_client import GatewayClient, encode
from services.loadgen.server_process import running_server
from services.loadgen.trace_run import TraceRunner, TraceRunOptions
from services.runtime.command_line import CommandError, ExitCode, parser, positive_float, tell
from services.worker.engine.compute_environment import usable_cores
from services.workloads.calibration import LoadedTrace, Need, loaded_trace, peak_need_tokens, sustained_rate
from services.workloads.job_records import write_lines
from services.workloads.workload import TraceJob, Workload, make_trace, trace_line

StartServer = Callable[[Sequence[str], Path], AbstractAsyncContextManager[str]]
"""Takes flags of `fastserve up` and a file for its log; serves for the length of a block and yields the gateway's
address.
"""

POLICIES = {"fcfs": ("fcfs", "defer"), "fastserve": ("skip-join-mlfq", "proactive")}
LABELS = {"fcfs": "FCFS", "fastserve": "FastServe"}

MAX_BATCH = 16
DEVICE_TOKENS = 3072
HOST_TOKENS = 131_072
SHAPE = Workload(jobs=300, rate=1.0, cv=4.0, theta=1.35, max_prompt_tokens=512, max_output_tokens=768, seed=1)
NEED = Need(load=0.9, least_jobs=400, least_s=34.0, pool_tokens=DEVICE_TOKENS, pools_in_peak=4.0)
"""The peak need is estimated before the run and sometimes comes out lower; four pools make sure of three."""
WARM_UP_JOBS = 40

PROMPT = 'def copy_file(source, target):\n    """Copy a file'
# The penalties keep a model this small from repeating itself.
SAMPLING = SamplingRequest(max_tokens=110, temperature=0.7, repetition_penalty=1.1, frequency_penalty=0.2, seed=3)


@dataclass(frozen=True, slots=True)
class Stage:
    """The demo's terminal and its output folder."""

    console: Console
    out: Path

    def say(self, text: str) -> None:
        """A heading."""
        self.console.print(f"\n[bold]{text}[/bold]")

    def folder(self, name: str) -> Path:
        """The folder of one policy's files, made."""
        made = self.out / name
        made.mkdir(parents=True, exist_ok=True)
        return made


def server_flags(name: str, state_dir: Path) -> list[str]:
    """Flags of `fastserve up` for one of the servers; they differ only in their policies and share the cost model.

    One core is left to the three other services and to the client, which all work while the model does.
    """
    policy, kv_policy = POLICIES[name]
    policies = ["--policy", policy, "--kv-policy", kv_policy]
    engine = ["--max-batch", str(MAX_BATCH), "--threads", str(max(1, usable_cores() - 1))]
    pools = ["--kv-device-tokens", str(DEVICE_TOKENS), "--kv-host-tokens", str(HOST_TOKENS)]
    return [*policies, *engine, *pools, "--state-dir", str(state_dir)]


async def show_completion(server: str, stage: Stage) -> None:
    """Stream one sampled completion to the terminal."""
    stage.console.print(PROMPT, style="dim", end="", markup=False, highlight=False)
    async with GatewayClient(server) as client:
        async for message in client.complete(encode(GenerateRequest(text=PROMPT, sampling=SAMPLING))):
            stage.console.file.write(message.piece.text)
            stage.console.file.flush()
    stage.console.print()


async def saturate(server: str, jobs: int, title: str) -> float:
    """Jobs per second that the server completes while many wait: sends `jobs` jobs at once."""
    trace = make_trace(replace(SHAPE, jobs=jobs), stratified=True)
    async with GatewayClient(server) as client:
        runner = TraceRunner(client, trace, TraceRunOptions(time_scale=0.0))
        trace_run = await with_progress(title, runner.trace_run, runner.run())
    if trace_run.failed:
        errors = {record.error for record in trace_run.records if record.error}
        raise CommandError(f"{trace_run.failed} of {jobs} jobs failed: {sorted(errors)[0]}")
    return sustained_rate(trace_run.records)


def describe(loaded: LoadedTrace, sustained: float) -> str:
    """The trace in one paragraph."""
    jobs = loaded.jobs
    outputs = sorted(job.output_tokens for job in jobs)
    return (
        f"FCFS sustains {sustained:.1f} jobs/s here. The trace: {len(jobs)} jobs in {jobs[-1].arrival_s:.0f} s, "
        f"{loaded.rate:.1f} jobs/s ({NEED.load:.0%} of that) in bursts (CV {loaded.cv:.1f}); outputs of 1 to "
        f"{outputs[-1]} tokens, half of them {outputs[len(outputs) // 2]} or less (Zipf {SHAPE.theta}). At its peak "
        f"its jobs need {loaded.peak_need_tokens} tokens of KV cache; the device pool holds {DEVICE_TOKENS} "
        f"({DEVICE_TOKENS / loaded.peak_need_tokens:.0%})."
    )


async def run_trace(name: str, server: str, trace: Sequence[TraceJob], stage: Stage) -> Result:
    """Runs the trace against one of the two servers."""
    workload: dict[str, object] = {"trace": str(stage.out / "trace.jsonl"), "theta": SHAPE.theta, "cv": SHAPE.cv}
    return await measure(server, trace, TraceRunOptions(), workload, stage.folder(name), LABELS[name])


def measured_peak_need(folder: Path) -> int:
    """The peak need of a trace run, in tokens, from the times measured."""
    jobs = [json.loads(line) for line in (folder / "jobs.jsonl").read_text(encoding="utf-8").splitlines()]
    ended = [job for job in jobs if job["error"] is None]
    return peak_need_tokens(
        (job["arrival_s"], job["last_token_s"], job["prompt_tokens"] + job["output_tokens"]) for job in ended
    )


async def run(stage: Stage, need: Need, start: StartServer = running_server) -> bool:
    """Runs the whole demo; returns whether FastServe won clearly."""
    state_dir = stage.folder("state")
    stage.say("1. Starting gateway, scheduler, KV manager and worker with the bundled model (FCFS)")
    async with start(server_flags("fcfs", state_dir), stage.folder("fcfs") / "server.log") as server:
        stage.say("2. One sampled completion, as it is made")
        await show_completion(server, stage)
        stage.say("3. What does FCFS sustain on this machine?")
        await saturate(server, WARM_UP_JOBS, "warm-up")
        sustained = await saturate(server, SHAPE.jobs, "calibration")
        loaded = loaded_trace(SHAPE, sustained, need)
        write_lines(stage.out / "trace.jsonl", [trace_line(job) for job in loaded.jobs])
        stage.console.print(describe(loaded, sustained))
        stage.say("4. The trace under FCFS (policy fcfs, KV policy defer)")
        before = await run_trace("fcfs", server, loaded.jobs, stage)
    stage.say("5. The same trace under FastServe (policy skip-join-mlfq, KV policy proactive), after a restart")
    async with start(server_flags("fastserve", state_dir), stage.folder("fastserve") / "server.log") as server:
        await saturate(server, WARM_UP_JOBS, "warm-up")
        after = await run_trace("fastserve", server, loaded.jobs, stage)
    return show_results(stage, before, after)


def show_results(stage: Stage, before: Result, after: Result) -> bool:
    """Prints tables and the verdict, draws pictures; returns whether FastServe won clearly."""
    from services.cli.bench.pictures import draw

    stage.say("6. Side by side")
    names, results = (LABELS["fcfs"], LABELS["fastserve"]), (before, after)
    stage.console.print(latency_table(names, results))
    stage.console.print(counter_table(names, results))
    peak = measured_peak_need(stage.out / "fcfs")
    stage.console.print(
        f"Peak need measured under FCFS: {peak} tokens; the device pool is {DEVICE_TOKENS / peak:.0%} of it."
    )
    pictures = draw({LABELS[name]: stage.out / name for name in POLICIES}, stage.out)
    stage.console.print(f"Pictures: {', '.join(str(path) for path in pictures)}", soft_wrap=True)
    stage.console.print(
        f"Figures: {', '.join(str(stage.out / name / 'result.json') for name in POLICIES)}", soft_wrap=True
    )
    won, sentence = headline(results)
    stage.console.print(f"\n{sentence}", style="bold green" if won else "bold red", soft_wrap=True)
    return won


def main(argv: list[str] | None = None) -> int:
    """Runs the demo. The exit code is 0 if it ran, whatever it showed."""
    made: argparse.ArgumentParser = parser("demo", "FastServe against FCFS on this machine.")
    made.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="folder for the results [out/demo]"
    )
    made.add_argument(
        "--seconds",
        type=positive_float,
        default=NEED.least_s,
        help=f"minimum seconds of a trace run [{NEED.least_s:.0f}]",
    )
    began_s = time.monotonic()
    try:
        arguments = made.parse_args(argv)
        # The cost model is measured again: the machine may have been busy the last time.
        shutil.rmtree(arguments.out / "state", ignore_errors=True)
        arguments.out.mkdir(parents=True, exist_ok=True)
        need = Need(NEED.load, NEED.least_jobs, arguments.seconds, NEED.pool_tokens, NEED.pools_in_peak)
        asyncio.run(run(Stage(Console(width=None if sys.stdout.isatty() else 130), arguments.out), need))
    except CommandError as error:
        tell("demo", str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    print(f"(the whole demo took {time.monotonic() - began_s:.0f} s)")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
