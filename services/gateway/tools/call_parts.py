"""What an answer with tool calls consists of, in the order in which it is made."""

from enum import Enum
from typing import NamedTuple


class WordsKind(Enum):
    """What words of an answer are, by the members of a message."""

    CONTENT = "content"
    REASONING = "reasoning_content"


class AnswerWords(NamedTuple):
    """Text that is no call."""

    kind: WordsKind
    text: str


class CallBegan(NamedTuple):
    """A call of this function begins; it is number `call` of the answer's calls."""

    call: int
    name: str


class ArgumentsPart(NamedTuple):
    """The next part of the arguments of a call, as JSON."""

    call: int
    text: str


AnswerPart = AnswerWords | CallBegan | ArgumentsPart
