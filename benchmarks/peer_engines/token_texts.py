"""Texts of tokens that are whole characters. Pure.

llama.cpp's server streams a token once the text so far is valid UTF-8, and leaves out the tokens before, whose number
and times could then not be told. Models with random weights make parts of characters all the time. Their text is never
looked at, so such a token gets another one.
"""

from services.gateway.generation.byte_level import byte_level_bytes


def whole_text(token: str, number: int) -> str:
    """The token of a byte-level vocabulary, or a text of its own, `[part7]`, if its bytes are not whole characters."""
    try:
        byte_level_bytes(token).decode("utf-8")
    except UnicodeDecodeError:
        return f"[part{number}]"
    return token
