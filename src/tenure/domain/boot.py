"""Requests to boot servers that are kept until the start of a lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Boot:
    """A request to boot one server: the ``body`` as Nova takes it, and its compute microversion.

    Without a ``microversion`` it is one of the first version, 2.1. The body is the owner's secret: it may have
    passwords.
    """

    body: Mapping[str, Any] = field(repr=False)
    microversion: str | None = None

    def named(self, name: str) -> Boot:
        """Return the request for a server with this name."""
        return replace(self, body={**self.body, "server": {**self.body["server"], "name": name}})
