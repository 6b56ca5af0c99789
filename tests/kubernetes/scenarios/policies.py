"""NetworkPolicies: whoever has to be called can be, and nobody else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tests.kubernetes.live import COMPONENTS, LiveCluster
from tests.kubernetes.machine import GATEWAY, wait_for
from tests.kubernetes.programs import PAUSE_IMAGE
from tests.kubernetes.rows import Row

PORTS = (50051, 50052, 50053, 50054, 8080, 9090)
API_SERVER = ("API server", GATEWAY, 6443)
CALLS = {
    ("gateway", "scheduler", 50052),
    ("scheduler", "kvmanager", 50053),
    ("scheduler", "API server", 6443),
    ("worker", "scheduler", 50052),
    ("worker", "kvmanager", 50053),
}
OUTSIDERS = {"client": {}, "prometheus": {"fastserve.io/scrapes": "true"}}
"""Namespaces with a pod each, and what is written on them."""
KNOCK = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def knock(place):
    try:
        socket.create_connection(place, 1.5).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return False
    return True
places = [tuple(place) for place in json.load(sys.stdin)]
with ThreadPoolExecutor(len(places)) as pool:
    print(json.dumps(list(pool.map(knock, places))))
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A pod that calls or is called."""

    component: str
    ip: str
    container_id: str = ""


def _may(caller: str, called: str, port: int) -> bool:
    if caller in OUTSIDERS:
        is_open = called == "gateway" and port in (50051, 8080)
        return called == API_SERVER[0] or is_open or (caller == "prometheus" and port == 9090)
    return (caller, called, port) in CALLS


def _outsiders(cluster: LiveCluster) -> list[Place]:
    for name, labels in OUTSIDERS.items():
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "caller", "namespace": name}}
        spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
        pod |= {"spec": {**spec, "containers": [{"name": "caller", "image": PAUSE_IMAGE}]}}
        cluster.kubectl("apply", "-f", "-", text=json.dumps(space))
        cluster.kubectl("apply", "-n", name, "-f", "-", text=json.dumps(pod))
    found: dict[str, Place] = {}

    def there() -> bool:
        for name in OUTSIDERS:
            status = cluster.get("pod", "caller", "-n", name).get("status", {})
            container = (
                (status.get("containerStatuses") or [{}])[0].get("containerID", "").removeprefix("containerd://")
            )
            if container and status.get("podIP"):
                found[name] = Place(name, status["podIP"], container)
        return len(found) == len(OUTSIDERS)

    wait_for(there, "the pods outside", 30.0)
    return list(found.values())


def _knocks(cluster: LiveCluster, caller: Place, pairs: list[tuple[str, str, int]]) -> list[bool]:
    """Whether each (component, address, port) can be reached from the caller's pod; refused is reached."""
    pid = str(cluster.machine.pid_of(caller.container_id))
    argv = ["nsenter", "-t", pid, "-n", sys.executable, "-I", "-S", "-c", KNOCK]
    done = subprocess.run(
        argv, input=json.dumps([pair[1:] for pair in pairs]), capture_output=True, text=True, check=True
    )
    answers: list[bool] = json.loads(done.stdout)
    return answers


def who_may_call(cluster: LiveCluster) -> Iterator[Row]:
    """Every pod calls every port of every other, and the API server; all at once, because most of it is waiting."""
    inside = [Place(name, pod.ip, pod.container_id) for name in COMPONENTS for pod in cluster.pods(name)]
    callers = [*inside, *_outsiders(cluster)]
    pairs_of = [
        [*((one.component, one.ip, port) for one in inside if one is not caller for port in PORTS), API_SERVER]
        for caller in callers
    ]
    with ThreadPoolExecutor(len(callers)) as pool:
        answers_of = list(pool.map(partial(_knocks, cluster), callers, pairs_of))
    wrong: list[str] = []
    reached = refused = 0
    for caller, pairs, answers in zip(callers, pairs_of, answers_of, strict=True):
        for (called, _, port), answer in zip(pairs, answers, strict=True):
            if answer != _may(caller.component, called, port):
                wrong.append(f"{caller.component} {'reaches' if answer else 'does not reach'} {called}:{port}")
            reached, refused = reached + answer, refused + (not answer)
    for name in OUTSIDERS:
        cluster.kubectl("delete", "-n", name, "pod", "caller", "--wait=false")
    told = "; ".join(sorted(set(wrong))) or f"{reached} pairs connect, {refused} time out"
    yield Row("each component is open to its callers only, and calls only whom it needs", not wrong, told)
