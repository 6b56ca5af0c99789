"""What W3C Trace Context's header of this name says, for logs: they name a trace whether or not spans are made of it.
Pure.
"""

import re

TRACEPARENT = "traceparent"
MOST_TRACEPARENT_CHARACTERS = 64
"""More than version 00 of Trace Context has, which is 55; what is longer is not one."""

_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


def _found(traceparent: str) -> re.Match[str] | None:
    if len(traceparent) > MOST_TRACEPARENT_CHARACTERS:
        return None
    found = _FORM.fullmatch(traceparent.strip(" \t"))
    if found is None or (found[4] is not None and traceparent.lstrip(" \t").startswith("00")):
        return None
    return found


def trace_id_of(traceparent: str) -> str | None:
    """The trace's id, 32 hexadecimal digits; None: this names no trace."""
    found = _found(traceparent)
    return None if found is None else found[1]


def parent_of(traceparent: str) -> tuple[int, int, int] | None:
    """The ids of the trace and of the span in it that this names, and the trace's flags; None: it names none."""
    found = _found(traceparent)
    return None if found is None else (int(found[1], 16), int(found[2], 16), int(found[3], 16))
