"""Typed reading of a JSON object's fields, with errors that name the field and what it must be.

A field that is missing or null has its default; one without a default must be there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

from services.domain.errors import ModelFolderError


class _Needed:
    """Marks a field that has no default."""


_NEEDED = _Needed()


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object; messages begin with `place`.

    Every reader raises ModelFolderError for a field missing, of another type or out of its limits.
    """

    place: str
    raw: Mapping[str, Any]

    def whole(self, name: str, default: int | _Needed = _NEEDED, *, least: int = 1, most: int) -> int:
        """A whole number from `least` to `most`."""
        value = self._value(name, default)
        if not _is_whole(value) or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}", value)
        return int(value)

    def whole_or_null(self, name: str, default: int, *, most: int) -> int | None:
        """A whole number from 1 to `most`, or None for a null, which here does not mean the default."""
        return None if name in self.raw and self.raw[name] is None else self.whole(name, default, most=most)

    def wholes(self, name: str) -> tuple[int, ...]:
        """A token id or a list of token ids, as a tuple; empty if missing."""
        value = self.raw.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(_is_whole(item) and item >= 0 for item in values):
            raise self._wrong(name, "a token id or a list of token ids", value)
        return tuple(int(item) for item in values)

    @overload
    def real(self, name: str, default: float | _Needed = _NEEDED) -> float: ...
    @overload
    def real(self, name: str, default: None) -> float | None: ...
    def real(self, name: str, default: float | _Needed | None = _NEEDED) -> float | None:
        """A finite number."""
        value = self._value(name, default)
        if value is None:
            return None
        if not _is_real(value):
            raise self._wrong(name, "a number", value)
        return float(value)

    def reals(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers, empty if missing."""
        value = self.raw.get(name) or []
        if not isinstance(value, list) or not all(_is_real(item) for item in value):
            raise self._wrong(name, "a list of numbers", value)
        return tuple(float(item) for item in value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    @overload
    def text(self, name: str, default: str) -> str: ...
    @overload
    def text(self, name: str, default: None) -> str | None: ...
    def text(self, name: str, default: str | None) -> str | None:
        """A string."""
        value = self._value(name, default)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is _NEEDED:
            raise ModelFolderError(f"{self.place}: {name} is missing")
        return default

    def _wrong(self, name: str, expected: str, value: object) -> ModelFolderError:
        return ModelFolderError(f"{self.place}: {name} must be {expected}, not {value!r:.80}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return (_is_whole(value) or isinstance(value, float)) and math.isfinite(value)  # type: ignore[arg-type]
