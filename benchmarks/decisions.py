"""How long the scheduler, its router of two groups and the KV manager take to decide, at batch 16, with few and many
jobs queued: the scripts scheduler_decision.py, router_decision.py and kvmanager_decision.py, each in a process of its
own.
"""

import json
import subprocess
import sys
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_most
from benchmarks.model_folders import ROOT
from benchmarks.settings import BenchError, BenchSettings

MOST_MEDIAN_US = 100.0
SCRIPT_LIMIT_S = 600.0
SERVICES = ("scheduler", "router: arrival", "router: iteration", "kvmanager")
"""What is measured; results of earlier versions lack some of them."""


def _script(module: str, *flags: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", f"benchmarks.{module}", *flags]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=SCRIPT_LIMIT_S, check=False)
    if done.returncode != 0:
        raise BenchError(f"{module} failed: {done.stderr.strip().splitlines()[-1]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Microseconds per decision, by number of jobs queued; those of the router are what it adds."""
    count = str(settings.pick(3000, 300))
    scheduler = _script("scheduler_decision", "--decisions", count)
    router = _script("router_decision", "--decisions", count)
    kvmanager = _script("kvmanager_decision", "--iterations", count)

    def routed(kind: str) -> dict[str, Any]:
        rows = [row for row in router["decisions"] if row["kind"] == kind]
        return {str(row["queued"]): {"median_us": row["median_us"], "p99_us": row["p99_us"]} for row in rows}

    return {
        "max_batch": {"scheduler": scheduler["max_batch"], "kvmanager": kvmanager["max_batch"]},
        "scheduler": {
            str(row["queued"]): {"median_us": row["median_us"], "p99_us": row["p99_us"]}
            for row in scheduler["decisions"]
        },
        "router: arrival": routed("arrival"),
        "router: iteration": routed("iteration"),
        "kvmanager": {
            queued: {"median_us": row["p50_us"], "p99_us": row["p99_us"]}
            for queued, row in kvmanager["queued_jobs"].items()
        },
    }


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The goals of all at every length of the queue."""
    return [
        at_most(f"{service}: median decision, {queued} jobs queued", row["median_us"], MOST_MEDIAN_US, " us")
        for service in SERVICES
        if service in measured
        for queued, row in measured[service].items()
    ]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    rows = [
        (service, queued, f"{row['median_us']:.0f}", f"{row['p99_us']:.0f}")
        for service in SERVICES
        if service in measured
        for queued, row in measured[service].items()
    ]
    title = f"A decision at batch {measured['max_batch']['scheduler']}: microseconds"
    return [Table(title, ("service", "jobs queued", "median", "P99"), rows)]
