"""The processes of `fastserve up`, with services that do nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.cli.up.service_process import cause_of_death, reason_of
from tests.builders.waits import wait_until

UP_OF_FAKE_SERVICES = Path(__file__).with_name("up_of_fake_services.py")
LIMIT_S = 60.0


def processes_of(state_dir: Path, name: str) -> list[tuple[int, str]]:
    """Process id and address of every process of a service so far."""
    path = state_dir / f"{name}.pids"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines]


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


class UpOfFakeServices:
    """One `up` of fake services, as a process."""

    def __init__(self, state_dir: Path, *services: str) -> None:
        self.state_dir = state_dir
        self.log = state_dir / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(UP_OF_FAKE_SERVICES), str(state_dir), *services],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def first_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def ended(self) -> tuple[int, str, str]:
        """Exit code, the rest of stdout, stderr."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, self.log.read_text()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[UpOfFakeServices]]:
    """Every `up` that a test starts; none is left behind."""
    runs: list[UpOfFakeServices] = []
    yield runs
    for run in runs:
        run.process.kill()
        run.process.communicate()


@pytest.fixture
def up_of_fake_services(tmp_path: Path, started: list[UpOfFakeServices]) -> Callable[..., UpOfFakeServices]:
    def start(*services: str) -> UpOfFakeServices:
        started.append(UpOfFakeServices(tmp_path, *services))
        return started[-1]

    return start


Start = Callable[..., UpOfFakeServices]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_the_last_started_first_and_exits_0(up_of_fake_services: Start, number: signal.Signals) -> None:
    up = up_of_fake_services("kvmanager:serve", "gateway:serve")
    assert up.first_line() == "ready gateway kvmanager"
    up.process.send_signal(number)
    code, out, log = up.ended()
    assert (code, out) == (0, "")
    assert log.index("[gateway] gateway drained") < log.index("[kvmanager] kvmanager drained")
    assert all(is_gone(processes_of(up.state_dir, name)[0][0]) for name in ("kvmanager", "gateway"))


def test_a_second_signal_ends_at_once_and_leaves_no_child(up_of_fake_services: Start) -> None:
    up = up_of_fake_services("kvmanager:stubborn", "gateway:stubborn")
    up.first_line()
    up.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping on SIGINT" in up.log.read_text(), "the first signal was seen", LIMIT_S)
    up.process.send_signal(signal.SIGINT)
    code, _, _ = up.ended()
    assert code == 128 + signal.SIGINT
    for name in ("kvmanager", "gateway"):
        wait_until(lambda name=name: is_gone(processes_of(up.state_dir, name)[0][0]), f"{name} is gone", LIMIT_S)  # type: ignore[misc]


def test_a_service_that_does_not_drain_is_killed_after_its_limit(up_of_fake_services: Start) -> None:
    up = up_of_fake_services("worker:stubborn")
    up.first_line()
    up.process.send_signal(signal.SIGTERM)
    code, _, log = up.ended()
    assert code == 0
    assert "[up] worker did not end within 1 s and was killed" in log


def test_no_child_outlives_a_sigkill(up_of_fake_services: Start) -> None:
    up = up_of_fake_services("kvmanager:stubborn", "gateway:stubborn")
    up.first_line()
    up.process.send_signal(signal.SIGKILL)
    up.process.wait(LIMIT_S)
    for name in ("kvmanager", "gateway"):
        wait_until(lambda name=name: is_gone(processes_of(up.state_dir, name)[0][0]), f"{name} is gone", LIMIT_S)  # type: ignore[misc]


def test_a_service_that_dies_later_is_restarted_at_the_same_address_with_a_log_line(up_of_fake_services: Start) -> None:
    up = up_of_fake_services("scheduler:serve", "worker:serve")
    up.first_line()
    os.kill(processes_of(up.state_dir, "scheduler")[0][0], signal.SIGKILL)
    wait_until(lambda: len(processes_of(up.state_dir, "scheduler")) == 2, "the scheduler was restarted", LIMIT_S)
    first_pid = processes_of(up.state_dir, "scheduler")[0][0]
    assert processes_of(up.state_dir, "scheduler")[1][1] == f"127.0.0.1:{1000 + first_pid % 1000}"
    assert len(processes_of(up.state_dir, "worker")) == 1
    up.process.send_signal(signal.SIGTERM)
    code, _, log = up.ended()
    assert code == 0
    assert "[up] scheduler ended (killed by SIGKILL): scheduler serves; restarting in 0.2 s" in log


def test_a_service_that_keeps_dying_is_restarted_ever_more_slowly(up_of_fake_services: Start) -> None:
    up = up_of_fake_services("worker:serve")
    up.first_line()
    for restart in range(3):

        def is_restarted(restart: int = restart) -> bool:
            return len(processes_of(up.state_dir, "worker")) == restart + 1

        wait_until(is_restarted, "one more process", LIMIT_S)
        os.kill(processes_of(up.state_dir, "worker")[restart][0], signal.SIGKILL)
    wait_until(lambda: up.log.read_text().count("restarting in") == 3, "three restarts", LIMIT_S)
    pauses = [line.rpartition("restarting in ")[2] for line in up.log.read_text().splitlines() if "restarting" in line]
    assert pauses == ["0.2 s", "0.4 s", "0.8 s"]


def test_a_service_that_cannot_come_up_ends_all_with_1_and_its_own_reason_in_one_line(
    up_of_fake_services: Start,
) -> None:
    up = up_of_fake_services("kvmanager:serve", "scheduler:fail", "worker:serve")
    code, out, log = up.ended()
    assert (code, out) == (1, "")
    reasons = [line for line in log.splitlines() if not line.startswith("[")]
    assert reasons == ["fastserve up: scheduler: can't listen on 127.0.0.1:1: the port is in use"]
    assert is_gone(processes_of(up.state_dir, "kvmanager")[0][0])
    assert processes_of(up.state_dir, "worker") == []


def test_a_service_that_ends_before_all_are_ready_has_not_come_up(up_of_fake_services: Start) -> None:
    code, out, log = up_of_fake_services("kvmanager:serve", "worker:late-fail").ended()
    assert (code, out) == (1, "")
    assert log.splitlines()[-1] == "fastserve up: worker: the links broke"


def test_a_signal_while_starting_ends_with_0_and_leaves_nothing(up_of_fake_services: Start) -> None:
    up = up_of_fake_services("kvmanager:serve", "worker:never")
    wait_until(lambda: processes_of(up.state_dir, "worker") != [], "the last service starts", LIMIT_S)
    up.process.send_signal(signal.SIGTERM)
    code, out, _ = up.ended()
    assert (code, out) == (0, "")
    assert all(is_gone(processes_of(up.state_dir, name)[0][0]) for name in ("kvmanager", "worker"))


def test_reasons_lose_the_heads_of_logs_and_silence_is_told_as_the_status() -> None:
    assert reason_of("worker", "2026-01-31T12:00:00.123Z ERROR worker: no room", 1) == "no room"
    assert reason_of("worker", "fastserve worker: --dtype: should be float32", 1) == "--dtype: should be float32"
    assert reason_of("worker-1", "fastserve worker: --dtype: should be float32", 1) == "--dtype: should be float32"
    assert reason_of("worker", "", 3) == "exit status 3"
    assert reason_of("worker", "", -9) == "killed by SIGKILL"
    assert cause_of_death(-99) == "killed by signal 99"
