"""The model's tokenizer: text to tokens, off the event loop where the text is long, and what a detokenizer needs.

Which bytes a token stands for is read off the tokenizer's decoder, for the two kinds that nearly all models have:
byte-level (each character of a token stands for a byte), and SentencePiece's (a mark for the space, `<0x0A>` for a byte
that no token covers). Any other decoder is asked itself, over a window of tokens.
"""

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from services.domain.errors import ModelFolderError
from services.gateway.generation.detokenizer import BytesDetokenizer, Detokenizer, WindowDetokenizer
from services.runtime.model_files import tokenizer_file

SLICE_CHARACTERS = 32 * 1024
CHARACTERS_A_TOKEN = 6
"""Texts that have fewer for each token that may be are tokenized at once: they are short enough, or nearly."""

_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_SENTENCE_PIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip"}


def _byte_level_alphabet() -> dict[str, int]:
    """The byte that a character of a byte-level token stands for: printable ones for themselves, those from 256 on for
    the others in their order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        # A token added beside the vocabulary, written as it is.
        return token.encode()


def _sentence_piece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return token.encode()
    return token.replace(_SPACE_MARK, " ").encode()


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _is_byte_level(steps: list[dict[str, Any]]) -> bool:
    return [step["type"] for step in steps] == ["ByteLevel"]


def _is_sentence_piece(steps: list[dict[str, Any]]) -> bool:
    """Space marks, bytes, and at most the leading space of all taken off, which never shows behind a prompt."""
    if [step["type"] for step in steps] == ["Metaspace"]:
        return steps[0].get("replacement") == _SPACE_MARK
    replaces = [(step["pattern"], step["content"]) for step in steps if step["type"] == "Replace"]
    strips = [(step["content"], step["start"], step["stop"]) for step in steps if step["type"] == "Strip"]
    return (
        {step["type"] for step in steps} <= _SENTENCE_PIECE_STEPS
        and replaces == [({"String": _SPACE_MARK}, " ")]
        and all(content == " " and start <= 1 and stop == 0 for content, start, stop in strips)
    )


def _called(function: Callable[..., Any], *values: Any, **how: Any) -> Any:
    """The library's answer. Its panics (over a file that parses and makes no sense, say) become ordinary errors: they
    are none in Python, and would pass by whoever answers a client, or says why a service can't start.
    """
    try:
        return function(*values, **how)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the tokenizer panicked: {error}") from None


class ModelTokenizer:
    """Tokenizer of a model folder. Raises ModelFolderError if it has none, or one that can't be read."""

    def __init__(self, folder: Path) -> None:
        path = tokenizer_file(folder)
        try:
            self._tokenizer: Any = _called(Tokenizer.from_file, str(path))
        except Exception as error:  # the library raises no narrower class
            raise ModelFolderError(f"{path} can't be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        described = json.loads(self._tokenizer.to_str())
        added = self._tokenizer.get_added_tokens_decoder()
        self._added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}
        steps = _steps(described["decoder"])
        self._bytes_of = (
            _byte_level_bytes if _is_byte_level(steps) else _sentence_piece_bytes if _is_sentence_piece(steps) else None
        )
        self._longest_token_bytes = self._longest() if _never_shrinks(described) else None

    def encode(self, text: str) -> "array[int]":
        """Tokens of the text with the special ones that the tokenizer's post-processor adds."""
        return array("I", _called(self._tokenizer.encode, text).ids)

    def far_exceeds(self, text: str, tokens: int) -> bool:
        """Whether the text has more than so many tokens by far, told at the cost of tokenizing about twice as many.

        It is tokenized in slices. Words that a slice's border cuts make some tokens more or fewer than the whole text
        has; so a text is judged by twice the number, and one that comes near it is not judged at all.
        """
        if len(text) <= CHARACTERS_A_TOKEN * tokens:
            return False
        counted = 0
        for start in range(0, len(text), SLICE_CHARACTERS):
            piece = text[start : start + SLICE_CHARACTERS]
            counted += len(_called(self._tokenizer.encode, piece, add_special_tokens=False).ids)
            if counted > 2 * tokens:
                return True
        return False

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        text: str = _called(self._tokenizer.decode, list(token_ids), skip_special_tokens=True)
        return text

    def least_tokens(self, text_bytes: int) -> int:
        """A text of so many bytes has at least so many tokens; 0 where that can't be told."""
        return 0 if self._longest_token_bytes is None else text_bytes // self._longest_token_bytes

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for: none for a special token, and for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._read_bytes(token_id)
        return known

    def detokenizer(self, context: Sequence[int]) -> Detokenizer:
        """A detokenizer for output that follows these tokens."""
        if self._bytes_of is None:
            return WindowDetokenizer(self.decode, context)
        return BytesDetokenizer(self.token_bytes, context)

    def _read_bytes(self, token_id: int) -> bytes:
        token = None if token_id in self._special else self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        assert self._bytes_of is not None
        return self._bytes_of(token)

    def _longest(self) -> int | None:
        if self._bytes_of is None:
            return None
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return max((len(self._bytes_of(token)) for token in vocabulary), default=1) or None


def _never_shrinks(described: dict[str, Any]) -> bool:
    """Every byte of a text ends in some token: nothing normalizes it, and no added token swallows spaces beside it."""
    strips = any(token["lstrip"] or token["rstrip"] for token in described["added_tokens"])
    return described["normalizer"] is None and not strips and _keeps_all(described["pre_tokenizer"])


def _keeps_all(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(_keeps_all(step) for step in pre_tokenizer["pretokenizers"])
    return pre_tokenizer["type"] in ("ByteLevel", "Digits") or (
        pre_tokenizer["type"] == "Split" and pre_tokenizer["behavior"] != "Removed"
    )
