"""Compiles guides with llguidance, for the gateway's check and for the worker's masks: with the same limits, so that
the worker can follow what the gateway lets by.

llguidance reads the tokenizer's file itself. Compiling and masking drop the interpreter's lock. Its limits bound what a
guide may take: fuel is spent while expressions are built, at first and per mask, states are kept as long as the job.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from services.domain.errors import FastServeError, ModelFolderError
from services.domain.guide import JSON_OPTIONS, Guide, GuideKind
from services.runtime.model_files import read_facts, tokenizer_file

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MOST_REASON_CHARACTERS = 300


class GuideError(FastServeError):
    """A guide can't be compiled or followed; says why in one line."""


def limits() -> LLParserLimits:
    """About 20 ms for the expressions of a guide, 4 ms for those of a mask, 1 ms for the parser's items of a mask, and
    40 MB of states for a job, by llguidance's own figures.
    """
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def one_line(reason: str) -> str:
    """A message of llguidance without its line breaks and what it quotes of its state, and not too long."""
    text = " ".join(reason.replace("<non-verbose/>", " ").split())
    return text if len(text) <= MOST_REASON_CHARACTERS else text[:MOST_REASON_CHARACTERS] + "..."


def grammar_of(guide: Guide) -> str:
    """The guide in llguidance's own format. Raises GuideError for a schema that is no JSON."""
    match guide.kind:
        case GuideKind.JSON_SCHEMA:
            return schema_grammar(guide.text)
        case GuideKind.JSON_OBJECT:
            return schema_grammar('{"type":"object"}')
        case GuideKind.REGEX:
            return LLMatcher.grammar_from_regex(guide.text)
        case GuideKind.GRAMMAR:
            return _lark(guide.text)
        case GuideKind.CHOICE:
            return _lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in guide.choices))


def schema_grammar(schema: str | dict[str, Any]) -> str:
    """A JSON Schema in llguidance's own format. Raises GuideError if it is no JSON."""
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=cast("JsonCompileOptions", dict(JSON_OPTIONS)))
    except ValueError as error:
        raise GuideError(f"is not valid JSON: {one_line(str(error))}") from None


def _lark(text: str) -> str:
    """A text that begins like JSON would be taken for llguidance's own format."""
    return json.dumps({"grammars": [{"lark_grammar": text}]})


class GuideCompiler:
    """Compiles guides for the model of a folder. Raises ModelFolderError if llguidance can't read its tokenizer."""

    def __init__(self, model: Path) -> None:
        facts = read_facts(model)
        eos_token_ids = list(facts.eos_token_ids) or None
        try:
            self._tokenizer = LLTokenizer(str(tokenizer_file(model)), facts.vocabulary_size, eos_token_ids)
        except Exception as error:  # the library raises nothing more specific
            raise ModelFolderError(f"guides are not possible with this tokenizer: {one_line(str(error))}") from None
        self._limits = limits()

    @property
    def vocabulary_size(self) -> int:
        """Tokens of the model: a mask has a bit for each."""
        return self._tokenizer.vocab_size

    def compile(self, guide: Guide) -> LLMatcher:
        """The guide before its first token. Raises GuideError."""
        matcher = LLMatcher(self._tokenizer, grammar_of(guide), log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GuideError(one_line(matcher.get_error()))
        return matcher
