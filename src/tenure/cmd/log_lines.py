"""Lines of the log that only the program itself can begin, and that cannot command a terminal."""

from __future__ import annotations

import copy
import logging
import re
from typing import Any

#: The attributes in which oslo.log's handlers keep the colours of a line.
_COLOURS = ("color", "reset_color")


class SafeLines(logging.Formatter):
    """Formats a record as another formatter does, on one line and in characters that can be printed.

    Everything else in a message, which may be from outside, is escaped: line ends, control characters, characters
    that turn the direction of writing. The lines of a traceback stay lines, each behind ``indent``.
    """

    def __init__(self, inner: logging.Formatter | None, *, indent: str = "") -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()
        self._indent = indent

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        try:
            shown.msg, shown.args = escaped(record.getMessage()), None
        except (TypeError, ValueError, KeyError):
            shown.msg, shown.args = escaped(f"{record.msg!r} % {record.args!r}"), None
        text: Any = self._inner.format(shown)
        if not isinstance(text, str):  # a formatter for a program makes a document
            return text  # type: ignore[no-any-return]  # oslo.log has such formatters
        first, *others = text.split("\n")
        colours = [re.escape(colour) for colour in (getattr(shown, name, "") for name in _COLOURS) if colour]
        pieces = re.split(f"({'|'.join(colours)})", first) if colours else [first]
        line = "".join(piece if number % 2 else escaped(piece) for number, piece in enumerate(pieces))
        return "\n".join([line, *(f"{self._indent}{escaped(other)}" for other in others)])


def escaped(text: str) -> str:
    """Return the text with escapes, as in Python, in place of characters that cannot be printed; a tab is a space."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text.replace("\t", " ")
    )


def write_safe_lines(*, indent: str = "") -> None:
    """Let all handlers of the root logger write safe lines."""
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, SafeLines):
            handler.setFormatter(SafeLines(handler.formatter, indent=indent))
