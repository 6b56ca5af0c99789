"""Guides, as lines from the gateway to the process that checks them."""

import json

from services.domain.guide import Guide, GuideKind


def guide_line(guide: Guide) -> bytes:
    """A guide as a line."""
    return json.dumps([guide.kind.value, guide.text, guide.choices]).encode() + b"\n"


def guide_of(line: str) -> Guide:
    """The inverse of guide_line."""
    kind, text, choices = json.loads(line)
    return Guide(GuideKind(kind), text, tuple(choices))
