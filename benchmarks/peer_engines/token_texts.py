"""Texts of tokens that are whole characters. Pure.

llama.cpp's server streams a token once the text so far is valid UTF-8, and leaves out the tokens before, whose number
and times could then not be told. Models with random weights make parts of characters all the time. Their text is never
looked at, so such a token gets another one.
"""

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""The byte that each character of a token stands for in byte-level vocabularies, as GPT-2 has introduced them."""


def whole_text(token: str, number: int) -> str:
    """The token, or a text of its own, `[part7]`, if its bytes are not whole characters."""
    try:
        bytes(BYTES[character] for character in token).decode("utf-8")
    except KeyError:
        return token  # no byte-level text, as of special tokens: it stands for itself
    except UnicodeDecodeError:
        return f"[part{number}]"
    return token
