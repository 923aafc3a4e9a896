"""JSON types, and readers whose errors name the field."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import total_ordering
from typing import TypeAlias, TypeVar

from tenureclient.moments import NOW, Moment

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]

T = TypeVar("T")


@total_ordering
class Version(enum.Enum):
    """A microversion that this client speaks. They are in order, the oldest first."""

    V1_0 = "1.0"
    V1_1 = "1.1"
    V1_2 = "1.2"
    V1_3 = "1.3"
    V1_4 = "1.4"

    def __lt__(self, other: Version) -> bool:
        order = list(Version)
        return order.index(self) < order.index(other)


#: The newest version that this client knows. Its answers have the most.
NEWEST = Version.V1_4


@dataclass(frozen=True, slots=True)
class Feature:
    """What servers below a version lack, in words for a user."""

    words: str
    since: Version = Version.V1_1


class MalformedDocument(ValueError):
    """A document of the server lacks a field, or the field has the wrong form."""


class Fields:
    """Reads the fields of a JSON object with their expected types."""

    def __init__(self, document: JsonValue, subject: str) -> None:
        if not isinstance(document, Mapping):
            raise MalformedDocument(f"{subject} is not an object")
        self._document = document
        self._subject = subject

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def to_json(self) -> JsonObject:
        """Return the whole object."""
        return self._document

    def value(self, name: str) -> JsonValue:
        """Return the raw value; None if it is absent."""
        return self._document.get(name)

    def text(self, name: str) -> str:
        value = self._document.get(name)
        if not isinstance(value, str):
            raise self._malformed(name, "text")
        return value

    def loose_text(self, name: str) -> str:
        """Return text that some servers send as a number; empty if it is absent."""
        value = self._document.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """Return a whole number; 0 if it is absent. Text is accepted: Blazar lets a property hide it."""
        value = self._document.get(name)
        if value is None:
            return 0
        if isinstance(value, int | str) and not isinstance(value, bool):
            with suppress(ValueError):
                return int(value)
        raise self._malformed(name, "a whole number")

    def decimal(self, name: str) -> float:
        """Return a number with or without a fraction."""
        value = self._document.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._malformed(name, "a number")
        return float(value)

    def values(self, name: str, read: Callable[[Fields, str], T]) -> Mapping[str, T]:
        """Read an object whose values are all of one form; an absent one is empty."""
        values = Fields(self._document.get(name) or {}, f"{name} of {self._subject}")
        return {key: read(values, key) for key in values}

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._document.get(name)
        return default if value is None else bool(value)

    def seconds(self, name: str) -> timedelta:
        """Return a number of seconds as a duration."""
        return timedelta(seconds=self.number(name))

    def moment(self, name: str) -> datetime:
        value = self._document.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                return read_moment(value)
        raise self._malformed(name, "a date")

    def items(self, name: str, read: Callable[[JsonValue], T]) -> tuple[T, ...]:
        """Read every item of a list; an absent list is empty."""
        value = self._document.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._malformed(name, "a list")
        return tuple(read(item) for item in value)

    def strings(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; an absent one is empty."""
        return self.items(name, str)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers; an absent one is empty."""
        return self.items(name, lambda value: Fields({name: value}, self._subject).number(name))

    def _malformed(self, name: str, expected: str) -> MalformedDocument:
        return MalformedDocument(f"{self._subject}: {name} is not {expected}: {self._document.get(name)!r}")


def read_moment(text: str) -> datetime:
    """Return the moment of a date in the form of either API version; without a zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def rfc3339(moment: datetime) -> str:
    """Return a date in the form of API 1.1: UTC, with a fraction only if there is one."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def moment_to_wire(moment: Moment, version: Version) -> str:
    """Return a date in the form of a version. API 1.0 knows UTC and minutes only, so seconds are cut."""
    if not isinstance(moment, datetime):
        return NOW
    if moment.tzinfo is None:
        raise ValueError("A date needs a time zone; datetime.now(UTC) has one, datetime.now() has none.")
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if version is Version.V1_0 else rfc3339(moment)
