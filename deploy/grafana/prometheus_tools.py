"""promtool and prometheus: taken from the path, or built once into build/bin where there is Go (Prometheus is a Go
program; building it takes minutes).
"""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "bin"
MODULE = "github.com/prometheus/prometheus"
VERSION = "v0.316.0"
TAGS = "remove_all_sd"
"""Without the clients of all clouds, which are most of the build. Files and static targets are part of the core."""
MOST_BUILD_S = 3600.0


class ToolMissingError(Exception):
    """A program can't be had. `str(error)` is one line."""


def tool(name: str) -> str:
    """The path of promtool or prometheus. Raises ToolMissingError."""
    built = BUILT / name
    found = shutil.which(name) or (str(built) if built.exists() else None)
    if found is not None:
        return found
    if shutil.which("go") is None:
        raise ToolMissingError(f"{name} is not on the path, and there is no Go to build it")
    print(f"building {name}: this takes minutes, once", flush=True)
    environ = {**os.environ, "GOBIN": str(BUILT), "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
    argv = ["go", "install", "-tags", TAGS, f"{MODULE}/cmd/{name}@{VERSION}"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=MOST_BUILD_S)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ToolMissingError(f"{name} can't be built: {last}")
    return str(built)
