"""Simulations spread over processes: Ctrl-C ends all of them cleanly, and none outlives its parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from services.domain.errors import AdmissionFullError
from services.experiments.processes import over_processes
from services.runtime.command_line import CommandError
from tests.builders.waits import wait_until
from tests.cli.commands import PYTHON_FASTSERVE

LIMIT_S = 60.0
ENDLESS = ("--jobs", "300000", "--rate", "1000", "--seeds", "4", "--no-load", "--processes", "2")


def square(task: int, told: Callable[[int], None]) -> int:
    told(task)
    return task * task


def fail(task: int, told: Callable[[int], None]) -> int:
    raise ValueError(f"task {task}")


def refuse(task: int, told: Callable[[int], None]) -> int:
    raise AdmissionFullError(f"task {task} is too much", retry_after_s=2.5)


def die(task: int, told: Callable[[int], None]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


class WatchedProgress:
    """What was told of the progress, at last."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def __call__(self, done: Sequence[int]) -> None:
        self.done = list(done)


@pytest.mark.parametrize("processes", [1, 2])
def test_answers_come_in_the_order_of_the_tasks_and_progress_is_told(processes: int) -> None:
    watched = WatchedProgress()
    assert over_processes(square, [5, 2, 9], processes, watched) == [25, 4, 81]
    assert watched.done == [5, 2, 9]


def test_what_a_task_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="task"):
        over_processes(fail, [1, 2], 2, WatchedProgress())
    with pytest.raises(AdmissionFullError, match="too much") as refused:
        over_processes(refuse, [1, 2], 2, WatchedProgress())
    assert refused.value.retry_after_s == 2.5


def test_a_process_that_is_killed_is_told_in_one_line() -> None:
    with pytest.raises(CommandError, match="was killed"):
        over_processes(die, [1, 2], 2, WatchedProgress())


def processes_of_session(session_id: int) -> list[int]:
    """All that live in a session, but for those that have ended and wait to be looked at."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended meanwhile
                continue
            if int(fields[3]) == session_id and fields[0] not in "ZX":
                found.append(int(folder.name))
    return found


def heed_ctrl_c() -> None:
    """As a terminal starts commands. A suite that was started in the background of a script has SIGINT ignored, and its
    children inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def simulating(out: Path) -> "subprocess.Popen[str]":
    """A command that would run for hours, at work in two processes."""
    process = subprocess.Popen(
        [*PYTHON_FASTSERVE, "simulate", *ENDLESS, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )
    # Itself, two at work, and the one in which multiprocessing keeps track of what is shared.
    wait_until(
        lambda: len(processes_of_session(process.pid)) >= 4 or process.poll() is not None, "it is at work", LIMIT_S
    )
    return process


def test_ctrl_c_ends_all_processes_without_a_word(tmp_path: Path) -> None:
    process = simulating(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (130, "")
    wait_until(lambda: processes_of_session(process.pid) == [], "all have ended", LIMIT_S)


def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    process = simulating(tmp_path)
    process.kill()
    process.wait(timeout=LIMIT_S)
    wait_until(lambda: processes_of_session(process.pid) == [], "all have ended", LIMIT_S)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def test_the_command_is_known(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "--help"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert "simulate" in done.stdout
    assert "trace" in done.stdout
