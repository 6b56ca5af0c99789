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
from tests.kubernetes.open_streams import (
    EVER,
    STREAMS,
    TOKENS,
    OpenStream,
    OpenStreams,
    Window,
    outcome_of,
    undisturbed,
)
from tests.kubernetes.rows import Row
from tests.kubernetes.scenarios.leader import OVER

SETTLE_LIMIT_S = 150.0
LOST_STREAMS = 12
LOST_LIMIT_S = 60.0
NOTICED_S = 5.0


def _row(what: str, during: OpenStreams, before: list[OpenStream], more: str = "", window: Window = EVER) -> Row:
    outcome = outcome_of(during.streams, before, TOKENS, window)
    told = f"{outcome}; nothing for anybody for {during.silence_s(window):.1f} s{more}"
    return Row(f"{what}: no stream fails, greedy output is that of the undisturbed run", outcome.is_whole, told)


class Disturbed:
    """A cluster and the streams that are open in it while one thing after the other is done to it."""

    def __init__(self, cluster: LiveCluster, streams: OpenStreams) -> None:
        self._cluster, self._streams = cluster, streams
        self.seen: list[tuple[str, Window, str]] = []
        """What was done, from when until when, and what else is to be told of it."""

    def while_open(self, what: str, act: Callable[[], object], *, resumes: bool = False) -> None:
        """Do it. It is over when all pods are Ready, and tokens come. `resumes`: a client of a gateway that goes takes
        its stream up again elsewhere, and once the next gateways are there, no client asks an old one for more. What
        `act` returns is told, if it is text.
        """
        began_s = time.monotonic()
        self._streams.resumes = resumes
        told = act()
        self._streams.holds = resumes
        self._cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
        self._streams.holds = False
        settled_s = time.monotonic()
        wait_for(lambda: self._streams.flows_since(settled_s), f"tokens after {what}", SETTLE_LIMIT_S)
        self._streams.resumes = False
        window = Window(began_s, time.monotonic())
        took = f"; over after {window.ended_s - began_s:.0f} s"
        self.seen.append((what, window, (told if isinstance(told, str) else "") + took))


def under_streams(cluster: LiveCluster) -> Iterator[Row]:
    """So many streams are open all the time while pods are killed, replaced, drained and scaled. They come by the
    Service's address: a pod's own address goes with the pod. Those that were open meanwhile count for each row.
    """
    before = undisturbed(cluster.address())
    with OpenStreams([cluster.address()], STREAMS, TOKENS, renews=True) as during:
        disturbed = Disturbed(cluster, during)
        disturbed.while_open("SIGKILL of every pod but gateways, one after the other,", lambda: _kill(cluster, during))
        for component in COMPONENTS:
            disturbed.while_open(
                f"`kubectl rollout restart` of the {component}",
                lambda name=component: _roll(cluster, name),  # type: ignore[misc]
                resumes=component == "gateway",
            )
        disturbed.while_open("`kubectl drain` of the worker's node", lambda: _drain(cluster))
        _scale(cluster, 3)
        disturbed.while_open("scale 3 -> 1 -> 3", lambda: _scale(cluster, 1, 3))
    for what, window, more in disturbed.seen:
        yield _row(f"{what} under {STREAMS} streams", during, before, more, window)


def _roll(cluster: LiveCluster, component: str) -> None:
    kind = "statefulset" if component == "worker" else "deployment"
    cluster.kubectl("rollout", "restart", f"{kind}/fastserve-{component}")
    cluster.kubectl("rollout", "status", f"{kind}/fastserve-{component}", f"--timeout={SETTLE_LIMIT_S:.0f}s")


def _drain(cluster: LiveCluster) -> None:
    """The node that the worker is on."""
    node = cluster.pod("worker").node
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app.kubernetes.io/component=worker")
    cluster.kubectl("drain", node, *flags, f"--timeout={SETTLE_LIMIT_S:.0f}s")
    wait_for(lambda: len(cluster.pods("worker")) == 1, "the next worker", SETTLE_LIMIT_S)
    cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
    cluster.kubectl("uncordon", node)


def _scale(cluster: LiveCluster, *counts: int) -> None:
    """To one number of workers after the other."""
    for count in counts:
        cluster.kubectl("scale", "statefulset/fastserve-worker", f"--replicas={count}")
        wait_for(lambda count=count: len(cluster.pods("worker")) == count, f"{count} workers", SETTLE_LIMIT_S)  # type: ignore[misc]
        cluster.wait_settled(limit_s=SETTLE_LIMIT_S)


def _kill(cluster: LiveCluster, during: OpenStreams) -> str:
    """Every pod that clients are not connected to; for how long nothing came after each."""
    told: list[str] = []
    for pod in cluster.pods():
        if pod.component == "gateway":
            continue
        began_s = time.monotonic()
        cluster.signal(pod, signal.SIGKILL)
        wait_for(lambda pod=pod: _restarts(cluster, pod) > pod.restarts, f"the next life of {pod.name}", 60.0)  # type: ignore[misc]
        cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
        told.append(f"{pod.component} {during.silence_s(Window(began_s, time.monotonic())):.1f} s")
    return f" (after each: {', '.join(told)})"


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
    """One of several groups is cut off from everything until everybody has noticed, it too, and comes back."""
    before = undisturbed(cluster.address())
    if len(cluster.pods("worker")) == 1:
        _scale(cluster, 2)
    lost = cluster.pods("worker")[-1]
    group = lost.name.rpartition("-")[2]
    with OpenStreams([cluster.address()], LOST_STREAMS, TOKENS, renews=True) as during:
        began_s = time.time()
        with _cut_off(lost):
            peers = {"scheduler": cluster.leader(), "KV manager": cluster.pod("kvmanager")}
            words = f"group {group}: worker of epoch .* lost"
            after_s = {name: _told_after_s(cluster, pod, words, began_s) for name, pod in peers.items()}
            _told_after_s(cluster, lost, "no stream to scheduler and KV manager", began_s)
            noticed_s = time.monotonic()
            wait_for(lambda: during.flows_since(noticed_s), "tokens of another group", LOST_LIMIT_S)
            cut_s = time.time() - began_s
        cluster.wait_settled(limit_s=SETTLE_LIMIT_S)
    told = "; noticed by " + ", ".join(f"the {name} after {took_s:.1f} s" for name, took_s in after_s.items())
    row = _row("a worker's node is lost and comes back", during, before, f"{told}; cut off for {cut_s:.1f} s")
    yield Row(f"{row.what}; noticed within {NOTICED_S:g} s", row.holds and max(after_s.values()) <= NOTICED_S, row.told)
    with OpenStreams([cluster.address()], LOST_STREAMS, TOKENS) as after:
        pass
    yield _row("after it is back", after, before)


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
