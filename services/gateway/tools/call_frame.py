"""How a call is written: the texts around its name and its arguments, by which an output is held to calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CallFrame:
    """`start`, then calls with `between` in between, then `end`. A call is `before_name`, the name, `before_arguments`,
    the arguments as JSON, `after_arguments`. `between` None: there is only one call.
    """

    before_name: str
    before_arguments: str
    after_arguments: str
    between: str | None = ""
    start: str = ""
    end: str = ""

    def text(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls with these names and arguments, as a model writes them."""
        written = (
            f"{self.before_name}{name}{self.before_arguments}{json.dumps(arguments)}{self.after_arguments}"
            for name, arguments in calls
        )
        return self.start + (self.between or "").join(written) + self.end


@dataclass(frozen=True, slots=True)
class TagFrame:
    """As CallFrame, but each argument is written by itself: `before_key`, its name, `before_value`, the value, which is
    JSON only where it is no text, `after_value`. `value_end`: the part of that which no text may have in it.
    """

    before_name: str
    before_arguments: str
    before_key: str
    before_value: str
    value_end: str
    after_value: str
    after_arguments: str
    between: str | None = ""
    start: str = ""
    end: str = ""

    def text(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls with these names and arguments, as a model writes them."""
        return (self.between or "").join(self._call(name, arguments) for name, arguments in calls)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        tags = (
            f"{self.before_key}{key}{self.before_value}{value if isinstance(value, str) else json.dumps(value)}"
            f"{self.value_end}{self.after_value}"
            for key, value in arguments.items()
        )
        return f"{self.before_name}{name}{self.before_arguments}{''.join(tags)}{self.after_arguments}"
