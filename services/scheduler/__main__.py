"""Runs the scheduler."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import ExitStack

from services.runtime.channel import open_channel
from services.runtime.metrics_server import MetricsServer, asking_loop, new_registry
from services.runtime.model_files import fingerprint, read_facts
from services.runtime.process import ServiceProcess, cancelled, service_main
from services.runtime.readiness import Readiness
from services.runtime.recording.recorder import Recorder, recording
from services.runtime.server import RpcServer
from services.runtime.settings import split_address
from services.scheduler.driver import SchedulerDriver
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.scheduler_link import SchedulerLink
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from services.scheduler.service import ADMIN_SERVICE, SCHEDULER_SERVICE, register
from services.scheduler.settings import SchedulerSettings
from services.scheduler.worker_group import STRICT, ServedSetup

CLOSE_LIMIT_S = 0.5
"""Time for the last bytes; after that only endless streams such as WatchStatus are still open."""
COLLECT_THRESHOLDS = (50_000, 20, 100)
"""Jobs contain no reference cycles; at its default thresholds the collector would pause every few hundred jobs."""


def served_by(settings: SchedulerSettings) -> ServedSetup:
    """The setup from the settings and the model folder. Raises ModelFolderError."""
    facts = read_facts(settings.model)
    return ServedSetup(
        model_name=settings.model_name,
        model_fingerprint=fingerprint(settings.model),
        vocabulary_size=facts.vocabulary_size,
        max_model_len=facts.max_model_len,
        block_size=settings.block_size,
        config=settings.config,
        group_count=settings.groups,
    )


async def serve(process: ServiceProcess[SchedulerSettings]) -> None:
    """The scheduler's life: listen, dial the KV manager, serve, drain."""
    settings = process.settings
    served = served_by(settings)
    with ExitStack() as open_recordings:
        recorders = [
            open_recordings.enter_context(
                recording(settings, SCHEDULER_FORMAT, served.config, strict=STRICT, group=group)
            )
            for group in range(served.group_count)
        ]
        await _serve(process, settings, served, recorders)


async def _serve(
    process: ServiceProcess[SchedulerSettings],
    settings: SchedulerSettings,
    served: ServedSetup,
    recorders: Sequence[Recorder | None],
) -> None:
    gc.set_threshold(*COLLECT_THRESHOLDS)
    readiness = Readiness()
    registry = new_registry()
    async with open_channel(settings.kv_manager) as channel:
        link = SchedulerLink(channel, settings.kv_manager)
        driver = SchedulerDriver(served, link, readiness.set, recorders)
        server = RpcServer(
            settings.listen, (SCHEDULER_SERVICE, ADMIN_SERVICE), lambda grpc_server: register(grpc_server, driver)
        )
        metrics_server = MetricsServer(split_address(settings.listen).host, settings.metrics_port, registry)
        registry.register(SchedulerCollector(asking_loop(driver.status)))
        await server.start()
        following = asyncio.create_task(readiness.follow(server))
        tasks = [asyncio.create_task(driver.run()), asyncio.create_task(link.run(driver.inbox.post)), following]
        process.announce_ready(server.address, metrics_server.address)
        try:
            await process.until_stopped(*tasks)
            # A worker that joins while the last jobs end makes the machine ready, but must not make the service ready.
            await cancelled(following)
            await server.set_ready(False)
            await driver.drain(settings.drain_limit)
        finally:
            await server.stop(CLOSE_LIMIT_S)
            await cancelled(*tasks)
            # The metrics server's thread may be waiting for this loop, so the loop must not block on stopping it.
            await asyncio.to_thread(metrics_server.stop)


def main(argv: list[str] | None = None) -> int:
    """Runs a scheduler until a signal ends it. Returns the exit status."""
    return service_main("scheduler", SchedulerSettings, argv, serve)


if __name__ == "__main__":
    raise SystemExit(main())
