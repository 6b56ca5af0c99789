"""Converts values of closed types to JSON and back.

A codec is compiled from a type, such as the union of a machine's events, and handles exactly the types that can be
reached from it: nothing else can be read. A NamedTuple or a dataclass is written as the list of its fields, preceded by
its name where a union allows several types; an enum is written as its value, a tuple as a list. Python's JSON writes
floats so that they read back exactly.

Job ids contain the request ids that clients chose. They are replaced by aliases, j0, j1 and so on in the order of
their first use: the machines only compare ids, so it is enough that equal ids stay equal. An alias is forgotten after
the turn that names its job for the last time. If a new job with the same id begins later in that turn, it inherits the
alias.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from services.domain.errors import RecordingError
from services.domain.ids import JobId

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]

_PLAIN = (int, float, str, bool)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the types alone don't determine.

    stands_for: the closed union that replaces a Protocol class. left_out: fields that are not written, by (type, name),
    with the value that is read instead. last_words: records after whose turn the machine has forgotten their `job_id`,
    unless one of `first_words` with the same `job_id` follows in that turn. written_as: names of records in the file
    that differ from those in the code, so that a renamed class can still read older recordings.
    """

    stands_for: Mapping[Any, Any] = field(default_factory=dict)
    left_out: Mapping[tuple[type, str], Any] = field(default_factory=dict)
    last_words: frozenset[type] = frozenset()
    first_words: frozenset[type] = frozenset()
    written_as: Mapping[type, str] = field(default_factory=dict)


class Aliases:
    """Aliases of job ids."""

    def __init__(self) -> None:
        self._names: dict[JobId, str] = {}
        self._given = 0
        self._leaving: set[JobId] = set()

    def __len__(self) -> int:
        return len(self._names)

    def name(self, job_id: JobId) -> str:
        """The job's alias; stays the same until it is forgotten."""
        name = self._names.get(job_id)
        if name is None:
            name = self._names[job_id] = f"j{self._given}"
            self._given += 1
        return name

    def leaves(self, job_id: JobId) -> None:
        """This turn names the job for the last time."""
        self._leaving.add(job_id)

    def begins(self, job_id: JobId) -> None:
        """A job with this id begins; if an earlier job with the id left in this turn, the new job keeps the alias."""
        self._leaving.discard(job_id)

    def end_turn(self) -> None:
        """Forget the jobs that left."""
        for job_id in self._leaving:
            self._names.pop(job_id, None)
        self._leaving.clear()

    def clear(self) -> None:
        """Forget all."""
        self._names.clear()


def _same(value: Any) -> Any:
    return value


def _always(constant: Any) -> Callable[[Any], Any]:
    return lambda value: constant


class Codec:
    """Converts values of type `hint` to JSON values and back. Without `aliases` job ids are written unchanged."""

    def __init__(self, hint: Any, rules: Rules, aliases: Aliases | None = None) -> None:
        self._rules = rules
        self._aliases = aliases
        self._encoders: dict[type, Encoder] = {}
        self._decoders: dict[type, Decoder] = {}
        self.types: dict[str, type] = {}
        """All record types that can occur, by name."""
        self.encode = self._encoder(hint)
        self.decode = self._decoder(hint)

    def _written_name(self, record: type) -> str:
        return self._rules.written_as.get(record, record.__name__)

    def field_types(self, record: type) -> dict[str, Any]:
        """A record's fields in order, with their types."""
        hints = get_type_hints(record)
        names = (
            [one.name for one in fields(record) if one.init]
            if is_dataclass(record)
            else list(getattr(record, "_fields", ()))
        )
        return {name: hints[name] for name in names}

    # --- to JSON -----------------------------------------------------------------------------------------------------

    def _encoder(self, hint: Any) -> Encoder:
        hint = self._rules.stands_for.get(hint, hint)
        if hint is JobId:
            return _same if self._aliases is None else self._aliases.name
        if isinstance(hint, NewType):
            return self._encoder(hint.__supertype__)
        if hint in _PLAIN:
            return _same
        if get_origin(hint) is tuple:
            return self._tuple_encoder(get_args(hint))
        if get_origin(hint) in (UnionType, Union):
            return self._union_encoder(get_args(hint))
        if issubclass(hint, Enum):
            return attrgetter("value")
        return self._record_encoder(hint)

    def _tuple_encoder(self, parts: tuple[Any, ...]) -> Encoder:
        if len(parts) == 2 and parts[1] is Ellipsis:
            encode = self._encoder(parts[0])
            return list if encode is _same else lambda values: [encode(value) for value in values]
        encoders = [self._encoder(part) for part in parts]
        return lambda values: [encode(value) for encode, value in zip(encoders, values, strict=True)]

    def _union_encoder(self, members: tuple[Any, ...]) -> Encoder:
        others = [member for member in members if member is not NoneType]
        if len(others) == 1:
            encode = self._encoder(others[0])
            return lambda value: None if value is None else encode(value)
        by_type = {member: (self._written_name(member), self._encoder(member)) for member in others}

        def encode_one(value: Any) -> Any:
            if value is None:
                return None
            name, encode = by_type[type(value)]
            return [name, *encode(value)]

        return encode_one

    def _record_encoder(self, record: type) -> Encoder:
        if record in self._encoders:
            return self._encoders[record]
        name = self._written_name(record)
        assert self.types.setdefault(name, record) is record, f"two types are called {name}"
        hints = self.field_types(record)
        names = list(hints)
        if is_dataclass(record):
            row_of = _row_getter(names)
        else:
            assert hasattr(record, "_fields"), f"{record} is neither a NamedTuple nor a dataclass"
            row_of = list
        changes: list[tuple[int, Encoder]] = []
        for at, (name, hint) in enumerate(hints.items()):
            if (record, name) in self._rules.left_out:
                changes.append((at, _always(self._rules.left_out[record, name])))
            elif (encode := self._encoder(hint)) is not _same:
                changes.append((at, encode))

        def encode_record(value: Any) -> list[Any]:
            row = row_of(value)
            for at, encode in changes:
                row[at] = encode(row[at])
            return row

        encode = encode_record
        if self._aliases is not None and record in self._rules.last_words:
            encode = _telling_encoder(encode_record, self._aliases.leaves)
        elif self._aliases is not None and record in self._rules.first_words:
            encode = _telling_encoder(encode_record, self._aliases.begins)
        self._encoders[record] = encode
        return encode

    # --- from JSON ---------------------------------------------------------------------------------------------------

    def _decoder(self, hint: Any) -> Decoder:
        hint = self._rules.stands_for.get(hint, hint)
        if isinstance(hint, NewType):
            return self._decoder(hint.__supertype__)
        if hint in _PLAIN:
            return _plain_decoder(hint)
        if get_origin(hint) is tuple:
            return self._tuple_decoder(get_args(hint))
        if get_origin(hint) in (UnionType, Union):
            return self._union_decoder(get_args(hint))
        if issubclass(hint, Enum):
            return _enum_decoder(hint)
        return self._record_decoder(hint)

    def _tuple_decoder(self, parts: tuple[Any, ...]) -> Decoder:
        if len(parts) == 2 and parts[1] is Ellipsis:
            decode = self._decoder(parts[0])
            return lambda values: tuple([decode(value) for value in _listed(values, None)])
        decoders = [self._decoder(part) for part in parts]
        return lambda values: tuple(
            decode(value) for decode, value in zip(decoders, _listed(values, len(decoders)), strict=True)
        )

    def _union_decoder(self, members: tuple[Any, ...]) -> Decoder:
        others = [member for member in members if member is not NoneType]
        may_be_none = len(others) < len(members)
        if len(others) == 1:
            decode = self._decoder(others[0])
            return lambda value: None if value is None else decode(value)
        by_name = {self._written_name(member): self._decoder(member) for member in others}

        def decode_one(value: Any) -> Any:
            if value is None and may_be_none:
                return None
            name, *row = _listed(value, None) or [None]
            if not isinstance(name, str) or name not in by_name:
                raise RecordingError(f"{_short(value)} is not one of {', '.join(by_name)}")
            return by_name[name](row)

        return decode_one

    def _record_decoder(self, record: type) -> Decoder:
        if record in self._decoders:
            return self._decoders[record]
        decoders: list[Decoder] = []
        for name, hint in self.field_types(record).items():
            if (record, name) in self._rules.left_out:
                decoders.append(_always(self._rules.left_out[record, name]))
            else:
                decoders.append(self._decoder(hint))
        count = len(decoders)

        def decode_record(row: Any) -> Any:
            row = _listed(row, count)
            return record(*[decode(value) for decode, value in zip(decoders, row, strict=True)])

        self._decoders[record] = decode_record
        return decode_record


def _row_getter(names: list[str]) -> Callable[[Any], list[Any]]:
    """A function that returns the fields of a dataclass as a list."""
    if len(names) < 2:
        return lambda value: [getattr(value, name) for name in names]
    get = attrgetter(*names)
    return lambda value: list(get(value))


def _telling_encoder(encode: Encoder, tell: Callable[[JobId], None]) -> Encoder:
    def encode_and_tell(value: Any) -> Any:
        tell(value.job_id)
        return encode(value)

    return encode_and_tell


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _listed(value: Any, count: int | None) -> list[Any]:
    """Checks that the value is a list of `count` elements, if given. Raises RecordingError."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise RecordingError(f"{_short(value)} is not a list" + ("" if count is None else f" of {count}"))
    return value


def _plain_decoder(hint: type) -> Decoder:
    # A time or a rank may be written as a whole number, but a bool is not a number.
    kinds = (int, float) if hint is float else (hint,)

    def decode_plain(value: Any) -> Any:
        if type(value) not in kinds:
            raise RecordingError(f"{_short(value)} is not of type {hint.__name__}")
        return value

    return decode_plain


def _enum_decoder(kind: type[Enum]) -> Decoder:
    def decode_enum(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise RecordingError(f"{_short(value)} is not a valid {kind.__name__}") from None

    return decode_enum
