"""Worker groups that come and go under two bursts: live, and the same simulated.

    python -m benchmarks.run --only live_scaling

Theory of operation
-------------------
Gateway, scheduler and KV manager are the real ones. Workers come and go as `fastserve autoscale` asks, by its own loop
and rule, but are processes instead of pods (local_groups.py). They compute the bundled model with a thread each, and
every iteration lasts PAUSE_S longer than that, as if a device read its weights (paced_worker.py): four groups that only
compute would share this machine's cores, and be little faster than two. The cost model that a worker has measured of
itself gets the same pause, so that the scheduler foresees what it will see.

The trace is that of scaling.py's short jobs, at rates relative to what a group sustains by this cost model. Each rule
gets the same trace and services of its own. The simulator gets the trace, the cost model, and the median time that the
live groups took to come.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.foreknowledge import TRACES
from benchmarks.goals_and_tables import Table, tell
from benchmarks.local_groups import LocalGroups, Span
from benchmarks.local_process import Addresses, LocalProcess
from benchmarks.scaling import FORECAST, SEED, SHORTER, TRACE, QueueRule, by_forecast, by_queue, figures, table_of
from benchmarks.settings import BenchError, BenchSettings
from services.autoscaler.__main__ import read_wanted
from services.autoscaler.driver import AutoscaleDriver
from services.autoscaler.scaling import ScaleLimits, Scaling
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.server_status import GroupStatus
from services.experiments.cases import simulated_jobs
from services.experiments.named_profiles import find_profile
from services.experiments.simulated_server import SimulateSettings, server_setup
from services.loadgen.gateway_client import GatewayClient
from services.loadgen.trace_run import TraceRunner, TraceRunOptions
from services.runtime.model_files import BUNDLED_MODEL
from services.runtime.profile_file import Profile, read_profile, write_profile
from services.runtime.settings import resolve
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.simulator.server_setup import ServerSetup
from services.simulator.simulated_scaling import ScalingSetup
from services.simulator.simulation import simulate
from services.workloads.job_records import JobRecord, percentile
from services.workloads.workload import TraceJob

PAUSE_S = 0.025
MAX_BATCH = 16
DEVICE_TOKENS, HOST_TOKENS = 16_384, 16_384
JOBS = "short"
LOADS = ((5.0, 0.3), (12.0, 3.0), (17.0, 0.3), (7.0, 2.0), (7.0, 0.3))
"""Seconds, and how many times what a group sustains arrives meanwhile."""
QUICK_LOADS = ((2.0, 0.4), (4.0, 3.0))
MOST_GROUPS = 4
QUIET_S = 5.0
PERIOD_S = 0.5
DRAIN_LIMIT_S = 5.0
START_LIMIT_S = 60.0
LOOK_S = 0.1
STOP_LIMIT_S = 30.0
JOB_LIMIT_S = 120.0
MODEL = "cpu-2c-bundled"
"""The profile that has what no cost model says: the model's size of KV, its longest sequence, and a speed of copies."""
QUEUE_TARGET = 16
CAPACITY_JOBS = 400

LocalRule = Callable[[GatewayClient, str], Awaitable[int | None]]
"""How many groups are wanted, from the gateway and the address of the scheduler's /metrics."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`fixed` groups, or by the queue with this target, or by the forecast."""

    fixed: int = 0
    queue_target: int = 0

    @property
    def name(self) -> str:
        """As in scaling.py."""
        if self.fixed:
            return f"{self.fixed} fixed"
        return f"queue of {self.queue_target}" if self.queue_target else FORECAST

    def live(self) -> LocalRule:
        """Asked of the services."""
        if not self.queue_target:
            return lambda _, metrics: asyncio.to_thread(read_wanted, f"http://{metrics}/metrics")
        queue = QueueRule(self.queue_target, QUIET_S)

        async def wanted(client: GatewayClient, _: str) -> int:
            groups = (await client.status()).groups
            return queue.wanted(sum(group.waiting + group.swapped_out for group in groups), time.monotonic())

        return wanted


RULES = (Rule(), Rule(queue_target=QUEUE_TARGET), *(Rule(fixed=count) for count in (1, 2, 4)))


def paced(cost: CostProfile) -> CostProfile:
    """What iterations cost that last PAUSE_S longer."""
    return CostProfile(
        tuple(PrefillCost(point.tokens, point.seconds + PAUSE_S) for point in cost.prefill),
        tuple(DecodeCost(point.batch, point.context_tokens, point.seconds + PAUSE_S) for point in cost.decode),
    )


def arrivals_s(capacity_per_s: float, loads: Sequence[tuple[float, float]], random: Random) -> list[float]:
    """Poisson arrivals, stretch by stretch."""
    times_s: list[float] = []
    began_s = 0.0
    for lasts_s, load in loads:
        at_s = began_s + random.expovariate(capacity_per_s * load)
        while at_s < began_s + lasts_s:
            times_s.append(at_s)
            at_s += random.expovariate(capacity_per_s * load)
        began_s += lasts_s
    return times_s


def _setup(profile: Profile, groups: int, policy: str = "gittins", kv_policy: str = "proactive") -> ServerSetup:
    values: dict[str, object] = {
        "policy": policy,
        "kv_policy": kv_policy,
        "max_batch": MAX_BATCH,
        "kv_device_tokens": DEVICE_TOKENS,
        "kv_host_tokens": HOST_TOKENS,
        "groups": groups,
    }
    return server_setup(resolve(SimulateSettings, "simulate", values, {}), profile)


def _lengths(count: int) -> list[TraceJob]:
    shorter = SHORTER[JOBS]
    return [
        replace(
            job,
            prompt_tokens=max(1, job.prompt_tokens // shorter),
            output_tokens=max(1, job.output_tokens // shorter),
        )
        for job in TRACES[TRACE](count, SEED).trace
    ]


def _trace(profile: Profile, loads: Sequence[tuple[float, float]]) -> tuple[float, list[TraceJob]]:
    """What a group sustains of these jobs a second, and the trace."""
    capacity_per_s = fcfs_capacity_per_s(
        _setup(profile, 1, "fcfs", "recompute"), simulated_jobs(_lengths(CAPACITY_JOBS))
    )
    times_s = arrivals_s(capacity_per_s, loads, Random(f"{SEED}/live bursts"))
    jobs = _lengths(len(times_s))
    return capacity_per_s, [replace(job, arrival_s=at_s) for job, at_s in zip(jobs, times_s, strict=True)]


# --- live ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """Services that are ready, with their first groups."""

    client: GatewayClient
    metrics: str
    groups: LocalGroups


@asynccontextmanager
async def _services(settings: BenchSettings, name: str, groups: int) -> AsyncIterator[Served]:
    """All but the workers, and so many groups."""
    folder, log = settings.folder("ready", name), settings.folder("logs") / f"{name}.log"
    running: list[LocalProcess] = []

    async def service(of: str, *flags: str) -> Addresses:
        argv = [sys.executable, "-m", f"services.{of}", *flags, "--metrics-port", "0"]
        running.append(await LocalProcess.begin(argv, of, folder, log))
        addresses = await running[-1].addresses()
        if addresses is None:
            raise BenchError(await running[-1].ended())
        return addresses

    try:
        model, anywhere = ["--model", str(BUNDLED_MODEL)], ["--listen", "127.0.0.1:0"]
        kv_manager = await service("kvmanager", *anywhere, "--served-model-name", BUNDLED_MODEL.name)
        demand = ["--scale-quiet", str(QUIET_S), "--most-groups", str(MOST_GROUPS), "--max-batch", str(MAX_BATCH)]
        scheduler = await service("scheduler", *anywhere, *model, "--kv-manager", kv_manager["grpc"], *demand)
        gateway = await service("gateway", *model, "--scheduler", scheduler["grpc"], "--grpc-port", "0")
        links = ["--scheduler", scheduler["grpc"], "--kv-manager", kv_manager["grpc"], "--metrics-port", "0"]
        pools = ["--kv-device-tokens", str(DEVICE_TOKENS), "--kv-host-tokens", str(HOST_TOKENS)]
        share = ["--workers-here", str(MOST_GROUPS), "--drain-limit", str(DRAIN_LIMIT_S)]
        worker = [sys.executable, "-m", "benchmarks.paced_worker", str(PAUSE_S), *model, *settings.engine_flags()]
        worker += [*links, *pools, *share]
        workers = LocalGroups(lambda group: [*worker, "--group", str(group)], folder, log, STOP_LIMIT_S)
        try:
            await workers.set_replicas(groups)
            async with GatewayClient(gateway["grpc"]) as client:
                async with asyncio.timeout(START_LIMIT_S):
                    while sum(group.ready for group in await _groups(client)) < groups:
                        workers.check()
                        await asyncio.sleep(LOOK_S)
                yield Served(client, scheduler["metrics"], workers)
        finally:
            await workers.stop()
    finally:
        for process in reversed(running):
            await process.stop(STOP_LIMIT_S)


async def _groups(client: GatewayClient) -> Sequence[GroupStatus]:
    """None while the gateway does not serve yet."""
    return (await client.status()).groups if await client.ready() else ()


async def _live(settings: BenchSettings, rule: Rule, trace: Sequence[TraceJob]) -> dict[str, Any]:
    """The trace on services of its own."""
    async with _services(settings, f"scaling-{rule.name.replace(' ', '-')}", rule.fixed or 1) as served:
        runner = TraceRunner(served.client, trace, TraceRunOptions(job_limit_s=JOB_LIMIT_S))
        wanted = rule.live()
        driver = AutoscaleDriver(
            served.groups,
            lambda: wanted(served.client, served.metrics),
            Scaling(ScaleLimits(1, MOST_GROUPS, QUIET_S, 1)),
            PERIOD_S,
        )
        first_starts = len(served.groups.starts_s)
        scaling = None if rule.fixed else asyncio.create_task(driver.run())
        try:
            run = await runner.run()
        finally:
            if scaling is not None:
                if scaling.done():
                    scaling.result()
                scaling.cancel()
        began_s = time.perf_counter() - runner.now_s()
        served.groups.check()
        starts_s = served.groups.starts_s[first_starts:]
    errors = [record.error for record in run.records if record.error is not None]
    if errors:
        raise BenchError(f"{len(errors)} of {len(run.records)} jobs failed: {errors[0]}")
    end_s = max(record.last_token_s or 0.0 for record in run.records)
    spans = sorted(
        (number, max(0.0, from_s - began_s), min(end_s, to_s - began_s)) for number, from_s, to_s in served.groups.spans
    )
    return {
        "how": "live",
        "rule": rule.name,
        **_figures(run.records, [span for span in spans if span[1] < end_s], end_s),
        "starts_s": [round(one, 1) for one in starts_s],
    }


def _figures(records: Sequence[JobRecord], spans: Sequence[Span], end_s: float) -> dict[str, Any]:
    jct_s = sorted(record.jct_s for record in records)
    first_s = sorted(record.ttft_s for record in records)
    return {
        "jobs": len(jct_s),
        "mean_jct_s": round(sum(jct_s) / len(jct_s), 3),
        "p99_jct_s": round(percentile(jct_s, 0.99), 3),
        "p99_first_token_s": round(percentile(first_s, 0.99), 3),
        "group_s": round(sum(to_s - from_s for _, from_s, to_s in spans), 1),
        "duration_s": round(end_s, 1),
        "spans": [[number, round(from_s, 2), round(to_s, 2)] for number, from_s, to_s in spans],
    }


async def _kept_profile(settings: BenchSettings) -> Profile:
    """The cost model that a worker measures of itself and keeps; from now on it has the pause in it."""
    async with _services(settings, "scaling-profile", 1):
        pass
    files = sorted(settings.folder("state", "profiles").glob("*.json"))
    if len(files) != 1:
        raise BenchError(f"the worker kept {len(files)} cost models, not 1")
    profile = read_profile(files[0])
    profile = replace(profile, cost=paced(profile.cost), mixed=())
    write_profile(files[0], profile)
    known = find_profile(MODEL)
    sizes = {name: getattr(known, name) for name in ("kv_bytes_per_token", "max_model_len", "link")}
    return replace(profile, **sizes)


# --- simulated -------------------------------------------------------------------------------------------------------


def simulated(rule: Rule, profile: Profile, trace: Sequence[TraceJob], start_s: float) -> dict[str, Any]:
    """The same on the virtual clock."""
    jobs = simulated_jobs(trace)
    told = {"how": "simulated", "rule": rule.name}
    if rule.fixed:
        return told | figures(simulate(_setup(profile, rule.fixed), jobs), rule.fixed)
    wanted = by_queue(rule.queue_target, QUIET_S, MAX_BATCH) if rule.queue_target else by_forecast(QUIET_S)
    limits = ScaleLimits(1, MOST_GROUPS, QUIET_S, 1)
    scaling = ScalingSetup(wanted, limits, start_s, DRAIN_LIMIT_S, PERIOD_S)
    return told | figures(simulate(_setup(profile, 1), jobs, scaling=scaling))


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    # Of its own, because other parts keep cost models in theirs.
    settings = replace(settings, scratch=settings.folder("live-scaling"), threads=1, max_batch=MAX_BATCH)
    loads = settings.pick(LOADS, QUICK_LOADS)
    rules = settings.pick(RULES, RULES[:3])
    profile = await _kept_profile(settings)
    capacity_per_s, trace = _trace(profile, loads)
    live = []
    for rule in rules:
        tell(f"live: {rule.name}")
        live.append(await _live(settings, rule, trace))
    starts_s = [start_s for run in live for start_s in run["starts_s"]]
    start_s = median(starts_s) if starts_s else 0.0
    ends_s = [0.0, *accumulate(lasts_s for lasts_s, _ in loads)]
    return {
        "pause_s": PAUSE_S,
        "max_batch": MAX_BATCH,
        "capacity_per_s": round(capacity_per_s, 3),
        "loads": [list(load) for load in loads],
        "bursts": [list(ends) for ends, (_, load) in zip(pairwise(ends_s), loads, strict=True) if load > 1],
        "most_groups": MOST_GROUPS,
        "start_s": round(start_s, 2),
        "runs": [*live, *(simulated(rule, profile, trace, start_s) for rule in rules)],
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Every rule live, then simulated."""
    return asyncio.run(_measure(settings))


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    loads = ", ".join(f"{load:g} times for {lasts_s:g} s" for lasts_s, load in measured["loads"])
    note = (
        f"The bundled model, batches of {measured['max_batch']}, a thread a group; an iteration lasts "
        f"{measured['pause_s'] * 1000:g} ms longer than it computes. {measured['runs'][0]['jobs']} jobs; a group "
        f"sustains {measured['capacity_per_s']:.1f} a second. They come at {loads}. A group took "
        f"{measured['start_s']:.1f} s to come (median)."
    )
    named = [{**run, "rule": f"{run['rule']}, {run['how']}"} for run in by_rule(measured)]
    return [table_of("Groups that come and go, live and simulated", note, named)]


def by_rule(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Each live run, and behind it the simulated one."""
    count = len(measured["runs"]) // 2
    pairs = zip(measured["runs"][:count], measured["runs"][count:], strict=True)
    return [run for pair in pairs for run in pair]


def draw(measured: dict[str, Any], folder: Path) -> list[Path]:
    """The picture of the groups over time."""
    from benchmarks.scaling_picture import draw_live_groups  # only a whole run draws, and matplotlib takes a second

    return [draw_live_groups(measured, folder)]
