"""Logging to stderr, one line per record. All services have one format, so that `fastserve up` prints a single log."""

import logging
import os
import sys
import time
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]


class _Formatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO scheduler: text`. Line breaks in a message are escaped, so that it stays on one
    line; tracebacks follow it.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {service}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base class's name)
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up_logs(service: str, level: LogLevel) -> None:
    """Sends all log records of the process to stderr under the name of its service."""
    # gRPC's core prints multi-line reports to stderr; what matters in them reaches us as errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # Its debug lines name every selector poll.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
