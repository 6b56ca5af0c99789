"""The workers of `fastserve up`: one, or one for each of `--groups`, each of one rank or of several (`--tp`, `--pp`).
They share the cores.

Rank 0 of a group leads it. The others dial it at a port of the loopback interface that was free at the start, also
after a restart.
"""

import socket
from collections.abc import Mapping, Sequence

from services.cli.up.up_settings import resolved
from services.domain.errors import InvalidFieldError
from services.scheduler.scheduler_config import PolicyName
from services.scheduler.settings import SchedulerSettings
from services.worker.engine.compute_environment import usable_cores
from services.worker.model.config_json import read_model_config
from services.worker.parallel.layout import check_layout
from services.worker.settings import WorkerSettings

WORKER = "worker"

_LINK_HOST = "127.0.0.1"


def worker_flags(flags: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> dict[str, list[str]]:
    """By process name, what a worker is told beside its flags: its group, its rank, and its share of the cores. A
    single worker is told nothing.

    Raises InvalidFieldError for an invalid setting in a service's own table or environment, and for a layout that the
    model or the policy can't have.
    """
    scheduler = resolved(SchedulerSettings, "scheduler", flags["scheduler"], environ)
    worker = resolved(WorkerSettings, WORKER, flags[WORKER], environ)
    groups, ranks = scheduler.groups or 1, worker.layout.rank_count
    if ranks > 1:
        _check_ranks(worker, scheduler)
    if groups * ranks == 1:
        return {WORKER: []}
    threads = max(1, (worker.threads or usable_cores()) // (groups * ranks))
    share = ["--workers-here", str(groups * ranks), "--threads", str(threads)]
    told: dict[str, list[str]] = {}
    for group in range(groups):
        name = WORKER if groups == 1 else f"{WORKER}-{group}"
        own = share if groups == 1 else ["--group", str(group), *share]
        leader = [] if ranks == 1 else ["--leader", f"{_LINK_HOST}:{_free_port()}"]
        for rank in range(ranks):
            told[name if rank == 0 else f"{name}-rank-{rank}"] = [
                *own,
                *leader,
                *([] if ranks == 1 else ["--rank", str(rank)]),
            ]
    return told


def _check_ranks(worker: WorkerSettings, scheduler: SchedulerSettings) -> None:
    check_layout(read_model_config(worker.model), worker.layout)
    if scheduler.policy is PolicyName.MLFQ_KILL:
        raise InvalidFieldError(
            "--policy",
            f"mlfq-kill gives up prefills under way, which {worker.layout} can't: several ranks compute them together; "
            "the nearest layout that can be is --tp 1 --pp 1",
        )


def _free_port() -> int:
    with socket.create_server((_LINK_HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port
