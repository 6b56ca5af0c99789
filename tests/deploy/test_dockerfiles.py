"""What every image has in common, and how a container's first process begins."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.images.wheelhouses import EXTRAS
from services.cli.__main__ import COMMANDS, SERVICES
from tests.builders.repository_paths import ROOT

LAUNCHER = ROOT / "docker" / "fastserve"
UNCHECKED_HASH = b"\x01\0\0\0"
"""The second word of a file of bytecode that is taken as it is, whatever became of its source (PEP 552)."""


def instructions(service: str) -> list[tuple[str, str]]:
    """Each instruction and its arguments, in order; continued lines are one."""
    text = re.sub(r"\\\n", "", (ROOT / "docker" / f"{service}.Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def test_every_service_has_an_image_and_nothing_else_has() -> None:
    assert {path.stem for path in (ROOT / "docker").glob("*.Dockerfile")} == set(EXTRAS)
    # The autoscaler is run from the scheduler's image.
    assert SERVICES - set(EXTRAS) == {"autoscale"}
    assert COMMANDS.keys() >= SERVICES


@pytest.mark.parametrize("service", sorted(EXTRAS))
def test_an_image_runs_its_service_without_privileges_on_a_base_of_the_users_choice(service: str) -> None:
    found = instructions(service)
    assert found[0] == ("ARG", "PYTHON_IMAGE=python:3.11-slim-bookworm")
    bases = [rest for name, rest in found if name == "FROM"]
    assert bases == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    last_stage = found[found.index(("FROM", bases[1])) :]
    assert ("USER", "10001:10001") in last_stage
    assert last_stage[-1] == ("ENTRYPOINT", f'["fastserve", "{service}"]')
    assert "RUN" not in [name for name, _ in last_stage]


@pytest.mark.parametrize("service", sorted(EXTRAS))
def test_no_step_of_a_build_needs_a_network(service: str) -> None:
    for _, steps in (one for one in instructions(service) if one[0] == "RUN"):
        for step in steps.split("&&"):
            assert not re.search(r"\b(apt-get|curl|wget|git)\b", step), step
            assert "pip install" not in step or "--no-index" in step, step


def test_the_launcher_holds_the_signals_back_until_python_can_take_them(tmp_path: Path) -> None:
    """Run as an image runs it, with this environment's Python and a program that prints what is blocked."""
    first, _, _ = LAUNCHER.read_text().partition("\n")
    assert os.access(LAUNCHER, os.X_OK)
    assert first.endswith(" /opt/fastserve/bin/python")
    probe = tmp_path / "probe"
    shebang = first.replace("/opt/fastserve/bin/python", sys.executable)
    probe.write_text(f"{shebang}\nimport signal\nprint(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))\n")
    probe.chmod(0o755)
    with os.popen(str(probe)) as output:
        assert output.read().strip() == "[<Signals.SIGINT: 2>, <Signals.SIGTERM: 15>]"


@pytest.mark.parametrize("service", sorted(EXTRAS))
def test_an_image_has_the_bytecode_of_what_its_service_loads(service: str) -> None:
    """A container writes none, so without it every start would compile all modules."""
    last = [rest for name, rest in instructions(service) if name == "RUN"][-1]
    python, script, *modules = last.split()
    assert (python, script) == ("/opt/fastserve/bin/python", "/bytecode.py")
    assert f"services.{service}.__main__" in modules


def test_bytecode_is_written_of_the_modules_that_are_loaded_and_of_no_others(tmp_path: Path) -> None:
    """In an environment of its own, as an image's is; the service's package needs torch, which is mounted later."""
    python = tmp_path / "bin" / "python"
    packages = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for folder in (python.parent, packages / "service", packages / "large"):
        folder.mkdir(parents=True)
    python.symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    (tmp_path / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    for name, text in (
        ("large/__init__.py", ""),
        ("large/used.py", ""),
        ("large/unused.py", ""),
        ("service/__init__.py", ""),
        ("service/begin.py", "import large.used"),
        ("service/engine.py", "import torch"),
    ):
        (packages / name).write_text(text)
    argv = [str(python), str(ROOT / "docker" / "bytecode.py"), "service.begin", "service.engine"]
    subprocess.run(argv, check=True, env={"PYTHONDONTWRITEBYTECODE": "1"})
    written = {path.relative_to(packages): path.read_bytes()[4:8] for path in packages.rglob("*.pyc")}
    names = {f"{path.parent.parent}/{path.name.partition('.')[0]}" for path in written}
    assert names == {"large/__init__", "large/used", "service/__init__", "service/begin", "service/engine"}
    assert set(written.values()) == {UNCHECKED_HASH}
    other = subprocess.run([*argv[:2], "absent"], capture_output=True, text=True)
    assert "No module named 'absent'" in other.stderr
    assert other.returncode
