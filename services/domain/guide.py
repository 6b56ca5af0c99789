"""What a job's output must look like, as gateway, scheduler and worker pass it on. `Guide` in inference.proto says what
each kind means.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

JSON_OPTIONS: Final[Mapping[str, object]] = {
    "whitespace_flexible": False,
    "item_separator": r",\x20?",
    "key_separator": r":\x20?",
    "lenient": False,
}
"""How JSON is written under a guide, in llguidance's words. White space is a space after a comma or a colon: where it
is free, a model may go on with it for ever.
"""


class GuideKind(Enum):
    """The kinds of guides, by their names in inference.proto."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Guide:
    """`text` is a schema as JSON, a regular expression or a grammar; `choices` are those of a CHOICE."""

    kind: GuideKind
    text: str = ""
    choices: tuple[str, ...] = ()
