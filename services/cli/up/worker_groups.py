"""The worker processes of `fastserve up`: one for each worker group, which share this machine's cores and memory."""

from collections.abc import Mapping, Sequence

from services.cli.up.up_settings import resolved
from services.scheduler.settings import SchedulerSettings
from services.worker.engine.compute_environment import usable_cores
from services.worker.settings import WorkerSettings

WORKER = "worker"


def worker_flags(flags: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> dict[str, list[str]]:
    """By process name, what a worker is told beside its flags: its group, and its share of the cores. A single worker
    is told nothing.

    Raises InvalidFieldError for an invalid setting in a service's own table or environment.
    """
    groups = resolved(SchedulerSettings, "scheduler", flags["scheduler"], environ).groups
    if groups == 1:
        return {WORKER: []}
    threads = resolved(WorkerSettings, WORKER, flags[WORKER], environ).threads or usable_cores()
    share = ["--workers-here", str(groups), "--threads", str(max(1, threads // groups))]
    return {f"{WORKER}-{group}": ["--group", str(group), *share] for group in range(groups)}
