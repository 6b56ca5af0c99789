"""The forms in which models write tool calls.

A folder's response template gives its form. Without one it is one of four that many models share, written here as
response templates too. Which one, the chat template tells: it writes the calls of earlier turns in the form in which
the model is to write new ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import regex

from services.gateway.tools.call_frame import CallFrame, TagFrame
from services.gateway.tools.call_shapes import CallShape, shape_of
from services.gateway.tools.response_template import FieldTemplate, ResponseTemplate, read_response_template


@dataclass(frozen=True, slots=True)
class CallForm:
    """A form. `shape` None: calls are read when they are whole. `frame` None: an output can't be held to calls, because
    it is not known how one is written.
    """

    name: str
    template: ResponseTemplate
    shape: CallShape | None
    frame: CallFrame | TagFrame | None
    has_short_ids: bool = False
    """Whether the template takes ids of nine letters and digits only."""

    def shown_tokens(self, special: Sequence[str]) -> frozenset[str]:
        """Those of the special tokens that belong to the form: its text must have them."""
        return frozenset(token for token in special if any(token in text for text in self.template.texts))


def _shared(name: str, calls: dict[str, Any], shape: CallShape, frame: CallFrame, short_ids: bool = False) -> CallForm:
    content = {"content": "text", "content_args": {"strip": False}}
    spec = {
        "start_anchor_pattern": r"\Z",
        "fields": {"content": content, "tool_calls": {"content": "json", "repeats": True, **calls}},
    }
    return CallForm(name, read_response_template(spec), shape, frame, short_ids)


HERMES = _shared(
    "Hermes",
    {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>"},
    CallShape(arguments=(("arguments",), ("parameters",))),
    CallFrame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n"),
)
LLAMA_3 = _shared(
    "Llama 3",
    {"open_pattern": r"(?:^\s*|\s*<\|python_tag\|>\s*)(?=\{)"},
    CallShape(arguments=(("parameters",), ("arguments",)), separators=";,", is_marked=False),
    CallFrame('{"name": "', '", "parameters": ', "}", between=None),
)
MISTRAL = _shared(
    "Mistral",
    {"open_pattern": r"\s*\[TOOL_CALLS\]\s*(?=\[\s*\{)"},
    CallShape(item=("*",)),
    CallFrame('{"name": "', '", "arguments": ', "}", between=", ", start="[TOOL_CALLS][", end="]"),
    short_ids=True,
)
MISTRAL_ARGS = _shared(
    "Mistral with [ARGS]",
    {
        "open_pattern": r"\s*\[TOOL_CALLS\]\s*(?P<name>[\w.-]+)(?:\[CALL_ID\]\w*)?\[ARGS\]",
        "close_pattern": r"(?=\[TOOL_CALLS\])",
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
    },
    CallShape((), (), ((),), "name"),
    CallFrame("[TOOL_CALLS]", "[ARGS]", ""),
    short_ids=True,
)
SHARED_FORMS = (HERMES, MISTRAL_ARGS, MISTRAL, LLAMA_3)


def form_that_mentions(source: str) -> CallForm:
    """The shared form whose marks a chat template has in it; Hermes', which most models learn, if it has none."""
    if "[TOOL_CALLS]" in source:
        return MISTRAL_ARGS if "[ARGS]" in source else MISTRAL
    if "<tool_call>" not in source and ("<|python_tag|>" in source or '"parameters"' in source):
        return LLAMA_3
    return HERMES


def form_of_template(template: ResponseTemplate, written: str | None) -> CallForm | None:
    """The form that a response template describes; None if it has no field for calls. `written`: a call to the
    function `probe` as the chat template writes it, None if it writes none.
    """
    field = template.fields.get("tool_calls")
    if field is None or field.opening is None:
        return None
    shape = shape_of(field)
    frame = _tag_frame(field, written or "") if shape is None else _frame(field, shape, written or "")
    return CallForm("response_template", template, shape, frame)


PROBE = "probe"


def _frame(field: FieldTemplate, shape: CallShape, written: str) -> CallFrame | None:
    """How a field's calls are written: the delimiters as they are given, or else as the chat template writes them."""
    assert field.opening is not None
    opening = field.opening.pattern.search(written)
    head, name_end = _opening_texts(field, shape, opening)
    if head is None:
        return None
    after = "" if opening is None else written[opening.end() :]
    closing = None if field.closing is None else field.closing.pattern.search(after)
    if closing is not None:
        tail = closing.group()
        inner = after[: closing.start()]
        lead, trail = inner[: len(inner) - len(inner.lstrip())], inner[len(inner.rstrip()) :]
    elif field.closing is None or field.closing.literals:
        tail, lead, trail = "" if field.closing is None else field.closing.literals[-1], "", ""
    else:
        return None
    many = field.repeats and field.closing is not None
    if shape.captured_name is not None:
        return CallFrame(head, name_end + lead, trail + tail, between="" if many else None)
    item_name, argument = shape.name, shape.arguments[0]
    if not (len(item_name) == 1 + len(shape.item[1:]) == len(argument)) or len(item_name) != 1:
        return None
    before_name, before_arguments = f'{{"{item_name[0]}": "', f'", "{argument[0]}": '
    if shape.item:
        return CallFrame(before_name, before_arguments, "}", ", ", f"{head}{lead}[", f"]{trail}{tail}")
    return CallFrame(head + lead + before_name, before_arguments, "}" + trail + tail, "" if many else None)


def _tag_frame(field: FieldTemplate, written: str) -> TagFrame | None:
    """How calls with a tag for each argument are written, as the chat template writes one."""
    assert field.opening is not None
    function = field.transform.get("function") if isinstance(field.transform, dict) else None
    if field.content != "xml-inline" or field.closing is None or not isinstance(function, dict):
        return None
    group = str(function.get("name")).strip("{}")
    opening = field.opening.pattern.search(written)
    if opening is None or group not in field.opening.groups or function.get("arguments") != "{content}":
        return None
    after = written[opening.end() :]
    closing = field.closing.pattern.search(after)
    tag = regex.search(field.content_args.get("tag_pattern", "(?!)"), after, regex.DOTALL)
    if closing is None or tag is None or not {"key", "value"} <= tag.groupdict().keys() or tag.end() > closing.start():
        return None
    start, end = opening.span(group)
    return TagFrame(
        before_name=written[opening.start() : start].lstrip(),
        before_arguments=written[end : opening.end()] + after[: tag.start()],
        before_key=after[tag.start() : tag.start("key")],
        before_value=after[tag.end("key") : tag.start("value")],
        value_end=after[tag.end("value") : tag.end()],
        after_value=after[tag.end() : closing.start()],
        after_arguments=closing.group(),
        between="" if field.repeats else None,
    )


def _opening_texts(field: FieldTemplate, shape: CallShape, opening: Any) -> tuple[str | None, str]:
    """The text that opens a call, cut in two where the name stands in it. None: it is not known."""
    assert field.opening is not None
    if opening is not None:
        text = opening.group()
        if shape.captured_name is None:
            return text.lstrip(), ""
        start, end = opening.span(shape.captured_name)
        return text[: start - opening.start()].lstrip(), text[end - opening.start() :]
    literals = field.opening.literals
    return (literals[-1], "") if literals and shape.captured_name is None else (None, "")
