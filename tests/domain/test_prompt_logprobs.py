"""Log probabilities of a prompt: parts follow each other, each token once."""

from array import array

import pytest

from services.domain.errors import ProtocolError
from services.domain.prompt_logprobs import KnownPromptLogprobs, PromptLogprobs


def part(first_token: int, tokens: int, alternatives: int = 2) -> PromptLogprobs:
    """Numbers that tell the position."""
    positions = range(first_token, first_token + tokens)
    tops = [position + 0.25 * place for position in positions for place in range(alternatives)]
    ids = [10 * position + place for position in positions for place in range(alternatives)]
    return PromptLogprobs(first_token, array("f", positions), array("I", ids), array("f", tops))


@pytest.mark.parametrize("alternatives", [0, 1, 3])
def test_parts_are_joined_and_what_is_known_is_skipped(alternatives: int) -> None:
    known = KnownPromptLogprobs(9)
    for first, tokens in ((1, 3), (1, 2), (2, 5), (4, 2), (7, 2)):
        assert not known.are_complete
        known.add(part(first, tokens, alternatives))
    assert known.are_complete
    assert known.known == part(1, 8, alternatives)


def test_a_gap_is_a_peers_bug() -> None:
    known = KnownPromptLogprobs(9)
    known.add(part(1, 3))
    with pytest.raises(ProtocolError, match="from token 5 on, known are those before 4"):
        known.add(part(5, 1))


def test_a_prompt_of_one_token_needs_none() -> None:
    assert KnownPromptLogprobs(1).are_complete


def test_a_part_of_a_part_has_its_own_alternatives() -> None:
    assert part(3, 4).between(4, 6) == part(4, 2)


def test_each_has_its_token() -> None:
    assert part(1, 2).of([7, 8, 9]) == [(8, 1.0, ((10, 1.0), (11, 1.25))), (9, 2.0, ((20, 2.0), (21, 2.25)))]
