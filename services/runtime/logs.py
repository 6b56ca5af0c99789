"""Logging to stderr, one line per record. All services have one format, so that `fastserve up` prints a single log.

A record that is about a request or a job names it by `extra={"request_id": ..., "job_id": ...}`; `trace_id` is the
third such name. `log_about` names what all later records of a task are about. Text shows the ids behind the message,
JSON as fields. What a client sent or was answered is logged at level debug or not at all.
"""

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["human", "json"]

ID_FIELDS = ("request_id", "trace_id", "job_id")
"""What a record may be about; each is there only if it is known."""


_about: ContextVar[dict[str, str] | None] = ContextVar("log_about", default=None)


def log_about(**ids: str) -> None:
    """Names, by ID_FIELDS, what the records of the current task, and of tasks that it begins later, are about."""
    assert ids.keys() <= set(ID_FIELDS), f"a record is about {', '.join(ID_FIELDS)}"
    _about.set({**(_about.get() or {}), **ids})


def _ids_of(record: logging.LogRecord) -> dict[str, str]:
    """What a record names itself goes before what its task is about."""
    known = _about.get() or {}
    named = {name: getattr(record, name, known.get(name)) for name in ID_FIELDS}
    return {name: str(value) for name, value in named.items() if value is not None}


class _HumanFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO scheduler: text [job_id=j]`. Line breaks in a message are escaped, so that it
    stays on one line; tracebacks follow it.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {service}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base class's name)
        about = " ".join(f"{name}={value}" for name, value in _ids_of(record).items())
        text = super().formatMessage(record) + (f" [{about}]" if about else "")
        return text.replace("\r", "\\r").replace("\n", "\\n")


class _JsonFormatter(_HumanFormatter):
    """An object on one line: time, level, service and message, the ids that are known, and an error's traceback."""

    def __init__(self, service: str) -> None:
        super().__init__(service)
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = json_line(self.formatTime(record), record.levelname, self._service, record.getMessage())
        line |= _ids_of(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def json_line(time_text: str, level: str, service: str, message: str) -> dict[str, str]:
    """What every line of a JSON log has. `time_text` is UTC in ISO 8601."""
    return {"time": time_text, "level": level.lower(), "service": service, "message": message}


def formatter_of(service: str, log_format: LogFormat) -> logging.Formatter:
    """What makes a record a line of this service's log."""
    return _JsonFormatter(service) if log_format == "json" else _HumanFormatter(service)


def set_up_logs(service: str, level: LogLevel, log_format: LogFormat = "human") -> None:
    """Sends all log records of the process to stderr under the name of its service."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_of(service, log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # Its debug lines name every selector poll.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
