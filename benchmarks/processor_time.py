"""Processor time that the services take beside the compute, by service and iteration, from Linux's /proc.

The worker's process computes and talks. Its threads that compute are told from the others by their name in /proc: they
have that of the thread that began them. What is left of its process is its own loop: streams, plans, results.
"""

import os
from collections.abc import Mapping

from benchmarks.servers import PROCESSES, service_processes
from services.worker.engine.compute_thread import COMPUTE

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WORKER = "worker"
SERVICES = ("gateway", "scheduler", "kvmanager", WORKER)
"""Those that a token passes; the worker's figure is what it takes beside the compute."""

ProcessorTimes = dict[str, float]
"""Seconds by service, `COMPUTE` beside them."""


def _taken_s(stat: str) -> float:
    """User and system seconds of a line of /proc/.../stat, whose second field, in parentheses, may contain anything."""
    user_ticks, system_ticks = stat.rpartition(")")[2].split()[11:13]
    return (int(user_ticks) + int(system_ticks)) / TICKS_PER_S


def _computed_s(process: int) -> float:
    """Seconds of the threads of a process that compute, as far as they still run."""
    total_s = 0.0
    for thread in (PROCESSES / str(process) / "task").iterdir():
        try:
            stat = (thread / "stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        if stat.partition("(")[2].rpartition(")")[0] == COMPUTE:
            total_s += _taken_s(stat)
    return total_s


def processor_times() -> ProcessorTimes:
    """What the services that descend from this process have taken since they began."""
    processes = service_processes()
    times = {service: _taken_s((PROCESSES / str(processes[service]) / "stat").read_text()) for service in SERVICES}
    times[COMPUTE] = _computed_s(processes[WORKER])
    times[WORKER] -= times[COMPUTE]
    return times


def ms_by_iteration(before: ProcessorTimes, after: ProcessorTimes, iterations: int) -> dict[str, float]:
    """Milliseconds an iteration, between two looks."""
    return {name: round((after[name] - before[name]) * 1000.0 / max(iterations, 1), 3) for name in after}


def beside_compute_ms(by_iteration: Mapping[str, float]) -> float:
    """Milliseconds an iteration of all services, without the compute."""
    return sum(by_iteration[service] for service in SERVICES)
