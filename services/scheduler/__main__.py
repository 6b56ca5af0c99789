"""Runs the scheduler."""

import services.runtime.quiet_grpc_core  # noqa: F401 (before grpc)

# isort: split
import asyncio
import gc
import logging
import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack

import grpc
from prometheus_client import CollectorRegistry

from services.domain.errors import InvalidFieldError
from services.domain.ids import MOST_GROUPS
from services.domain.server_status import ServerStatus
from services.runtime.channel import open_channel
from services.runtime.metrics_server import MetricsServer, asking_loop, new_registry
from services.runtime.model_files import fingerprint, read_facts
from services.runtime.process import ServiceProcess, cancelled, service_main
from services.runtime.readiness import Readiness
from services.runtime.recording.recorder import Recorder, recording
from services.runtime.server import RpcServer
from services.runtime.settings import split_address
from services.runtime.tls.tls_files import Certificates
from services.scheduler.demand_watch import DemandCollector, DemandWatch
from services.scheduler.driver import SchedulerDriver
from services.scheduler.job_traces import JobTraces
from services.scheduler.leadership.candidate import Candidate
from services.scheduler.leadership.election import Election
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.policies.group_demand import Demand
from services.scheduler.scaler_service import EXTERNAL_SCALER, ExternalScaler, register_scaler
from services.scheduler.scheduler_link import SchedulerLink
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from services.scheduler.service import ADMIN_SERVICE, SCHEDULER_SERVICE, register
from services.scheduler.settings import SchedulerSettings
from services.scheduler.worker_group import STRICT, ServedSetup
from services.tracing.tracer import open_tracer

_log = logging.getLogger(__name__)

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
        most_groups=settings.groups or MOST_GROUPS,
    )


async def serve(process: ServiceProcess[SchedulerSettings]) -> None:
    """The scheduler's life: listen, dial the KV manager, serve, drain."""
    settings = process.settings
    served = served_by(settings)
    with ExitStack() as recordings:

        def record(group: int) -> Recorder | None:
            return recordings.enter_context(
                recording(settings, SCHEDULER_FORMAT, served.config, strict=STRICT, group=group)
            )

        # A folder that can't be written to ends the service here, and not when a worker joins.
        ready = {0: record(0)}

        def recorder_of(group: int) -> Recorder | None:
            try:
                return ready.pop(group) if group in ready else record(group)
            except InvalidFieldError as error:
                _log.warning("group %d is not recorded: %s", group, error)
                return None

        await _serve(process, settings, served, recorder_of)


async def _serve(
    process: ServiceProcess[SchedulerSettings],
    settings: SchedulerSettings,
    served: ServedSetup,
    recorder_of: Callable[[int], Recorder | None],
) -> None:
    gc.set_threshold(*COLLECT_THRESHOLDS)
    readiness = Readiness()
    registry = new_registry()
    async with open_channel(settings.kv_manager, tls=Certificates.of(settings.tls)) as channel:
        link = SchedulerLink(channel, settings.kv_manager)
        tracer = open_tracer("scheduler", os.environ)
        traces = None if tracer is None else JobTraces(tracer)
        if traces is not None:
            link.traces_of = traces.contexts
        driver = SchedulerDriver(served, link, readiness.set, recorder_of, traces)
        demand = DemandWatch(settings.demand_limits, driver.backlogs, driver.ready_groups)
        scaler = ExternalScaler(demand.update, driver.check_leads, settings.backlog_target)

        def register_all(grpc_server: grpc.aio.Server) -> None:
            register(grpc_server, driver)
            register_scaler(grpc_server, scaler)

        server = RpcServer(
            settings.listen,
            (SCHEDULER_SERVICE, ADMIN_SERVICE, EXTERNAL_SCALER),
            register_all,
            tls=settings.tls,
            probe_address=settings.probe_listen,
        )
        metrics_server = MetricsServer(split_address(settings.listen).host, settings.metrics_port, registry)
        export_metrics(registry, served.model_name, driver, demand, settings.old_metrics)
        await server.start()
        following = asyncio.create_task(readiness.follow(server))
        candidate = candidate_for(settings, server.address, metrics_server.port)
        tasks = [asyncio.create_task(driver.run()), asyncio.create_task(demand.run()), following]
        tasks += _commanding(candidate, driver, link)
        process.announce_ready(server.address, metrics_server.address, server.probe_address)
        try:
            await process.until_stopped(*tasks)
            # A worker that joins while the last jobs end makes the machine ready, but must not make the service ready.
            await cancelled(following)
            await server.set_ready(False)
            if candidate is None:
                await driver.drain(settings.drain_limit)
                scaler.hand_over()
            else:
                scaler.hand_over()
                # The jobs go on with the next leader, who waits for the Lease.
                driver.hand_over()
                await cancelled(*tasks)
                await candidate.give_back()
        finally:
            await server.stop(CLOSE_LIMIT_S)
            await cancelled(*tasks)
            if tracer is not None and traces is not None:
                traces.close(time.monotonic())
                await asyncio.to_thread(tracer.close)
            # The metrics server's thread may be waiting for this loop, so the loop must not block on stopping it.
            await asyncio.to_thread(metrics_server.stop)


def export_metrics(
    registry: CollectorRegistry, model_name: str, driver: SchedulerDriver, demand: DemandWatch, old_metrics: bool
) -> None:
    """The metrics. On standby there are none: the leader's are the server's."""

    def status() -> ServerStatus | None:
        return None if driver.term is None else driver.status()

    def wanted() -> tuple[Demand, int] | None:
        return None if driver.term is None else (demand.update(), demand.ready_count)

    registry.register(SchedulerCollector(asking_loop(status), old_metrics=old_metrics))
    registry.register(DemandCollector(model_name, asking_loop(wanted)))


def candidate_for(settings: SchedulerSettings, grpc_address: str, metrics_port: int) -> Candidate | None:
    """This scheduler's part in the election, or None without one. Raises InvalidFieldError outside of a pod."""
    if settings.lease is None:
        return None
    try:
        # Only here: the package takes 20 MB and a second.
        from services.scheduler.leadership.kubernetes_lease import KubernetesLease, LeaderAddress
    except ModuleNotFoundError:
        raise InvalidFieldError("--lease", "needs the package kubernetes: install fastserve[kubernetes]") from None
    address = None
    if settings.leader_service is not None and settings.pod_ip is not None:
        ports = (("grpc", split_address(grpc_address).port), ("metrics", metrics_port))
        address = LeaderAddress(settings.leader_service, settings.pod_ip, ports)
    # Another one in each life: who comes back under the same name has forgotten what it commanded.
    identity = f"{settings.pod_name}_{uuid.uuid4().hex[:12]}"
    return Candidate(
        KubernetesLease(settings.lease, address), Election(identity, settings.lease_duration), settings.lease_retry
    )


def _commanding(
    candidate: Candidate | None, driver: SchedulerDriver, link: SchedulerLink
) -> list["asyncio.Task[None]"]:
    """The tasks that command peers, at once or once this scheduler leads."""
    if candidate is None:
        return [asyncio.create_task(link.run(driver.inbox.post))]
    driver.term = None

    async def command() -> None:
        driver.term = link.term = await candidate.won()
        await link.run(driver.inbox.post)

    return [asyncio.create_task(candidate.run()), asyncio.create_task(command())]


def main(argv: list[str] | None = None) -> int:
    """Runs a scheduler until a signal ends it. Returns the exit status."""
    return service_main("scheduler", SchedulerSettings, argv, serve)


if __name__ == "__main__":
    raise SystemExit(main())
