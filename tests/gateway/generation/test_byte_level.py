"""The characters of byte-level tokens."""

from services.gateway.generation.byte_level import ALPHABET


def test_every_byte_has_a_character_of_its_own() -> None:
    assert sorted(ALPHABET.values()) == list(range(256))
    assert (ALPHABET["A"], ALPHABET["Ġ"], ALPHABET["Ċ"]) == (ord("A"), ord(" "), ord("\n"))
