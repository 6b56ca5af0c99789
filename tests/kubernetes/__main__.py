"""`make test-kubernetes`: FastServe's manifests and images on a cluster of this machine's own, driven with kubectl.

Builds what is missing, makes a network namespace, brings the cluster up in it and runs every scenario; ends with 1 if
something did not hold, and with 2 where it can't run.
"""

import argparse
import os
import subprocess
import sys
import time

from tests.builders.repository_paths import ROOT
from tests.kubernetes.machine import RUN, inside, network
from tests.kubernetes.programs import PACKAGES, STUBS, WORK, MissingError, build_all, build_keda, check_machine

CANNOT_RUN = 2


def say(what: str) -> None:
    """A line at once."""
    print(what, flush=True)


def main() -> int:
    """Its exit status."""
    parser = argparse.ArgumentParser(prog="make test-kubernetes")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--only", default="", help="names of scenarios, with commas between them [all]")
    parser.add_argument("--write", action="store_true", help="write the results file")
    args = parser.parse_args()
    began_s = time.monotonic()
    try:
        go = check_machine(args.uv)
        WORK.mkdir(parents=True, exist_ok=True)
        build_all(go, say)
        if "keda" in args.only.split(","):
            build_keda(go, say)
    except MissingError as error:
        say(f"make test-kubernetes can't run here:\n{error}\nOn Debian: {PACKAGES}")
        return CANNOT_RUN
    say(f"built after {time.monotonic() - began_s:.0f} s")
    with network() as name:
        argv = [sys.executable, "-m", "tests.kubernetes.drive", name, "--only", args.only]
        argv += ["--write"] if args.write else []
        environ = {**os.environ, "PYTHONPATH": f"{STUBS}:{ROOT}:{ROOT / 'protos'}"}
        status = subprocess.run(inside(name, argv), cwd=ROOT, env=environ).returncode
    say(f"{time.monotonic() - began_s:.0f} s in all" + (f"; logs are in {RUN}" if status else ""))
    return status


if __name__ == "__main__":
    sys.exit(main())
