"""The life of a service's process: settings, logs, signals, the announcement that it is ready, and its end.

`service_main` is the body of every service's `main`. A SIGTERM or SIGINT ends a process that does not serve yet; the
first one after that sets `ServiceProcess.stopping`, whereupon `serve` drains and returns; the second ends the process
at once. Errors with an outside cause end the process with one line on stderr and exit status 1.

A service started by another process gets its parent's process id (`--die-with-parent`) and is killed when the parent
ends, even by SIGKILL: Linux sends the signal (prctl); elsewhere a thread checks every second whether the parent is
still the parent.
"""

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from services.domain.errors import FastServeError, InvalidFieldError
from services.runtime.early_end import STOP_SIGNALS, end_on_stop_signals
from services.runtime.logs import set_up_logs
from services.runtime.settings import Settings, load

_log = logging.getLogger(__name__)

SettingsT = TypeVar("SettingsT", bound=Settings)

_PR_SET_PDEATHSIG = 1
_PARENT_LOOK_S = 1.0


class ServiceProcess(Generic[SettingsT]):
    """A running service's view of its process, whose signals it takes if `has_signals`."""

    def __init__(self, name: str, settings: SettingsT, has_signals: bool = False) -> None:
        self.name = name
        self.settings = settings
        self._has_signals = has_signals
        self.stopping = asyncio.Event()
        """Set by the first signal that arrives while the service waits for it; `serve` may set it too."""

    def announce_ready(self, grpc: str, metrics: str | None = None, probe: str | None = None) -> None:
        """Announces that the service is ready at these addresses: in one log line, and in the ready file."""
        self._take_signals()
        if self.settings.ready_file is not None:
            write_ready_file(self.settings.ready_file, grpc, metrics, probe=probe)
        _log.info("ready %s %s", self.name, grpc)

    def _take_signals(self) -> None:
        if self._has_signals:
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, _on_signal, self, number)

    async def until_stopped(self, *tasks: "asyncio.Task[None]") -> None:
        """Returns at the first signal. `tasks` must run forever: raises the exception that ended one of them.

        Before this or `announce_ready` a signal ends the process at once, because there is nothing to drain.
        """
        self._take_signals()
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in tasks:
            if task.done():
                task.result()


async def cancelled(*tasks: "asyncio.Task[None]") -> None:
    """Cancels the tasks and waits until they have ended; their exceptions are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def write_ready_file(
    path: Path, grpc: str, metrics: str | None, http: str | None = None, probe: str | None = None
) -> None:
    """Writes the addresses as JSON, atomically; `http` and `probe` only if there is one.

    Raises InvalidFieldError if the file can't be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        some = {"http": http, "probe": probe}
        addresses = {"grpc": grpc, "metrics": metrics, **{name: one for name, one in some.items() if one is not None}}
        part.write_text(json.dumps(addresses) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise InvalidFieldError("--ready-file", f"can't write {path}: {error.strerror}") from None


def _watch_parent(parent_id: int) -> None:
    pause = threading.Event()
    while os.getppid() == parent_id:
        pause.wait(_PARENT_LOOK_S)
    os._exit(1)


def die_with_parent(parent_id: int) -> None:
    """Ties this process's life to its parent's. If the parent has already ended, the process exits here."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    else:
        threading.Thread(target=_watch_parent, args=(parent_id,), daemon=True, name="parent-watch").start()
    # The signal is not sent if the parent ended before prctl was called.
    if os.getppid() != parent_id:
        os._exit(1)


def _on_signal(process: ServiceProcess[SettingsT], number: int) -> None:
    if process.stopping.is_set():
        os._exit(128 + number)
    _log.info("stopping on %s", signal.Signals(number).name)
    process.stopping.set()


async def run_service(
    name: str, settings: SettingsT, serve: Callable[[ServiceProcess[SettingsT]], Awaitable[None]]
) -> None:
    """`serve` on this event loop, told of signals (see service_main)."""
    await serve(ServiceProcess(name, settings, has_signals=True))


def service_main(
    name: str,
    settings_class: type[SettingsT],
    argv: Sequence[str] | None,
    serve: Callable[[ServiceProcess[SettingsT]], Awaitable[None]],
) -> int:
    """Runs a service until a signal ends it. Returns the exit status. `name` is also its table in the TOML file.

    `serve` sets everything up, calls `announce_ready`, waits `until_stopped`, drains and returns. It starts only after
    the settings have been read, so that a bad flag is reported without loading a model.
    """
    return process_main(name, settings_class, argv, lambda settings: asyncio.run(run_service(name, settings, serve)))


def process_main(
    name: str, settings_class: type[SettingsT], argv: Sequence[str] | None, run: Callable[[SettingsT], None]
) -> int:
    """Runs a process of a service that need not have an event loop: settings, logs, `run`, and what ended it as an exit
    status. A signal to stop ends it at once with status 0, until somebody handles signals otherwise.
    """
    end_on_stop_signals()
    settings: SettingsT | None = None
    try:
        settings = load(settings_class, name, sys.argv[1:] if argv is None else argv, os.environ)
        if settings.die_with_parent is not None:
            die_with_parent(settings.die_with_parent)
        set_up_logs(name, settings.log_level, settings.log_format)
        run(settings)
    except FastServeError as error:
        if settings is not None and settings.log_format == "json":
            _log.error("%s", error)
        else:
            print(f"fastserve {name}: {error}", file=sys.stderr)
        return 1
    except Exception:
        _log.exception("the service ended because of a bug")
        return 1
    return 0
