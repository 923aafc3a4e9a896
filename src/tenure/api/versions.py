"""Microversions and their negotiation."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import total_ordering
from typing import TypeVar

from tenure.api.errors import MalformedVersion, VersionNotSupported

SERVICE_TYPE = "reservation"
HEADER = "OpenStack-API-Version"

T = TypeVar("T")

_GRAMMAR = re.compile(r"[1-9][0-9]*\.(0|[1-9][0-9]*)", re.ASCII)


@total_ordering
class Version(Enum):
    """A version of the API, oldest first."""

    V1_0 = "1.0"
    V1_1 = "1.1"
    V1_2 = "1.2"
    V1_3 = "1.3"
    V1_4 = "1.4"

    def __lt__(self, other: Version) -> bool:
        """Whether this version is older."""
        order = list(Version)
        return order.index(self) < order.index(other)


OLDEST = Version.V1_0
LATEST = Version.V1_4


def by_version(*values: T) -> Callable[[Version], T]:
    """Return a function from a version to its value: the first value is for 1.0, the second for 1.1, and so on.

    The last value is also for all later versions.
    """
    versions = list(Version)

    def value_at(version: Version) -> T:
        return values[min(versions.index(version), len(values) - 1)]

    return value_at


def negotiate(header: str | None) -> Version:
    """Return the version that ``header`` requests, or the oldest if it does not name this service.

    If it names this service more than once, the last version counts. Raises ``MalformedVersion`` or
    ``VersionNotSupported``.
    """
    given = None
    for part in (header or "").split(","):
        words = part.split()
        if words and words[0].lower() == SERVICE_TYPE:
            given = " ".join(words[1:])
    if given is None:
        return OLDEST
    if given.lower() == "latest":
        return LATEST
    if not _GRAMMAR.fullmatch(given):
        raise MalformedVersion(given)
    for version in Version:
        if version.value == given:
            return version
    raise VersionNotSupported(given, OLDEST.value, LATEST.value)
