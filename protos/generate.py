"""Generates the typed stubs beside the .proto files, and the REST front's Go below rest/gen; `--check` proves that the
committed ones are current, `--image FILE` writes a descriptor image. Without Go, only the Python stubs are looked at.
"""

import argparse
import filecmp
import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path

from grpc_tools import protoc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rest.build import BuildError, build_plugins
from services.gateway.openai.error_kinds import edge_errors_document

PROTO_ROOT = Path(__file__).resolve().parent
PACKAGE = Path("fastserve") / "v1"
PACKAGES = (PACKAGE, Path("fastserve") / "keda")
GO_ROOT = PROTO_ROOT.parent / "rest" / "gen"
GO_PROTOS = ("admin", "front", "inference", "openai")
"""What the REST front speaks."""
GO_PACKAGE = "fastserve/rest/gen/fastserve/v1;fastservev1"
EDGE_ERRORS = PROTO_ROOT.parent / "rest" / "edge_errors.json"


def _include_paths() -> list[str]:
    """Roots of our protos, of googleapis-common-protos and of protoc's own."""
    google_rpc = importlib.util.find_spec("google.rpc.status_pb2")
    if google_rpc is None or google_rpc.origin is None:
        raise SystemExit("googleapis-common-protos is not installed")
    site = Path(google_rpc.origin).parents[2]
    well_known = Path(protoc.__file__).parent / "_proto"
    return [f"-I{PROTO_ROOT}", f"-I{site}", f"-I{well_known}"]


def _protos() -> list[str]:
    found = (path for package in PACKAGES for path in (PROTO_ROOT / package).glob("*.proto"))
    return sorted(str(path.relative_to(PROTO_ROOT)) for path in found)


def _plugins() -> list[str]:
    """mypy-protobuf's programs lie beside this Python, which need not be on the PATH."""
    scripts = Path(sysconfig.get_path("scripts"))
    return [f"--plugin={name}={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]


def _run(arguments: list[str], protos: list[str] | None = None) -> None:
    if protoc.main(["protoc", *_include_paths(), *_plugins(), *arguments, *(protos or _protos())]) != 0:
        raise SystemExit("protoc failed")


def generate(out: Path) -> None:
    """Writes messages, services and their type stubs below `out`."""
    _run([f"--{kind}_out={out}" for kind in ("python", "grpc_python")])
    _run([f"--{kind}_out=quiet:{out}" for kind in ("mypy", "mypy_grpc")])


def generate_go(out: Path, plugins: Path) -> None:
    """Writes messages, clients and handlers in Go below `out`. The protos name no Go package: it is given here."""
    protos = [f"{PACKAGE.as_posix()}/{name}.proto" for name in GO_PROTOS]
    arguments = []
    for kind in ("go", "go-grpc", "grpc-gateway"):
        options = [f"M{proto}={GO_PACKAGE}" for proto in protos]
        arguments += [f"--plugin=protoc-gen-{kind}={plugins / f'protoc-gen-{kind}'}", f"--{kind}_out={out}"]
        arguments += [f"--{kind}_opt={option}" for option in ("paths=source_relative", *options)]
    _run(arguments, protos)


def _stale(fresh: Path, committed: Path) -> list[str]:
    return [
        path.name
        for path in sorted(fresh.iterdir())
        if not (committed / path.name).is_file() or not filecmp.cmp(path, committed / path.name, shallow=False)
    ]


def stale(plugins: Path | None) -> list[str]:
    """Names of committed files that differ from freshly generated ones, or lack; those in Go if there are plugins."""
    names: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        for package in PACKAGES:
            names += _stale(Path(folder) / package, PROTO_ROOT / package)
    if plugins is not None:
        with tempfile.TemporaryDirectory() as folder:
            generate_go(Path(folder), plugins)
            names += _stale(Path(folder) / PACKAGE, GO_ROOT / PACKAGE)
    if not EDGE_ERRORS.is_file() or EDGE_ERRORS.read_text(encoding="utf-8") != edge_errors_document():
        names.append(EDGE_ERRORS.name)
    return names


def _go_plugins(uv: str) -> Path | None:
    try:
        return build_plugins(uv)
    except BuildError as error:
        print(f"the Go handlers are left as they are: {error}", file=sys.stderr)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--uv", default="uv")
    arguments = parser.parse_args()
    if arguments.image:
        _run(["--include_imports", "--include_source_info", f"--descriptor_set_out={arguments.image}"])
        return 0
    plugins = _go_plugins(arguments.uv)
    if arguments.check:
        names = stale(plugins)
        if names:
            print(f"stubs are not current, run `make proto`: {', '.join(names)}", file=sys.stderr)
        return 1 if names else 0
    generate(PROTO_ROOT)
    if plugins is not None:
        generate_go(GO_ROOT, plugins)
    EDGE_ERRORS.write_text(edge_errors_document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
