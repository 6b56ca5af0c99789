"""Which trace a client's header names."""

import pytest

from services.tracing.traceparent import parent_of, trace_id_of
from tests.tracing.memory_tracer import PARENT, TRACE_ID


@pytest.mark.parametrize("traceparent", [PARENT, PARENT[:-2] + "00", f" {PARENT} ", "cc" + PARENT[2:] + "-more"])
def test_a_trace_is_named_whether_or_not_it_is_sampled(traceparent: str) -> None:
    assert trace_id_of(traceparent) == TRACE_ID
    assert parent_of(traceparent) == (int(TRACE_ID, 16), 0xB7AD6B7169203331, int("-00" not in traceparent))


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        TRACE_ID,
        PARENT.upper(),
        "ff" + PARENT[2:],
        PARENT + "-more",
        PARENT.replace(TRACE_ID, "0" * 32),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        PARENT + "\n",
        "cc" + PARENT[2:] + "-" + "x" * 10_000,
    ],
)
def test_what_is_no_trace_context_names_none(traceparent: str) -> None:
    assert trace_id_of(traceparent) is None
    assert parent_of(traceparent) is None
