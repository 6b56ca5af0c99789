"""Text from tokens: never half a character, nothing lost, and cut before the first stop string wherever tokens end."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.errors import ProtocolError
from services.domain.generation import EndReason
from services.domain.job_sampling import JobSampling
from services.gateway.generation.choice_output import MOST_TOKENS_A_PIECE, ChoiceOutput, Cursor
from services.gateway.generation.detokenizer import BytesDetokenizer, Detokenizer, WindowDetokenizer
from services.gateway.generation.stop_strings import StopStrings
from services.gateway.model_tokenizer import ModelTokenizer
from tests.builders.repository_paths import BUNDLED
from tests.gateway.tiny_model import (
    END_OF_TEXT,
    VOCABULARY_SIZE,
    byte_level_tokenizer,
    sentence_piece_tokenizer,
    word_piece_tokenizer,
    write_folder,
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TEXTS = st.text(st.sampled_from("ab né中🙂👩‍👧\n,."), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_folder(tmp_path_factory.mktemp("byte-level"), byte_level_tokenizer()))


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_folder(tmp_path_factory.mktemp("sentence-piece"), sentence_piece_tokenizer()))


def pieces_of(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


KINDS: dict[str, Callable[[ModelTokenizer, Sequence[int]], Detokenizer]] = {
    "bytes": lambda tokenizer, context: BytesDetokenizer(tokenizer.token_bytes, context),
    "window": lambda tokenizer, context: WindowDetokenizer(tokenizer.decode, tokenizer.is_skipped, context),
}


@pytest.mark.parametrize("kind", KINDS)
@given(token_ids=st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=60))
def test_the_pieces_of_any_tokens_join_to_what_decoding_all_of_them_gives(
    byte_level: ModelTokenizer, kind: str, token_ids: list[int]
) -> None:
    assert "".join(pieces_of(KINDS[kind](byte_level, ()), token_ids)) == byte_level.decode(token_ids)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, prompt=TEXTS)
def test_valid_text_never_shows_half_a_character(byte_level: ModelTokenizer, kind: str, text: str, prompt: str) -> None:
    pieces = pieces_of(KINDS[kind](byte_level, byte_level.encode(prompt)), byte_level.encode(text))
    assert REPLACEMENT not in "".join(pieces)
    assert "".join(pieces) == text


@pytest.mark.parametrize("kind", KINDS)
@given(
    token_ids=st.lists(st.one_of(st.integers(259, 268), st.sampled_from([3 + 0xC3, 3 + 0xA9])), max_size=40),
    prompt=st.lists(st.integers(259, 268), min_size=1, max_size=8),
)
def test_sentence_piece_output_continues_where_the_prompt_ended(
    sentence_piece: ModelTokenizer, kind: str, token_ids: list[int], prompt: list[int]
) -> None:
    whole = sentence_piece.decode([*prompt, *token_ids])
    joined = "".join(pieces_of(KINDS[kind](sentence_piece, prompt), token_ids))
    if REPLACEMENT not in whole:
        # (A run of byte tokens that is not valid UTF-8 decodes to one mark per byte, even for its whole characters.)
        assert joined == whole[len(sentence_piece.decode(prompt)) :]


@pytest.mark.parametrize(("kind", "half"), [("bytes", REPLACEMENT), ("window", 2 * REPLACEMENT)])
def test_half_a_character_right_after_a_whole_one_does_not_end_the_text(
    sentence_piece: ModelTokenizer, kind: str, half: str
) -> None:
    first_byte, second_byte, once, upon = 3 + 0xC3, 3 + 0xA9, 259, 260
    detokenizer = KINDS[kind](sentence_piece, [once])
    token_ids = [first_byte, second_byte, first_byte, once, upon]
    assert pieces_of(detokenizer, token_ids) == ["", "é", "", half + " Once", " upon", ""]


def test_a_leading_space_is_kept_after_a_prompt(sentence_piece: ModelTokenizer) -> None:
    once, upon = 259, 260
    assert pieces_of(sentence_piece.detokenizer([once]), [upon]) == [" upon", ""]


def test_other_decoders_are_called_themselves(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(write_folder(tmp_path, word_piece_tokenizer()))
    detokenizer = tokenizer.detokenizer([1])
    assert isinstance(detokenizer, WindowDetokenizer)
    assert pieces_of(detokenizer, [2, 3, 4, 5, 7] * 20) == [*([" upon", " a", " time", "s", " ,"] * 20), ""]


def test_the_two_common_kinds_of_decoder_are_recognized(
    byte_level: ModelTokenizer, sentence_piece: ModelTokenizer
) -> None:
    assert isinstance(byte_level.detokenizer(()), BytesDetokenizer)
    assert isinstance(sentence_piece.detokenizer(()), BytesDetokenizer)


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=80))
def test_the_bundled_tokenizer_gives_back_every_text(text: str) -> None:
    if not BUNDLED.exists():
        pytest.fail("models/bundled is missing")
    tokenizer = bundled()
    token_ids = tokenizer.encode("x" + text)
    assert "".join(pieces_of(tokenizer.detokenizer(()), token_ids)) == "x" + text


_bundled: list[ModelTokenizer] = []


def bundled() -> ModelTokenizer:
    if not _bundled:
        _bundled.append(ModelTokenizer(BUNDLED))
    return _bundled[0]


def test_a_window_stays_short_however_many_tokens_complete_no_character(byte_level: ModelTokenizer) -> None:
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return byte_level.decode(token_ids)

    bad_byte = next(token_id for token_id in range(VOCABULARY_SIZE) if byte_level.token_bytes(token_id) == b"\x80")
    special = byte_level.encode(END_OF_TEXT)[0]
    without_token = VOCABULARY_SIZE + 1
    for token_id, text in ((bad_byte, REPLACEMENT), (special, ""), (without_token, "")):
        detokenizer = WindowDetokenizer(decode, byte_level.is_skipped, byte_level.encode("a"))
        assert "".join(pieces_of(detokenizer, [token_id] * 300)) == text * 300
    assert longest <= 20


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """End and start of the stop string that is completed first, the longest if there are several: the definition."""
    ends = [(end, end - len(stop)) for stop in stops for end in range(1, len(text) + 1) if text[:end].endswith(stop)]
    return min(ends, default=None)


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    borders = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 100), max_size=10),
)
def test_text_ends_before_the_stop_string_completed_first_wherever_the_pieces_end(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    search = StopStrings(tuple(stops))
    shown = ""
    for piece in cut(text, cuts):
        shown += search.push(piece)
        assert first_stop(shown, stops) is None
        if search.found:
            break
    expected = first_stop(text, stops)
    assert search.found == (expected is not None)
    assert shown + search.finish() == (text if expected is None else text[: expected[1]])


@given(text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    search = StopStrings(tuple(stops))
    shown = ""
    for place, character in enumerate(text):
        shown += search.push(character)
        if search.found:
            return
        held = text[len(shown) : place + 1]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        longer = text[len(shown) - 1 : place + 1]
        assert len(shown) == 0 or not any(stop.startswith(longer) for stop in stops)


def output_of(tokenizer: ModelTokenizer, stop: tuple[str, ...] = ()) -> ChoiceOutput:
    return ChoiceOutput(JobSampling(max_tokens=10**6, seed=0), tokenizer.detokenizer(()), stop)


@given(text=TEXTS, stops=st.lists(st.text("ab né", min_size=1, max_size=3), max_size=3), resume=st.integers(0, 50))
def test_a_reader_who_resumes_gets_the_text_that_came_with_those_tokens(
    byte_level: ModelTokenizer, text: str, stops: list[str], resume: int
) -> None:
    output = output_of(byte_level, tuple(stops))
    early = Cursor(0, output, 0)
    pieces = []
    for number, token_id in enumerate(byte_level.encode(text)):
        if output.stop_found:
            break
        assert output.extend(number, [token_id], ()) == 1
        pieces.append(early.take())
    output.end(EndReason.STOP if output.stop_found else EndReason.LENGTH)
    pieces.append(early.take())
    assert early.take() is None
    expected = first_stop(text, stops)
    assert "".join(piece.text for piece in pieces if piece) == (text if expected is None else text[: expected[1]])
    late = Cursor(0, output, resume).take()
    assert late is not None
    assert late.finish is output.finish
    assert list(late.token_ids) == list(output.token_ids[resume:])
    assert late.text == "".join(piece.text for piece in pieces[min(resume, len(pieces) - 1) :] if piece)


def test_tokens_that_come_twice_count_once_and_missing_ones_are_an_error(byte_level: ModelTokenizer) -> None:
    output = output_of(byte_level)
    assert output.extend(0, [5, 6], ()) == 2
    assert output.extend(0, [5, 6, 7], ()) == 1
    assert output.extend(1, [6, 7], ()) == 0
    assert list(output.token_ids) == [5, 6, 7]
    with pytest.raises(ProtocolError, match="missing"):
        output.extend(4, [8], ())


def test_a_long_output_comes_in_bounded_pieces_with_the_finish_on_the_last(byte_level: ModelTokenizer) -> None:
    output = output_of(byte_level)
    token_ids = [40 + number % 200 for number in range(2 * MOST_TOKENS_A_PIECE + 5)]
    output.extend(0, token_ids, ())
    output.end(EndReason.LENGTH)
    cursor = Cursor(0, output, 0)
    pieces = []
    while (piece := cursor.take()) is not None:
        pieces.append(piece)
    assert [len(piece.token_ids) for piece in pieces] == [MOST_TOKENS_A_PIECE, MOST_TOKENS_A_PIECE, 5]
    assert [piece.finish for piece in pieces] == [None, None, EndReason.LENGTH]
    assert "".join(piece.text for piece in pieces) == byte_level.decode(token_ids)
