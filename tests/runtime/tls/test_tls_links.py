"""Mutual TLS between services: who has the right certificate is heard, nobody else gets a message, and certificates
change under open streams.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.domain.errors import UnauthenticatedError
from services.runtime.channel import open_channel
from services.runtime.error_statuses import from_grpc
from services.runtime.server import READINESS, RpcServer
from services.runtime.tls.tls_files import Certificates, TlsFiles
from tests.builders.certificates import CertificateAuthority, replace
from tests.builders.channels import patient_channel
from tests.runtime.tls.shown_certificates import bytes_from, shown_serial

SOON_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority()


@asynccontextmanager
async def serving(
    files: TlsFiles | None, address: str = "127.0.0.1:0", probe_address: str | None = None
) -> AsyncIterator[RpcServer]:
    server = RpcServer(address, (), lambda _: None, tls=files, probe_address=probe_address)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


async def ask(channel: grpc.aio.Channel) -> Any:
    """The server's health."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=SOON_S)).status


async def asked(address: str, files: TlsFiles) -> Any:
    async with patient_channel(address, tls=Certificates(files)) as channel:
        return await ask(channel)


async def code_of(asking: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asking
    return refused.value.code()


async def test_services_with_certificates_of_one_ca_hear_each_other(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with serving(authority.issue(tmp_path, "server").tls) as server:
        assert await asked(server.address, authority.issue(tmp_path, "client", ("client",)).tls) == SERVING


def h2(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context of a caller that wants HTTP/2, as gRPC does."""
    context.set_alpn_protocols(["h2"])
    return context


def of_another_ca(authority: CertificateAuthority, folder: Path) -> ssl.SSLContext:
    wrong = CertificateAuthority().issue(folder, "other")
    return with_fields(wrong, ca=authority.issue(folder, "trusted").ca).context()


def expired(authority: CertificateAuthority, folder: Path) -> ssl.SSLContext:
    return authority.issue(folder, "old", expired=True).context()


def without_certificate(authority: CertificateAuthority, folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.issue(folder, "trusted").ca))


@pytest.mark.parametrize("caller", [of_another_ca, expired, without_certificate])
async def test_a_caller_without_the_right_certificate_gets_no_message(
    caller: Callable[[CertificateAuthority, Path], ssl.SSLContext], authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with serving(authority.issue(tmp_path, "server").tls) as server:
        assert await asyncio.to_thread(bytes_from, server.address, h2(caller(authority, tmp_path))) == b""


async def test_a_caller_in_plain_text_gets_no_message(authority: CertificateAuthority, tmp_path: Path) -> None:
    async with serving(authority.issue(tmp_path, "server").tls) as server:
        heard = await asyncio.to_thread(bytes_from, server.address, None)
        assert b"\x00\x00\x00" not in heard[3:], "at most an alert of TLS, no frame of HTTP/2"
        async with open_channel(server.address) as channel:
            assert await code_of(ask(channel)) is grpc.StatusCode.UNAVAILABLE


async def test_a_server_without_the_right_certificate_is_not_spoken_to(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    client = authority.issue(tmp_path, "client").tls
    stranger = with_fields(CertificateAuthority().issue(tmp_path, "stranger").tls, ca=client.ca)
    for files in (
        stranger,
        authority.issue(tmp_path, "late", expired=True).tls,
        authority.issue(tmp_path, "elsewhere", ("elsewhere.example",)).tls,
    ):
        async with serving(files) as server:
            assert await code_of(asked(server.address, client)) is grpc.StatusCode.UNAVAILABLE


async def test_with_a_name_for_peers_both_sides_ask_for_it(authority: CertificateAuthority, tmp_path: Path) -> None:
    ours = with_fields(authority.issue(tmp_path, "ours", ("fastserve.internal",)).tls, peer_name="fastserve.internal")
    other = with_fields(authority.issue(tmp_path, "other").tls, peer_name="fastserve.internal")
    async with serving(ours) as server:
        assert await asked(server.address, ours) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asked(server.address, other)
        assert isinstance(from_grpc(refused.value), UnauthenticatedError)
    async with serving(with_fields(other, peer_name=None)) as server:
        assert await code_of(asked(server.address, ours)) is grpc.StatusCode.UNAVAILABLE


async def test_health_alone_is_served_to_probes_without_tls(authority: CertificateAuthority, tmp_path: Path) -> None:
    files = authority.issue(tmp_path, "server").tls
    async with serving(files, probe_address="127.0.0.1:0") as server:
        assert server.probe_address is not None
        async with patient_channel(server.probe_address) as channel:
            assert await ask(channel) == SERVING
            reflection: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            assert await code_of(reflection().read()) is grpc.StatusCode.UNIMPLEMENTED


async def test_new_certificates_and_a_new_ca_hold_for_new_connections_and_open_streams_go_on(tmp_path: Path) -> None:
    """Both sides read the same files, which are replaced one by one."""
    before = CertificateAuthority()
    files = before.issue(tmp_path)
    kept = before.issue(tmp_path, "kept")
    async with serving(files.tls) as server, patient_channel(server.address, tls=Certificates(files.tls)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=READINESS), timeout=SOON_S)
        assert (await watch.read()).status != SERVING

        CertificateAuthority().issue(tmp_path)
        assert await asyncio.to_thread(shown_serial, server.address, h2(files.context())) == files.serial()
        assert await ask(channel) == SERVING
        assert await code_of(asked(server.address, with_fields(kept.tls, ca=files.ca))) is grpc.StatusCode.UNAVAILABLE

        await server.set_ready(True)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_a_channel_connects_again_with_the_certificates_of_now(tmp_path: Path) -> None:
    files = CertificateAuthority().issue(tmp_path)
    async with serving(files.tls) as server:
        channel = open_channel(server.address, tls=Certificates(files.tls))
        assert await ask(channel) == SERVING
    CertificateAuthority().issue(tmp_path)
    async with channel, serving(files.tls, address=server.address):
        assert await ask(channel) == SERVING


async def test_files_that_do_not_fit_change_nothing_and_are_told_once(
    authority: CertificateAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue(tmp_path)
    good = files.cert.read_bytes()
    async with serving(files.tls) as server:
        replace(files.cert, authority.issue(tmp_path, "other").cert.read_bytes())
        client = authority.issue(tmp_path, "client")
        for _ in range(2):
            assert await asked(server.address, client.tls) == SERVING
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(told) == 1
        assert told[0].startswith("the certificates stay what they were: --tls-cert and --tls-key: ")
        replace(files.cert, good)
        assert await asked(server.address, client.tls) == SERVING
