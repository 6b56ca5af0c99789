"""Reads recordings turn by turn, as far as they are complete: a killed service may leave its last second half written,
but everything before that is valid.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from services.domain.errors import RecordingError
from services.domain.turns import Turn
from services.runtime.recording.lines import Ending, Head, MachineFormat, TurnReader, head_from

MOST_LINE_BYTES = 1 << 28
_GZIP_MAGIC = b"\x1f\x8b"
_HALF_A_MAGIC = f"Not a gzipped file ({_GZIP_MAGIC[:1]!r})"
"""The message of gzip for a member of which only the first byte was written."""


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as raw:
        is_packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path)) if is_packed else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    """Complete lines, up to the end or to where the file was cut off. Raises RecordingError."""
    try:
        with _open(path) as file:
            while (line := file.readline(MOST_LINE_BYTES)).endswith(b"\n"):
                yield line
            if len(line) == MOST_LINE_BYTES:
                raise RecordingError(f"{path}: a line is longer than {MOST_LINE_BYTES} bytes")
    except EOFError:
        # Cut off inside a gzip member.
        return
    except (gzip.BadGzipFile, zlib.error) as error:
        if str(error) == _HALF_A_MAGIC:
            return
        raise RecordingError(f"{path}: the file is damaged: {error}") from None
    except OSError as error:
        raise RecordingError(f"{path}: can't be read: {error.strerror}") from None


class Recording:
    """A recording on disk: its head at once, its turns by iterating over it, once. Both raise RecordingError."""

    def __init__(self, path: Path, machines: Sequence[MachineFormat]) -> None:
        self._path = path
        self._lines = _lines(path)
        self.head, self.machine = self._head(machines)
        self.ending = Ending.CUT_OFF
        """Valid once all turns have been read."""

    def _head(self, machines: Sequence[MachineFormat]) -> tuple[Head, MachineFormat]:
        try:
            return head_from(next(self._lines, b""), machines)
        except RecordingError as error:
            raise self._placed(error) from None

    def __iter__(self) -> Iterator[Turn[Any, Any]]:
        reader = TurnReader(self.machine)
        for number, line in enumerate(self._lines, start=2):
            try:
                read = reader.read(line)
            except RecordingError as error:
                raise RecordingError(f"{self._path}: line {number}: {error}") from None
            if isinstance(read, Ending):
                self.ending = read
                return
            yield read

    def _placed(self, error: RecordingError) -> RecordingError:
        text = str(error)
        return RecordingError(text if text.startswith(str(self._path)) else f"{self._path}: {text}")
