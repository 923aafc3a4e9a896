"""What is asked of the small OpenStack over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A request that came. ``query`` has all that came with the path, also what came more than once."""

    service: str
    method: str
    path: str
    params: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]
    query: tuple[tuple[str, str], ...] = ()

    def all_of(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]
