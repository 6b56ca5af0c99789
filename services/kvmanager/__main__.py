"""Runs the KV manager."""

import services.runtime.quiet_grpc_core  # noqa: F401 (before grpc)

# isort: split
import asyncio
import logging
import os
import time
from contextlib import ExitStack

from prometheus_client import CollectorRegistry

from services.domain.errors import InvalidFieldError
from services.kvmanager.copy_traces import CopyTraces
from services.kvmanager.driver import KvManagerDriver
from services.kvmanager.kv_manager_recording import KV_MANAGER_FORMAT
from services.kvmanager.metrics import EnstErrorHistogram, PoolCollector
from services.kvmanager.service import KV_MANAGER_SERVICE, register
from services.kvmanager.settings import KvManagerSettings
from services.runtime.metrics_server import MetricsServer, new_registry
from services.runtime.process import ServiceProcess, cancelled, service_main
from services.runtime.recording.recorder import Recorder, recording
from services.runtime.server import RpcServer
from services.runtime.settings import split_address
from services.tracing.tracer import open_tracer

_log = logging.getLogger(__name__)

CLOSE_LIMIT_S = 0.5
"""Time for the last bytes of the streams."""


async def serve(process: ServiceProcess[KvManagerSettings]) -> None:
    """The KV manager's life: listen, serve, close the streams."""
    settings = process.settings
    registry = new_registry()
    enst_errors = EnstErrorHistogram(registry, settings.served_model_name or "")
    with ExitStack() as recordings:

        def recorder_of(group: int) -> Recorder | None:
            try:
                return recordings.enter_context(
                    recording(settings, KV_MANAGER_FORMAT, settings.knobs, strict=True, group=group)
                )
            except InvalidFieldError as error:
                if group == 0:
                    raise
                _log.warning("group %d is not recorded: %s", group, error)
                return None

        tracer = open_tracer("kvmanager", os.environ)
        traces = None if tracer is None else CopyTraces(tracer)
        driver = KvManagerDriver(settings.knobs, recorder_of, enst_errors.judged, traces)
        try:
            await _serve(process, settings, driver, registry)
        finally:
            if tracer is not None and traces is not None:
                traces.close(time.monotonic())
                await asyncio.to_thread(tracer.close)


async def _serve(
    process: ServiceProcess[KvManagerSettings],
    settings: KvManagerSettings,
    driver: KvManagerDriver,
    registry: CollectorRegistry,
) -> None:
    server = RpcServer(
        settings.listen,
        (KV_MANAGER_SERVICE,),
        lambda grpc_server: register(grpc_server, driver),
        tls=settings.tls,
        probe_address=settings.probe_listen,
    )
    registry.register(PoolCollector(settings.served_model_name or "", driver.pool_usages))
    metrics_server = MetricsServer(split_address(settings.listen).host, settings.metrics_port, registry)
    try:
        await server.start()
        running = asyncio.create_task(driver.run())
        await server.set_ready(True)
        process.announce_ready(server.address, metrics_server.address, server.probe_address)
        try:
            await process.until_stopped(running)
            await server.set_ready(False)
            driver.close()
        finally:
            await server.stop(CLOSE_LIMIT_S)
            await cancelled(running)
    finally:
        metrics_server.stop()


def main(argv: list[str] | None = None) -> int:
    """Runs a KV manager until a signal ends it. Returns the exit status."""
    return service_main("kvmanager", KvManagerSettings, argv, serve)


if __name__ == "__main__":
    raise SystemExit(main())
