"""A text that is far too long is told without tokenizing all of it, and no other one is."""

from typing import Any

import pytest

from services.gateway.tokenizer import CHARACTERS_A_TOKEN, SLICE_CHARACTERS, ModelTokenizer
from services.runtime.model_files import BUNDLED_MODEL

TEXTS = ("the quick brown fox, ", "a", " ", "\n    ", "0123456789", "\N{GRINNING FACE}", "def __init__(self): ", "ééé")


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(BUNDLED_MODEL)


class Counting:
    """A tokenizer that counts what it is given."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.characters = 0

    def encode(self, text: str, **how: Any) -> Any:
        self.characters += len(text)
        return self._plain.encode(text, **how)


def test_of_a_text_of_four_megabytes_about_twice_the_allowed_tokens_are_made() -> None:
    tokenizer = ModelTokenizer(BUNDLED_MODEL)
    counting = tokenizer._tokenizer = Counting(tokenizer._tokenizer)
    text = "a" * (4 << 20)
    assert tokenizer.far_exceeds(text, 100_000)
    assert counting.characters <= 200_000 + SLICE_CHARACTERS


@pytest.mark.parametrize("piece", TEXTS)
def test_only_a_text_that_has_more_tokens_is_said_to_exceed_them(piece: str, tokenizer: ModelTokenizer) -> None:
    text = piece * (6 * SLICE_CHARACTERS // len(piece))
    count = len(tokenizer.encode(text))
    assert not tokenizer.far_exceeds(text, count)
    assert not tokenizer.far_exceeds(text, count - 1)
    few = min(count // 3, len(text) // CHARACTERS_A_TOKEN - 1)
    assert tokenizer.far_exceeds(text, few) is (count > 2 * few)
