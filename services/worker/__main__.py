"""Runs one worker. torch is imported only after the settings have been checked and the environment is set."""

import asyncio
import gc
from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from services.runtime.metrics_server import MetricsServer, new_registry
from services.runtime.model_files import fingerprint
from services.runtime.process import ServiceProcess, cancelled, service_main
from services.runtime.readiness import Readiness
from services.runtime.server import RpcServer
from services.runtime.settings import split_address
from services.worker.driver import PeerAddresses, WorkerDriver
from services.worker.engine.compute_environment import set_compute_environment
from services.worker.engine.compute_thread import ComputeThread
from services.worker.metrics import EngineCollector
from services.worker.model.config_json import read_model_config
from services.worker.one_rank import OneRank
from services.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from services.worker.build import Built

CLOSE_LIMIT_S = 0.5


def _build(settings: WorkerSettings) -> "Built":
    # A folder that can't be served is refused before torch is imported, which takes seconds.
    read_model_config(settings.model)
    fingerprint(settings.model)
    set_compute_environment()
    from services.worker.build import build

    built = build(settings, settings.profile_folder)
    # What exists now stays: a full collection would walk torch's objects for a tenth of a second, between two tokens.
    gc.collect()
    gc.freeze()
    return built


async def _follow(
    readiness: Readiness, process: ServiceProcess[WorkerSettings], server: RpcServer, metrics_address: str
) -> None:
    """Passes changes of readiness on to the health service, and announces the first join."""
    announced = False
    while True:
        joined = await readiness.changed()
        await server.set_ready(joined)
        if joined and not announced:
            announced = True
            process.announce_ready(server.address, metrics_address)


async def _work(settings: WorkerSettings, registry: CollectorRegistry, readiness: Readiness) -> None:
    """Loads the model, then works until cancelled or refused."""
    compute = ComputeThread()
    built = await compute.call(lambda: _build(settings))
    driver = WorkerDriver(
        OneRank(built.engine, compute.post),
        replace(built.facts, group=settings.group),
        PeerAddresses(settings.scheduler, settings.kv_manager),
        readiness.set,
    )
    registry.register(
        EngineCollector(settings.model_name, settings.group, built.engine.counters, lambda: driver.epochs_begun)
    )
    try:
        await driver.run()
    finally:
        await asyncio.to_thread(built.engine.close)


async def serve(process: ServiceProcess[WorkerSettings]) -> None:
    """Serves health at once, loads the model, then joins and works until a signal or a refusal."""
    settings = process.settings
    server = RpcServer(settings.health_listen, (), lambda _: None)
    registry = new_registry()
    await server.start()
    metrics_server = MetricsServer(split_address(settings.health_listen).host, settings.metrics_port, registry)
    readiness = Readiness()
    work = asyncio.create_task(_work(settings, registry, readiness))
    follower = asyncio.create_task(_follow(readiness, process, server, metrics_server.address))
    try:
        await process.until_stopped(work, follower)
    finally:
        await cancelled(work, follower)
        await server.stop(CLOSE_LIMIT_S)
        await asyncio.to_thread(metrics_server.stop)


def main(argv: list[str] | None = None) -> int:
    """Runs a worker until a signal ends it; returns the exit status."""
    return service_main("worker", WorkerSettings, argv, serve)


if __name__ == "__main__":
    raise SystemExit(main())
