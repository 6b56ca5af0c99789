"""The stand-in for kube-proxy and the network plugin, by iptables: addresses of Services, and NetworkPolicies."""

import subprocess
from collections.abc import Iterator
from typing import Any

from tests.kubernetes.standin.api_objects import (
    MERGE,
    ApiClient,
    Manifest,
    WatchedObjects,
    key_of,
    labels_of,
    matches,
    path_of,
)

FIRST_ADDRESS, MOST_ADDRESSES = 10, 250


class Tables:
    """Rules that are written when they have changed. `hooks` are (table, chain, own chain)."""

    def __init__(self, hooks: tuple[tuple[str, str, str], ...]) -> None:
        self._hooks = hooks
        self._written = ""

    def write(self, rules: dict[str, list[str]]) -> None:
        """`rules` by table. All own chains begin anew."""
        text = ""
        for table, lines in rules.items():
            chains = sorted({own for place, _, own in self._hooks if place == table})
            text += "\n".join([f"*{table}", *(f":{chain} - [0:0]" for chain in chains), *lines, "COMMIT", ""])
        if text == self._written:
            return
        subprocess.run(["iptables-restore", "--noflush"], input=text, text=True, check=True)
        for table, chain, own in self._hooks if not self._written else ():
            subprocess.run(["iptables", "-t", table, "-A", chain, "-j", own], check=True)
        self._written = text


class ServiceAddresses:
    """A number for every Service that is not headless, which leads to its ready endpoints."""

    def __init__(self, api: ApiClient, objects: WatchedObjects) -> None:
        self._api, self._objects = api, objects
        hooks = [("nat", chain, "SERVICES") for chain in ("PREROUTING", "OUTPUT")]
        self._tables = Tables((*hooks, *(("filter", chain, "NOBODY") for chain in ("FORWARD", "OUTPUT"))))

    def turn(self) -> None:
        """Give addresses, and write what they lead to."""
        services = [one for one in self._objects.all("services") if one["spec"].get("clusterIP") != "None"]
        used = {one["spec"].get("clusterIP") for one in services}
        free = (f"10.96.0.{number}" for number in range(FIRST_ADDRESS, MOST_ADDRESSES))
        for one in services:
            if not one["spec"].get("clusterIP"):
                address = next(address for address in free if address not in used)
                path = path_of("services", one["metadata"]["namespace"], one["metadata"]["name"])
                self._api.tried("PATCH", path, {"spec": {"clusterIP": address, "clusterIPs": [address]}}, MERGE)
        leads: list[str] = []
        nobody: list[str] = []
        for one in sorted((one for one in services if one["spec"].get("clusterIP")), key=key_of):
            for port in one["spec"]["ports"]:
                to = f"-d {one['spec']['clusterIP']}/32 -p tcp --dport {port['port']}"
                targets = sorted(self._targets(one, port))
                if not targets:
                    nobody.append(f"-A NOBODY {to} -j REJECT --reject-with icmp-port-unreachable")
                for number, target in enumerate(targets):
                    left = len(targets) - number
                    share = f" -m statistic --mode nth --every {left} --packet 0" if left > 1 else ""
                    leads.append(f"-A SERVICES {to}{share} -j DNAT --to-destination {target}")
        self._tables.write({"nat": leads, "filter": nobody})

    def _targets(self, service: Manifest, port: Manifest) -> Iterator[str]:
        for found in self._objects.all("endpointslices"):
            of = labels_of(found).get("kubernetes.io/service-name")
            if (found["metadata"]["namespace"], of) != (service["metadata"]["namespace"], service["metadata"]["name"]):
                continue
            for own in found.get("ports") or []:
                if own.get("name", "") == port.get("name", ""):
                    for endpoint in found.get("endpoints") or []:
                        if endpoint.get("conditions", {}).get("ready", True):
                            yield f"{endpoint['addresses'][0]}:{own['port']}"


class Policies:
    """What a pod may call and who may call it. The name server of the test stands for pods of kube-dns."""

    def __init__(self, objects: WatchedObjects, gateway: str) -> None:
        self._objects, self._gateway = objects, gateway
        calls = [("filter", chain, "MAY-CALL") for chain in ("FORWARD", "INPUT")]
        self._tables = Tables((*calls, ("filter", "FORWARD", "MAY-BE-CALLED")))

    def turn(self) -> None:
        """Write the rules of all policies. A chain lets pass what one of them allows, or what none speaks of."""
        pods = [one for one in self._objects.all("pods") if one.get("status", {}).get("podIP")]
        names = {"metadata": {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}}
        peers = [*pods, {**names, "status": {"podIP": self._gateway}}]
        passing = "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
        lines = [f"-A MAY-CALL {passing}", f"-A MAY-BE-CALLED {passing}"]
        closed: set[str] = set()
        for policy in self._objects.all("networkpolicies"):
            for pod in pods:
                if pod["metadata"]["namespace"] == policy["metadata"]["namespace"] and matches(
                    policy["spec"]["podSelector"], labels_of(pod)
                ):
                    own = pod["status"]["podIP"]
                    for direction in policy["spec"]["policyTypes"]:
                        is_call = direction == "Egress"
                        chain, here, there = ("MAY-CALL", "-s", "-d") if is_call else ("MAY-BE-CALLED", "-d", "-s")
                        closed.add(f"-A {chain} {here} {own} -j DROP")
                        for rule in policy["spec"].get(direction.lower()) or []:
                            lines += [
                                f"-A {chain} {here} {own} {there} {peer}{port} -j RETURN"
                                for peer in self._peers(rule.get("to" if is_call else "from"), pod, peers)
                                for port in _ports(rule)
                            ]
        self._tables.write({"filter": [*lines, *sorted(closed)]})

    def _peers(self, chosen: list[Any] | None, pod: Manifest, peers: list[Manifest]) -> Iterator[str]:
        if chosen is None:
            yield "0.0.0.0/0"
            return
        spaces = {one["metadata"]["name"]: labels_of(one) for one in self._objects.all("namespaces")}
        for choice in chosen:
            for peer in peers:
                where = peer["metadata"]["namespace"]
                if "namespaceSelector" in choice:
                    is_there = matches(choice["namespaceSelector"], spaces.get(where, {}))
                else:
                    is_there = where == pod["metadata"]["namespace"]
                if is_there and matches(choice.get("podSelector", {}), labels_of(peer)):
                    yield peer["status"]["podIP"]


def _ports(rule: Manifest) -> Iterator[str]:
    if not rule.get("ports"):
        yield ""
    for port in rule.get("ports") or []:
        yield f" -p {port.get('protocol', 'TCP').lower()} --dport {port['port']}"
