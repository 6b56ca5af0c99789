"""The report's first page: sentences by people, numbers by code.

conclusions.md is written by hand. A number in it is written as readers see it, tied to the fact that it states:
`[3.7x]{overload-most-gain}`. What a fact is worth now comes from the results (facts.py). A sentence whose number is
another one by now is told, with both numbers, and the page does not go out until somebody has rewritten the sentence.
A number that is tied to nothing is told as well; the tests allow none.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from evaluation.fact_kinds import Fact
from evaluation.facts import FACTS
from evaluation.results import Evaluation

CONCLUSIONS = Path(__file__).with_name("conclusions.md")

_TIE = re.compile(r"\[([^\[\]]+)\]\{([a-z0-9.-]+)\}")
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z\[(])")
_PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?=- )")
_LINE_CHARACTERS = 120
_NAMES = re.compile(
    r"\b(?:GPT-175B|OPT-\d+(?:\.\d+)?B|Llama-3-8B|A100(?:-\d+GB)?|P9[59]|v1|v3|N26)(?![\w-])"
    r"|\]\([^)]*\)|`[^`]*`"
)
_NUMBER = re.compile(
    r"\d+(?:[.,]\d+)*\w*|\b(?:zero|two|three|four|five|six|seven|eight|nine|ten|dozen|hundred|thousand|half|third|quarter|"
    r"twice|thrice|double[sd]?|triple[sd]?|tenfold|percent)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Tie:
    """A place where a sentence states a fact."""

    stated: str
    fact: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A sentence that is no longer true."""

    tie: Tie
    now: str

    def __str__(self) -> str:
        return f"'{self.tie.sentence}' states {self.tie.stated} for {self.tie.fact}; it is {self.now}"


def read_aloud(text: str) -> str:
    """The text as readers see it, without ties."""
    return _TIE.sub(r"\1", text)


def _paragraphs(text: str) -> list[str]:
    """Paragraphs, headings and items of lists, each in one line."""
    return [" ".join(paragraph.split()) for paragraph in _PARAGRAPH_END.split(text.strip())]


def _filled(paragraph: str, indent: str) -> list[str]:
    return wrap(paragraph, _LINE_CHARACTERS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def as_published(text: str) -> str:
    """The same, its lines filled again."""
    filled: list[str] = []
    for paragraph in _paragraphs(read_aloud(text)):
        indent = "  " if paragraph.startswith("- ") else ""
        lines = [paragraph] if paragraph.startswith("#") else _filled(paragraph, indent)
        follows = bool(filled) and bool(indent) and filled[-1].startswith(("- ", "  "))
        filled += lines if follows or not filled else ["", *lines]
    return "\n".join(filled) + "\n"


def sentences(text: str) -> list[str]:
    """Its sentences, ties and all, each in one line."""
    return [sentence for paragraph in _paragraphs(text) for sentence in _SENTENCE_END.split(paragraph)]


def ties(text: str) -> list[Tie]:
    """Everything that is tied, in the order of the text."""
    return [
        Tie(stated, fact, read_aloud(sentence))
        for sentence in sentences(text)
        for stated, fact in _TIE.findall(sentence)
    ]


def contradictions(text: str, evaluation: Evaluation, facts: Mapping[str, Fact] = FACTS) -> list[Contradiction]:
    """The sentences whose numbers are others by now, or whose facts nobody knows."""
    found: list[Contradiction] = []
    for tie in ties(text):
        fact = facts.get(tie.fact)
        now = fact.told(evaluation) if fact is not None else "no fact of that name"
        if now != tie.stated:
            found.append(Contradiction(tie, now))
    return found


def untied(text: str) -> list[str]:
    """The numbers, in digits or in words, that no fact vouches for, each with its sentence."""
    return [
        f"{number} in '{read_aloud(sentence)}'"
        for sentence in sentences(text)
        for number in _NUMBER.findall(_NAMES.sub("", _TIE.sub("", sentence)))
    ]
