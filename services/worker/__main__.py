"""Runs one worker: alone, as the leader of a group, or as another rank of one.

torch is imported only after the settings have been checked and the environment is set; a rank that does not lead
imports no gRPC.
"""

import services.runtime.quiet_grpc_core  # noqa: F401 (before grpc)

# isort: split
import asyncio
import os
from functools import partial

from services.runtime.model_files import fingerprint
from services.runtime.process import process_main, run_service
from services.worker.engine.compute_environment import importing_torch, set_compute_environment
from services.worker.group.placement import placement_of
from services.worker.group.pod_ranks import share_of_pod
from services.worker.model.config_json import read_model_config
from services.worker.parallel.layout import check_layout
from services.worker.settings import WorkerSettings


def _run(settings: WorkerSettings) -> None:
    share = share_of_pod(settings, os.environ) if settings.pod_ranks else None
    if share is not None:
        settings = share.settings_of(0)
        os.environ["LOCAL_RANK"] = "0"
    placement = placement_of(settings.layout, settings.rank, settings.leader, settings.group, os.environ)
    # A folder that can't be served is refused before torch is imported, which takes seconds.
    check_layout(read_model_config(settings.model), settings.layout)
    fingerprint(settings.model)
    set_compute_environment()
    if share is not None:
        share.start_others()
    if placement.rank.leads:
        from services.worker.serving import serve

        asyncio.run(run_service("worker", settings, partial(serve, placement)))
    else:
        with importing_torch():
            from services.worker.group.rank_process import run_rank

        run_rank(settings, placement)


def main(argv: list[str] | None = None) -> int:
    """Runs a worker until a signal ends it; returns the exit status."""
    return process_main("worker", WorkerSettings, argv, _run)


if __name__ == "__main__":
    raise SystemExit(main())
