"""REST over TLS: the openai client, new certificates under an open stream, and a gateway that must be the right one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from google.rpc import status_pb2

from services.domain.generation import EndReason
from services.runtime.server import RpcServer
from services.runtime.tls.tls_files import TlsFiles
from tests.builders.certificates import CertificateAuthority, IssuedFiles, replace
from tests.gateway.fake_scheduler_for_gateway import SOON_S
from tests.gateway.running_gateway import MODEL_NAME
from tests.rest.conftest import drawn
from tests.rest.fake_gateway_for_front import FakeGatewayForFront
from tests.rest.running_front import Served, front_program, served
from tests.runtime.tls.shown_certificates import shown_serial


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority()


@asynccontextmanager
async def secured(model: Path, folder: Path, files: IssuedFiles) -> AsyncIterator[Served]:
    """A front and its gateway, with one certificate for their clients."""
    async with served(
        model,
        folder,
        *("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--gateway-cert", str(files.cert)),
        verify=files.context(),
        client=files.tls,
        public_tls_cert=files.cert,
        public_tls_key=files.key,
    ) as rest:
        yield rest


async def test_the_openai_client_works_over_tls_and_refuses_a_stranger(
    authority: CertificateAuthority, model: Path, tmp_path: Path
) -> None:
    files = authority.issue(tmp_path)
    async with secured(model, tmp_path, files) as rest:
        rest.scheduler.script = drawn
        url = f"https://{rest.address}/v1"
        fields: Any = {"model": MODEL_NAME, "prompt": "the dog", "seed": 4, "max_tokens": 6}
        http = openai.DefaultAsyncHttpxClient(verify=files.context())
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
            whole = (await client.completions.create(**fields)).choices[0].text
            stream = await client.completions.create(**fields, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == whole != ""
        assert (await rest.http.get("/readyz")).status_code == 200
        assert (await rest.http.get("/fastserve/v1/status")).status_code == 200
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as stranger:
            with pytest.raises(openai.APIConnectionError):
                await stranger.models.list()
        plain = (await httpx2.AsyncClient(trust_env=False).get(f"http://{rest.address}/v1/models")).status_code
        assert plain == 400


async def read_stream(rest: Served, heard: "asyncio.Queue[str]") -> None:
    """Passes on what a streamed completion says."""
    async with rest.streamed(max_tokens=2) as response:
        async for line in response.aiter_lines():
            heard.put_nowait(line)


async def test_a_new_certificate_is_shown_to_new_connections_and_an_open_stream_goes_on(
    authority: CertificateAuthority, model: Path, tmp_path: Path
) -> None:
    files = authority.issue(tmp_path)
    async with secured(model, tmp_path, files) as rest, asyncio.timeout(SOON_S):
        heard: asyncio.Queue[str] = asyncio.Queue()
        stream = asyncio.create_task(read_stream(rest, heard))
        job = await rest.scheduler.next_job()
        job.send(50)
        assert (await heard.get()).startswith("data: ")

        before, caller = files.serial(), files.context()
        replace(files.cert, b"no certificate")
        assert await asyncio.to_thread(shown_serial, rest.address, caller) == before
        authority.issue(tmp_path)
        assert await asyncio.to_thread(shown_serial, rest.address, caller) == files.serial() != before

        job.send(51, finish=EndReason.LENGTH)
        await stream
        assert "data: [DONE]" in [heard.get_nowait() for _ in range(heard.qsize())]
        assert rest.process.stderr is not None
        while "the certificate stays what it was" not in (line := (await rest.process.stderr.readline()).decode()):
            assert line


async def test_a_front_speaks_to_no_gateway_but_the_one_whose_certificate_it_was_given(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    files, other = authority.issue(tmp_path), authority.issue(tmp_path, "other")
    gateway = FakeGatewayForFront(status_pb2.Status())
    server = RpcServer("127.0.0.1:0", (), gateway.register, tls=TlsFiles(files.cert, files.key))
    await server.start()
    argv = ["--listen", "127.0.0.1:0", "--gateway", server.address, "--gateway-cert", str(other.cert)]
    process = await asyncio.create_subprocess_exec(str(front_program()), *argv, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(SOON_S):
            told = (await process.stderr.readline()).decode()
        assert "no link to the gateway" in told
        assert "the gateway's certificate is not that of" in told
    finally:
        process.kill()
        await process.wait()
        await server.stop(0)


async def test_half_a_set_of_flags_and_unusable_files_are_refused_in_one_line(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    files = authority.issue(tmp_path)
    nothing = str(tmp_path / "nothing")
    for flags, words in [
        (["--tls-cert", str(files.cert)], "-tls-key must be given too"),
        (["--tls-key", str(files.key)], "-tls-cert must be given too"),
        (["--tls-cert", nothing, "--tls-key", str(files.key)], "-tls-cert and -tls-key: open"),
        (["--gateway-cert", nothing], "-gateway-cert: open"),
        (["--gateway-cert", str(files.key)], "has no certificate in PEM format"),
    ]:
        process = await asyncio.create_subprocess_exec(
            str(front_program()), "--gateway", "127.0.0.1:1", *flags, stderr=asyncio.subprocess.PIPE
        )
        _, told = await asyncio.wait_for(process.communicate(), SOON_S)
        assert process.returncode == 1
        assert words in told.decode()
        assert told.decode().count("\n") == 1
