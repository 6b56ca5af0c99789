"""A model's response template: which delimiters part an answer into fields, and how the text of each field is read.

transformers 5 parses answers by the entry `response_template` of tokenizer_config.json (docs: "Response Parsing"). Here
the same entry gives the same message, which the tests compare. Its patterns are those of the package `regex`, which can
tell whether a text may become a match when more of it comes.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import regex

from services.domain.errors import ModelFolderError

PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
"""In the strings of a transform: a whole string of this form stands for a value."""
CONTENT_KINDS = frozenset(("text", "int", "float", "bool", "json", "xml-inline", "kv-lines"))
_TOP_KEYS = frozenset(("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
_ANCHORS = ("open", "open_pattern", "close", "close_pattern")
_FIELD_KEYS = frozenset(
    (*_ANCHORS, "content", "content_args", "repeats", "join", "optional", "transform", "transform_each")
)


@dataclass(frozen=True, slots=True)
class Delimiter:
    """What begins or ends a field. `literals`: its texts, if it is no expression. `grows`: whether a match may become
    another one when more text follows it.
    """

    pattern: Any
    literals: tuple[str, ...]
    grows: bool

    @property
    def groups(self) -> frozenset[str]:
        """The names of what it captures."""
        return frozenset(self.pattern.groupindex)


@dataclass(frozen=True, slots=True)
class FieldTemplate:
    """One field. Without an opening it takes what is in no other one."""

    name: str
    opening: Delimiter | None
    closing: Delimiter | None
    content: str
    content_args: Mapping[str, Any]
    repeats: bool
    join: str | None
    is_optional: bool
    transform: Any
    transforms_each: bool


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """A template that was read. `implicit`: the field without an opening. `texts`: all its strings, as they match."""

    fields: Mapping[str, FieldTemplate]
    defaults: Mapping[str, Any]
    anchor: Delimiter
    implicit: str | None
    texts: tuple[str, ...]

    def answer_start(self, prompt: str) -> str:
        """The part of a prompt that belongs to the answer: what follows the last anchor, all of it without one."""
        end = 0
        for match in self.anchor.pattern.finditer(prompt):
            end = match.end()
        return prompt[end:]


def read_response_template(spec: Any) -> ResponseTemplate:
    """Raises ModelFolderError, which names the entry that is wrong."""
    if not isinstance(spec, dict):
        raise _wrong("", "must be an object")
    if spec.get("version", 1) != 1:
        raise _wrong("version", f"must be 1, got {spec['version']!r}")
    _check_keys("", spec, _TOP_KEYS)
    defaults, fields = spec.get("defaults", {}), spec.get("fields", {})
    if not isinstance(defaults, dict):
        raise _wrong("defaults", "must be an object")
    if not isinstance(fields, dict) or not fields:
        raise _wrong("fields", "must be an object that is not empty")
    read = {name: _read_field(name, field) for name, field in fields.items()}
    implicit = [name for name, field in read.items() if field.opening is None]
    if len(implicit) > 1:
        raise _wrong("fields", f"only one may lack 'open' and 'open_pattern', and these do: {', '.join(implicit)}")
    anchor = _read_delimiter("", spec, "start_anchor")
    if anchor is None:
        raise _wrong("start_anchor", "or start_anchor_pattern must be given")
    texts = tuple(re.sub(r"\\(\W)", r"\1", text) for text in _strings(spec))
    return ResponseTemplate(read, deepcopy(defaults), anchor, implicit[0] if implicit else None, texts)


def _read_field(name: str, field: Any) -> FieldTemplate:
    path = f"fields.{name}"
    if not isinstance(field, dict):
        raise _wrong(path, "must be an object")
    _check_keys(path, field, _FIELD_KEYS)
    content = field.get("content", "text")
    if content not in CONTENT_KINDS:
        raise _wrong(f"{path}.content", f"must be one of {', '.join(sorted(CONTENT_KINDS))}")
    join, each, transform = field.get("join"), field.get("transform_each", False), field.get("transform")
    if join is not None and not (isinstance(join, str) and field.get("repeats", False)):
        raise _wrong(f"{path}.join", "must be a string, and needs repeats: true")
    if not isinstance(each, bool) or (each and transform is None):
        raise _wrong(f"{path}.transform_each", "must be true or false, and needs a transform")
    opening, closing = _read_delimiter(path, field, "open"), _read_delimiter(path, field, "close")
    if transform is None:
        captured = sorted({group for one in (opening, closing) if one is not None for group in one.groups})
        if captured:
            raise _wrong(path, f"captures {', '.join(captured)}, and has no transform to use it")
    for text in _strings(transform):
        if PLACEHOLDER.search(text) and not PLACEHOLDER.fullmatch(text):
            raise _wrong(f"{path}.transform", f"{text!r} mixes a placeholder with other text")
    return FieldTemplate(
        name=name,
        opening=opening,
        closing=closing,
        content=content,
        content_args=field.get("content_args", {}),
        repeats=bool(field.get("repeats", False)),
        join=join,
        is_optional=bool(field.get("optional", True)),
        transform=transform,
        transforms_each=each,
    )


def _read_delimiter(path: str, entry: dict[str, Any], key: str) -> Delimiter | None:
    """The delimiter that is given by one or several texts, or by an expression."""
    pattern_key = f"{key}_pattern"
    where = f"{path}.{key}".lstrip(".")
    if key in entry and pattern_key in entry:
        raise _wrong(where, f"must not be given together with {pattern_key}")
    if pattern_key in entry:
        try:
            return Delimiter(regex.compile(entry[pattern_key], regex.DOTALL), (), True)
        except (regex.error, TypeError) as error:
            raise _wrong(f"{where}_pattern", f"is no regular expression: {error}") from None
    if key not in entry:
        return None
    given = entry[key]
    literals = given if isinstance(given, list) else [given]
    if not literals or not all(isinstance(literal, str) and literal for literal in literals):
        raise _wrong(where, "must be a text or several, none of them empty")
    longest_first = tuple(sorted(dict.fromkeys(literals), key=len, reverse=True))
    grows = any(a != b and a.startswith(b) for a in longest_first for b in longest_first)
    pattern = "|".join(regex.escape(literal) for literal in longest_first)
    return Delimiter(regex.compile(pattern, regex.DOTALL), longest_first, grows)


def _check_keys(path: str, entry: dict[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(str(key) for key in entry if key not in known)
    if unknown:
        raise _wrong(f"{path}.{unknown[0]}".lstrip("."), "is not known")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _wrong(path: str, reason: str) -> ModelFolderError:
    where = f"response_template.{path}" if path else "response_template"
    return ModelFolderError(f"{where} {reason}")
