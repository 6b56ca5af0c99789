"""From tokens to text, one token at a time: whole characters only, and all pieces together are what decoding all tokens
at once gives.

A token is not a string. In byte-level vocabularies and those with byte fallback a token may end inside a UTF-8
character, and decoders that treat a leading space specially give a token another text at the start of a sequence than
within it. Two ways to deal with it:

- `BytesDetokenizer`, where the bytes of each token are known: an incremental UTF-8 decoder holds back at most three
  bytes. Exact and fast.
- `WindowDetokenizer`, for any other decoder: decodes a short window of the last tokens and gives out what the newest
  one added. A replacement character at the window's end may be half a character, so it is held back; a character has at
  most four bytes, so at most three are.

Both begin with the last tokens of the prompt as context, so that the output of "Once upon" begins with " a" and not
with "a". Both take O(1) time per token.
"""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Protocol

CONTEXT_TOKENS = 6
"""Tokens of the prompt that a detokenizer needs as context: a character has at most four bytes, so four of them, and
some that are skipped.
"""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MOST_HELD = 3
_WINDOW_TOKENS = 16


class Detokenizer(Protocol):
    """Turns the tokens of one choice into text."""

    def push(self, token_id: int) -> str:
        """The whole characters that this token completes."""
        ...

    def finish(self) -> str:
        """What is left at the end: a replacement character for half a character, else nothing."""
        ...


class BytesDetokenizer:
    """For vocabularies whose tokens are bytes. `token_bytes` gives those of a token, none for a special one."""

    __slots__ = ("_pending", "_token_bytes")

    def __init__(self, token_bytes: Callable[[int], bytes], context: Sequence[int] = ()) -> None:
        self._token_bytes = token_bytes
        known = b"".join(token_bytes(token_id) for token_id in context[-CONTEXT_TOKENS:])
        self._pending = known[utf_8_decode(known, "replace", False)[1] :]

    def push(self, token_id: int) -> str:
        data = self._pending + self._token_bytes(token_id)
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def finish(self) -> str:
        text, self._pending = self._pending.decode("utf-8", "replace"), b""
        return text


class WindowDetokenizer:
    """For any decoder. `decode` gives the text of a list of tokens, special ones left out."""

    __slots__ = ("_decode", "_shown", "_token_ids")

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._token_ids = list(context[-CONTEXT_TOKENS:])
        text = decode(self._token_ids) if self._token_ids else ""
        self._shown = len(text) - _held_characters(text)

    def push(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        text = self._decode(self._token_ids)
        held = _held_characters(text)
        piece = text[self._shown : len(text) - held]
        self._shown = max(self._shown, len(text) - held)
        if len(self._token_ids) > _WINDOW_TOKENS:
            self._shorten(text, len(text) - self._shown)
        return piece

    def finish(self) -> str:
        text = self._decode(self._token_ids) if self._token_ids else ""
        piece, self._shown = text[self._shown :], max(self._shown, len(text))
        return piece

    def _shorten(self, text: str, unseen: int) -> None:
        """Drops old tokens at a border where the rest decodes as it does within the whole: within a few tokens there is
        one.
        """
        for count in range(CONTEXT_TOKENS, len(self._token_ids)):
            rest = self._token_ids[-count:]
            rest_text = self._decode(rest)
            if rest_text and len(rest_text) >= unseen and text.endswith(rest_text):
                self._token_ids, self._shown = rest, len(rest_text) - unseen
                return


def _held_characters(text: str) -> int:
    """Replacement characters at the end that may be the start of a character."""
    held = 0
    while held < min(_MOST_HELD, len(text)) and text[-1 - held] == _REPLACEMENT:
        held += 1
    return held
