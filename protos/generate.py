"""Generates the typed stubs beside the .proto files; `--check` proves that the committed ones are current, `--image
FILE` writes a descriptor image.
"""

import argparse
import filecmp
import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
PACKAGE = Path("fastserve") / "v1"


def _include_paths() -> list[str]:
    """Roots of our protos, of googleapis-common-protos and of protoc's own."""
    google_rpc = importlib.util.find_spec("google.rpc.status_pb2")
    if google_rpc is None or google_rpc.origin is None:
        raise SystemExit("googleapis-common-protos is not installed")
    site = Path(google_rpc.origin).parents[2]
    well_known = Path(protoc.__file__).parent / "_proto"
    return [f"-I{PROTO_ROOT}", f"-I{site}", f"-I{well_known}"]


def _protos() -> list[str]:
    return sorted(str(path.relative_to(PROTO_ROOT)) for path in (PROTO_ROOT / PACKAGE).glob("*.proto"))


def _plugins() -> list[str]:
    """mypy-protobuf's programs lie beside this Python, which need not be on the PATH."""
    scripts = Path(sysconfig.get_path("scripts"))
    return [f"--plugin={name}={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]


def _run(arguments: list[str]) -> None:
    if protoc.main(["protoc", *_include_paths(), *_plugins(), *arguments, *_protos()]) != 0:
        raise SystemExit("protoc failed")


def generate(out: Path) -> None:
    """Writes messages, services and their type stubs below `out`."""
    _run([f"--{kind}_out={out}" for kind in ("python", "grpc_python")])
    _run([f"--{kind}_out=quiet:{out}" for kind in ("mypy", "mypy_grpc")])


def stale() -> list[str]:
    """Names of committed stubs that differ from freshly generated ones, or lack."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = sorted((Path(folder) / PACKAGE).iterdir())
        return [
            path.name
            for path in fresh
            if not (PROTO_ROOT / PACKAGE / path.name).is_file()
            or not filecmp.cmp(path, PROTO_ROOT / PACKAGE / path.name, shallow=False)
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--image", type=Path)
    arguments = parser.parse_args()
    if arguments.image:
        _run(["--include_imports", "--include_source_info", f"--descriptor_set_out={arguments.image}"])
        return 0
    if arguments.check:
        names = stale()
        if names:
            print(f"stubs are not current, run `make proto`: {', '.join(names)}", file=sys.stderr)
        return 1 if names else 0
    generate(PROTO_ROOT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
