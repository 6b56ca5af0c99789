"""The one log of `fastserve up`, on stderr: its own lines, and those of its services under their names.

As text, a line is `[name] line`. As JSON, a service's object is passed on with the name that `up` gave the process, and
what is no object (a crash, say) becomes the message of one, so that every line of the log can be parsed.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from services.runtime.logs import LogFormat, json_line


def message_of(line: str) -> str | None:
    """The message of a line that is an object of a JSON log; None for any other line."""
    found = _object_of(line)
    return None if found is None else str(found["message"])


def _object_of(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "message" in found else None


class UpLog:
    """Where `up` writes."""

    def __init__(self, log_format: LogFormat = "human") -> None:
        self.log_format = log_format

    def say(self, text: str) -> None:
        """A line of `up` itself."""
        self._write([self._line("up", text, "info")])

    def pass_on(self, name: str, lines: Sequence[str]) -> None:
        """Lines that the process of this name wrote."""
        self._write([self._line(name, line, "warning") for line in lines])

    def _line(self, name: str, text: str, level: str) -> str:
        if self.log_format == "human":
            return f"[{name}] {text}"
        known = _object_of(text)
        if known is None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return json.dumps(json_line(now, level, name, text), ensure_ascii=False)
        return json.dumps(known | {"service": name}, ensure_ascii=False)

    def _write(self, lines: Sequence[str]) -> None:
        # The reader of our stderr may be gone; the services go on without it.
        with suppress(OSError, ValueError):
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()


TEXT_LOG = UpLog()
"""Where nothing else is asked for."""
