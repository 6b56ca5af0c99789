"""From messages to the tokens of a prompt.

What a client writes stays text, even if it spells a control token such as `<|im_end|>`. So control tokens in its
strings are put between two marks before the template is rendered. Afterwards the text is cut at the marks: what stood
between a pair is tokenized as plain text, everything else, with the template's own control tokens, as usual. A
template may split a string and part a pair; a lone mark is dropped.

Control tokens are the special tokens and those added tokens that the template itself writes. `transformers` does the
same if it is called with `sanitize_control_tokens=True`, which the tests compare with.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from services.domain.errors import ContextLengthError
from services.gateway.model_tokenizer import ModelTokenizer
from services.gateway.openai.chat_template import ChatTemplate
from services.gateway.openai.requests import Message, TextPart
from services.gateway.tools.folder_form import FolderForm, form_of_folder
from services.gateway.tools.response_template import ResponseTemplate

# Noncharacters: Unicode reserves them for use inside a program.
_START, _END = "\ufdd0", "\ufdd1"
_LINE_BREAK = "\n"


class Prompt(NamedTuple):
    """A prompt, and its text with the template's control tokens in it."""

    token_ids: list[int]
    text: str


class ChatPrompts:
    """Renders and tokenizes conversations for one model."""

    def __init__(
        self, template: ChatTemplate, tokenizer: ModelTokenizer, response_template: ResponseTemplate | None = None
    ) -> None:
        self._template = template
        self._response_template = response_template
        self._tokenizer = tokenizer
        longest_first = sorted(_control_tokens(template, tokenizer), key=lambda token: (-len(token), token))
        either = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._control = re.compile(either)
        self._marks = re.compile(f"{_START}({either}){_END}|[{_START}{_END}]")

    def encode(self, messages: Sequence[Message], most_tokens: int) -> list[int]:
        """The tokens of the prompt. Raises as `prepared` does."""
        return self.prepared(messages, most_tokens).token_ids

    def prepared(self, messages: Sequence[Message], most_tokens: int, tools: Sequence[Any] | None = None) -> Prompt:
        """The prompt. `tools`: as the client gave them. Raises RefusedBodyError, and ContextLengthError for one that
        has far more than `most_tokens`, without tokenizing all of it.
        """
        text = self._template.render(
            [self._marked(self.plain(message)) for message in messages], None if tools is None else self._marked(tools)
        )
        if self._tokenizer.far_exceeds(text, most_tokens):
            raise ContextLengthError("messages", f"must leave room for output in the context of {most_tokens} tokens")
        # The pieces at odd places stood between marks; None was a lone mark.
        pieces = self._marks.split(text)
        token_ids = self._tokenizer.encode_rendered(pieces[0]) if pieces[0] else []
        for place, piece in enumerate(pieces[1:], start=1):
            if piece:
                token_ids += self._piece(piece, as_text=place % 2 == 1)
        return Prompt(token_ids, text.replace(_START, "").replace(_END, ""))

    @cached_property
    def tool_form(self) -> FolderForm:
        """What the template knows of tools, and how the model writes calls."""
        return form_of_folder(self._template.render, self._template.source, self._response_template)

    def plain(self, message: Message) -> dict[str, Any]:
        """A message as the template sees it: only what was given, and parts as one string if it expects a string."""
        shown: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"annotations"})
        if isinstance(message.content, list) and not self._template.takes_parts:
            shown["content"] = _joined(message.content)
        if message.tool_calls and not self.tool_form.takes_text:
            for call in shown["tool_calls"]:
                call["function"]["arguments"] = _arguments(call["function"]["arguments"])
        return shown

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            bare = value.replace(_START, "").replace(_END, "")
            return self._control.sub(f"{_START}\\g<0>{_END}", bare)
        if isinstance(value, Mapping):
            return {self._marked(key): self._marked(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(one) for one in value]
        return value

    def _piece(self, piece: str, as_text: bool) -> list[int]:
        """The tokens of a piece from within a text, which has none of the marks of a beginning: it is tokenized behind
        a line break, whose tokens are then left out.
        """
        encode = self._tokenizer.encode_as_text if as_text else self._tokenizer.encode_rendered
        lead = self._tokenizer.encode_rendered(_LINE_BREAK)
        with_lead = encode(_LINE_BREAK + piece)
        token_ids = with_lead[len(lead) :] if with_lead[: len(lead)] == lead else encode(piece)
        if as_text and self._tokenizer.added_token_id(piece) in token_ids:
            # The vocabulary has it as a word too.
            return encode(piece[:1]) + encode(piece[1:])
        return token_ids


def _control_tokens(template: ChatTemplate, tokenizer: ModelTokenizer) -> set[str]:
    literals = template.literals
    return {
        token
        for token, is_special in tokenizer.added_tokens.items()
        if token and (is_special or (token in literals and not token.isspace()))
    }


def _joined(parts: Sequence[TextPart]) -> str:
    return "".join(part.text for part in parts)


def _arguments(text: str) -> Any:
    """The arguments of an earlier call as templates expect them: an object. Other text stays as it is."""
    try:
        given = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return given if isinstance(given, dict) else text
