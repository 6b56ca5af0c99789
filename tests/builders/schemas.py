"""JSON Schemas drawn at random, of every kind that guides take, and small enough that most outputs come to an end."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

NAMES = ("name", "size", "kind", "is_open", "child items", "größe", "a-b", "$id2")
WORDS = ("red", "green", 'with "quotes"', "line\nbreak", "größer", "", "日本")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4")


def schema_of(number: int) -> Schema:
    """The schema with this number, always the same."""
    dice = random.Random(f"schema {number}")
    made = _object(dice, 2) if dice.random() < 0.7 else _any(dice, 2)
    if dice.random() < 0.2:
        item = {"type": "object", "properties": {"value": _leaf(dice), "next": {"$ref": "#/$defs/item"}}}
        return {
            "$defs": {"item": {**item, "required": ["value"], "additionalProperties": False}},
            "$ref": "#/$defs/item",
        }
    return made


def _any(dice: random.Random, levels: int) -> Schema:
    kinds: tuple[Callable[[random.Random, int], Schema], ...] = (_object, _array, _union)
    return _leaf(dice) if levels == 0 or dice.random() < 0.5 else dice.choice(kinds)(dice, levels - 1)


def _object(dice: random.Random, levels: int) -> Schema:
    names = dice.sample(NAMES, dice.randint(1, 4))
    made: Schema = {
        "type": "object",
        "properties": {name: _any(dice, levels) for name in names},
        "required": dice.sample(names, dice.randint(0, len(names))),
        "additionalProperties": False,
    }
    if dice.random() < 0.15:
        made["patternProperties"] = {"^x_[a-z]$": {"type": "integer", "minimum": 0, "maximum": 9}}
    if dice.random() < 0.2:
        made["title"], made["description"] = "A title", "A description."
    return made


def _array(dice: random.Random, levels: int) -> Schema:
    fewest = dice.randint(0, 2)
    made: Schema = {"type": "array", "minItems": fewest, "maxItems": fewest + dice.randint(0, 2)}
    if dice.random() < 0.3:
        first = [_leaf(dice) for _ in range(dice.randint(1, 2))]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}
    return {**made, "items": _any(dice, levels)}


def _union(dice: random.Random, levels: int) -> Schema:
    if dice.random() < 0.3:
        return {"oneOf": [{"type": "boolean"}, {"type": "string", "maxLength": 5}, {"type": "null"}]}
    if dice.random() < 0.3:
        return {"allOf": [{"type": "integer", "minimum": -5}, {"maximum": 50}]}
    return {"anyOf": [_any(dice, levels) for _ in range(2)]}


def _leaf(dice: random.Random) -> Schema:
    low = dice.randint(-50, 50)
    return dice.choice(
        (
            {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 500)},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 20, "multipleOf": 2},
            {"type": "number", "minimum": low, "maximum": low + 10},
            {"type": "string", "minLength": dice.randint(0, 3), "maxLength": dice.randint(3, 12)},
            {"type": "string", "pattern": dice.choice(("^[A-Z]{2}[0-9]{3}$", "^(ab|cd)+$", "^.{2,5}$"))},
            {"type": "string", "format": dice.choice(FORMATS)},
            {"enum": dice.sample(WORDS, dice.randint(1, 3))},
            {"const": dice.choice((True, None, 17, 2.5, "a constant", [1, "two"], {"a": {"b": 3}}))},
            {"type": ["string", "null"], "maxLength": 6},
            {"type": "boolean"},
            {"type": "null"},
        )
    )
