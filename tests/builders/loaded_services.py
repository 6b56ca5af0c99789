"""Loads what the services load, with the environment that a worker sets first; does nothing else."""

import services.runtime.quiet_grpc_core  # noqa: F401 (before grpc)

# isort: split
from importlib import import_module

from services.worker.engine.compute_environment import importing_torch, set_compute_environment

set_compute_environment()
with importing_torch():
    for service in ("gateway", "kvmanager", "scheduler", "worker"):
        import_module(f"services.{service}.__main__")
    for module in ("serving", "group.leading", "group.rank_process"):
        import_module(f"services.worker.{module}")
