"""What a benchmark takes from llama.cpp's server, and what it gives it instead of parts of characters."""

import json

import pytest

from benchmarks.peer_engines.llama_server import LlamaServerError, streamed_tokens
from benchmarks.peer_engines.token_texts import whole_text


def event(tokens: list[int], predicted: int, stop: bool = False) -> bytes:
    return b"data: " + json.dumps({"tokens": tokens, "stop": stop, "tokens_predicted": predicted}).encode() + b"\n"


def test_tokens_are_given_as_their_events_come() -> None:
    assert list(streamed_tokens([event([5], 1), b"\n", event([6], 2), event([], 2, stop=True)])) == [[5], [6]]


def test_a_token_that_was_not_streamed_is_an_error_and_no_endless_wait() -> None:
    with pytest.raises(LlamaServerError, match="streamed 1 of 2 tokens"):
        list(streamed_tokens([event([6], 2), event([], 2, stop=True)]))
    with pytest.raises(LlamaServerError, match="ended its answer after 1 tokens"):
        list(streamed_tokens([event([6], 1)]))


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("Ġthe", "Ġthe"),
        ("Ã©", "Ã©"),  # the two bytes of an e with an acute accent
        ("Ã", "[part7]"),
        ("©", "[part7]"),
        ("<｜end｜>", "<｜end｜>"),
    ],
)
def test_only_parts_of_characters_get_another_text(token: str, text: str) -> None:
    assert whole_text(token, 7) == text
