"""The processes of `fastserve up`: start them in order, keep them alive, end them all.

Until all are ready, an ended process is a failure to start, and its last line says why. Afterwards it is restarted with
back-off, at the addresses of its first process, because its peers dial those. Each service has its own session, so that
Ctrl-C reaches only this process, which then ends them in an order that lets them drain; the kernel ends them when this
process is killed (`--die-with-parent`).
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from services.cli.up.service_process import (
    ServiceAddresses,
    ServiceCommand,
    SupervisedProcess,
    begin,
    cause_of_death,
)
from services.cli.up.up_log import TEXT_LOG, UpLog
from services.runtime.backoff import Backoff
from services.runtime.command_line import CommandError

START_LIMIT_S = 900.0
FIRST_PAUSE_S = 0.2
MOST_PAUSE_S = 10.0
STEADY_RUN_S = 30.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs a set of services. `start`, then `ready` once they all serve, and `stop` or `kill` at the end."""

    def __init__(self, commands: Sequence[ServiceCommand], state_dir: Path, log: UpLog = TEXT_LOG) -> None:
        self.log = log
        self._commands = commands
        self._state_dir = state_dir
        self._processes: dict[str, SupervisedProcess] = {}
        self._addresses: dict[str, ServiceAddresses] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._all_ready = False
        self.failed: asyncio.Future[CommandError] = asyncio.get_running_loop().create_future()
        """Done when a service fails to start."""

    async def start(self) -> Mapping[str, ServiceAddresses]:
        """Starts all and waits until each serves. Raises CommandError naming the first that fails to start, and why."""
        first = {command.name: asyncio.get_running_loop().create_future() for command in self._commands}
        self._keepers = [asyncio.create_task(self._keep(command, first)) for command in self._commands]
        for keeper in self._keepers:
            keeper.add_done_callback(self._kept)
        together = asyncio.gather(*first.values())
        either: list[asyncio.Future[Any]] = [together, self.failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            together.cancel()
            raise self.failed.result()
        return self._addresses

    def ready(self) -> None:
        """Notes that all serve: from now on a service that ends is restarted."""
        self._all_ready = True

    async def _spawn(self, command: ServiceCommand) -> SupervisedProcess:
        ready_file = self._state_dir / f"{command.name}.ready.json"
        argv = [*command.build(self._addresses), "--ready-file", str(ready_file), "--die-with-parent", str(os.getpid())]
        process = self._processes[command.name] = await begin(command, argv, ready_file, self.log)
        return process

    async def _keep(self, command: ServiceCommand, first: Mapping[str, asyncio.Future[ServiceAddresses]]) -> None:
        """Runs a service for ever."""
        await asyncio.gather(*(asyncio.shield(first[name]) for name in command.after))
        backoff = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
        while True:
            process = await self._spawn(command)
            addresses = await process.addresses()
            if addresses is not None:
                self._addresses.setdefault(command.name, addresses)
                if not first[command.name].done():
                    first[command.name].set_result(addresses)
            reason = await process.ended()
            if not self._all_ready:
                self._fail(f"{command.name}: {reason}")
                return
            if time.monotonic() - process.began_s > STEADY_RUN_S:
                backoff.reset()
            pause_s = backoff.next_s()
            cause = cause_of_death(process.status or 0)
            self.log.say(f"{command.name} ended ({cause}): {reason}; restarting in {pause_s:.1f} s")
            await asyncio.sleep(pause_s)

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, message: str) -> None:
        if not self.failed.done():
            self.failed.set_result(CommandError(message))

    async def stop(self) -> None:
        """Ends all, those started last first, each with time to drain."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for command in reversed(self._commands):
            process = self._processes.get(command.name)
            if process is not None and not await process.stop(command.stop_limit_s):
                self.log.say(f"{command.name} did not end within {command.stop_limit_s:.0f} s and was killed")
        await asyncio.gather(*(process.ended() for process in self._processes.values()))

    def kill(self) -> None:
        """Ends all at once."""
        for process in self._processes.values():
            process.send(signal.SIGKILL)


class _Signals:
    """The first signal to end sets `stopping`; the second kills all and ends this process at once."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.stopping = asyncio.Event()
        self._supervisor = supervisor
        for number in _STOP_SIGNALS:
            # Under nohup a closed terminal should end nothing.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._on, number)

    def _on(self, number: signal.Signals) -> None:
        if self.stopping.is_set():
            self._supervisor.kill()
            os._exit(128 + number)
        self._supervisor.log.say(f"stopping on {number.name}; a second signal ends at once")
        self.stopping.set()


async def supervise(
    commands: Sequence[ServiceCommand],
    state_dir: Path,
    serves: Callable[[Mapping[str, ServiceAddresses]], Awaitable[None]],
    announce: Callable[[Mapping[str, ServiceAddresses]], None],
    log: UpLog = TEXT_LOG,
) -> None:
    """Runs the services until a signal: start, wait until `serves` returns, `announce`, keep alive, drain.

    Raises CommandError if one fails to start; no process is left behind.
    """
    supervisor = Supervisor(commands, state_dir, log)
    signals = _Signals(supervisor)

    async def come_up() -> None:
        addresses = await supervisor.start()
        await serves(addresses)
        supervisor.ready()
        announce(addresses)

    coming_up = asyncio.create_task(come_up())
    stopping = asyncio.create_task(signals.stopping.wait())
    try:
        ends: list[asyncio.Future[Any]] = [supervisor.failed, stopping]
        done, _ = await asyncio.wait([coming_up, *ends], timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise CommandError(f"not ready within {START_LIMIT_S:.0f} s")
        if coming_up in done:
            coming_up.result()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if supervisor.failed.done():
            raise supervisor.failed.result()
    finally:
        for task in (coming_up, stopping):
            task.cancel()
            with suppress(asyncio.CancelledError, CommandError):
                await task
        await supervisor.stop()
