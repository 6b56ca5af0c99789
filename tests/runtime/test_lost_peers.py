"""How soon the two ends of a link notice that the other one stands still or is cut off, and that they do not take a
busy peer for a lost one. Both ways at once: each process serves a stream and holds one.
"""

import asyncio
import os
import signal
import subprocess
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import pytest

from services.runtime.channel import CHANNEL_OPTIONS, LINK_PINGS, Options
from services.runtime.server import RpcServer, server_options
from tests.builders.channels import patient_channel
from tests.builders.module_processes import running_module
from tests.builders.waits import START_LIMIT_S
from tests.runtime.peer_process import HoldingServicer, held

NOTICED_LIMIT_S = 5.0
"""By the settings; the processes of a busy test machine may take longer."""
NOTICED_AT_ALL_LIMIT_S = 50.0
"""Less than gRPC's own limits, which hold where ours are not told."""


class Linked:
    """This process and a peer, with a stream each way."""

    def __init__(self, peer: Process, servicer: HoldingServicer, stream: Any) -> None:
        self.peer = peer
        self.servicer = servicer
        self.stream = stream

    async def peer_says(self) -> str:
        assert self.peer.stdout is not None
        async with asyncio.timeout(START_LIMIT_S):
            return (await self.peer.stdout.readline()).decode().strip()

    async def loses_peer(self) -> None:
        """Both streams end."""
        async with asyncio.timeout(NOTICED_AT_ALL_LIMIT_S):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await self.stream.read()
            await self.servicer.ended.wait()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@asynccontextmanager
async def linked(here: str = "127.0.0.1", there: str = "127.0.0.1", *prefix: str) -> AsyncIterator[Linked]:
    """`prefix`: what the peer is run by."""
    servicer = HoldingServicer()
    server = RpcServer(f"{here}:0", (), servicer.register)
    await server.start()
    flags = (f"{there}:0", server.address)
    try:
        async with running_module("tests.runtime.peer_process", *flags, prefix=prefix, stdout=PIPE) as peer:
            link = Linked(peer, servicer, None)
            async with patient_channel(await link.peer_says()) as channel:
                link.stream = held(channel)
                assert (await link.stream.read()).text == "held"
                assert await link.peer_says() == "held"
                yield link
    finally:
        await server.stop(0)


@pytest.mark.parametrize("of_an_end", [CHANNEL_OPTIONS, server_options()], ids=["client", "server"])
def test_what_stands_still_is_noticed_in_time_by_the_settings(of_an_end: Options) -> None:
    told = dict(of_an_end)
    for answer_limit in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
        assert told["grpc.keepalive_time_ms"] + told[answer_limit] < 1000 * NOTICED_LIMIT_S


async def test_a_peer_that_is_stopped_is_noticed_by_both_ends_in_time() -> None:
    async with linked() as link:
        link.peer.send_signal(signal.SIGSTOP)
        await link.loses_peer()


async def test_a_peer_that_keeps_pythons_lock_for_longer_is_not_lost() -> None:
    async with linked() as link:
        began_s = time.monotonic()
        link.peer.send_signal(signal.SIGUSR1)
        assert await link.peer_says() == "locked"
        assert (await asyncio.wait_for(link.stream.read(), START_LIMIT_S)).text == "heard again"
        assert time.monotonic() - began_s > LINK_PINGS.interval_s + LINK_PINGS.answer_limit_s
        assert await link.peer_says() == "unlocked"
        assert not link.servicer.ended.is_set()
        link.servicer.goes_on.set()
        assert await link.peer_says() == "heard again"


def has_namespaces() -> bool:
    """Whether this process may make network namespaces."""
    return os.geteuid() == 0 and run("ip", "netns", "list") and run("unshare", "--net", "true")


def run(*command: str) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=START_LIMIT_S).returncode == 0
    except OSError:
        return False


class OtherNode(NamedTuple):
    """A network namespace that stands for another machine, its one interface, and the addresses of both machines."""

    name: str
    interface: str
    here: str
    there: str

    def drop_packets(self) -> None:
        """From now on no packet comes or goes; nobody is told."""
        assert run("ip", "-n", self.name, "link", "set", self.interface, "down")


@pytest.fixture
def other_node() -> Iterator[OtherNode]:
    if not has_namespaces():
        pytest.skip("NOT TESTED: a lost node needs root, the command ip, and the right to make network namespaces")
    number = os.getpid() % 10_000
    near = f"fs{number}a"
    node = OtherNode(f"fastserve-{number}", f"fs{number}b", *(f"198.18.{number % 250}.{host}" for host in (1, 2)))
    name, far, here, there = node
    try:
        for command in (
            f"ip netns add {name}",
            f"ip link add {near} type veth peer name {far} netns {name}",
            f"ip addr add {here}/24 dev {near}",
            f"ip link set {near} up",
            f"ip -n {name} addr add {there}/24 dev {far}",
            f"ip -n {name} link set {far} up",
        ):
            assert run(*command.split()), command
        yield node
    finally:
        run("ip", "netns", "del", name)
        run("ip", "link", "del", near)


async def test_a_node_whose_packets_are_dropped_is_noticed_in_time(other_node: OtherNode) -> None:
    async with linked(other_node.here, other_node.there, "ip", "netns", "exec", other_node.name) as link:
        other_node.drop_packets()
        await link.loses_peer()
