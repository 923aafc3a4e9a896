"""What a type of reservations has to declare: its parameters, its options, and how requests are made of them."""

from __future__ import annotations

import argparse
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tenureclient.options import Option
from tenureclient.reservation_request import BEFORE_END_ACTIONS, ReservationRequest
from tenureclient.wire import JsonValue

_COUNT = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_WHOLE_NUMBER = re.compile(r"-?\d+", re.ASCII)


class UnreadableReservation(ValueError):
    """The text, or the options, do not describe a reservation."""


class ReservationType(ABC):
    """A type of reservations. Help and lists of types are in the order of ``position``."""

    name: ClassVar[str]
    position: ClassVar[int] = 100
    #: A short word for the type, if resources can be counted by it, and what is counted: one, and several.
    short: ClassVar[str | None] = None
    units: ClassVar[tuple[str, str]]
    #: The parameters in full words, as in ``amount=COUNT [volume_type=TYPE]``; a line of help each. Those of COUNT, MB
    #: and GB are numbers. All types have region=NAME.
    parameters: ClassVar[Sequence[str]]
    has_zone: ClassVar[bool] = False
    has_extra_specs: ClassVar[bool] = False
    #: Whether it has ``resources``: amounts of resource classes.
    has_resources: ClassVar[bool] = False
    #: The actions before the end that a reservation can have.
    before_end: ClassVar[Sequence[str]] = BEFORE_END_ACTIONS
    #: The options, under a heading, and the names of those that request something; the first of these is the amount.
    heading: ClassVar[str]
    options: ClassVar[Sequence[Option]] = ()
    requesting: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def requests(self, given: argparse.Namespace) -> Iterator[ReservationRequest]:
        """Yield the reservations that options ask for. Raises ``UnreadableReservation`` if some options lack others."""

    def is_requested(self, given: argparse.Namespace) -> bool:
        """Whether options request something of the type."""
        return any(getattr(given, name) not in (None, []) for name in self.requesting)

    def with_amount(self, given: argparse.Namespace, amount: int) -> bool:
        """Change the amount in the options, and return True; return False if they cannot say it."""
        setattr(given, self.requesting[0], amount)
        return True

    def takes_conditions(self, given: argparse.Namespace) -> bool:
        """Whether the conditions on hosts among the options are for reservations of the type."""
        return False

    def complete(self, values: dict[str, JsonValue], text: str) -> None:  # noqa: B027 - most types have no defaults
        """Add defaults to parameters in full words. Raises ``UnreadableReservation`` for the whole text."""

    def option_of(self, name: str) -> str:
        """Return the option whose value has this name."""
        return next(option.names for option in self.options if option.name == name)

    def refuse_details(self, given: argparse.Namespace) -> None:
        """Refuse options that describe what is not requested."""
        for option in self.options:
            if option.name not in self.requesting and getattr(given, option.name) not in (None, []):
                raise UnreadableReservation(
                    f"{self.option_of(option.name)}: say how many with {self.option_of(self.requesting[0])}."
                )


def parse_count(text: str) -> tuple[int, int]:
    """Read a count, ``2`` or ``2-4``, as the minimum and the maximum."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise UnreadableReservation(f"'{text}' is not a count; write 2, or 2-4 for at least 2 and up to 4.")
    least = int(match[1])
    most = least if match[2] is None else int(match[2])
    if not 1 <= least <= most:
        raise UnreadableReservation(f"'{text}' is not a count: at least 1, and the smaller number first.")
    return least, most


def parse_amount(text: str) -> int:
    """Read an exact count."""
    if not _WHOLE_NUMBER.fullmatch(text.strip()) or int(text) < 1:
        raise UnreadableReservation(f"'{text}' is not a count: a whole number, at least 1.")
    return int(text)


def parse_resource(text: str) -> tuple[str, int]:
    """Read ``CLASS=AMOUNT``."""
    name, _, amount = (item.strip() for item in text.partition("="))
    if not name or not _WHOLE_NUMBER.fullmatch(amount) or int(amount) < 1:
        raise UnreadableReservation(f"'{text}' is not CLASS=AMOUNT: a resource class, and a whole number, at least 1.")
    return name, int(amount)


def parse_extra_spec(text: str) -> tuple[str, str]:
    """Read ``key=value``; the value may begin with an operator of its own, as in ``vcpus=>= 8``."""
    key, _, value = (item.strip() for item in text.partition("="))
    if not key or not value:
        raise UnreadableReservation(f"'{text}' is not key=value.")
    return key, value
