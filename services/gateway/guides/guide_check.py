"""Whether a guide can be followed, and if not, what is wrong with it and where.

A schema that llguidance refuses is searched for the place: as long as a schema within it gives the same refusal when it
stands alone, the search goes on there; then the keyword is the one without which there is no refusal. Last the guide is
followed for some tokens, because expressions that need too many states show it only then.
"""

import json
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

from llguidance import LLMatcher

from services.domain.guide import Guide, GuideKind
from services.gateway.guides.schema_keywords import DEFINITIONS, GuideFault, Path, first_fault, parts_of
from services.runtime.guide_compiler import GuideCompiler, GuideError, limits, one_line, schema_grammar

MOST_TRIES = 500
"""Schemas that are compiled to find a place."""
STEPS = 24
"""Tokens for which a guide is followed."""
STEPS_LIMIT_S = 0.3
"""Seconds of compute for all of them: an ordinary guide takes thousandths, and a worker's other jobs wait for each."""

Refusal = Callable[[Any], str]
"""Why a schema is refused; empty if it is not."""


def fault_of(compiler: GuideCompiler, guide: Guide) -> GuideFault | None:
    """What is wrong with the guide; None if nothing is."""
    schema: Any = None
    if guide.kind is GuideKind.JSON_SCHEMA:
        try:
            schema = json.loads(guide.text)
        except ValueError as error:
            return GuideFault((), f"is not valid JSON: {error}")
        except RecursionError:
            return GuideFault((), "is nested too deeply")
        fault = first_fault(schema) if isinstance(schema, dict) else GuideFault((), "must be a JSON object")
        if fault is not None:
            return fault
    try:
        matcher = compiler.compile(guide)
    except GuideError as error:
        if schema is None:
            return GuideFault((), _without_quote(str(error)))
        return _located(schema, _refusal_of) or GuideFault((), str(error))
    return _followed(matcher)


def _followed(matcher: LLMatcher) -> GuideFault | None:
    """Follows a guide through varied tokens."""
    began_s = time.thread_time()
    for step in range(STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return GuideFault((), f"needs too much to be followed: {one_line(matcher.get_error())}")
        if matcher.is_stopped():
            return None
        token_id = _some_token(mask, step)
        if token_id is None:
            return GuideFault((), "can't be followed with this model's tokens")
        matcher.consume_token(token_id)
        if time.thread_time() - began_s > STEPS_LIMIT_S:
            return GuideFault((), f"needs too much to be followed: more than {STEPS_LIMIT_S:g} s for {step + 1} tokens")
    return None


def _some_token(mask: bytes, step: int) -> int | None:
    """A token of the mask, another one at each step."""
    start = step * 7919 % len(mask)
    for place in chain(range(start, len(mask)), range(start)):
        if mask[place]:
            return place * 8 + (mask[place] & -mask[place]).bit_length() - 1
    return None


def _without_quote(reason: str) -> str:
    """llguidance reads a regular expression as a rule: its place in the rule and the quoted rule help nobody."""
    start = reason.find("regex parse error")
    text = reason[start:] if start >= 0 else reason
    return text.partition(" 1 | start:")[0].strip()


def _refusal_of(schema: Any) -> str:
    try:
        return str(LLMatcher.validate_grammar(schema_grammar(json.dumps(schema)), limits=limits()))
    except GuideError as error:
        return str(error)


def _located(schema: Any, refusal_of: Refusal) -> GuideFault | None:
    """Where a refused schema is wrong; None if it is not refused, or is no object."""
    reason = refusal_of(schema)
    if not reason or not isinstance(schema, dict):
        return None
    shared = {name: schema[name] for name in DEFINITIONS if name in schema}
    path: Path = ()
    tries = MOST_TRIES
    present, goes_on = schema, True
    while goes_on and tries > 0:
        goes_on = False
        for steps, part in parts_of(present):
            tries -= 1
            alone = {**shared, **part} if isinstance(part, dict) else part
            if refusal_of(alone) == reason:
                path, goes_on = (*path, *steps), isinstance(part, dict)
                present = part if goes_on else {}
                break
            if tries <= 0:
                break
    keyword = _keyword_at_fault(present, shared, reason, refusal_of)
    if keyword is None:
        return GuideFault(path, one_line(reason))
    return GuideFault((*path, keyword), f"keyword {keyword!r} can't be used so: {one_line(reason)}")


def _keyword_at_fault(schema: dict[str, Any], shared: dict[str, Any], reason: str, refusal_of: Refusal) -> str | None:
    """The keyword without which the refusal is another one, or none; the type only if it is none of the others."""
    for keyword in sorted(schema, key=lambda name: name == "type"):
        rest = {name: value for name, value in schema.items() if name != keyword}
        if keyword not in DEFINITIONS and refusal_of({**shared, **rest}) != reason:
            return keyword
    return None
