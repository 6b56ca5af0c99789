"""How a service's process begins and ends."""

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from services.domain.errors import InvalidFieldError
from services.runtime.process import ServiceProcess, cancelled, write_ready_file
from services.runtime.settings import Settings, load
from tests.builders.module_processes import running_module
from tests.builders.repository_paths import ROOT

SOON_S = 60.0
MODULE = "tests.runtime.example_service"


def started(*arguments: str) -> AbstractAsyncContextManager[Process]:
    return running_module(MODULE, *arguments, stdout=PIPE, stderr=PIPE)


async def read_until(process: Process, word: str) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(SOON_S):
        while line := (await process.stderr.readline()).decode():
            if word in line:
                return line
    raise AssertionError(f"ended without {word!r}")


async def end_of(process: Process) -> tuple[int, str]:
    out, err = await asyncio.wait_for(process.communicate(), SOON_S)
    assert out == b""
    assert process.returncode is not None
    return process.returncode, err.decode()


async def test_a_service_says_when_it_is_ready_and_drains_on_sigterm(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    async with started("--ready-file", str(ready_file)) as process:
        line = await read_until(process, "ready example")
        address = line.split()[-1]
        assert json.loads(ready_file.read_text()) == {"grpc": address, "metrics": "127.0.0.1:9"}
        assert list(tmp_path.iterdir()) == [ready_file]
        process.send_signal(signal.SIGTERM)
        status, err = await end_of(process)
        assert (status, "stopping on SIGTERM" in err) == (0, True)


async def test_a_second_signal_ends_a_service_at_once() -> None:
    async with started("--ending", "hangs") as process:
        await read_until(process, "ready example")
        process.send_signal(signal.SIGINT)
        await read_until(process, "stopping on SIGINT")
        process.send_signal(signal.SIGINT)
        assert (await end_of(process))[0] == 128 + signal.SIGINT


async def test_what_the_world_breaks_ends_in_one_line_and_status_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments, line in (
            (("--ending", "refuses"), "fastserve example: the folder is missing\n"),
            (("--listen", address), f"fastserve example: can't listen on {address}: the port is in use\n"),
            (
                ("--listen", "x"),
                "fastserve example: --listen: must be HOST:PORT with a port from 0 to 65535, got 'x'\n",
            ),
        ):
            async with started(*arguments) as process:
                assert await end_of(process) == (1, line)


async def test_a_json_log_has_nothing_but_objects_whatever_ends_the_service() -> None:
    for ending, message in (("drains", "stopping on SIGTERM"), ("refuses", "the folder is missing"), ("breaks", "bug")):
        async with started("--log-format", "json", "--ending", ending) as process:
            if ending == "drains":
                await read_until(process, "ready example")
                process.send_signal(signal.SIGTERM)
            _, err = await end_of(process)
        lines = [json.loads(line) for line in err.splitlines()]
        assert message in lines[-1]["message"]
        assert {line["service"] for line in lines} == {"example"}


async def test_a_bug_at_the_start_is_logged_with_its_story() -> None:
    async with started("--ending", "breaks") as process:
        status, err = await end_of(process)
        assert status == 1
        assert "KeyError: 'a bug'" in err


PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-m", "{MODULE}", "--die-with-parent", str(os.getpid())], stderr=subprocess.PIPE, text=True
)
for line in child.stderr:
    if "ready example" in line:
        print("ready", flush=True)
        break
child.wait()
"""


async def test_a_service_does_not_outlive_a_parent_that_was_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    try:
        assert await asyncio.wait_for(parent.stdout.readline(), SOON_S) == b"ready\n"
    finally:
        parent.kill()
        await parent.wait()
    # The child has inherited the pipe: it ends when the child does.
    assert await asyncio.wait_for(parent.stdout.read(), SOON_S) == b""


async def test_a_service_whose_parent_is_gone_already_ends_at_once() -> None:
    async with started("--die-with-parent", str(2**22)) as process:
        status, err = await end_of(process)
        assert (status, err) == (1, "")


def test_a_ready_file_that_cannot_be_written_is_told_by_its_flag(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="--ready-file: can't write"):
        write_ready_file(tmp_path / "nowhere" / "ready.json", "127.0.0.1:1", None)


async def test_a_service_runs_until_it_is_told_to_stop_or_one_of_its_tasks_fails() -> None:
    async def for_ever() -> None:
        await asyncio.Event().wait()

    async def broken() -> None:
        raise InvalidFieldError("--listen", "is taken")

    process = ServiceProcess("example", load(Settings, "example", [], {}))
    lasting = asyncio.create_task(for_ever())
    running = asyncio.create_task(process.until_stopped(lasting))
    await asyncio.sleep(0)
    assert not running.done()
    process.stopping.set()
    await running
    with pytest.raises(InvalidFieldError, match="is taken"):
        await ServiceProcess("example", load(Settings, "example", [], {})).until_stopped(
            lasting, asyncio.create_task(broken())
        )
    await cancelled(lasting)
    assert lasting.cancelled()


async def test_a_service_that_is_told_to_end_while_it_loads_ends_at_once_with_0() -> None:
    async with started("--ending", "loads") as process:
        await read_until(process, "loading")
        process.send_signal(signal.SIGTERM)
        assert (await end_of(process))[0] == 0


BLOCKED = ("env", "--block-signal=TERM", "--block-signal=INT")
"""What an image starts Python with (docker/fastserve)."""
SERVICES = ("gateway", "scheduler", "kvmanager", "worker")


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_told_to_end_before_python_has_begun_ends_with_0(service: str) -> None:
    """The launcher's shell stands for the time before the interpreter: the signal is there before Python is."""
    command = f'kill -TERM $$; exec "{sys.executable}" -m services.cli {service}'
    process = await asyncio.create_subprocess_exec(*BLOCKED, "sh", "-c", command, stderr=PIPE, stdout=PIPE, cwd=ROOT)
    assert await end_of(process) == (0, "")


async def test_a_command_that_is_no_service_ends_by_a_signal_it_was_started_with_as_ever() -> None:
    command = f'kill -TERM $$; exec "{sys.executable}" -m services.cli top'
    process = await asyncio.create_subprocess_exec(*BLOCKED, "sh", "-c", command, stderr=PIPE, stdout=PIPE, cwd=ROOT)
    assert await end_of(process) == (-signal.SIGTERM, "")
