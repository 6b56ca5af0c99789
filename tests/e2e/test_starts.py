"""What can't start says why in one line and ends with 1: bad model folders, ports in use."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders.repository_paths import BUNDLED

LIMIT_S = 120.0
NOBODY = "127.0.0.1:1"


@pytest.fixture
def taken_port() -> Iterator[str]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


def missing(folder: Path) -> str:
    return "is not a folder"


def empty(folder: Path) -> str:
    folder.mkdir()
    return "no config.json"


def truncated(folder: Path) -> str:
    shutil.copytree(BUNDLED, folder)
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    return f"is truncated: it has {len(data) // 2} of {len(data)} bytes"


def pickles_only(folder: Path) -> str:
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    return "only as pickles"


def unsupported(folder: Path) -> str:
    shutil.copytree(BUNDLED, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="mixtral", architectures=["MixtralForCausalLM"])
    (folder / "config.json").write_text(json.dumps(config))
    return "mixtral"


def end_of(*argv: str) -> str:
    """The only line on stderr of a command that must end with 1."""
    ended = subprocess.run([sys.executable, "-m", *argv], capture_output=True, text=True, timeout=LIMIT_S)
    # The logs of services that `up` started before begin with a bracket.
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("[")]
    assert (ended.returncode, ended.stdout, len(lines)) == (1, "", 1), ended.stderr
    return lines[0]


@pytest.mark.parametrize("make", [missing, empty, truncated, pickles_only, unsupported])
def test_a_worker_refuses_a_bad_model_folder_in_one_line(make: Callable[[Path], str], tmp_path: Path) -> None:
    reason = make(tmp_path / "model")
    peers = ("--scheduler", NOBODY, "--kv-manager", NOBODY)
    line = end_of("services.worker", "--model", str(tmp_path / "model"), "--log-level", "error", *peers)
    assert line.startswith("fastserve worker: ")
    assert reason in line


@pytest.mark.parametrize("make", [truncated, unsupported])
def test_up_ends_with_the_reason_of_the_service_that_refused(make: Callable[[Path], str], tmp_path: Path) -> None:
    reason = make(tmp_path / "model")
    free = ("--grpc-port", "0", "--http-port", "0", "--metrics-port", "0")
    line = end_of("services.cli", "up", "--model", str(tmp_path / "model"), *free)
    assert line.startswith("fastserve up: ")
    assert reason in line


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (("services.kvmanager",), "--listen"),
        (("services.kvmanager",), "--metrics-port"),
        (("services.scheduler", "--model", str(BUNDLED), "--kv-manager", NOBODY), "--listen"),
        (("services.gateway", "--model", str(BUNDLED), "--scheduler", NOBODY, "--metrics-port", "0"), "--grpc-port"),
        (("services.gateway", "--model", str(BUNDLED), "--scheduler", NOBODY, "--grpc-port", "0"), "--metrics-port"),
        (
            ("services.worker", "--model", str(BUNDLED), "--scheduler", NOBODY, "--kv-manager", NOBODY),
            "--health-listen",
        ),
        (("services.cli", "up", "--metrics-port", "0", "--http-port", "0"), "--grpc-port"),
        (("services.cli", "up", "--metrics-port", "0", "--grpc-port", "0"), "--http-port"),
    ],
)
def test_a_port_in_use_is_told_in_one_line(argv: tuple[str, ...], flag: str, taken_port: str) -> None:
    value = taken_port if flag.endswith("port") else f"127.0.0.1:{taken_port}"
    level = () if "up" in argv else ("--log-level", "error")
    line = end_of(*argv, *level, flag, value)
    assert taken_port in line
    assert "in use" in line
