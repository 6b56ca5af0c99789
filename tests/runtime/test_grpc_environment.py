"""Messages do not pass through the threads of the engine of gRPC's core, in any process that a command begins."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.__main__ import main
from services.runtime.channel import open_channel
from services.runtime.server import RpcServer

ENGINE = "event_engine"
CALLS = 200


def wakes_of_the_engine() -> int:
    """How often its threads in this process went to sleep so far."""
    total = 0
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().startswith(ENGINE):
            status = (thread / "status").read_text()
            total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="threads are told apart by /proc")
async def test_messages_wake_no_thread_of_the_engine() -> None:
    server = RpcServer("127.0.0.1:0", (), lambda _: None)
    await server.start()
    async with open_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest())
        before = wakes_of_the_engine()
        for _ in range(CALLS):
            await health.Check(health_pb2.HealthCheckRequest())
        # With the engine it is several a call.
        assert wakes_of_the_engine() - before < CALLS / 2
    await server.stop(0)


def test_every_command_says_so_before_it_begins_but_for_who_has_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_EXPERIMENTS", raising=False)
    assert main(["--version"]) == 0
    assert os.environ["GRPC_EXPERIMENTS"] == "-event_engine_client,-event_engine_listener"
    monkeypatch.setenv("GRPC_EXPERIMENTS", "other")
    assert main(["--version"]) == 0
    assert os.environ["GRPC_EXPERIMENTS"] == "other"
