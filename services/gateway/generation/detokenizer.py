"""Turns tokens into text one at a time, in whole characters; the pieces join to what decoding all the tokens at once
gives.

A token is not a string. In byte-level vocabularies and in those with byte fallback a token may end inside a UTF-8
character, and decoders that treat a leading space specially render a token differently at the start of a sequence than
within it. There are two detokenizers:

- `BytesDetokenizer`, for vocabularies in which the bytes of each token are known: an incremental UTF-8 decoder holds
  back at most three bytes. Exact and fast.
- `WindowDetokenizer`, for any other decoder: decodes a short window of the last tokens and returns what the newest one
  added. A replacement character at the end of the window may be half a character, so it is held back; a character has
  at most four bytes, so at most three are.

Both start from the last tokens of the prompt as context, so that the output of "Once upon" begins with " a" and not
with "a". Both take O(1) time per token.

`tokenizers.decoders.DecodeStream` (0.23.3) can't replace them. With byte fallback, the bytes C3 A9 C3 and then " Once"
make it raise "Invalid prefix encountered" for that token and every later one: it has shown "é", and then decodes the
three bytes together as three replacement characters. It also keeps, and decodes again, every token since it last
returned text: O(n) per token after n special tokens or stray bytes. And it has no way to ask for what is left.
"""

from codecs import utf_8_decode
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

CONTEXT_TOKENS = 6
"""How many tokens of the prompt a detokenizer needs as context: four, since a character has at most four bytes, and two
more in case some are skipped.
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
        """The text left at the end: a replacement character for half a character, otherwise nothing."""
        ...


class BytesDetokenizer:
    """For vocabularies whose tokens are bytes. `token_bytes` returns those of a token, and b"" for a special one."""

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
    """For any decoder. `decode` returns the text of a list of tokens without those for which `is_skipped` is true; they
    stay out of the window, which they would only lengthen.
    """

    __slots__ = ("_decode", "_is_skipped", "_shown", "_token_ids")

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        is_skipped: Callable[[int], bool],
        context: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._is_skipped = is_skipped
        self._token_ids = list(context[-CONTEXT_TOKENS:])
        text = decode(self._token_ids) if self._token_ids else ""
        self._shown = len(text) - _held_characters(text)

    def push(self, token_id: int) -> str:
        if self._is_skipped(token_id):
            return ""
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
        """Drops the oldest tokens, up to a point from which the rest decodes as it does within the whole. There is one
        within a few tokens.
        """
        for count in range(CONTEXT_TOKENS, len(self._token_ids)):
            rest = self._token_ids[-count:]
            rest_text = self._decode(rest)
            if rest_text and len(rest_text) >= unseen and text.endswith(rest_text):
                self._token_ids, self._shown = rest, len(rest_text) - unseen
                return


class ShowingDetokenizer:
    """Shows the text of some special tokens, which the detokenizer that it stands on leaves out."""

    __slots__ = ("_plain", "_shown")

    def __init__(self, plain: Detokenizer, shown: Mapping[int, str]) -> None:
        self._plain = plain
        self._shown = shown

    def push(self, token_id: int) -> str:
        shown = self._shown.get(token_id)
        return self._plain.push(token_id) if shown is None else self._plain.finish() + shown

    def finish(self) -> str:
        return self._plain.finish()


def _held_characters(text: str) -> int:
    """How many replacement characters at the end may be the start of a character."""
    held = 0
    while held < min(_MOST_HELD, len(text)) and text[-1 - held] == _REPLACEMENT:
        held += 1
    return held
