"""The part of the test that runs inside the network namespace: the cluster, the scenarios, the table."""

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.kubernetes.live import OVERLAY, KubectlError, LiveCluster
from tests.kubernetes.machine import RUN, Machine
from tests.kubernetes.programs import KUBERNETES, WORK
from tests.kubernetes.rows import Row, Scenario
from tests.kubernetes.scenarios import disruptions, faults, install, keda, leader, policies, scaling

RESULTS = Path(__file__).parent / "RESULTS.md"
SCENARIOS: dict[str, Scenario] = {
    "install": install.in_any_order,
    "restricted": install.restricted,
    "early end": install.ends_at_once,
    "policies": policies.who_may_call,
    "leader": leader.hand_over,
    "client-go": leader.shared_with_client_go,
    "settings": faults.bad_settings,
    "Lease": faults.forbidden_lease,
    "second scheduler": faults.second_scheduler,
    "models": faults.wrong_models,
    "workers": faults.wrong_workers,
    "API server": leader.without_api_server,
    "autoscaler": scaling.autoscaler,
    "lost leader": disruptions.lost_leader,
    "60 streams": disruptions.under_streams,
    "lost worker": disruptions.lost_worker,
    "zero": scaling.from_zero,
}
SEPARATE: dict[str, Scenario] = {"keda": keda.from_none_to_many_and_back}
"""Run only when named: what they need takes long to build."""
ALL = {**SCENARIOS, **SEPARATE}
STOPS = (KubectlError, LookupError, OSError, RuntimeError, StopIteration, subprocess.SubprocessError)
"""What stops a scenario. A TimeoutError is an OSError."""
STAND_INS = f"""Real: an API server of Kubernetes' own libraries ({KUBERNETES}, with etcd in it), kubectl, RBAC, Pod
Security, containerd with runc, client-go's election. Stand-ins, one Python process: kubelet, the controllers of
Deployments, StatefulSets, EndpointSlices and budgets, the scheduler of pods, kube-proxy and NetworkPolicies (iptables),
the cluster's names. Two nodes share this machine and its containerd. torch is mounted, not in the image."""


def run(cluster: LiveCluster, name: str, scenario: Scenario) -> list[Row]:
    """A scenario's rows; what stopped it is the last one."""
    rows: list[Row] = []
    began_s = time.monotonic()
    try:
        for row in scenario(cluster):
            rows.append(row)
            print(f"{'holds' if row.holds else 'FAILS'}  {row.what}: {row.told}", flush=True)
    except STOPS as error:
        rows.append(Row(f"scenario {name!r} ends", False, f"{type(error).__name__}: {error}"))
        note_state(cluster, name)
        print(f"FAILS  {name}: {type(error).__name__}: {error}", flush=True)
    print(f"       ({name}: {time.monotonic() - began_s:.0f} s)", flush=True)
    return rows


def note_state(cluster: LiveCluster, name: str) -> None:
    """What there was when a scenario was stopped, beside the logs."""
    pods = "\n".join(str(pod) for pod in cluster.pods())
    try:
        jobs = cluster.fastserve("top", "--once", "--jobs", "100", "--server", cluster.address())
    except (KubectlError, subprocess.SubprocessError) as error:
        jobs = str(error)
    (RUN / f"stopped-{name.replace(' ', '-')}.txt").write_text(f"{pods}\n{jobs}")


def page(rows: dict[str, list[Row]], took_s: float, load: float) -> str:
    """The results file."""
    table = "\n".join(
        f"| {row.what} | {'yes' if row.holds else 'NO'} | {row.told.replace('|', '/')} |"
        for rows_of in rows.values()
        for row in rows_of
    )
    images = (WORK / "images.txt").read_text().strip()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    head = (
        f"# FastServe on a cluster of its own\n\nWritten by `make test-kubernetes WRITE=1`: {machine}; {took_s:.0f} s. "
        + (f"It ran beside other programs: the machine's load was {load:.1f} before it began." if load > 0.5 else "")
    )
    parts = (head, STAND_INS, f"```\n{images}\n```", f"| what must be true | holds | seen |\n|---|---|---|\n{table}")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """1 if something did not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name] or list(SCENARIOS)
    if unknown := sorted(set(names) - ALL.keys()):
        print(f"there is no scenario {unknown[0]!r}: they are {', '.join(ALL)}")
        return 1
    print(STAND_INS, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began_s, load = time.monotonic(), os.getloadavg()[0]
    machine = Machine(args.network)
    rows: dict[str, list[Row]] = {}
    try:
        machine.start()
        (machine.claims / "torch").symlink_to(Path(sys.prefix) / "lib" / "python3.11" / "site-packages")
        (machine.claims / "worker-state").mkdir()
        (machine.claims / "worker-state").chmod(0o777)  # pods write as a user of their own
        print(f"the cluster is up after {time.monotonic() - began_s:.0f} s", flush=True)
        cluster = LiveCluster(machine)
        if "install" not in names:
            cluster.kubectl("apply", "-k", str(OVERLAY))
            cluster.wait_settled(install.PODS)
        for name in names:
            rows[name] = run(cluster, name, ALL[name])
            if args.write:
                RESULTS.write_text(page(rows, time.monotonic() - began_s, load))
    finally:
        machine.close()
    failed = [row.what for rows_of in rows.values() for row in rows_of if not row.holds]
    count = sum(len(rows_of) for rows_of in rows.values())
    print(f"{count - len(failed)} of {count} hold", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
