"""The requests that a trace's jobs become."""

import pytest

from fastserve.v1 import inference_pb2 as api
from services.loadgen.trace_run import TraceRunOptions, requests_of
from services.workloads.workload import TraceJob


@pytest.mark.parametrize("prompt", [{"prompt": "once"}, {"prompt_token_ids": (5, 6)}, {}])
def test_a_job_asks_for_its_length_in_the_name_of_its_client(prompt: dict[str, str]) -> None:
    named = TraceJob("a", 0.0, 2, 7, client="bob", **prompt)  # type: ignore[arg-type]
    nameless = TraceJob("b", 0.0, 2, 7, **prompt)  # type: ignore[arg-type]
    requests = [api.GenerateRequest.FromString(one) for one in requests_of([named, nameless], TraceRunOptions(), 100)]
    assert [request.client for request in requests] == ["bob", ""]
    assert {request.sampling.max_tokens for request in requests} == {7}
