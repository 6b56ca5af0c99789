"""Keys over REST: OpenAI's clients get the errors they know, and nothing but the key says who calls."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import openai
import pytest

from services.domain.submission import Submission
from services.gateway.access.rate_limits import KeyLimits
from tests.builders.api_keys import add_key
from tests.gateway.running_gateway import MODEL_NAME
from tests.rest.running_front import Served, refusal, served

COMPLETION = {"model": MODEL_NAME, "prompt": "the dog", "max_tokens": 2}
GENERATE = {"text": "the dog", "sampling": {"max_tokens": 2}}


class KeyedRest(NamedTuple):
    """A front whose gateway asks for keys; `alice` has no limits, `bob` may ask once a minute."""

    rest: Served
    alice: str
    bob: str

    def client(self, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"http://{self.rest.address}/v1", api_key=key, max_retries=0)


def some_tokens(submission: Submission) -> Sequence[int]:
    return [40] * submission.sampling.max_tokens


@pytest.fixture
async def keyed(model: Path, tmp_path: Path) -> AsyncIterator[KeyedRest]:
    path = tmp_path / "keys.json"
    alice, bob = add_key(path, "alice"), add_key(path, "bob", KeyLimits(requests_per_minute=1))
    async with served(model, tmp_path, api_keys_file=path) as rest:
        rest.scheduler.script = some_tokens
        yield KeyedRest(rest, alice, bob)


async def test_the_openai_client_works_with_a_key_and_knows_what_is_wrong_without(keyed: KeyedRest) -> None:
    async with keyed.client(keyed.alice) as client:
        answer = await client.completions.create(model=MODEL_NAME, prompt="the dog", max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        assert [model.id async for model in client.models.list()] == [MODEL_NAME]
    async with keyed.client("fs-not-a-key") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.completions.create(model=MODEL_NAME, prompt="the dog", stream=True)
        assert (refused.value.code, refused.value.type) == ("invalid_api_key", "invalid_request_error")
        assert refused.value.response.headers["www-authenticate"] == "Bearer"
        assert "fs-not-a-key" not in refused.value.response.text
    async with keyed.client(keyed.bob) as client:
        await client.completions.create(model=MODEL_NAME, prompt="the dog", max_tokens=2)
        with pytest.raises(openai.RateLimitError) as limited:
            await client.completions.create(model=MODEL_NAME, prompt="the dog", max_tokens=2)
        assert limited.value.code == "rate_limit_exceeded"
        assert 50 < int(limited.value.response.headers["retry-after"]) <= 60


async def test_every_route_needs_a_key_but_health_metrics_and_the_description(keyed: KeyedRest) -> None:
    http = keyed.rest.http
    for path, body in (("/v1/completions", {}), ("/v1/chat/completions", {}), ("/fastserve/v1/generate", GENERATE)):
        assert refusal(await http.post(path, json=body), 401)["code"] == "invalid_api_key", path
    for path in ("/v1/models", f"/v1/models/{MODEL_NAME}", "/fastserve/v1/models", "/fastserve/v1/status"):
        assert refusal(await http.get(path), 401)["code"] == "invalid_api_key", path
    assert refusal(await http.get("/fastserve/v1/status:watch?interval_s=1"), 401)
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert (await http.get(path)).status_code == 200, path
    with_key = {"Authorization": f"Bearer {keyed.alice}"}
    assert (await http.get("/fastserve/v1/models", headers=with_key)).status_code == 200
    assert (await http.post("/fastserve/v1/generate", json=GENERATE, headers=with_key)).status_code == 200


async def test_nothing_else_that_a_client_sends_is_an_identity(keyed: KeyedRest) -> None:
    key = f"Bearer {keyed.alice}"
    for headers in (
        {"Grpc-Metadata-Authorization": key, "Grpc-Metadata-User": "alice"},
        {"X-Api-Key": keyed.alice, "X-User": "alice", "X-Forwarded-User": "alice", "X-Forwarded-For": "127.0.0.1"},
        {"Proxy-Authorization": key, "Cookie": f"authorization={key}"},
        {"Authorization": f"{key}, {key}"},
        {"Authorization": keyed.alice},
    ):
        for path, body in (("/v1/completions", {**COMPLETION, "user": "alice"}), ("/fastserve/v1/generate", GENERATE)):
            assert refusal(await keyed.rest.http.post(path, json=body, headers=headers), 401), headers
    twice = [("Authorization", key), ("Authorization", key)]
    assert refusal(await keyed.rest.http.get("/v1/models", headers=twice), 401)
    assert refusal(await keyed.rest.http.get("/fastserve/v1/models", headers=twice), 401)


async def test_headers_that_grpc_can_not_carry_are_refused_and_harm_nobody(keyed: KeyedRest) -> None:
    """Carried on, they would end the link that all calls share."""
    async with keyed.client(keyed.alice) as client:
        stream = await client.completions.create(
            model=MODEL_NAME, prompt="the dog", max_tokens=200, stream=True, extra_headers={"Grpc-Timeout": "20S"}
        )
        for name in ("Authorization", "traceparent", "X-Forwarded-For"):
            right, wrong = (b"Authorization", f"Bearer {keyed.alice}".encode()), (name.encode(), b"Bearer \xff\xfe")
            headers = [wrong] if name == "Authorization" else [right, wrong]
            for path in ("/v1/models", "/fastserve/v1/models"):
                response = await keyed.rest.http.get(path, headers=headers)
                assert response.status_code == (200 if name == "X-Forwarded-For" else 400), (name, response.text)
        assert len([chunk async for chunk in stream]) > 0
