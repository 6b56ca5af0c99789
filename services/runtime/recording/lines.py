"""A recording as lines of JSON: the machine and its settings, its turns, and how the recording ended.

    {"recording": "scheduler", "format": 3, "fastserve": "0.1.0", ..., "strict": false, "settings": {...}}
    {"now_s": 12.5, "events": [["Submit", "j0", 17, 32, null, 0, null, false]], "commands": [["ToKv", 7, [...]], ...]}
    {"now_s": 12.6, "events": [...], "fault": "ProtocolError"}
    {"end": "closed"}

A recording contains no text and no token of any client. The machines see only counts. Ids of sampled tokens are left
out, and so are texts that may contain the clients' own job ids. Job ids are replaced by aliases.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from services.domain.errors import InvalidFieldError, RecordingError
from services.domain.turns import Turn
from services.runtime.recording.codec import Aliases, Codec, Rules

FORMAT_NUMBER = 3


class Ending(Enum):
    """Why a recording ended. CUT_OFF: it has no last line, because the service was killed or is still running."""

    CLOSED = "closed"
    LIMIT = "limit"
    TOO_SLOW = "too-slow"
    CUT_OFF = "cut-off"


@dataclass(frozen=True, slots=True)
class Head:
    """A recording's first line. `strict`: whether the machine raises when a peer breaks the protocol."""

    machine: str
    settings: Any
    strict: bool
    version: str
    python: str
    recorded_at: str


@dataclass(frozen=True, slots=True)
class MachineFormat:
    """The format of a machine's recording: its name, and the types of its settings, events and commands."""

    name: str
    settings: Any
    event: Any
    command: Any
    rules: Rules


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def ending_line(ending: Ending) -> bytes:
    """The last line."""
    return _dump({"end": ending.value})


class TurnWriter:
    """Makes the lines of one machine's recording. Job ids are replaced by their `aliases`."""

    def __init__(self, machine: MachineFormat, aliases: Aliases) -> None:
        self._machine = machine
        self._aliases = aliases
        self._encode_event = Codec(machine.event, machine.rules, aliases).encode
        self._encode_command = Codec(machine.command, machine.rules, aliases).encode

    def head(self, head: Head) -> bytes:
        """The first line."""
        codec = Codec(self._machine.settings, self._machine.rules)
        settings = dict(zip(codec.field_types(self._machine.settings), codec.encode(head.settings), strict=True))
        return _dump(
            {
                "recording": head.machine,
                "format": FORMAT_NUMBER,
                "fastserve": head.version,
                "python": head.python,
                "recorded_at": head.recorded_at,
                "strict": head.strict,
                "settings": settings,
            }
        )

    def turn(self, now_s: float, events: Sequence[Any], commands: Sequence[Any]) -> bytes:
        """A turn in which `handle` returned."""
        told = [self._encode_event(event) for event in events]
        said = [self._encode_command(command) for command in commands]
        self._aliases.end_turn()
        return _dump({"now_s": now_s, "events": told, "commands": said})

    def fault(self, now_s: float, events: Sequence[Any], fault: str) -> bytes:
        """A turn in which `handle` raised."""
        told = [self._encode_event(event) for event in events]
        self._aliases.end_turn()
        return _dump({"now_s": now_s, "events": told, "fault": fault})


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordingError("is not JSON") from None
    if not isinstance(value, dict):
        raise RecordingError("is not a JSON object")
    return value


def _given(line: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    value = line.get(name)
    if not isinstance(value, kind):
        raise RecordingError(f"has no valid field '{name}'")
    return value


def head_from(line: bytes, machines: Sequence[MachineFormat]) -> tuple[Head, MachineFormat]:
    """Parses the first line, which names the machine. Raises RecordingError."""
    try:
        fields = _parsed(line)
        name = fields.get("recording")
    except RecordingError:
        name = None
    machine = next((one for one in machines if one.name == name), None)
    if machine is None:
        raise RecordingError(f"is not a recording of a {' or a '.join(one.name for one in machines)}")
    if fields.get("format") != FORMAT_NUMBER:
        raise RecordingError(f"has format {fields.get('format')!r}, but this version reads format {FORMAT_NUMBER}")
    settings = _settings_from(_given(fields, "settings", dict), machine)
    strict = _given(fields, "strict", bool)
    texts = [_given(fields, name, str) for name in ("fastserve", "python", "recorded_at")]
    return Head(machine.name, settings, strict, *texts), machine


def _settings_from(written: Mapping[str, Any], machine: MachineFormat) -> Any:
    codec = Codec(machine.settings, machine.rules)
    names = list(codec.field_types(machine.settings))
    if list(written) != names:
        different = sorted(set(written) ^ set(names))
        raise RecordingError(f"has settings that differ from those of this version: {', '.join(different)}")
    try:
        return codec.decode(list(written.values()))
    except AssertionError as error:
        raise RecordingError(f"has invalid settings: {error}") from None


class TurnReader:
    """Parses the lines of one machine's recording."""

    def __init__(self, machine: MachineFormat) -> None:
        self._decode_event = Codec(machine.event, machine.rules).decode
        self._decode_command = Codec(machine.command, machine.rules).decode

    def read(self, line: bytes) -> Turn[Any, Any] | Ending:
        """One line after the first. Raises RecordingError."""
        fields = _parsed(line)
        if "end" in fields:
            try:
                return Ending(fields["end"])
            except ValueError:
                raise RecordingError(f"has an unknown end: {fields['end']!r}") from None
        now_s = _given(fields, "now_s", (int, float))
        try:
            events = tuple([self._decode_event(event) for event in _given(fields, "events", list)])
            if "fault" in fields:
                return Turn(now_s, events, (), _given(fields, "fault", str))
            commands = tuple([self._decode_command(command) for command in _given(fields, "commands", list)])
        except InvalidFieldError as error:
            raise RecordingError(str(error)) from None
        return Turn(now_s, events, commands)
