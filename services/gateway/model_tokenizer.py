"""The model's tokenizer: turns text into tokens, and supplies what turns tokens into text.

The bytes that a token stands for follow from the tokenizer's decoder, for the two kinds that nearly all models have:
byte-level (each character of a token stands for a byte) and SentencePiece (a mark stands for the space, and `<0x0A>`
for a byte that no token covers). Any other decoder is called itself, on a window of tokens.
"""

import json
from array import array
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from services.domain.errors import ModelFolderError
from services.gateway.generation.byte_level import byte_level_bytes
from services.gateway.generation.detokenizer import (
    BytesDetokenizer,
    Detokenizer,
    ShowingDetokenizer,
    WindowDetokenizer,
)
from services.runtime.model_files import tokenizer_file

SLICE_CHARACTERS = 32 * 1024
CHARACTERS_A_TOKEN = 6
"""A text with at most this many characters per token of the limit is tokenized whole: it fits, or nearly does."""

_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_SENTENCE_PIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip"}


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
    """Whether the decoder only replaces space marks and bytes, and strips at most the space at the start of a sequence;
    output follows a prompt, so it never has that space.
    """
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
    """Calls the library. Its panics (for example on a file that parses but makes no sense) become ordinary errors: they
    are not subclasses of Exception, so they would bypass the code that answers a client or reports a failed start.
    """
    try:
        return function(*values, **how)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the tokenizer panicked: {error}") from None


class ModelTokenizer:
    """The tokenizer of a model folder. Raises ModelFolderError if there is none or it can't be read."""

    def __init__(self, folder: Path) -> None:
        path = tokenizer_file(folder)
        try:
            self._tokenizer: Any = _called(Tokenizer.from_file, str(path))
        except Exception as error:  # the library raises nothing more specific
            raise ModelFolderError(f"{path} can't be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        described = json.loads(self._tokenizer.to_str())
        added = self._tokenizer.get_added_tokens_decoder()
        self._added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.added_tokens = {token.content: bool(token.special) for token in added.values()}
        """The tokens beside the vocabulary, and whether each is special."""
        self._bytes: dict[int, bytes] = {}
        steps = _steps(described["decoder"])
        self._bytes_of = (
            byte_level_bytes if _is_byte_level(steps) else _sentence_piece_bytes if _is_sentence_piece(steps) else None
        )
        self._longest_token_bytes = self._longest() if _never_shrinks(described) else None

    def encode(self, text: str) -> "array[int]":
        """The tokens of the text, with the special tokens that the tokenizer's post-processor adds."""
        return array("I", _called(self._tokenizer.encode, text).ids)

    def encode_rendered(self, text: str) -> list[int]:
        """The tokens of a text that has all its special tokens in it."""
        ids: list[int] = _called(self._tokenizer.encode, text, add_special_tokens=False).ids
        return ids

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The ids of the special tokens."""
        return {self._added[token_id]: token_id for token_id in self._special}

    def added_token_id(self, token: str) -> int | None:
        """The id of an added token."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def encode_as_text(self, text: str) -> list[int]:
        """The tokens of a text in which nothing stands for an added token: the library's steps after finding those."""
        parts = self._tokenizer
        if parts.normalizer is not None:
            text = _called(parts.normalizer.normalize_str, text)
        words = [text]
        if parts.pre_tokenizer is not None:
            words = [word for word, _ in _called(parts.pre_tokenizer.pre_tokenize_str, text)]
        return [token.id for word in words for token in _called(parts.model.tokenize, word)]

    def far_exceeds(self, text: str, tokens: int) -> bool:
        """Whether the text has far more than this many tokens, at the cost of tokenizing about twice that many.

        The text is tokenized in slices. Words cut at the edge of a slice change the count a little, so the answer is
        yes only above twice the number; a text that comes close to it is left to `encode`.
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
        """The text of the tokens, without special tokens."""
        text: str = _called(self._tokenizer.decode, list(token_ids), skip_special_tokens=True)
        return text

    def least_tokens(self, text_bytes: int) -> int:
        """The least number of tokens that a text of this many bytes can have; 0 if nothing is known about it."""
        return 0 if self._longest_token_bytes is None else text_bytes // self._longest_token_bytes

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; empty for a special token and for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._read_bytes(token_id)
        return known

    def spelled(self, token_id: int) -> bytes:
        """The bytes by which a token is shown on its own: those of its text, also for a special token."""
        if token_id in self._added:
            return self._added[token_id].encode()
        return self.decode([token_id]).encode() if self._bytes_of is None else self.token_bytes(token_id)

    def detokenizer(self, context: Sequence[int], shown_tokens: Collection[str] = ()) -> Detokenizer:
        """A detokenizer for output that follows these tokens. Of special tokens it shows those given."""
        if self._bytes_of is None:
            plain: Detokenizer = WindowDetokenizer(self.decode, self.is_skipped, context)
        else:
            plain = BytesDetokenizer(self.token_bytes, context)
        if not shown_tokens:
            return plain
        return ShowingDetokenizer(plain, {self._tokenizer.token_to_id(token): token for token in shown_tokens})

    def is_skipped(self, token_id: int) -> bool:
        """Whether `decode` leaves the token out: a special one, or an id that has no token."""
        return token_id in self._special or self._tokenizer.id_to_token(token_id) is None

    def _read_bytes(self, token_id: int) -> bytes:
        assert self._bytes_of is not None
        return b"" if self.is_skipped(token_id) else self._bytes_of(self._tokenizer.id_to_token(token_id))

    def _longest(self) -> int | None:
        if self._bytes_of is None:
            return None
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return max((len(self._bytes_of(token)) for token in vocabulary), default=1) or None


def _never_shrinks(described: dict[str, Any]) -> bool:
    """Whether every byte of a text ends up in some token: nothing normalizes the text, and no added token swallows the
    spaces around it.
    """
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
