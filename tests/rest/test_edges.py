"""What meets an HTTP request before the dialect does, and the routes beside OpenAI's."""

import asyncio
import json
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.domain.generation import EndReason
from services.domain.submission import ServingLimits
from tests.builders.waits import until
from tests.gateway.fake_scheduler_for_gateway import SOON_S
from tests.gateway.running_gateway import MODEL_NAME, running_gateway
from tests.rest.running_front import Served, refusal, served

COMPLETION = {"model": MODEL_NAME, "prompt": "the dog", "max_tokens": 2}
JSON_TYPE = {"Content-Type": "application/json"}


async def test_unknown_paths_and_methods_are_refused_in_openais_shape(rest: Served) -> None:
    assert refusal(await rest.http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert refusal(await rest.http.get("/v1/models/"), 404)["message"] == "there is no /v1/models/"
    for method, path, allow in [("GET", "/v1/completions", "POST"), ("PUT", "/v1/models", "GET, HEAD")]:
        response = await rest.http.request(method, path)
        assert refusal(response, 405)["code"] == "method_not_allowed"
        assert response.headers["allow"] == allow


async def test_only_a_json_body_of_bounded_size_gets_through(model: Path, tmp_path: Path) -> None:
    async with served(model, tmp_path, "--max-body-bytes", "1000") as rest:
        body = json.dumps(COMPLETION).encode()
        for headers in [
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "application/json; charset=latin-1"},
            {**JSON_TYPE, "Content-Encoding": "gzip"},
            {},
        ]:
            response = await rest.http.post("/v1/completions", content=body, headers=headers)
            assert refusal(response, 415)["code"] == "unsupported_media_type"
        large = json.dumps({**COMPLETION, "prompt": "x" * 1000}).encode()
        response = await rest.http.post("/v1/completions", content=large, headers=JSON_TYPE)
        assert refusal(response, 413)["code"] == "request_too_large"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/fastserve/v1/generate"])
async def test_bad_json_is_refused_with_line_and_column(path: str, rest: Served) -> None:
    response = await rest.http.post(path, content=b'{"model": "tiny",\n  oops}', headers=JSON_TYPE)
    message = refusal(response, 400)["message"]
    assert message.startswith("body: is not valid JSON: ")
    assert message.endswith("at line 2 column 3")


async def test_overriding_headers_reach_nothing(scripted: Served) -> None:
    override = {"X-HTTP-Method-Override": "GET"}
    response = await scripted.http.post("/v1/models", json={}, headers=override)
    assert refusal(response, 405)
    form = {**override, "Content-Type": "application/x-www-form-urlencoded"}
    assert refusal(await scripted.http.post("/v1/completions", content=b"model=tiny", headers=form), 415)
    metadata = {"Grpc-Metadata-Grpc-Timeout": "1n", "Grpc-Metadata-x": "y"}
    response = await scripted.http.post("/v1/completions", json=COMPLETION, headers=metadata)
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("grpc")]


async def test_a_deadline_travels_on_and_ends_in_504(rest: Served) -> None:
    response = await rest.http.post("/v1/completions", json=COMPLETION, headers={"Grpc-Timeout": "300m"})
    assert refusal(response, 504)["code"] == "deadline_exceeded"
    job = await rest.scheduler.next_job()
    assert job.submission.deadline_in_s is not None
    assert 0 < job.submission.deadline_in_s <= 0.3
    await job.cancel_reason()
    assert refusal(await rest.http.post("/v1/completions", json=COMPLETION, headers={"Grpc-Timeout": "soon"}), 400)


async def test_health_tells_the_process_from_its_readiness(rest: Served) -> None:
    assert (await rest.http.get("/healthz")).json() == {"status": "ok"}
    for path in ("/readyz", "/health"):
        assert (await rest.http.get(path)).json() == {"status": "ready"}
    rest.scheduler.set_limits(ServingLimits(ready=False, max_model_len=512, device_pool_tokens=400))
    await rest.gateway.until_health("readiness", "NOT_SERVING")
    assert refusal(await rest.http.get("/readyz"), 503)["code"] == "unavailable"
    assert (await rest.http.get("/healthz")).status_code == 200
    assert (await rest.http.head("/healthz")).content == b""


async def test_metrics_are_the_gateways(scripted: Served) -> None:
    await scripted.complete(max_tokens=3)
    response = await scripted.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'fastserve:generation_tokens_total{group="0",model_name="tiny"} 3.0' in response.text


async def test_the_native_routes_are_those_of_the_protos(scripted: Served) -> None:
    body = {"text": "the dog", "sampling": {"max_tokens": 2, "seed": 5}}
    response = await scripted.http.post("/fastserve/v1/generate", json=body)
    pieces = [json.loads(line)["result"] for line in response.text.splitlines()]
    assert sum(len(piece["token_ids"]) for piece in pieces) == 2
    assert pieces[-1]["finish_reason"] == "FINISH_REASON_LENGTH"
    assert (await scripted.http.get("/fastserve/v1/models")).json()["models"][0]["id"] == MODEL_NAME
    assert (await scripted.http.get("/fastserve/v1/status")).json()["status"]["policy"] == "fcfs"
    watch = {"interval_s": "0.05"}
    async with scripted.http.stream("GET", "/fastserve/v1/status:watch", params=watch) as snapshots:
        lines = snapshots.aiter_lines()
        assert [json.loads(await anext(lines))["result"]["status"]["model"] for _ in range(2)] == ["tiny", "tiny"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a", "sampling": {"max_tokens": 0}}, "sampling.max_tokens"),
        ({"text": "a", "nonsense": 1}, None),
        ({"text": "a", "sampling": {"max_tokens": "many"}}, None),
    ],
)
async def test_native_refusals_have_openais_shape(body: Any, param: str | None, rest: Served) -> None:
    assert refusal(await rest.http.post("/fastserve/v1/generate", json=body), 400)["param"] == param
    assert refusal(await rest.http.get("/fastserve/v1/status:watch", params={"interval_s": "0.001"}), 400)


async def test_every_answer_is_one_that_the_description_knows(scripted: Served) -> None:
    described = (await scripted.http.get("/openapi.json")).json()
    assert described["openapi"].startswith("3.1")
    assert {"/v1/completions", "/v1/chat/completions", "/fastserve/v1/generate"} <= set(described["paths"])
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if method == "parameters" or path.endswith(":watch"):
                continue
            bodies: list[Any] = [None] if method == "get" else [{}, {**COMPLETION, "stream": True}, COMPLETION]
            for body in bodies:
                response = await scripted.http.request(method, path.replace("{model}", MODEL_NAME), json=body)
                answer = operation["responses"][str(response.status_code)]
                assert response.headers["content-type"].split(";")[0] in answer["content"], (path, body)


async def test_without_its_gateway_a_front_answers_503_and_links_again_when_it_is_back(
    rest: Served, model: Path
) -> None:
    asking = asyncio.create_task(rest.complete())
    await rest.scheduler.next_job()
    await rest.gateway.stop()
    assert refusal(await asking, 503)["code"] == "unavailable"
    for path in ("/v1/models", "/readyz", "/fastserve/v1/models"):
        response = await rest.http.get(path)
        assert refusal(response, 503)["type"] == "server_error"
        assert response.headers["retry-after"] == "1"
    port = int(rest.gateway.address.rpartition(":")[2])
    async with running_gateway(model, rest.scheduler.address, grpc_port=port), asyncio.timeout(SOON_S):
        while (await rest.http.get("/v1/models")).status_code != 200:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


def is_past(moment_s: float) -> bool:
    return time.monotonic() > moment_s


async def test_an_idle_connection_is_not_cut_off_at_its_next_request(model: Path, tmp_path: Path) -> None:
    async with served(model, tmp_path, "--write-limit", "250ms") as rest:
        for path, status in [("/healthz", 200), ("/nothing", 404), ("/v1/models", 200), ("/nothing", 404)]:
            assert (await rest.http.get(path)).status_code == status
            await until(partial(is_past, time.monotonic() + 0.3))


async def test_sigterm_lets_open_requests_end(rest: Served) -> None:
    asking = asyncio.create_task(rest.complete(max_tokens=2))
    job = await rest.scheduler.next_job()
    rest.process.send_signal(signal.SIGTERM)
    assert rest.process.stderr is not None
    while b"stopping" not in await asyncio.wait_for(rest.process.stderr.readline(), SOON_S):
        pass
    job.send(50)
    job.send(51, finish=EndReason.LENGTH)
    assert (await asking).status_code == 200
    assert await asyncio.wait_for(rest.process.wait(), SOON_S) == 0
