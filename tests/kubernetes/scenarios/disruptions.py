"""Pods go while streams are open: what fails, what is lost, and for how long it stops."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from tests.kubernetes.live import COMPONENTS, LiveCluster, PodNow
from tests.kubernetes.machine import wait_for
from tests.kubernetes.open_streams import STREAMS, TOKENS, OpenStream, OpenStreams, outcome_of, undisturbed
from tests.kubernetes.rows import Row
from tests.kubernetes.scenarios.leader import OVER

SETTLE_LIMIT_S = 150.0
LOST_STREAMS = 12
LOST_LIMIT_S = 60.0
NOTICED_S = 5.0
CUT_OFF_S = 12.0
"""Long enough for everybody to notice, and shorter than what a liveness probe allows."""


def _row(what: str, during: OpenStreams, before: list[OpenStream], more: str = "") -> Row:
    outcome = outcome_of(during.streams, before, TOKENS)
    told = f"{outcome}; nothing for anybody for {during.silence_s():.1f} s{more}"
    return Row(f"{what}: no stream fails, greedy output is that of the undisturbed run", outcome.is_whole, told)


def _under_streams(cluster: LiveCluster, what: str, act: Callable[[], object], resumes: bool = False) -> Row:
    """`act`, while so many streams are open all the time. They come by the Service's address: a pod's own address goes
    with the pod.
    """
    before = undisturbed(cluster.address())
    with OpenStreams([cluster.address()], STREAMS, TOKENS, resumes=resumes, renews=True) as during:
        act()
    cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
    return _row(f"{what} under {STREAMS} streams", during, before)


def _rolled(cluster: LiveCluster, component: str) -> None:
    kind = "statefulset" if component == "worker" else "deployment"
    cluster.kubectl("rollout", "restart", f"{kind}/fastserve-{component}")
    cluster.kubectl("rollout", "status", f"{kind}/fastserve-{component}", f"--timeout={SETTLE_LIMIT_S:.0f}s")


def rollouts(cluster: LiveCluster) -> Iterator[Row]:
    """Each component in turn. A client of a gateway that goes takes its stream up again elsewhere."""
    for component in COMPONENTS:
        what = f"`kubectl rollout restart` of the {component}"
        resumes = component == "gateway"
        yield _under_streams(cluster, what, lambda name=component: _rolled(cluster, name), resumes)  # type: ignore[misc]


def drained_node(cluster: LiveCluster) -> Iterator[Row]:
    """`kubectl drain` of the node that the worker is on."""
    node = cluster.pod("worker").node
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app.kubernetes.io/component=worker")

    def drain() -> None:
        cluster.kubectl("drain", node, *flags, f"--timeout={SETTLE_LIMIT_S:.0f}s")
        wait_for(lambda: len(cluster.pods("worker")) == 1, "the next worker", SETTLE_LIMIT_S)
        cluster.wait_settled(limit_s=SETTLE_LIMIT_S)

    yield _under_streams(cluster, "`kubectl drain` of the worker's node", drain)
    cluster.kubectl("uncordon", node)


def _scaled_to(cluster: LiveCluster, count: int) -> None:
    cluster.kubectl("scale", "statefulset/fastserve-worker", f"--replicas={count}")
    wait_for(lambda: len(cluster.pods("worker")) == count, f"{count} workers", SETTLE_LIMIT_S)
    cluster.wait_settled(limit_s=SETTLE_LIMIT_S)


def scaled(cluster: LiveCluster) -> Iterator[Row]:
    """Worker groups 3 -> 1 -> 3."""
    _scaled_to(cluster, 3)

    def down_and_up() -> None:
        _scaled_to(cluster, 1)
        _scaled_to(cluster, 3)

    yield _under_streams(cluster, "scale 3 -> 1 -> 3", down_and_up)
    _scaled_to(cluster, 1)


def killed(cluster: LiveCluster) -> Iterator[Row]:
    """SIGKILL of every pod that clients are not connected to, one after the other."""
    before = undisturbed(cluster.address())
    told: list[str] = []
    with OpenStreams([cluster.address()], STREAMS, TOKENS, renews=True) as during:
        for pod in cluster.pods():
            if pod.name.startswith("fastserve-gateway"):
                continue
            began_s = time.monotonic()
            cluster.signal(pod, signal.SIGKILL)
            wait_for(lambda pod=pod: _restarts(cluster, pod) > pod.restarts, f"the next life of {pod.name}", 60.0)  # type: ignore[misc]
            cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
            name = pod.name.removeprefix("fastserve-").partition("-")[0]
            told.append(f"{name} {during.silence_s(began_s):.1f} s")
    what = f"SIGKILL of every pod but gateways, one after the other, under {STREAMS} streams"
    yield _row(what, during, before, f" (after each: {', '.join(told)})")


def _restarts(cluster: LiveCluster, pod: PodNow) -> int:
    return next((one.restarts for one in cluster.pods() if one.name == pod.name), 0)


@contextmanager
def _cut_off(pod: PodNow) -> Iterator[None]:
    """All packets from and to a pod are dropped, as those of a lost node."""
    rules = [(chain, side) for chain in ("FORWARD", "INPUT", "OUTPUT") for side in ("-s", "-d")]
    for chain, side in rules:
        subprocess.run(["iptables", "-I", chain, "1", side, pod.ip, "-j", "DROP"], check=True)
    try:
        yield
    finally:
        for chain, side in rules:
            subprocess.run(["iptables", "-D", chain, side, pod.ip, "-j", "DROP"], check=True)


def _told_after_s(cluster: LiveCluster, pod: PodNow, words: str, began_s: float) -> float:
    """Seconds from a moment of this machine's clock to the first line of a pod's log since then that has these words.
    Raises TimeoutError.
    """
    found: list[float] = []

    def look() -> bool:
        for line in cluster.log(pod.name):
            at = re.match(r"(\S+)Z ", line)
            if at and re.search(words, line):
                after_s = datetime.fromisoformat(f"{at[1]}+00:00").timestamp() - began_s
                found.extend([after_s] if after_s >= 0 else [])
        return bool(found)

    wait_for(look, f"{words!r} in the log of {pod.name}", LOST_LIMIT_S)
    return min(found)


def lost_worker(cluster: LiveCluster) -> Iterator[Row]:
    """One of two groups is cut off from everything, and comes back."""
    before = undisturbed(cluster.address())
    _scaled_to(cluster, 2)
    lost = next(pod for pod in cluster.pods("worker") if pod.name.endswith("-1"))
    with OpenStreams([cluster.address()], LOST_STREAMS, TOKENS, renews=True) as during:
        began_s = time.time()
        with _cut_off(lost):
            peers = {"scheduler": cluster.leader(), "KV manager": cluster.pod("kvmanager")}
            words = "group 1: worker of epoch .* lost"
            after_s = {name: _told_after_s(cluster, pod, words, began_s) for name, pod in peers.items()}
            wait_for(lambda: time.time() > began_s + CUT_OFF_S, "the end of the cut", LOST_LIMIT_S)
        cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
    told = "; noticed by " + ", ".join(f"the {name} after {took_s:.1f} s" for name, took_s in after_s.items())
    row = _row("a worker's node is lost and comes back", during, before, told)
    yield Row(f"{row.what}; noticed within {NOTICED_S:g} s", row.holds and max(after_s.values()) <= NOTICED_S, row.told)
    with OpenStreams([cluster.address()], LOST_STREAMS, TOKENS) as after:
        pass
    yield _row("after it is back", after, before)
    _scaled_to(cluster, 1)


def lost_leader(cluster: LiveCluster) -> Iterator[Row]:
    """The leader's node is cut off, also from the API server."""
    before = undisturbed(cluster.address())
    leader = cluster.leader()
    _, term = cluster.lease()
    with OpenStreams([cluster.address()], LOST_STREAMS, TOKENS, renews=True) as during:
        with _cut_off(leader):
            took_s = wait_for(lambda: cluster.lease()[1] > term and cluster.lease()[0], "another leader", LOST_LIMIT_S)
            began_s = time.monotonic()
            wait_for(lambda: during.flows_since(began_s), "tokens by another leader", LOST_LIMIT_S)
        line = cluster.ended_with("scheduler", OVER, LOST_LIMIT_S, leader)
        cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
    told = f"; another leads after {took_s:.1f} s; back again the old one ends: `{line}`"
    yield _row("the leader's node is lost, and its Lease passes on", during, before, told)
