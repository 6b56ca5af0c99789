"""A service's log has what the service says, and nothing of gRPC's core beside it, however the service was started."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.repository_paths import ROOT

MAINS = [path for path in sorted((ROOT / "services").glob("*/__main__.py")) if path.parent.name != "cli"]
LIMIT_S = 60.0
PROVOKES_A_REPORT = """
import services.kvmanager.__main__
import concurrent.futures, grpc, sys
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), options=(("grpc.so_reuseport", 0),))
try:
    server.add_insecure_port(sys.argv[1])
except RuntimeError:
    print("refused")
"""


@pytest.mark.parametrize(("chosen", "lines"), [({}, 0), ({"GRPC_VERBOSITY": "ERROR"}, 1)])
def test_in_a_service_the_core_prints_no_report_unless_its_variable_says_so(chosen: dict[str, str], lines: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | chosen
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = subprocess.run(
            [sys.executable, "-c", PROVOKES_A_REPORT, address],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
            cwd=ROOT,
            env=environment,
        )
    assert told.stdout == "refused\n"
    assert told.stderr.count("Failed to add port") == len(told.stderr.splitlines()) == lines


@pytest.mark.parametrize("main", MAINS, ids=lambda path: path.parent.name)
def test_every_service_sees_to_that_before_it_imports_anything_else(main: Path) -> None:
    first = next(node for node in ast.parse(main.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom))
    assert isinstance(first, ast.Import)
    assert [one.name for one in first.names] == ["services.runtime.quiet_grpc_core"]
