"""FastServe through its services against OpenVINO GenAI, vLLM, llama.cpp and transformers' continuous batching.

All systems get the same model folders, bfloat16, the same trace and token ids, forced lengths, two threads, a KV cache
for as many tokens, batches as large, and no prefix caching. Each runs as its makers say is fastest on a CPU: as a
library in a process of its own where it has one, so without the cost of a server that FastServe pays. Warm-up is not
measured. Systems take turns, and each round begins with another, because the speed of shared machines drifts: for the
same reason what the machine allows one stream is measured before and after each turn of it.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.contenders import Contender, peer, services
from benchmarks.goals_and_tables import tell
from benchmarks.model_folders import random_model
from benchmarks.peer_engines.driving import WrongLengthError
from benchmarks.peer_engines.environments import PEERS, THREADS, Environment, find_uv, install
from benchmarks.peer_figures import MEASURES, OURS, Measure, far_behind
from benchmarks.roofline import bounds, offline_bound
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.throughput import TRACE
from services.runtime.command_line import CommandError
from services.workloads.workload import TraceJob, random_token_ids, read_trace

KV_TOKENS = 32_768
MAX_BATCH = 64
JOBS_PER_S = 2.0
ROUNDS = 3
QUICK_JOBS = 12
WARM_UP_JOBS = 16
STREAMS = {"S": 5, "M": 2}
"""Streams of which a turn takes the median."""
ONE_STREAM = ("decode", "prefill")
"""Measures whose bounds are measured beside each turn."""
CHECKED_PROMPTS = 16
LEAST_AGREEMENT = 0.75
"""Roundings differ between engines: two tokens that are close change places now and then."""
RATES_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What is measured: peers, models and measures by name, rounds, and the time after which no further round of a
    measure begins. Each is measured once, however little time there is.
    """

    peers: tuple[str, ...] = tuple(one.name for one in PEERS)
    models: tuple[str, ...] = ("S", "M")
    measures: tuple[str, ...] = tuple(measure.name for measure in MEASURES)
    rounds: int = ROUNDS
    minutes: float = 60.0


@dataclass(slots=True)
class Sitting:
    """What a model's systems are and have done so far. `keep` is called whenever there is more to keep."""

    preset: str
    settings: BenchSettings
    choice: Choice
    trace: Sequence[TraceJob]
    ends_s: float
    keep: Callable[[], None]
    measured: dict[str, Any]
    missing: dict[str, str]
    systems: dict[str, Contender] = field(default_factory=dict)

    def measures(self) -> list[Measure]:
        """Those chosen that this model has."""
        return [one for one in MEASURES if one.name in self.choice.measures and (one.name, self.preset) != ("jct", "S")]

    async def figure(self, measure: Measure, system: Contender) -> float:
        """A turn of a system."""
        if measure.name == "decode":
            return await system.decode(STREAMS[self.preset])
        if measure.name == "prefill":
            return await system.prefill(STREAMS[self.preset])
        rate = len(self.trace) / self.trace[-1].arrival_s
        figures = await system.trace(self.trace, rate / JOBS_PER_S if measure.name == "jct" else 0.0)
        if "busy_share" in figures and measure.name == "offline":
            self.measured.setdefault("worker_busy_shares", []).append(round(figures["busy_share"], 4))
        return figures["mean_jct_s" if measure.name == "jct" else "output_tokens_per_s"]

    async def bound(self, measure: Measure) -> float | None:
        """What the machine allows one stream now, in tokens per second; None for a measure of many."""
        if measure.name not in ONE_STREAM:
            return None
        return bounds(random_model(self.preset), await _rates())[f"{measure.name}_tokens_per_s"]

    async def attempt(self, name: str, doing: Awaitable[Any]) -> Any:
        """What it gives; a peer that fails is left out from then on, with the reason, and gives None."""
        try:
            return await doing
        except (BenchError, CommandError, WrongLengthError, OSError) as error:
            if name == OURS:
                raise
            tell(f"peers: {name} is left out: {error}")
            self.missing[name] = str(error)
            self.systems.pop(name, None)
            return None

    async def warm_up(self, name: str) -> None:
        """Everything once, so that whatever is compiled or allocated at first use is there."""
        system = self.systems[name]
        await system.trace(self.trace[:WARM_UP_JOBS], 0.0)
        await system.decode(1)
        await system.prefill(2)

    async def round(self, number: int) -> None:
        """A turn of every system in every measure. Begins with another system each time."""
        for measure in self.measures():
            cell = self.measured["measures"].setdefault(measure.name, {"took_s": {}, "values": {}, "behind": []})
            # For good, so that figures of one place in the lists are of one round.
            cell["behind"] = sorted({*cell["behind"], *far_behind(measure, cell["values"])})
            names = [name for name in self.systems if name not in cell["behind"]]
            if number and time.monotonic() + sum(cell["took_s"].get(name, 0.0) for name in names) > self.ends_s:
                continue
            start = number % len(names)
            before = await self.bound(measure)
            for name in [*names[start:], *names[:start]]:
                if name in self.systems:
                    began_s = time.monotonic()
                    figure = await self.attempt(name, self.figure(measure, self.systems[name]))
                    cell["took_s"][name] = round(time.monotonic() - began_s, 1)
                    after = await self.bound(measure)
                    if figure is not None:
                        cell["values"].setdefault(name, []).append(round(figure, 4))
                        tell(f"peers: {self.preset} round {number + 1} {measure.name}: {name} {figure:.4g}")
                        if before is not None and after is not None:
                            beside = cell.setdefault("bounds_beside", {}).setdefault(name, [])
                            beside.append(round((before + after) / 2, 1))
                    before = after
            cell["on"] = datetime.now(UTC).date().isoformat()
            cell["load_before_round"] = [*cell.get("load_before_round", []), round(os.getloadavg()[0], 2)]
            self.keep()


def _agreement(tokens: Sequence[int], others: Sequence[int]) -> float:
    return sum(one == other for one, other in zip(tokens, others, strict=True)) / len(others)


async def _start(sitting: Sitting, stack: AsyncExitStack, environments: Sequence[Environment]) -> None:
    """Starts all systems, one after the other, and sees that the peers run the same model."""
    settings = sitting.settings
    folder = random_model(sitting.preset)
    tell(f"peers: {sitting.preset}: {OURS} starts")
    ours = await stack.enter_async_context(services(settings, folder, KV_TOKENS))
    sitting.systems[OURS] = ours
    await sitting.warm_up(OURS)
    prompts = [random_token_ids(32, ours.vocabulary_size, f"{number}/same model") for number in range(CHECKED_PROMPTS)]
    tokens = await ours.first_tokens(prompts)
    sitting.measured["agreement"] = {}
    for environment in environments:
        name = environment.name
        tell(f"peers: {sitting.preset}: {name} starts")
        entered = peer(settings, environment, folder, KV_TOKENS, settings.threads or THREADS, ours.vocabulary_size)
        started = await sitting.attempt(name, stack.enter_async_context(entered))
        if started is None:
            continue
        sitting.systems[name] = started
        await sitting.attempt(name, sitting.warm_up(name))
        theirs = await sitting.attempt(name, started.first_tokens(prompts)) if name in sitting.systems else None
        if theirs is not None:
            share = _agreement(theirs, tokens)
            sitting.measured["agreement"][name] = share
            if share < LEAST_AGREEMENT:
                sitting.missing[name] = f"runs another model: only {share:.0%} of first tokens are the same"
                del sitting.systems[name]


async def _rates() -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.machine_rates", stdout=asyncio.subprocess.PIPE
    )
    told, _ = await asyncio.wait_for(process.communicate(), RATES_LIMIT_S)
    found: dict[str, float] = json.loads(told)
    return found


async def _measure_model(sitting: Sitting, environments: Sequence[Environment]) -> None:
    folder = random_model(sitting.preset)
    jobs, rates = sitting.trace, [await _rates()]
    output_tokens = sum(job.output_tokens for job in jobs)
    computed_tokens = sum(job.prompt_tokens for job in jobs) + output_tokens - len(jobs)
    async with AsyncExitStack() as stack:
        await _start(sitting, stack, environments)
        for number in range(sitting.choice.rounds):
            await sitting.round(number)
            rates.append(await _rates())
            best = {name: max(rate[name] for rate in rates) for name in rates[0]}
            offline = offline_bound(folder, best, computed_tokens, output_tokens)
            sitting.measured["rates"] = best
            sitting.measured["bounds"] = {**bounds(folder, best), "offline_tokens_per_s": offline}
            sitting.keep()


def _installed(choice: Choice, missing: dict[str, str]) -> list[Environment]:
    environments = []
    for environment in PEERS:
        if environment.name in choice.peers:
            try:
                tell(f"peers: {environment.name}: looking at its environment")
                install(environment, find_uv())
                environments.append(environment)
            except (BenchError, OSError) as error:
                tell(f"peers: {environment.name} is left out: {error}")
                missing[environment.name] = str(error)
    return environments


async def measure_choice(
    settings: BenchSettings, choice: Choice, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """The chosen measures; `keep` gets what there is so far, again and again."""
    ends_s = time.monotonic() + 60 * choice.minutes
    missing: dict[str, str] = {}
    environments = _installed(choice, missing)
    with TRACE.open(encoding="utf-8") as lines:
        trace = read_trace(lines)[: settings.pick(None, QUICK_JOBS)]
    measured: dict[str, Any] = {
        "trace": TRACE.name,
        "dtype": "bfloat16",
        "threads": settings.threads or THREADS,
        "kv_tokens": KV_TOKENS,
        "max_batch": settings.max_batch,
        "jobs_per_s": JOBS_PER_S,
        "systems": {OURS: "FastServe, its services", **{one.name: one.title for one in PEERS}},
        "missing": missing,
        "models": {},
    }
    for preset in choice.models:
        model: dict[str, Any] = {"measures": {}}
        measured["models"][preset] = model
        sitting = Sitting(preset, settings, choice, trace, ends_s, lambda: keep(measured), model, missing)
        await _measure_model(sitting, environments)
    return measured


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Everything, or in a quick run the small model once."""
    choice = Choice(models=settings.pick(("S", "M"), ("S",)), rounds=settings.pick(ROUNDS, 1))
    return asyncio.run(measure_choice(settings, choice, lambda measured: None))
