"""Component keys: the gateways, and nobody else, read the file of keys from the Secret that is mounted."""

from pathlib import Path

from deploy.manifests.assertions import faults
from deploy.manifests.pods import settings_of, workloads
from deploy.manifests.rendering import APART, components, parse, render_text, subsets, write_combination
from deploy.manifests.schemas import schema_faults
from services.gateway.settings import GatewaySettings


def test_the_gateway_reads_its_keys_from_the_secret() -> None:
    objects = parse(render_text(write_combination(("keys", "rest"))))
    assert schema_faults(objects) == []
    assert faults(objects) == []
    (gateway,) = [one for one in workloads(objects) if one.name == "fastserve-gateway"]
    container = gateway.containers[0]
    settings = settings_of(gateway, container, objects)
    assert isinstance(settings, GatewaySettings)
    assert settings.api_keys_file == Path("/etc/fastserve-keys/keys.json")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in gateway.spec["volumes"]}
    assert volumes[mounts["/etc/fastserve-keys"]]["secret"]["secretName"] == "fastserve-keys"
    others = [one for one in workloads(objects) if one.name != "fastserve-gateway"]
    assert not [one.name for one in others if "fastserve-keys" in str(one.pod)]


def test_what_stands_apart_is_judged_alone_and_with_most_others() -> None:
    judged = [set(chosen) for chosen in subsets(components())]
    assert {"keys"} in judged
    assert max(map(len, judged)) == max(len(chosen) for chosen in judged if "keys" in chosen)
    assert all({"tls", other} in judged for other in components() if other not in APART)
    assert len([chosen for chosen in judged if chosen & APART.keys()]) < 20
