"""What a job's output must look like, as gateway, scheduler and worker pass it on. `Guide` in inference.proto says what
each kind means.
"""

from dataclasses import dataclass
from enum import Enum


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
