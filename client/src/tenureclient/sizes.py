"""Sizes of memory and disks as people write them."""

from __future__ import annotations

import re
from collections.abc import Callable

_SIZE = re.compile(r"(\d+)\s*(?:([mgt])i?b?)?", re.ASCII)
_UNITS = "mgt"


class UnreadableSize(ValueError):
    """The text is not a size, or the size is not a whole number of the unit."""


def parse_size(unit: str) -> Callable[[str], int]:
    """Return a reader of sizes. It returns ``unit`` (m, g or t), and reads bare numbers as ``unit``."""

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text.strip().lower())
        power = _UNITS.index(match[2] or unit) - _UNITS.index(unit) if match else -1
        if match is None or power < 0:
            raise UnreadableSize(f"'{text}' is not a size; write 4096, or such as 4{unit} or 1t.")
        size: int = int(match[1]) * 1024**power
        return size

    return parse
