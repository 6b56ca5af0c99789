"""Applied at once and in the worst order, restricted, and serving."""

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.kubernetes.live import OVERLAY, READY_LIMIT_S, KubectlError, LiveCluster
from tests.kubernetes.machine import wait_for
from tests.kubernetes.rows import Row

PODS = 6
"""Two gateways, two schedulers, a KV manager, a worker."""
TOKENS = "secrets/kubernetes.io/serviceaccount"
GONE_LIMIT_S = 90.0
TERM_BIT = 1 << (signal.SIGTERM - 1)
MOST_LAUNCHES = 5
HTTP_LIMIT_S = 30.0


def _came_up(cluster: LiveCluster, how: str) -> Row:
    took_s = cluster.wait_settled(PODS)
    restarts = sum(pod.restarts for pod in cluster.pods())
    what = f"applied {how}: all pods Ready within {READY_LIMIT_S:g} s, no restart"
    return Row(what, not restarts, f"{took_s:.1f} s, {restarts} restarts")


def _generates(cluster: LiveCluster) -> Row:
    flags = ("--max-tokens", "24", "--temperature", "0")
    text = cluster.fastserve("generate", "def main", "--server", cluster.address(), *flags)
    return Row("`fastserve generate` streams text", bool(text.strip()), repr(text[:40]))


def _answers_http(cluster: LiveCluster) -> Row:
    url = f"http://{cluster.address(port=8080)}/v1/completions"
    asked = {"model": "fastserve-bundled", "prompt": "def main", "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HTTP_LIMIT_S) as answer:
        text = json.load(answer)["choices"][0]["text"]
    return Row("component rest: `POST /v1/completions` is answered", bool(text.strip()), repr(text[:40]))


def _documents() -> list[str]:
    rendered = subprocess.run(["kubectl", "kustomize", str(OVERLAY)], capture_output=True, text=True, check=True)
    return rendered.stdout.split("\n---\n")


def in_any_order(cluster: LiveCluster) -> Iterator[Row]:
    """All objects at once; then, after everything was deleted, the last one first."""
    cluster.kubectl("apply", "-k", str(OVERLAY))
    yield _came_up(cluster, "at once")
    documents = _documents()
    space = [one for one in documents if yaml.safe_load(one)["kind"] == "Namespace"]
    others = [one for one in documents if one not in space]
    cluster.kubectl("delete", "--wait=false", "-f", "-", text="\n---\n".join(others))
    # A gateway that is told to end still serves for some seconds: it is in nobody's way.
    wait_for(lambda: {pod.component for pod in cluster.pods()} <= {"gateway"}, "the pods gone", GONE_LIMIT_S)
    # Not of the manifests. A leader whose Role goes first can't give it back.
    cluster.kubectl("delete", "lease", "fastserve-scheduler")
    cluster.kubectl("apply", "-f", "-", text="\n---\n".join(reversed(others)))
    yield _came_up(cluster, "in reverse order")
    yield _generates(cluster)
    yield _answers_http(cluster)


def restricted(cluster: LiveCluster) -> Iterator[Row]:
    """Pod Security, and what the containers' processes are allowed to."""
    try:
        cluster.kubectl("run", "as-root", "--image=localhost/pause:1")
        refusal = "it was taken"
    except KubectlError as error:
        refusal = str(error).splitlines()[0]
    yield Row("a pod that is not restricted is refused", 'violates PodSecurity "restricted' in refusal, refusal[:110])
    wrong: list[str] = []
    pods = cluster.pods()
    for pod in pods:
        process = Path(f"/proc/{cluster.machine.pid_of(pod.container_id)}")
        facts = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
        own = facts["Uid"].split()[0], facts["CapEff"].strip("0 "), facts["NoNewPrivs"], facts["Seccomp"]
        if own != ("10001", "", "1", "2"):
            wrong.append(f"{pod.name} has {own}")
        mounts = (process / "mountinfo").read_text().splitlines()
        root = next(line for line in mounts if line.split()[4] == "/")
        if "ro" not in root.split()[5].split(","):
            wrong.append(f"{pod.name} may write its root")
        if any(TOKENS in line.split()[4] for line in mounts) != ("scheduler" in pod.name):
            wrong.append(f"{pod.name}: a token of the API is where none is used, or missing")
    what = "every container: uid 10001, no capabilities, no new privileges, seccomp, read-only root, no idle token"
    yield Row(what, not wrong, "; ".join(wrong) or f"{len(pods)} containers")


def ends_at_once(cluster: LiveCluster) -> Iterator[Row]:
    """SIGTERM to the first process of a container that has only just begun: as soon as it holds the signal back, which
    is what its launcher does first.
    """
    codes: list[str] = []
    for component in ("kvmanager", "gateway", "scheduler", "worker"):
        name = f"early-{component}"
        _begin_to_launch(cluster, component, name)
        cluster.machine.ctr("tasks", "kill", "--signal", "SIGTERM", name)
        began_s = time.monotonic()
        wait_for(lambda name=name: _status(cluster, name) != "RUNNING", f"the end of {component}", 20.0)  # type: ignore[misc]
        code = cluster.machine.ctr_status("tasks", "delete", name)
        codes.append(f"{component} {code} after {time.monotonic() - began_s:.1f} s")
        cluster.machine.ctr("containers", "delete", name)
    holds = all(one.split()[1] == "0" for one in codes)
    yield Row("SIGTERM right after the start of a container ends it with 0", holds, ", ".join(codes))


def _begin_to_launch(cluster: LiveCluster, component: str, name: str) -> None:
    """A container that holds the signal back and has just begun. On a busy machine one may be over before it is seen,
    because it is told nothing of its peers: then another one is started.
    """
    for _ in range(MOST_LAUNCHES):
        cluster.machine.ctr("run", "-d", "--null-io", f"docker.io/fastserve/{component}:dev", name)
        try:
            status = Path(f"/proc/{cluster.machine.pid_of(name)}/status")
            wait_for(lambda status=status: _blocked(status) & TERM_BIT, f"the launcher of {component}", 20.0)  # type: ignore[misc]
            return
        except (FileNotFoundError, ProcessLookupError, LookupError, StopIteration):
            cluster.machine.ctr("tasks", "delete", "--force", name)
            cluster.machine.ctr("containers", "delete", name)
    raise TimeoutError(f"{component} was over each of {MOST_LAUNCHES} times before it was seen")


def _blocked(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("SigBlk:"))
    return int(line.split()[1], 16)


def _status(cluster: LiveCluster, name: str) -> str:
    for line in cluster.machine.ctr("tasks", "ls").splitlines():
        if line.split()[0] == name:
            return line.split()[2]
    return ""
