"""Who leads: handed over, taken over, never twice; client-go's election as the judge; and without an API server."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.kubernetes.live import READY_LIMIT_S, LiveCluster
from tests.kubernetes.machine import RUN, wait_for
from tests.kubernetes.open_streams import OpenStreams, outcome_of
from tests.kubernetes.programs import PROGRAMS
from tests.kubernetes.rows import Row

LEASE_S = 4.0
HANDED_OVER_S = 2.0
TAKEN_OVER_S = LEASE_S + 2.0
AWAY_S = 60.0
MOST_SCHEDULER_MB = 200.0
CHANGE_LIMIT_S = 30.0
STREAMS, TOKENS = 12, 200
OVER = "another scheduler holds the Lease now|leads; term"
"""How a scheduler ends that led: by its Lease, or because a peer tells it of a newer term."""


def _next_leader_s(cluster: LiveCluster, act: Callable[[], object]) -> float:
    """Seconds from what is done until another holds the Lease in a newer term."""
    _, term = cluster.lease()
    act()
    began_s = time.monotonic()

    def changed() -> bool:
        holder, newer = cluster.lease()
        return bool(holder) and newer > term

    wait_for(changed, "another leader", CHANGE_LIMIT_S)
    return time.monotonic() - began_s


def _serving_s(cluster: LiveCluster) -> float:
    """Seconds until a client is served again."""

    def served() -> bool:
        try:
            return bool(cluster.fastserve("generate", "x", "--server", cluster.address(), "--max-tokens", "4"))
        except subprocess.CalledProcessError:
            return False

    return wait_for(served, "an answer", CHANGE_LIMIT_S)


def hand_over(cluster: LiveCluster) -> Iterator[Row]:
    """A leader that is told to end, one that is killed, and one that was paused and wakes."""
    memory = {pod.name: cluster.memory_mb(pod) for pod in cluster.pods("scheduler")}
    told = ", ".join(f"{number:.0f} MB" for number in memory.values())
    yield Row(f"a scheduler takes less than {MOST_SCHEDULER_MB:g} MB", max(memory.values()) < MOST_SCHEDULER_MB, told)
    leader = cluster.leader()
    took_s = _next_leader_s(cluster, lambda: cluster.kubectl("delete", "pod", leader.name, "--wait=false"))
    what = f"leader told to end: the next leads within {HANDED_OVER_S:g} s, and serves"
    yield Row(what, took_s <= HANDED_OVER_S, f"{took_s:.2f} s; a client is served {_serving_s(cluster):.1f} s later")
    cluster.wait_settled()
    killed = cluster.leader()
    took_s = _next_leader_s(cluster, lambda: cluster.signal(killed, signal.SIGKILL))
    what = f"leader killed: the next leads within the Lease's {LEASE_S:g} s + 2 s, and serves"
    yield Row(what, took_s <= TAKEN_OVER_S, f"{took_s:.2f} s; a client is served {_serving_s(cluster):.1f} s later")
    cluster.wait_settled()
    yield _woken(cluster)


def _woken(cluster: LiveCluster) -> Row:
    paused = cluster.leader()
    took_s = _next_leader_s(cluster, lambda: cluster.signal(paused, signal.SIGSTOP))
    _, term = cluster.lease()
    _serving_s(cluster)
    with OpenStreams([cluster.address()], STREAMS, TOKENS) as open_streams:
        cluster.signal(paused, signal.SIGCONT)
        line = cluster.ended_with("scheduler", OVER, after=paused)
    failed = [stream.failure for stream in open_streams.streams if stream.failure]
    same = cluster.lease()[1] == term
    cluster.wait_settled()
    told = f"taken over after {took_s:.1f} s; the old one ends: {line!r}; {len(failed)} of {STREAMS} streams failed"
    return Row("leader paused, then woken: it commands nobody, and no stream notices", same and not failed, told)


@contextmanager
def _judge(cluster: LiveCluster, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """client-go's election, taking part; ended at the end."""
    with (RUN / f"{name}.log").open("wb") as log:
        argv = [str(PROGRAMS / "elector"), "-kubeconfig", str(cluster.kubeconfig), "-identity", name]
        judge = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            wait_for(lambda: "sees" in (RUN / f"{name}.log").read_text(), "the judge to see a leader", CHANGE_LIMIT_S)
            yield judge
        finally:
            judge.kill()
            judge.wait()


def shared_with_client_go(cluster: LiveCluster) -> Iterator[Row]:
    """Both ways: what one gives back or no longer renews, the other takes, by the same rules and in the next term."""
    _schedulers(cluster, 1)
    wait_for(lambda: cluster.lease()[0], "a leader", CHANGE_LIMIT_S)
    _, term = cluster.lease()
    with _judge(cluster, "judge") as judge:
        took_s = _next_leader_s(cluster, lambda: _schedulers(cluster, 0))
        holder, after = cluster.lease()
        told = f"{holder!r} after {took_s:.2f} s, term {term} -> {after}"
        what = f"a scheduler gives the Lease back: client-go's election takes it within {HANDED_OVER_S:g} s"
        yield Row(what, holder == "judge" and took_s <= HANDED_OVER_S and after == term + 1, told)
        _schedulers(cluster, 1)
        took_s = _next_leader_s(cluster, lambda: judge.send_signal(signal.SIGTERM))
        what = f"client-go's election gives it back: a scheduler takes it within {HANDED_OVER_S:g} s"
        yield Row(what, took_s <= HANDED_OVER_S and cluster.lease()[1] == after + 1, f"{took_s:.2f} s")
    with _judge(cluster, "killed-judge") as judge:
        _next_leader_s(cluster, lambda: _schedulers(cluster, 0))
        _schedulers(cluster, 1)
        took_s = _next_leader_s(cluster, judge.kill)
        what = f"client-go's election is killed: a scheduler leads within {TAKEN_OVER_S:g} s"
        yield Row(what, took_s <= TAKEN_OVER_S, f"{took_s:.2f} s")
    _schedulers(cluster, 2)
    cluster.wait_settled()


def _schedulers(cluster: LiveCluster, count: int) -> None:
    """So many, and all of them ready. With none, the judge is the only one who can take the Lease."""
    cluster.kubectl("scale", "deployment/fastserve-scheduler", f"--replicas={count}")
    if count:
        wait_for(
            lambda: [pod.is_ready and not pod.is_leaving for pod in cluster.pods("scheduler")] == [True] * count,
            f"{count} schedulers",
            READY_LIMIT_S,
        )


def without_api_server(cluster: LiveCluster) -> Iterator[Row]:
    """The API server stops answering for a minute, while streams come and go."""
    addresses = [f"{pod.ip}:50051" for pod in cluster.pods("gateway")]
    with OpenStreams(addresses, STREAMS, TOKENS) as before:
        pass
    holder, term = cluster.lease()
    api_server = cluster.machine.api_server
    assert api_server is not None
    api_server.send_signal(signal.SIGSTOP)
    back = threading.Timer(AWAY_S, lambda: api_server.send_signal(signal.SIGCONT))
    back.start()
    try:
        with OpenStreams(addresses, STREAMS, TOKENS, renews=True) as during:
            back.join()
    finally:
        back.join()
    wait_for(lambda: cluster.lease() == (holder, term), "the same leader in the same term", CHANGE_LIMIT_S)
    outcome = outcome_of(during.streams, before.streams, TOKENS)
    told = f"{outcome}; nothing for anybody for {during.silence_s():.1f} s; the same leader in term {term}"
    yield Row(f"API server away for {AWAY_S:g} s: no stream notices, the leader leads on", outcome.is_whole, told)
