"""Text from others for a terminal: control characters are shown, not sent."""

from __future__ import annotations

import unicodedata

#: Line and paragraph separators, and marks that change the direction of text. Control characters come on top.
_OBEYED = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Return the text with each character that controls a terminal as an escape, such as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if character in _OBEYED or unicodedata.category(character) == "Cc"
        else character
        for character in text
    )
