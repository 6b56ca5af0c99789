"""Component tls: services read their certificate from the Secret, and probes go round TLS. Each rule is broken once."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.manifests.assertions import faults
from deploy.manifests.pods import started
from deploy.manifests.rendering import parse, render_text, write_combination
from deploy.manifests.schemas import schema_faults
from services.gateway.settings import GatewaySettings
from services.runtime.tls.tls_files import TlsFiles
from services.runtime.tls.tls_settings import TlsSettings

Objects = list[Any]
FOLDER = Path("/etc/fastserve-tls")
FILES = TlsFiles(FOLDER / "tls.crt", FOLDER / "tls.key", FOLDER / "ca.crt")


@pytest.fixture(scope="module")
def secured() -> Objects:
    """With whatever else it changes."""
    return list(parse(render_text(write_combination(("keda", "network-policies", "rest", "tls")))))


def found(objects: Objects, kind: str, name: str) -> Any:
    return next(one for one in objects if one["kind"] == kind and one["metadata"]["name"] == f"fastserve-{name}")


def pod(objects: Objects, component: str) -> Any:
    kind = "StatefulSet" if component == "worker" else "Deployment"
    return found(objects, kind, component)["spec"]["template"]["spec"]


def container(objects: Objects, component: str, number: int = 0) -> Any:
    return pod(objects, component)["containers"][number]


def test_services_read_the_secret_and_speak_tls_with_each_other_and_with_clients(secured: Objects) -> None:
    assert schema_faults(secured) == []
    assert faults(secured) == []
    settings = {one.name: given for one, _, given in started(secured) if isinstance(given, TlsSettings)}
    assert settings.keys() == {f"fastserve-{name}" for name in ("gateway", "scheduler", "kvmanager", "worker")}
    assert {given.tls for given in settings.values()} == {FILES}
    gateway = settings["fastserve-gateway"]
    assert isinstance(gateway, GatewaySettings)
    assert gateway.public_tls == TlsFiles(FILES.cert, FILES.key)
    for name in ("gateway", "scheduler", "kvmanager", "worker"):
        (volume,) = [one for one in pod(secured, name)["volumes"] if "secret" in one]
        assert volume["secret"]["secretName"] == "fastserve-tls"


def test_groups_of_several_pods_and_their_ranks_speak_tls_too() -> None:
    objects = parse(render_text(write_combination(("lws", "tls"))))
    assert faults(objects) == []
    groups = [given for one, _, given in started(objects) if one.name == "fastserve-worker"]
    assert [isinstance(given, TlsSettings) and given.tls == FILES for given in groups] == [True, True]


BROKEN: dict[str, tuple[Callable[[Objects], Any], str]] = {
    "a service without TLS among others with it": (
        lambda all: container(all, "kvmanager").update(args=["--listen=0.0.0.0:50053", "--metrics-port=9090"]),
        "fastserve-kvmanager: speaks no TLS, and its peers do",
    ),
    "half a set of files": (
        lambda all: container(all, "worker")["args"].remove("--tls-key=/etc/fastserve-tls/tls.key"),
        "--tls-key must be given too",
    ),
    "files that nothing mounts": (
        lambda all: container(all, "scheduler").update(volumeMounts=container(all, "scheduler")["volumeMounts"][:2]),
        "fastserve-scheduler: scheduler reads /etc/fastserve-tls/tls.crt, and no Secret is mounted there",
    ),
    "files in a map that anybody may read": (
        lambda all: pod(all, "worker")["volumes"][-1].pop("secret"),
        "fastserve-worker: worker reads /etc/fastserve-tls/tls.key, and no Secret is mounted there",
    ),
    "probes of a port with TLS": (
        lambda all: container(all, "scheduler")["livenessProbe"]["grpc"].update(port=50052),
        "fastserve-scheduler: livenessProbe asks 'liveness' on port 50052",
    ),
    "no port without TLS": (
        lambda all: container(all, "kvmanager")["args"].remove("--probe-listen=0.0.0.0:50061"),
        "fastserve-kvmanager: speaks TLS where it is probed, and probes do not",
    ),
    "a port for probes that its container does not name": (
        lambda all: container(all, "kvmanager")["ports"].pop(),
        "fastserve-kvmanager: is probed at port 50061, which its container does not name",
    ),
    "a front that expects another certificate": (
        lambda all: container(all, "gateway", 1)["args"].remove("--gateway-cert=/etc/fastserve-tls/tls.crt"),
        "fastserve-gateway: its gateway shows /etc/fastserve-tls/tls.crt, and its front expects None",
    ),
    "a front in plain text": (
        lambda all: container(all, "gateway", 1)["args"].remove("--tls-cert=/etc/fastserve-tls/tls.crt"),
        "fastserve-gateway: of gateway and front only one speaks TLS to clients",
    ),
    "a front that is probed in plain text": (
        lambda all: container(all, "gateway", 1)["livenessProbe"]["httpGet"].pop("scheme"),
        "fastserve-gateway: livenessProbe of its front does not ask by HTTPS",
    ),
    "a Service that calls TLS plain text": (
        lambda all: found(all, "Service", "gateway-pods")["spec"]["ports"][0].update(appProtocol="kubernetes.io/h2c"),
        "Service fastserve-gateway-pods: port grpc is said to be kubernetes.io/h2c",
    ),
    "a Service that calls REST over TLS plain text": (
        lambda all: found(all, "Service", "gateway")["spec"]["ports"][2].update(appProtocol="http"),
        "Service fastserve-gateway: port http is said to be http",
    ),
    "KEDA without a certificate": (
        lambda all: found(all, "ScaledObject", "worker")["spec"]["triggers"][0].pop("authenticationRef"),
        "ScaledObject fastserve-worker: shows the scheduler no certificate",
    ),
    "a certificate of KEDA that is not there": (
        lambda all: all.remove(found(all, "TriggerAuthentication", "tls")),
        "ScaledObject fastserve-worker: there is no TriggerAuthentication fastserve-tls",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_of_tls_is_told(what: str, secured: Objects) -> None:
    break_it, told = BROKEN[what]
    objects = copy.deepcopy(secured)
    break_it(objects)
    assert any(told in fault for fault in faults(objects)), faults(objects)
