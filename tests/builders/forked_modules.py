"""Python modules as processes that are forked from one that has loaded what services need.

The import of torch takes seconds of a processor, which many a test would spend for each worker that it starts. How
services come up from nothing is what other tests are about: those of `fastserve up` and of each service's process.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.builders.repository_paths import ROOT

FORKED = multiprocessing.get_context("forkserver")
"""There is one server for each process of tests, so what any of them needs is named here."""
FORKED.set_forkserver_preload(["tests.builders.loaded_services", "tests.worker.parallel.rank_processes"])


class ForkedModule:
    """`python -m MODULE ARGUMENT...` in the root of the repository, with this `environment` and nothing of another, as
    `subprocess.Popen` shows a process.
    """

    def __init__(self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> None:
        """`command`: the module and its arguments; `log_path`: where stdout and stderr go."""
        self.args = tuple(command)
        self._process = FORKED.Process(target=_run, args=(self.args, log_path, dict(environment)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, or the number of the signal that ended it, negative; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The same at its end. Raises TimeoutExpired if that does not come in time."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, how: signal.Signals) -> None:
        """To a process that runs; others get none."""
        if self.poll() is None:
            os.kill(self.pid, how)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)


def _run(command: tuple[str, ...], log_path: Path, environment: dict[str, str]) -> None:
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = list(command)
    sys.modules.pop(f"{command[0]}.__main__", None)  # it is run, not imported
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
