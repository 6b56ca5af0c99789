"""Stand-ins for what a cluster has beside its API server and its container runtime, in one process: kubelet,
controllers, scheduler, kube-proxy, network plugin, name server. One loop over all objects, a turn at every change.
"""

import argparse
import time
import traceback
from pathlib import Path

from tests.kubernetes.standin.api_objects import ApiClient, WatchedObjects
from tests.kubernetes.standin.controllers import Controllers
from tests.kubernetes.standin.cri_stubs import runtime_of
from tests.kubernetes.standin.names import serve_names
from tests.kubernetes.standin.pod_config import NodeFacts
from tests.kubernetes.standin.pod_life import NodeAgent
from tests.kubernetes.standin.service_addresses import Policies, ServiceAddresses

LONGEST_PAUSE_S = 0.5
LEAST_PAUSE_S = 0.03


def main() -> None:
    """Runs until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--cgroup", required=True)
    parser.add_argument("--nodes", required=True)
    args = parser.parse_args()
    facts = NodeFacts(args.folder, tuple(args.nodes.split(",")), args.gateway, args.cgroup)
    api = ApiClient(args.folder / "api" / "kubeconfig")
    for name in facts.nodes:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        node["metadata"]["labels"] = {"kubernetes.io/hostname": name}  # type: ignore[index]
        api.tried("POST", "/api/v1/nodes", node)
    objects = WatchedObjects(api)
    serve_names(objects, facts.gateway)
    parts = (
        Controllers(api, objects),
        NodeAgent(api, objects, runtime_of(args.runtime), facts),
        ServiceAddresses(api, objects),
        Policies(objects, facts.gateway),
    )
    print("ready", flush=True)
    while True:
        objects.changed.wait(LONGEST_PAUSE_S)
        objects.changed.clear()
        for part in parts:
            try:
                part.turn()
            except Exception:  # A turn that fails is told, and the next one tries again.
                traceback.print_exc()
        time.sleep(LEAST_PAUSE_S)


if __name__ == "__main__":
    main()
