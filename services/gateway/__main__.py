"""Runs one gateway."""

import services.runtime.quiet_grpc_core  # noqa: F401 (before grpc)

# isort: split
import asyncio
import gc
import os
import time
import uuid

import grpc

from services.gateway.access.key_interceptor import KeyInterceptor
from services.gateway.access.key_ring import KeyRing
from services.gateway.admin_client import AdminClient
from services.gateway.driver import GatewayDriver
from services.gateway.front_service import FRONT_SERVICE, FrontService, register_front
from services.gateway.gateway_bounds import GatewayBounds
from services.gateway.gateway_link import GatewayLink
from services.gateway.gateway_model import GatewayModel
from services.gateway.generation.validation import ModelLimits
from services.gateway.guides.guide_checker import GuideChecker
from services.gateway.metrics import GatewayMetrics, ServerStatusCollector
from services.gateway.model_tokenizer import ModelTokenizer
from services.gateway.openai.calls import OpenAiCalls
from services.gateway.openai.chat_template import load_response_template, load_template
from services.gateway.openai.quiet_streams import QuietStreams
from services.gateway.openai.service import OPENAI_SERVICE, register_openai
from services.gateway.request_traces import RequestTraces
from services.gateway.service import ADMIN_SERVICE, INFERENCE_SERVICE, register
from services.gateway.settings import GatewaySettings
from services.runtime.channel import CLIENT_PINGS, RenewableChannel
from services.runtime.metrics_server import SCRAPE_LIMIT_S, MetricsServer, asking_loop, new_registry
from services.runtime.model_files import fingerprint, read_facts
from services.runtime.process import ServiceProcess, cancelled, service_main
from services.runtime.readiness import Readiness
from services.runtime.server import RpcServer, server_options
from services.runtime.settings import join_address
from services.runtime.tls.tls_files import Certificates
from services.tracing.tracer import open_tracer

CLOSE_LIMIT_S = 0.5
"""For the last bytes; what is still open then are streams without an end, such as WatchStatus."""


def _load_model(settings: GatewaySettings) -> GatewayModel:
    facts = read_facts(settings.model)
    return GatewayModel(
        name=settings.model_name,
        limits=ModelLimits(facts.vocabulary_size, facts.max_model_len, facts.eos_token_ids),
        tokenizer=ModelTokenizer(settings.model),
        created_s=int(time.time()),
    )


async def serve(process: ServiceProcess[GatewaySettings]) -> None:
    """The gateway's life: listen, dial the scheduler, serve, drain."""
    settings = process.settings
    model = _load_model(settings)
    registry = new_registry()
    metrics = GatewayMetrics(registry, model.name)
    readiness = Readiness()
    keys = None if settings.api_keys_file is None else KeyRing(settings.api_keys_file)
    async with RenewableChannel(settings.scheduler, Certificates.of(settings.tls)) as channel:
        link = GatewayLink(channel, settings.scheduler, uuid.uuid4().hex, fingerprint(settings.model))
        admin = AdminClient(channel)
        bounds = GatewayBounds(settings.max_open_requests, settings.resubmit_limit, settings.stream_interval)
        tracer = open_tracer("gateway", os.environ)
        traces = RequestTraces(tracer, model.name, time.monotonic)
        driver = GatewayDriver(model, link, metrics, bounds, readiness.set)
        guides = GuideChecker(settings.model)
        templates = load_template(settings.model), load_response_template(settings.model)
        calls = OpenAiCalls(driver, *templates, QuietStreams(), guides)
        front = FrontService(calls, traces, keys)

        def register_all(grpc_server: grpc.aio.Server) -> None:
            register(grpc_server, driver, guides, admin, traces)
            register_openai(grpc_server, calls, traces, keys)
            register_front(grpc_server, front)

        server = RpcServer(
            join_address(settings.host, settings.grpc_port),
            (INFERENCE_SERVICE, ADMIN_SERVICE, OPENAI_SERVICE, FRONT_SERVICE),
            register_all,
            server_options(CLIENT_PINGS),
            tls=settings.public_tls,
            probe_address=settings.probe_listen,
            interceptors=() if keys is None else (KeyInterceptor(keys, (OPENAI_SERVICE, FRONT_SERVICE)),),
        )
        metrics_server = MetricsServer(settings.host, settings.metrics_port, registry)
        registry.register(
            ServerStatusCollector(
                model.name,
                asking_loop(lambda: admin.server_status(SCRAPE_LIMIT_S)),
                lambda: metrics.refused,
                old_metrics=settings.old_metrics,
                vllm_metrics=settings.vllm_metrics,
            )
        )
        await server.start()
        process.announce_ready(server.address, metrics_server.address, server.probe_address)
        followers = [asyncio.create_task(readiness.follow(server))]
        if keys is not None:
            followers.append(asyncio.create_task(keys.watch()))
        calls_task = asyncio.create_task(calls.run())
        link_task = asyncio.create_task(link.run(driver.on_limits, driver.on_updates, driver.on_lost))
        try:
            await process.until_stopped(link_task)
            await driver.drain(settings.drain_limit)
            front.close()
            await link.flush()
        finally:
            await server.stop(CLOSE_LIMIT_S)
            await cancelled(*followers, calls_task, link_task)
            driver.close()
            await guides.close()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)
            # Its thread may be asking this loop; so it is stopped from another one.
            await asyncio.to_thread(metrics_server.stop)


def main(argv: list[str] | None = None) -> int:
    """Runs a gateway until a signal ends it; the exit status."""
    # Thousands of open streams are live objects that the collector's full walks find alive again and again: with the
    # usual thresholds that takes a fifth of the time of a token. Nothing here makes cycles at the rate of tokens.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    return service_main("gateway", GatewaySettings, argv, serve)


if __name__ == "__main__":
    raise SystemExit(main())
