"""A service that does nothing, in one of several ways: `python fake_service.py NAME BEHAVIOUR --ready-file F
--die-with-parent PID`.

serve: is ready, notes its process id, waits for SIGTERM and says that it drained. stubborn: as serve, deaf to
SIGTERM. fail: says why and ends. late-fail: ready, then ends on its own. never: as serve, but never ready.
"""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from services.runtime.process import die_with_parent, write_ready_file


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("behaviour")
    parser.add_argument("--listen", default="127.0.0.1:1")
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--die-with-parent", type=int, required=True)
    given = parser.parse_args()
    die_with_parent(given.die_with_parent)
    if given.behaviour == "fail":
        print("some line before", file=sys.stderr)
        print(f"fastserve {given.name}: can't listen on {given.listen}: the port is in use", file=sys.stderr)
        return 1
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if given.behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with given.ready_file.with_name(f"{given.name}.pids").open("a") as pids:
        pids.write(f"{os.getpid()} {given.listen}\n")
    if given.behaviour != "never":
        write_ready_file(given.ready_file, f"127.0.0.1:{1000 + os.getpid() % 1000}", None)
    if given.behaviour == "late-fail":
        print("2026-01-31T12:00:00.123Z ERROR tiny: the links broke", file=sys.stderr)
        return 1
    print(f"{given.name} serves")
    while not stopping.wait(0.01):
        pass
    print(f"{given.name} drained")
    return 0


if __name__ == "__main__":
    sys.exit(main())
