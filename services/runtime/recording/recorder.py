"""Records the turns of a machine while it serves.

The event loop turns each turn into a line and puts it in a buffer. A separate thread compresses and writes the buffer
at least every second, so that the event loop never waits for the disk or for zlib. Each write is a whole gzip member,
so a killed service loses at most the last second.

Bounds: the file ends, with a line that says so, before it exceeds its limit. A disk that is too slow or full ends the
recording, not the service. A folder holds a limited number of recordings of a service. No turn is ever left out in
between, because a replay needs every turn.
"""

import gzip
import logging
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from services.domain.errors import InvalidFieldError
from services.runtime.recording.codec import Aliases
from services.runtime.recording.lines import Ending, Head, MachineFormat, TurnWriter, ending_line
from services.runtime.recording.recording_settings import BYTES_PER_MB, RecordingSettings

_log = logging.getLogger(__name__)

WRITE_PERIOD_S = 1.0
WRITE_AT_BYTES = 1 << 18
"""When this much is waiting, it is written at once."""
MOST_WAITING_BYTES = 1 << 26
MOST_RECORDINGS = 1000
"""Per service and folder: a service that keeps crashing makes one recording each time."""
MOST_ALIASES = 1_000_000
"""Only living jobs, and a few whose end was not observed, have an alias."""
LAST_LINE_BYTES = 256
"""Reserved for the line that says why the recording ended."""
CLOSE_LIMIT_S = 10.0

Handle = Callable[[Sequence[Any], float], list[Any]]


class Recorder:
    """Records one machine into one file. Its methods must be called from the event loop's thread. Raises OSError if the
    first line can't be written.
    """

    def __init__(self, machine: MachineFormat, head: Head, file: IO[bytes], limit_bytes: int) -> None:
        self._aliases = Aliases()
        self._writer = TurnWriter(machine, self._aliases)
        self._file = file
        self._limit_bytes = limit_bytes
        self._written_bytes = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._ending: Ending | None = None
        """The reason for the end; set once."""
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._write(gzip.compress(self._writer.head(head)))
        self._thread = threading.Thread(target=self._write_on, daemon=True, name="recorder")
        self._thread.start()

    def watching(self, handle: Handle) -> Handle:
        """Wraps the machine's `handle` so that its turns are recorded."""

        def watched(events: Sequence[Any], now_s: float) -> list[Any]:
            if self._stopped.is_set():
                return handle(events, now_s)
            try:
                commands = handle(events, now_s)
            except Exception as error:
                self._add(self._writer.fault(now_s, events, type(error).__name__))
                raise
            self._add(self._writer.turn(now_s, events, commands))
            return commands

        return watched

    def close(self) -> None:
        """Writes the rest and the last line. Waits for the disk for at most CLOSE_LIMIT_S."""
        with self._changed:
            self._ending = self._ending or Ending.CLOSED
            self._changed.notify()
        self._thread.join(CLOSE_LIMIT_S)

    def _add(self, line: bytes) -> None:
        with self._changed:
            if self._ending is not None:
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            if self._waiting_bytes > MOST_WAITING_BYTES:
                self._ending = Ending.TOO_SLOW
            elif len(self._aliases) > MOST_ALIASES:
                self._ending = Ending.LIMIT
            if self._ending is not None or self._waiting_bytes >= WRITE_AT_BYTES:
                self._changed.notify()

    # --- the writing thread ------------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        try:
            with self._file:
                while not self._write_some():
                    pass
        except OSError as error:
            _log.warning("the recording stopped because it can't be written: %s", error.strerror)
        finally:
            # Job ids come from clients, so they are not kept longer than they are needed.
            self._stopped.set()
            self._aliases.clear()

    def _write_some(self) -> bool:
        """Waits, and writes what has arrived. Returns whether that was the last write."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ending is not None or self._waiting_bytes >= WRITE_AT_BYTES, WRITE_PERIOD_S
            )
            lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
            ending = self._ending
        for piece in _pieces(lines):
            member = gzip.compress(piece, compresslevel=6)
            if self._written_bytes + len(member) + LAST_LINE_BYTES > self._limit_bytes:
                ending = Ending.LIMIT
                break
            self._write(member)
        if ending is None:
            return False
        with self._changed:
            self._ending = ending
            self._waiting = []
        self._write(gzip.compress(ending_line(ending)))
        if ending is not Ending.CLOSED:
            _log.warning("the recording stopped after %d bytes: %s", self._written_bytes, ending.value)
        return True

    def _write(self, member: bytes) -> None:
        self._file.write(member)
        self._file.flush()
        self._written_bytes += len(member)


def _pieces(lines: Sequence[bytes]) -> Iterator[bytes]:
    """The lines joined into pieces of about WRITE_AT_BYTES."""
    piece: list[bytes] = []
    size_bytes = 0
    for line in lines:
        piece.append(line)
        size_bytes += len(line)
        if size_bytes >= WRITE_AT_BYTES:
            yield b"".join(piece)
            piece, size_bytes = [], 0
    if piece:
        yield b"".join(piece)


def _installed_version() -> str:
    try:
        return version("fastserve")
    except PackageNotFoundError:
        return "unknown"


def _new_file(folder: Path, name: str) -> IO[bytes] | None:
    """A file with the next free number; None if there are already MOST_RECORDINGS. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, MOST_RECORDINGS + 1):
        with suppress(FileExistsError):
            return (folder / f"{name}-{number:03d}.jsonl.gz").open("xb")
    return None


@contextmanager
def recording(
    settings: RecordingSettings, machine: MachineFormat, machine_settings: object, *, strict: bool, group: int = 0
) -> Iterator[Recorder | None]:
    """The recorder that the settings ask for, for the machine of a worker group; it is closed at the end. None if
    recording is off. Raises InvalidFieldError if the folder can't be written to.
    """
    if settings.record is None:
        yield None
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    head = Head(machine.name, machine_settings, strict, _installed_version(), platform.python_version(), now)
    try:
        file = _new_file(settings.record, f"{machine.name}-group-{group}" if group else machine.name)
        recorder = None if file is None else Recorder(machine, head, file, settings.record_limit_mb * BYTES_PER_MB)
    except OSError as error:
        raise InvalidFieldError("--record", f"can't write to {settings.record}: {error.strerror}") from None
    if file is None or recorder is None:
        _log.warning(
            "not recording: %s already has %d recordings of this service, the maximum", settings.record, MOST_RECORDINGS
        )
        yield None
        return
    _log.info("recording every decision to %s", file.name)
    try:
        yield recorder
    finally:
        recorder.close()
