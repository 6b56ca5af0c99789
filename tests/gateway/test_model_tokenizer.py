"""A text that is far too long is recognized without tokenizing all of it, and no other text is taken for one."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.domain.errors import ModelFolderError
from services.gateway.model_tokenizer import CHARACTERS_A_TOKEN, SLICE_CHARACTERS, ModelTokenizer
from services.runtime.model_files import BUNDLED_MODEL

TEXTS = ("the quick brown fox, ", "a", " ", "\n    ", "0123456789", "\N{GRINNING FACE}", "def __init__(self): ", "ééé")


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(BUNDLED_MODEL)


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.characters = 0

    def encode(self, text: str, **how: Any) -> Any:
        self.characters += len(text)
        return self._plain.encode(text, **how)


def test_only_about_twice_the_allowed_tokens_of_a_four_megabyte_text_are_made() -> None:
    tokenizer = ModelTokenizer(BUNDLED_MODEL)
    counting = tokenizer._tokenizer = Counting(tokenizer._tokenizer)
    text = "a" * (4 << 20)
    assert tokenizer.far_exceeds(text, 100_000)
    assert counting.characters <= 200_000 + SLICE_CHARACTERS


def damaged(folder: Path, **parts: Any) -> Path:
    """A copy of the bundled model with the given parts of its tokenizer replaced."""
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((BUNDLED_MODEL / name).read_bytes())
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**described, **parts}))
    return folder


def test_a_file_on_which_the_library_panics_is_reported_as_unreadable(tmp_path: Path) -> None:
    folder = damaged(tmp_path, normalizer={"type": "Precompiled", "precompiled_charsmap": ""})
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json can't be read: the tokenizer panicked: "):
        ModelTokenizer(folder)


def test_a_panic_on_a_text_is_an_ordinary_error(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(damaged(tmp_path, pre_tokenizer={"type": "FixedLength", "length": 0}))
    for refuse in (lambda: tokenizer.encode("a text"), lambda: tokenizer.far_exceeds("a text", 0)):
        with pytest.raises(RuntimeError, match="panicked"):
            refuse()


@pytest.mark.parametrize("piece", TEXTS)
def test_only_a_text_with_more_tokens_is_said_to_exceed_them(piece: str, tokenizer: ModelTokenizer) -> None:
    text = piece * (6 * SLICE_CHARACTERS // len(piece))
    count = len(tokenizer.encode(text))
    assert not tokenizer.far_exceeds(text, count)
    assert not tokenizer.far_exceeds(text, count - 1)
    few = min(count // 3, len(text) // CHARACTERS_A_TOKEN - 1)
    assert tokenizer.far_exceeds(text, few) is (count > 2 * few)
