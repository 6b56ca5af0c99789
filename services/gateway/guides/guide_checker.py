"""Has guides checked before their jobs are submitted, in a process of their own (check_process.py) and within a limit
of time. The process is started when the first guide comes, and again when it was ended or broke. Answers are kept.
"""

import asyncio
import hashlib
import json
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from services.domain.errors import AdmissionFullError, InvalidFieldError, NotReadyError
from services.domain.guide import Guide
from services.gateway.guides.check_lines import guide_line
from services.gateway.guides.schema_keywords import GuideFault

COMPILE_LIMIT_S = 2.0
START_LIMIT_S = 60.0
"""A process has to import llguidance and read the tokenizer."""
MOST_WAITING = 64
MOST_KEPT = 1024
RETRY_S = 1.0

_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def path_text(path: tuple[str | int, ...]) -> str:
    """How a path goes on after the name of a field: `.properties.name`, `[2]`."""
    text = ""
    for step in path:
        if isinstance(step, str) and _PLAIN_NAME.fullmatch(step):
            text += f".{step}"
        else:
            text += f"[{step}]"
    return text


class _NoAnswerError(Exception):
    """The process did not answer. This is not kept: the machine may have been busy."""


class GuideChecker:
    """Checks the guides of one gateway. Used on an event loop; `close` ends its process."""

    def __init__(self, model: Path, limit_s: float = COMPILE_LIMIT_S) -> None:
        self._command = (sys.executable, "-m", "services.gateway.guides.check_process", str(model.resolve()))
        self._limit_s = limit_s
        self._process: Process | None = None
        self._unusable = ""
        self._turn = asyncio.Lock()
        self._under_way: dict[bytes, asyncio.Task[GuideFault | None]] = {}
        self._known: OrderedDict[bytes, GuideFault | None] = OrderedDict()
        self.starts = 0
        """How often a process was started."""

    async def check(self, guide: Guide | None) -> None:
        """Returns if the guide can be followed. Raises InvalidFieldError, which names the place; AdmissionFullError if
        too many wait to be checked; NotReadyError if no process can be started.
        """
        if guide is None:
            return
        line = guide_line(guide)
        key = hashlib.sha256(line).digest()
        if key in self._known:
            self._known.move_to_end(key)
            fault = self._known[key]
        else:
            fault = await self._checked(key, line)
        if fault is not None:
            raise InvalidFieldError(f"sampling.guide.{guide.kind.value}{path_text(fault.path)}", fault.reason)

    async def _checked(self, key: bytes, line: bytes) -> GuideFault | None:
        """Asks the process, once for all who ask for the same. A client that goes away does not end the check."""
        task = self._under_way.get(key)
        if task is None:
            if len(self._under_way) >= MOST_WAITING:
                raise AdmissionFullError(f"at most {MOST_WAITING} guides can wait to be checked", RETRY_S)
            task = self._under_way[key] = asyncio.create_task(self._ask(line))
            task.add_done_callback(lambda ended: self._keep(key, ended))
        try:
            return await asyncio.shield(task)
        except _NoAnswerError:
            return GuideFault((), f"is too large: it can't be compiled within {self._limit_s:g} s")

    def _keep(self, key: bytes, ended: "asyncio.Task[GuideFault | None]") -> None:
        del self._under_way[key]
        if ended.cancelled() or ended.exception() is not None:
            return
        self._known[key] = ended.result()
        if len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)

    async def _ask(self, line: bytes) -> GuideFault | None:
        async with self._turn:
            process = await self._running()
            if process is None:
                return GuideFault((), self._unusable)
            said = await self._said(process, line)
        if said is None:
            raise _NoAnswerError
        if not said:
            return None
        return GuideFault(tuple(said["path"]), str(said["reason"]))

    async def _said(self, process: Process, line: bytes) -> dict[str, Any] | None:
        """The answer; None if there is none in time, or the process broke: the next guide gets a new one."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            await process.stdin.drain()
            answer = await asyncio.wait_for(process.stdout.readline(), self._limit_s)
            said: dict[str, Any] = json.loads(answer)
        except (TimeoutError, OSError, ValueError):
            await self._end()
            return None
        return said

    async def _running(self) -> Process | None:
        """The process, ready; None if no guide can be used with this model."""
        if self._process is not None or self._unusable:
            return self._process
        self.starts += 1
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
            self._process = process
            assert process.stdout is not None
            first = json.loads(await asyncio.wait_for(process.stdout.readline(), START_LIMIT_S))
        except (TimeoutError, OSError, ValueError):
            await self._end()
            raise NotReadyError("the process that checks guides can't be started", RETRY_S) from None
        if "unusable" in first:
            self._unusable = str(first["unusable"])
            await self._end()
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """Ends what is under way, and the process."""
        for task in tuple(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        await self._end()
