"""Byte-level tokens, as GPT-2 has introduced them: each character of a token stands for a byte of its text. Pure."""


def _alphabet() -> dict[str, int]:
    """A printable character stands for its own byte, and those from 256 on for the remaining bytes in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


ALPHABET = _alphabet()
"""The byte that each character stands for."""


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token's text, which need not be whole characters."""
    try:
        return bytes(ALPHABET[character] for character in token)
    except KeyError:
        # An added token, which is written as plain text.
        return token.encode()
