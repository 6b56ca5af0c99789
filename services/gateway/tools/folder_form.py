"""Finds the form of a folder's tool calls: what the chat template makes of tools and calls is tried out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.domain.errors import FastServeError
from services.gateway.tools.answer_reader import AnswerReader
from services.gateway.tools.argument_types import ToolTypes
from services.gateway.tools.call_forms import PROBE, SHARED_FORMS, CallForm, form_of_template, form_that_mentions
from services.gateway.tools.call_parts import ArgumentsPart, CallBegan
from services.gateway.tools.response_template import ResponseTemplate

_KEY, _VALUE = "probe_key", "probe value"
_ARGUMENTS = {_KEY: _VALUE}
_TOOL = {
    "type": "function",
    "function": {
        "name": PROBE,
        "description": "a tool",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "a text"}}},
    },
}
_USER = {"role": "user", "content": "a question"}


class Renders(Protocol):
    """Renders a conversation by a chat template; raises what the template raises."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> str: ...


@dataclass(frozen=True, slots=True)
class FolderForm:
    """What a chat template knows of tools. `takes_text`: it takes the arguments of earlier calls as a text of JSON
    only, not as an object.
    """

    knows_tools: bool
    takes_text: bool
    form: CallForm


def form_of_folder(render: Renders, source: str, response_template: ResponseTemplate | None) -> FolderForm:
    """`source`: the chat template's text."""
    shown = _rendered(render, (_USER,), (_TOOL,)) or ""
    as_object, as_text = _written(render, _ARGUMENTS), _written(render, f'{{"{_KEY}": "{_VALUE}"}}')
    takes_text = as_text is not None and (as_object is None or f"'{_KEY}'" in as_object)
    written = as_text if takes_text else as_object
    return FolderForm(PROBE in shown, takes_text, _form(response_template, written, source))


def _form(response_template: ResponseTemplate | None, written: str | None, source: str) -> CallForm:
    if response_template is not None:
        own = form_of_template(response_template, written)
        if own is not None:
            return own if own.frame is None or _is_followed(own) else CallForm(own.name, own.template, own.shape, None)
    if written is not None:
        for form in SHARED_FORMS:
            if _calls_in(form, written) == [(PROBE, True)]:
                return form
    return form_that_mentions(source)


def _is_followed(form: CallForm) -> bool:
    """Whether calls that are written as the frame says are read as such."""
    assert form.frame is not None
    text = form.frame.text([(PROBE, _ARGUMENTS)])
    return _calls_in(form, text) == [(PROBE, True)]


def _calls_in(form: CallForm, text: str) -> list[tuple[str, bool]]:
    """The names of the calls in a text, and whether each has the arguments of the probe."""
    reader = AnswerReader(form, ToolTypes((_TOOL,)))
    calls: list[tuple[str, str]] = []
    for part in (*reader.push(text), *reader.finish()):
        if isinstance(part, CallBegan):
            calls.append((part.name, ""))
        elif isinstance(part, ArgumentsPart):
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return [(name, _KEY in arguments and _VALUE in arguments) for name, arguments in calls]


def _written(render: Renders, arguments: Any) -> str | None:
    """A call of an earlier turn as the template writes it, and what follows it; None if it writes none."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": PROBE, "arguments": arguments}}
    before = _rendered(render, (_USER,), (_TOOL,))
    for content in ({}, {"content": ""}):
        turn = {"role": "assistant", **content, "tool_calls": [call]}
        whole = _rendered(render, (_USER, turn), (_TOOL,))
        if before is None or whole is None:
            continue
        shared = _shared_length(before, whole)
        if shared < len(before):
            # The template begins an answer otherwise than it writes one: what is shared may end within a mark.
            shared = whole.rfind("\n", 0, shared) + 1
        if PROBE in whole[shared:] and _KEY in whole[shared:]:
            return whole[shared:]
    return None


def _rendered(render: Renders, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str | None:
    try:
        return render(messages, tools)
    except FastServeError:
        return None


def _shared_length(one: str, other: str) -> int:
    """The length of the common beginning."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
