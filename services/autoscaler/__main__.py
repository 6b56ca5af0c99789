"""Runs the autoscaler."""

import services.runtime.quiet_grpc_core  # noqa: F401 (before grpc)

# isort: split
import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from services.autoscaler.driver import AutoscaleDriver
from services.autoscaler.scaling import Scaling
from services.autoscaler.settings import AutoscaleSettings
from services.domain.errors import InvalidFieldError
from services.runtime.process import ServiceProcess, cancelled, service_main
from services.runtime.server import RpcServer
from services.runtime.status_metrics import PREFIX

WANTED = PREFIX + "groups_wanted"
READ_LIMIT_S = 2.0
MOST_ANSWER_BYTES = 4 << 20


def read_wanted(url: str) -> int | None:
    """The groups that the scheduler wants, from its /metrics; None if it can't be read or does not say."""
    try:
        with urllib.request.urlopen(url, timeout=READ_LIMIT_S) as answer:
            text = answer.read(MOST_ANSWER_BYTES).decode("utf-8")
        families = {family.name: family for family in text_string_to_metric_families(text)}
    except (OSError, ValueError):
        return None
    samples = families[WANTED].samples if WANTED in families else []
    return int(samples[0].value) if samples else None


async def serve(process: ServiceProcess[AutoscaleSettings]) -> None:
    """The autoscaler's life: refuse to begin beside another, then scale until a signal."""
    settings = process.settings
    try:
        # Only here: the package takes 20 MB and a second.
        from services.autoscaler.kubernetes_scale import KubernetesScale
    except ModuleNotFoundError:
        raise InvalidFieldError("autoscale", "needs the package kubernetes: install fastserve[kubernetes]") from None
    driver = AutoscaleDriver(
        KubernetesScale(settings.target_kind, settings.target_name),
        lambda: asyncio.to_thread(read_wanted, settings.forecast),
        Scaling(settings.limits),
        settings.period,
    )
    await driver.check_alone()
    server = RpcServer(settings.listen, (), lambda _: None)
    await server.start()
    await server.set_ready(True)
    process.announce_ready(server.address)
    running = asyncio.create_task(driver.run())
    try:
        await process.until_stopped(running)
    finally:
        await cancelled(running)
        await server.stop(0)


def main(argv: list[str] | None = None) -> int:
    """Runs an autoscaler until a signal ends it. Returns the exit status."""
    return service_main("autoscale", AutoscaleSettings, argv, serve)


if __name__ == "__main__":
    raise SystemExit(main())
