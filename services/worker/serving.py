"""What talks to scheduler and KV manager: a worker of one rank, or the leader of a group. torch is imported on the
thread that computes, while health is served already.
"""

import asyncio
import gc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from services.domain.worker_facts import WorkerFacts
from services.runtime.metrics_server import MetricsServer, new_registry
from services.runtime.process import ServiceProcess, cancelled
from services.runtime.readiness import Readiness
from services.runtime.server import RpcServer
from services.runtime.settings import split_address
from services.runtime.tls.tls_files import Certificates
from services.worker.driver import PeerAddresses, WorkerDriver
from services.worker.engine.compute_environment import importing_torch
from services.worker.engine.compute_thread import ComputeThread
from services.worker.group.placement import RankPlacement
from services.worker.metrics import EngineCollector
from services.worker.one_rank import OneRank
from services.worker.ranks import Ranks
from services.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from services.worker.build import Built
    from services.worker.engine.engine import Engine

CLOSE_LIMIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Working:
    """What a worker has when it can join its peers: its ranks, what it says of them, and the engine of its own rank."""

    ranks: Ranks
    facts: WorkerFacts
    engine: "Engine"


async def _alone(settings: WorkerSettings, compute: ComputeThread) -> Working:
    """A worker of one rank."""

    def load() -> "Built":
        with importing_torch():
            from services.worker.build import build

        built = build(settings, settings.profile_folder)
        _freeze()
        return built

    built = await compute.call(load)
    return Working(OneRank(built.engine, compute.post), built.facts, built.engine)


async def _leading(settings: WorkerSettings, placement: RankPlacement, compute: ComputeThread) -> Working:
    """The leader of a group, when all ranks have come and the model has been measured through them."""
    with importing_torch():
        from services.worker.group.leading import LeadRank

    lead = await compute.call(lambda: LeadRank(settings, placement))
    server = await lead.listen()
    await compute.call(lead.load)
    _freeze()
    group = lead.gather(server, compute.post)
    return Working(group, await lead.measured(group), lead.engine)


def _freeze() -> None:
    """What exists now stays: a full collection would walk torch's objects for a tenth of a second, between two
    tokens.
    """
    gc.collect()
    gc.freeze()


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


async def _work(
    settings: WorkerSettings,
    placement: RankPlacement,
    registry: CollectorRegistry,
    readiness: Readiness,
    working_as: "asyncio.Future[WorkerDriver]",
) -> None:
    """Loads the model, then works until cancelled or refused, as the driver that `working_as` gets."""
    certificates = Certificates.of(settings.tls)
    compute = ComputeThread()
    if placement.rank.layout.rank_count == 1:
        working = await _alone(settings, compute)
    else:
        working = await _leading(settings, placement, compute)
    engine = working.engine
    addresses = PeerAddresses(settings.scheduler, settings.kv_manager, certificates)
    facts = replace(working.facts, group=settings.group)
    driver = WorkerDriver(working.ranks, facts, addresses, readiness.set, settings.claim_limit)
    registry.register(
        EngineCollector(
            settings.model_name,
            settings.group,
            engine.counters,
            lambda: driver.epochs_begun,
            old_metrics=settings.old_metrics,
        )
    )
    working_as.set_result(driver)
    try:
        await driver.run()
    finally:
        await asyncio.to_thread(engine.close)


async def serve(placement: RankPlacement, process: ServiceProcess[WorkerSettings]) -> None:
    """Serves health at once, loads the model, then joins and works until a signal or a refusal. After a signal it gives
    its jobs time to end or to leave.
    """
    settings = process.settings
    server = RpcServer(settings.health_listen, (), lambda _: None)
    registry = new_registry()
    await server.start()
    metrics_server = MetricsServer(split_address(settings.health_listen).host, settings.metrics_port, registry)
    readiness = Readiness()
    driver: asyncio.Future[WorkerDriver] = asyncio.get_running_loop().create_future()
    work = asyncio.create_task(_work(settings, placement, registry, readiness, driver))
    follower = asyncio.create_task(_follow(readiness, process, server, metrics_server.address))
    try:
        await process.until_stopped(work, follower)
        await cancelled(follower)
        await server.set_ready(False)
        if driver.done():
            draining = asyncio.create_task(driver.result().drain(settings.drain_limit))
            await asyncio.wait((draining, work), return_when=asyncio.FIRST_COMPLETED)
            await cancelled(draining)
    finally:
        await cancelled(work, follower)
        await server.stop(CLOSE_LIMIT_S)
        await asyncio.to_thread(metrics_server.stop)
