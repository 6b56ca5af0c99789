"""A whole server under load, watched by a real Prometheus: every query of the dashboard must return data, and every
alert must fire once its situation has been made. `python -m deploy.grafana.check` runs it.

The services are those of `fastserve up` on one core. More jobs come than are admitted, the worker is paused and then
killed under them, and the scheduler is paused while jobs run.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.grafana.panels import ROWS, Panel, Query
from deploy.grafana.prometheus_process import SHORT_WINDOW, RunningPrometheus, running_prometheus
from services.loadgen.server_process import ServerAddresses, running_server

SERVER = (
    "--policy", "skip-join-mlfq", "--starvation-limit", "1", "--threads", "1", "--dtype", "float32",
    "--max-queued-jobs", "2000", "--kv-device-tokens", "1024", "--kv-host-tokens", "256", "--max-model-len", "1000",
)  # fmt: skip
"""The papers' policy, which has levels and ENST; pools in which jobs have no room for long."""
USUAL_LOAD = (
    "--jobs", "300", "--rate", "8", "--cv", "3", "--theta", "0.8", "--max-prompt-tokens", "200",
    "--max-output-tokens", "300",
)  # fmt: skip
OVERLOAD = (
    "--jobs", "2100", "--time-scale", "0", "--theta", "0.8", "--max-prompt-tokens", "64", "--max-output-tokens", "900",
)  # fmt: skip
LOAD_LIMIT_S = 120.0
SITUATION_LIMIT_S = 60.0
LOOK_S = 0.5

Say = Callable[[str], None]


def filled_in(query: Query) -> str:
    """A query with the choices of the dashboard's variables."""
    return query.expr.replace("$__rate_interval", SHORT_WINDOW).replace("$group", ".*")


def panels() -> Iterator[Panel]:
    for row in ROWS:
        yield from row.panels


def empty_queries(prometheus: RunningPrometheus, from_s: float, to_s: float) -> list[str]:
    """The queries of the dashboard that return no number."""
    return [
        f"{panel.title}: {query.expr}"
        for panel in panels()
        for query in panel.queries
        if not any(
            text not in ("NaN", "+Inf", "-Inf")
            for one in prometheus.series(filled_in(query), from_s, to_s)
            for _, text in one["values"]
        )
    ]


class LiveRun:
    """The server, its load, and the Prometheus that watches both."""

    def __init__(self, prometheus: RunningPrometheus, server: ServerAddresses, folder: Path, say: Say) -> None:
        self.prometheus = prometheus
        self.fired: set[str] = set()
        self._server = server
        self._folder = folder
        self._say = say

    def value(self, expr: str) -> float:
        """The only sample of a query now, 0 if there is none."""
        found: list[dict[str, Any]] = self.prometheus.ask("query", query=expr)["result"]
        return float(found[0]["value"][1]) if found else 0.0

    @contextmanager
    def load(self, name: str, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
        """`fastserve bench` beside what follows."""
        argv = [sys.executable, "-m", "services.cli", "bench", "--server", self._server.grpc, *flags]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*argv, "--out", str(self._folder / name)], stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def paused(self, service: str) -> Iterator[None]:
        """The service's process does nothing meanwhile, and does not end either."""
        process_id = process_of(service)
        os.kill(process_id, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process_id, signal.SIGCONT)

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Waits, and notes meanwhile which alerts fire. Raises TimeoutError."""
        limit_s = time.monotonic() + SITUATION_LIMIT_S
        while not is_so():
            self.fired |= self.prometheus.firing()
            if time.monotonic() > limit_s:
                raise TimeoutError(f"not within {SITUATION_LIMIT_S:.0f} s: {what}; fired so far: {sorted(self.fired)}")
            time.sleep(LOOK_S)

    def until_fired(self, *alerts: str) -> None:
        """Waits until each of the alerts has fired."""
        self.until(f"{', '.join(alerts)} fire", lambda: set(alerts) <= self.fired)
        self._say(f"fired: {', '.join(alerts)}")

    def make_situations(self) -> None:
        """What every alert is for."""
        with self.load("overload", *OVERLOAD):
            self.until_fired("FastServeRefusesJobs", "FastServeErrors", "FastServeBacklogLong")
            self.until("the host pool is full", lambda: self.value("fastserve:kv_offload_cpu_cache_usage_perc") > 0.9)
            with self.paused("worker"):
                # The pools stay as they are meanwhile.
                self.until_fired("FastServeHostPoolFull", "FastServeTargetDown")
            os.kill(process_of("worker"), signal.SIGKILL)
            self.until_fired("FastServeNoWorker", "FastServeTooFewGroups")
            self.until_fired("FastServeFirstTokenLate")
        with self.load("waiting", *USUAL_LOAD):
            self.until("jobs run", lambda: self.value("sum(fastserve:num_requests_running)") > 0)
            for _ in range(3):
                with self.paused("scheduler"):
                    time.sleep(4.0)
                time.sleep(0.5)
            self.until_fired("FastServeWaitsForPlans")


def process_of(service: str) -> int:
    """The process of a service of the server that this process has begun."""
    parents: dict[int, int] = {}
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            process_id, words = int(stat.parent.name), (stat.parent / "cmdline").read_text().split("\0")
            parents[process_id] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"services.{service}" in words:
            found.append(process_id)
    own = [one for one in found if parents.get(parents[one]) == os.getpid()]
    assert len(own) == 1, f"one {service} of this server is expected, found {own}"
    return own[0]


def free_address() -> str:
    """An address of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def watch(run: LiveRun, began_s: float, say: Say, draw: Callable[[RunningPrometheus, float, float], None]) -> list[str]:
    """The load, the panels, the situations. Returns what is wrong."""
    with run.load("usual", *USUAL_LOAD) as load:
        load.wait(LOAD_LIMIT_S)
    now_s = time.time()
    wrong = [f"no data: {query}" for query in empty_queries(run.prometheus, began_s, now_s)]
    say(f"{sum(len(panel.queries) for panel in panels()) - len(wrong)} queries of the dashboard returned data")
    draw(run.prometheus, began_s, now_s)
    if early := run.prometheus.firing():
        say(f"firing already under the usual load: {', '.join(sorted(early))}")
    try:
        run.make_situations()
    except TimeoutError as error:
        wrong.append(str(error))
    return wrong + [f"never fired: {name}" for name in sorted(run.prometheus.alerts() - run.fired)]


async def check_live(folder: Path, say: Say, draw: Callable[[RunningPrometheus, float, float], None]) -> list[str]:
    """Runs everything in this folder. Returns what is wrong. Raises CommandError, ToolMissingError, TimeoutError."""
    targets = folder / "targets.json"
    async with running_server((*SERVER, "--targets-file", str(targets)), folder / "server.log") as server:
        with running_prometheus(folder, targets, free_address()) as prometheus:
            run = LiveRun(prometheus, server, folder, say)
            return await asyncio.to_thread(watch, run, time.time(), say, draw)
