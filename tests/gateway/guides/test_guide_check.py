"""What guides are refused, by keyword and place, and what is not."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from services.domain.guide import Guide, GuideKind
from services.gateway.guides.guide_check import fault_of
from services.gateway.guides.guide_checker import path_text
from services.gateway.model_tokenizer import ModelTokenizer
from services.runtime.guide_compiler import GuideCompiler
from tests.gateway.tiny_model import VOCABULARY_SIZE, byte_level_tokenizer, sentence_piece_tokenizer, write_folder

DEEP: Any = {"type": "string"}
for _ in range(80):
    DEEP = {"items": DEEP}


@pytest.fixture(scope="session")
def compiler(model: Path) -> GuideCompiler:
    return GuideCompiler(model)


def refusal(compiler: GuideCompiler, guide: Guide) -> tuple[str, str]:
    """The path and the reason; both empty if the guide can be used."""
    fault = fault_of(compiler, guide)
    return ("", "") if fault is None else (path_text(fault.path), fault.reason)


@pytest.mark.parametrize(
    ("schema", "path", "said"),
    [
        ({"foo": 1}, ".foo", "keyword 'foo' is not supported"),
        ({"properties": {"a": {"not": {}}}}, ".properties.a.not", "keyword 'not'"),
        ({"items": {"uniqueItems": True}}, ".items.uniqueItems", "keyword 'uniqueItems'"),
        ({"anyOf": [{}, {"if": {}}]}, ".anyOf[1].if", "keyword 'if'"),
        ({"x-guidance": {"lenient": True}}, "[x-guidance]", "keyword 'x-guidance'"),
        ({"properties": {"a b": {"format": "xyz"}}}, ".properties[a b].format", "Unknown format: xyz"),
        ({"properties": {"a": {"type": "strin"}}}, ".properties.a.type", "Invalid type: strin"),
        ({"properties": {"a": {"pattern": "(b"}}}, ".properties.a.pattern", "unclosed group"),
        ({"properties": {"a": {"pattern": "a(?=b)"}}}, ".properties.a.pattern", "look-around"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "x"}}}, ".$defs.a.type", "Invalid type: x"),
        ({"$ref": "#/$defs/a"}, ".$ref", "does not exist"),
        ({"$ref": "http://a/b"}, ".$ref", "not present"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, ".oneOf", "oneOf"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, ".minimum", "minimum (5) is greater than maximum (3)"),
        ({"enum": []}, ".enum", "empty"),
        ({"properties": []}, ".properties", "must be an object of schemas"),
        ({"anyOf": []}, ".anyOf", "must be a list of schemas"),
        ({"items": 5}, ".items", "must be a schema"),
        ({"type": "string", "pattern": "^a{1000000}$"}, "", "needs too much"),
        (DEEP, ".items" * 64, "more than 64 levels"),
    ],
)
def test_a_schema_is_refused_by_keyword_and_place(schema: Any, path: str, said: str, compiler: GuideCompiler) -> None:
    found, reason = refusal(compiler, Guide(GuideKind.JSON_SCHEMA, json.dumps(schema)))
    assert found == path
    assert said in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (GuideKind.JSON_SCHEMA, "{", "is not valid JSON"),
        (GuideKind.JSON_SCHEMA, "[" * 5000, "nested too deeply"),
        (GuideKind.JSON_SCHEMA, "true", "must be a JSON object"),
        (GuideKind.REGEX, "(ab", "regex parse error: (ab ^ error: unclosed group"),
        (GuideKind.REGEX, "(a{1000}){1000}", "needs too much"),
        (GuideKind.REGEX, "\\bword", "lookarounds not supported"),
        (GuideKind.GRAMMAR, "start: x", 'unknown name: "x"'),
        (GuideKind.GRAMMAR, 'foo: "a"', "no start rule found"),
        (GuideKind.GRAMMAR, '{"grammars": []}', "1(1)"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(
    kind: GuideKind, text: str, said: str, compiler: GuideCompiler
) -> None:
    path, reason = refusal(compiler, Guide(kind, text))
    assert (path, said in reason) == ("", True), reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": ["string", "null"], "title": "a", "default": None},
        {"$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
        {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
        {"allOf": [{"minimum": 1}, {"maximum": 5}], "type": "number"},
        {"type": "array", "prefixItems": [{"const": 1}], "items": False},
        {"type": "string", "format": "date-time"},
    ],
)
def test_what_can_be_followed_is_not_refused(schema: Any, compiler: GuideCompiler) -> None:
    assert refusal(compiler, Guide(GuideKind.JSON_SCHEMA, json.dumps(schema))) == ("", "")


def test_a_guide_that_takes_longer_than_the_limit_is_refused(
    compiler: GuideCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Guide(GuideKind.REGEX, "[a-z]{100}")
    monkeypatch.setattr("services.gateway.guides.guide_check.STEPS_LIMIT_S", 1000.0)
    assert refusal(compiler, guide) == ("", "")
    monkeypatch.setattr("services.gateway.guides.guide_check.STEPS_LIMIT_S", 0.0)
    assert refusal(compiler, guide) == ("", "needs too much to be followed: more than 0 s for 1 tokens")


@pytest.mark.parametrize("tokenizer", [byte_level_tokenizer(), sentence_piece_tokenizer()], ids=["bytes", "pieces"])
def test_a_token_stands_for_the_same_bytes_in_a_mask_and_in_the_text_that_clients_get(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", tokenizer)
    compiler, decoding = GuideCompiler(folder), ModelTokenizer(folder)
    dice = random.Random(1)
    for _ in range(20):
        matcher, made = compiler.compile(Guide(GuideKind.REGEX, "[a-zé, ]{4,20}(\U0001f642|ß)")), b""
        while not matcher.is_stopped():
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            token_id = dice.choice([one for one in range(VOCABULARY_SIZE) if mask >> one & 1])
            made += decoding.token_bytes(token_id)
            assert matcher.consume_token(token_id)
        assert re.fullmatch("[a-zé, ]{4,20}(\U0001f642|ß)", made.decode())
