"""`fastserve top` against a gateway that speaks real gRPC."""

import pytest

from fastserve.v1 import admin_pb2
from tests.cli.commands import fastserve
from tests.fakes.fake_gateway_for_client import FakeGatewayForClient, serving


async def test_one_frame_shows_levels_pools_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        assert await fastserve("top", "--once", "--interval", "0.1", "--server", gateway.address) == 0
    shown = capsys.readouterr().out
    assert "skip-join-mlfq + proactive" in shown
    assert "16/64 blocks" in shown
    assert "tokens/s 0 out" in shown


async def test_jobs_are_listed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    listed = admin_pb2.JobStatus(
        alias="0.7",
        level=2,
        state=admin_pb2.JOB_STATE_SWAPPED_OUT,
        kv=admin_pb2.KV_PLACE_HOST,
        prompt_tokens=31,
        output_tokens=64,
    )
    async with serving(FakeGatewayForClient(jobs=[listed])) as gateway:
        flags = ("--once", "--interval", "0.1", "--jobs", "5", "--server", gateway.address)
        assert await fastserve("top", *flags) == 0
    (line,) = (line.split() for line in capsys.readouterr().out.splitlines() if "0.7" in line)
    assert [word for word in line if word != "│"] == ["0.7", "0", "2", "31", "64", "swapped", "out", "host"]
    assert gateway.max_jobs == 5


async def test_more_jobs_than_the_server_lists_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert await fastserve("top", "--jobs", "1001") == 2
    assert "--jobs: 1001 is greater than 1000" in capsys.readouterr().err
