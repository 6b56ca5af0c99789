"""KEDA's own operator beside the cluster, and the stand-in for the HPA controller, which asks the operator for metrics
as KEDA's metrics server does: over its gRPC MetricsService, with mutual TLS.
"""

import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.builders.certificates import CertificateAuthority, IssuedFiles
from tests.kubernetes.live import NAMESPACE
from tests.kubernetes.machine import GATEWAY, RUN, end, wait_for
from tests.kubernetes.programs import PROGRAMS
from tests.kubernetes.standin.api_objects import MERGE, ApiClient
from tests.kubernetes.standin.pod_autoscaler import PodAutoscaler, quantity

HEALTH, METRICS, METRICS_SERVICE = "127.0.0.1:8181", "127.0.0.1:8180", "127.0.0.1:9666"
OPERATOR_LIMIT_S = 90.0
ASK_LIMIT_S = 5.0
PERIOD_S = 1.0
HPAS = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
SCALE = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/fastserve-worker/scale"
OWNER_LABEL = "scaledobject.keda.sh/name"


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://{HEALTH}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def keda_operator(kubeconfig: Path) -> Iterator[IssuedFiles]:
    """The operator as a process of this machine and administrator, which looks names up as pods do. Ended at the end.
    Yields the certificate by which it is asked.
    """
    folder = RUN / "keda"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    issued = CertificateAuthority().issue(folder, "tls")
    shutil.copy(issued.ca, folder / "ca.crt")
    names = folder / "resolv.conf"
    names.write_text(f"nameserver {GATEWAY}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n")
    argv = [
        str(PROGRAMS / "keda-operator"),
        f"--metrics-bind-address={METRICS}",
        f"--health-probe-bind-address={HEALTH}",
    ]
    argv += [f"--metrics-service-bind-address={METRICS_SERVICE}", f"--cert-dir={folder}", "--zap-log-level=info"]
    own_names = ["unshare", "-m", "--propagation", "private", "sh", "-c"]
    environ = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda",
        "WATCH_NAMESPACE": "",
        "POD_NAMESPACE": "keda",
    }
    with (RUN / "keda.log").open("wb") as log:
        command = f'mount --bind {names} /etc/resolv.conf && exec "$@"'
        operator = subprocess.Popen([*own_names, command, "sh", *argv], stdout=log, stderr=log, env=environ)
        try:
            wait_for(_is_ready, "KEDA's operator", OPERATOR_LIMIT_S)
            yield issued
        finally:
            end(operator)


class AutoscalerStandin:
    """Scales the workers as their HPA says, until the context ends. `changes` tells each change, `troubles` what could
    not be asked.
    """

    def __init__(self, kubeconfig: Path, issued: IssuedFiles) -> None:
        self._api = ApiClient(kubeconfig)
        self._issued = issued
        # Made from KEDA's module, which only this scenario needs.
        self._wire: Any = __import__("keda_metrics_pb2")
        self._stubs: Any = __import__("keda_metrics_pb2_grpc")
        self._rule = PodAutoscaler()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.changes: list[str] = []
        self.troubles: list[str] = []

    def __enter__(self) -> "AutoscalerStandin":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        ca, key, cert = (file.read_bytes() for file in (self._issued.ca, self._issued.key, self._issued.cert))
        with grpc.secure_channel(METRICS_SERVICE, grpc.ssl_channel_credentials(ca, key, cert)) as channel:
            metrics = self._stubs.MetricsServiceStub(channel)
            while not self._ended.wait(PERIOD_S):
                try:
                    self._turn(metrics)
                except (grpc.RpcError, urllib.error.URLError) as error:
                    self.troubles.append(str(error))

    def _turn(self, metrics: Any) -> None:
        for one in self._api.json("GET", HPAS)["items"]:
            spec = one["spec"]
            present = self._api.json("GET", SCALE)["spec"].get("replicas", 0)
            if not present:
                continue
            values = []
            for metric in spec["metrics"]:
                asks = metric["external"]["metric"]
                owner = asks["selector"]["matchLabels"][OWNER_LABEL]
                asked = self._wire.ScaledObjectRef(name=owner, namespace=NAMESPACE, metricName=asks["name"])
                found = metrics.GetMetrics(asked, timeout=ASK_LIMIT_S)
                values.append(sum(quantity(item.value.string) for item in found.items))
            count = self._rule.replicas(spec, present, values, time.monotonic())
            if count != present:
                self._api.json("PATCH", SCALE, {"spec": {"replicas": count}}, MERGE)
                self.changes.append(f"{present} -> {count}")
