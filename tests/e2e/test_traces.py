"""One trace a request, from three services, of jobs that were preempted, swapped, and whose worker was killed."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.generate_requests import ids_request
from tests.builders.repository_paths import BUNDLED
from tests.builders.waits import wait_until
from tests.e2e.client import Choice, Client, client_of
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.otlp_receiver import OtlpReceiver, ReceivedSpan, receiving

pytestmark = pytest.mark.timeout(240)

JOBS = 10
TOKENS = 120
POOL_TOKENS = 384
"""Two jobs fit."""
CLIENT_SPAN = "b7ad6b7169203331"
LEAST_UPLOADS_BYTES = 1


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, OtlpReceiver]]:
    """A system whose services send their traces to the test."""
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "8192")
    with pytest.MonkeyPatch.context() as patch, receiving() as (receiver, endpoint):
        patch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        for service in ("GATEWAY", "SCHEDULER"):
            patch.setenv(f"FASTSERVE_{service}_LOG_LEVEL", "debug")
        patch.setenv("FASTSERVE_GATEWAY_LOG_FORMAT", "json")
        folder: Path = tmp_path_factory.mktemp("cluster")
        with running_cluster(BUNDLED, folder, worker_flags=flags) as cluster:
            yield cluster, receiver


def trace_id(number: int) -> str:
    return f"{number + 1:032x}"


async def run(client: Client, number: int, flags: str = "01") -> Choice:
    request = ids_request(range(20 + number, 60 + number), max_tokens=TOKENS, ignore_eos=True, seed=number)
    metadata = (("traceparent", f"00-{trace_id(number)}-{CLIENT_SPAN}-{flags}"),)
    choice = Choice()
    async for message in client.stub.Generate(request, timeout=200.0, metadata=metadata):
        choice.add(message)
    return choice


def names(spans: list[ReceivedSpan]) -> set[str]:
    return {span.name for span in spans}


async def test_each_request_is_one_whole_trace(traced: tuple[Cluster, OtlpReceiver]) -> None:
    cluster, receiver = traced
    async with client_of(cluster.gateway_address) as client:
        running = [asyncio.create_task(run(client, number)) for number in range(JOBS)]
        await asyncio.to_thread(wait_until, lambda: cluster.status().counters.uploaded_bytes > 0, "an upload")
        cluster.processes["worker"].stop(signal.SIGKILL)
        cluster.restart("worker")
        given = await asyncio.gather(*running)
    assert all(len(choice.token_ids) == TOKENS for choice in given)
    traces = [trace_id(number) for number in range(JOBS)]
    everything = {"text_completion tiny", "fastserve.tokenize", "fastserve.job"}
    await asyncio.to_thread(
        wait_until, lambda: all(everything <= names(receiver.trace(one)) for one in traces), "all traces"
    )
    wait_until(cluster.is_idle, "every block free")
    for number, one in enumerate(traces):
        check_shape(receiver.trace(one), given[number])
    wanted = {
        "fastserve.queue", "fastserve.level", "fastserve.prefill", "fastserve.decode", "fastserve.recompute",
        "fastserve.offload", "fastserve.upload",
    }  # fmt: skip
    await asyncio.to_thread(
        wait_until, lambda: any(wanted <= names(receiver.trace(one)) for one in traces), "a job that met everything"
    )
    met = next(spans for one in traces if wanted <= names(spans := receiver.trace(one)))
    assert {span.service for span in met} == {"fastserve-gateway", "fastserve-scheduler", "fastserve-kvmanager"}
    assert any(span.events == ("fastserve.epoch_ended",) for one in traces for span in receiver.trace(one))
    levels = {
        span.attributes["fastserve.level"] for one in traces for span in receiver.trace(one) if "level" in span.name
    }
    assert len(levels) > 1


def check_shape(spans: list[ReceivedSpan], given: Choice) -> None:
    """A tree of at most 64 spans, whose times lie within each other, and that says nothing of the text."""
    assert len(spans) <= 64
    (root,) = [span for span in spans if span.parent_id == CLIENT_SPAN]
    (job,) = [span for span in spans if span.name == "fastserve.job"]
    assert job.parent_id == root.span_id
    for span in spans:
        if span not in (root, job):
            assert span.parent_id == (root if span.name == "fastserve.tokenize" else job).span_id
        assert root.start_ns <= span.start_ns <= span.end_ns
    assert job.end_ns <= root.end_ns
    assert root.attributes["gen_ai.usage.output_tokens"] == TOKENS
    assert root.attributes["gen_ai.usage.input_tokens"] == 40
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert root.attributes["gen_ai.request.max_tokens"] == TOKENS
    assert all(key.startswith(("gen_ai.", "fastserve.")) for span in spans for key in span.attributes)
    told = " ".join(str(value) for span in spans for value in span.attributes.values())
    assert given.text.strip()[:20] not in told


async def test_a_request_that_its_client_does_not_sample_leaves_no_span(
    traced: tuple[Cluster, OtlpReceiver],
) -> None:
    cluster, receiver = traced
    async with client_of(cluster.gateway_address) as client:
        await asyncio.gather(run(client, 100, flags="00"), run(client, 101))
    await asyncio.to_thread(wait_until, lambda: len(receiver.trace(trace_id(101))) > 3, "the sampled one")
    assert receiver.trace(trace_id(100)) == []


async def test_the_logs_of_gateway_and_scheduler_name_request_trace_and_job(
    traced: tuple[Cluster, OtlpReceiver],
) -> None:
    cluster, _ = traced
    async with client_of(cluster.gateway_address) as client:
        given = await run(client, 102)
    lines = [json.loads(line) for line in cluster.processes["gateway"].log().splitlines() if line.startswith("{")]
    (opened,) = [line for line in lines if line.get("request_id") == given.request_id]
    assert (opened["trace_id"], "job_id" in opened) == (trace_id(102), False)
    about = f" [request_id={given.request_id} trace_id={trace_id(102)} job_id={given.request_id}/0]"
    submitted, ended = [line for line in cluster.processes["scheduler"].log().splitlines() if line.endswith(about)]
    assert "submitted by gateway" in submitted
    assert "ended (length)" in ended
