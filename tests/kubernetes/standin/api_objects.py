"""The API server as the stand-ins see it: requests, and copies of all objects, kept current by watches."""

import json
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
KINDS = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "nodes": "/api/v1",
    "namespaces": "/api/v1",
    "deployments": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
}
REQUEST_LIMIT_S = 30.0
WATCH_LIMIT_S = 3600.0


class ApiClient:
    """Requests as the administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.server: str = cluster["server"]
        self.ca_file: str = cluster["certificate-authority"]
        self._token: str = config["users"][0]["user"]["token"]
        self._context = ssl.create_default_context(cafile=self.ca_file)

    def open(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", limit_s: float = REQUEST_LIMIT_S
    ) -> Any:
        """The answer, to be read and closed. Raises OSError, of which HTTPError is one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind, "Accept": "application/json"}
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        return urllib.request.urlopen(request, context=self._context, timeout=limit_s)

    def json(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The answer as plain values. Raises OSError."""
        with self.open(method, path, body, kind) as answer:
            return json.load(answer)

    def tried(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> str | None:
        """None if it was done, else why not: somebody else changed the object, and the next turn sees that."""
        try:
            self.json(method, path, body, kind)
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()[:400]}"
        except OSError as error:
            return str(error)
        return None


def key_of(one: Manifest) -> str:
    """NAMESPACE/NAME."""
    return f"{one['metadata'].get('namespace', '')}/{one['metadata']['name']}"


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Of one object, or of all of a namespace."""
    return f"{KINDS[kind]}/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector of `matchLabels` chooses these labels; an empty one chooses all, none chooses nothing."""
    if selector is None:
        return False
    assert not selector.keys() - {"matchLabels"}, selector
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def labels_of(one: Manifest) -> Mapping[str, str]:
    labels: Mapping[str, str] = one["metadata"].get("labels") or {}
    return labels


def is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def is_leaving(one: Manifest) -> bool:
    return bool(one["metadata"].get("deletionTimestamp"))


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class WatchedObjects:
    """All objects of KINDS. `changed` is set after every change."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._objects: dict[str, dict[str, Manifest]] = {kind: {} for kind in KINDS}
        self._lock = threading.Lock()
        self.changed = threading.Event()
        for kind in KINDS:
            threading.Thread(target=self._follow, args=(kind,), daemon=True).start()

    def all(self, kind: str) -> list[Manifest]:
        with self._lock:
            return list(self._objects[kind].values())

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        with self._lock:
            return self._objects[kind].get(f"{namespace}/{name}")

    def _follow(self, kind: str) -> None:
        while True:
            try:
                self._watch(kind)
            except OSError as error:
                # The API server is away, which is a case of the test.
                print(f"watch of {kind}: {error}", file=sys.stderr, flush=True)
                time.sleep(0.2)

    def _watch(self, kind: str) -> None:
        listed = self._api.json("GET", f"{KINDS[kind]}/{kind}")
        with self._lock:
            self._objects[kind] = {key_of(one): one for one in listed["items"]}
        self.changed.set()
        path = f"{KINDS[kind]}/{kind}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}"
        with self._api.open("GET", path, limit_s=WATCH_LIMIT_S) as lines:
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                one = event["object"]
                with self._lock:
                    if event["type"] == "DELETED":
                        self._objects[kind].pop(key_of(one), None)
                    else:
                        self._objects[kind][key_of(one)] = one
                self.changed.set()
