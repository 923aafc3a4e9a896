"""What a refused command could do instead: a description and the command of each alternative."""

from __future__ import annotations

import argparse
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from osc_lib import exceptions

from tenureclient.cli.command import ReservationCommand
from tenureclient.cli.printable import printable
from tenureclient.cli.report import describe
from tenureclient.cli.reservation_words import (
    Inexpressible,
    first_words,
    with_amount,
    with_amount_of_change,
    with_condition,
    with_condition_of_change,
    words_of_options,
    words_of_other_options,
    words_of_reservations,
)
from tenureclient.cli.window_options import without_window
from tenureclient.conditions import conditions_from_json
from tenureclient.errors import Alternative, NotEnoughResources
from tenureclient.models import Lease
from tenureclient.moments import format_duration, format_moment
from tenureclient.reservation_request import OwnEvent, ReservationRequest
from tenureclient.resources import RESERVATION_TYPES
from tenureclient.wire import rfc3339


@dataclass(frozen=True, slots=True)
class Dates:
    """The dates of a refused lease, and the moments that have to stay within it."""

    start: datetime
    end: datetime
    before_end: datetime | None
    events: tuple[OwnEvent, ...]


class Alternatives(ABC):
    """The alternatives to one refused command, as lines of text."""

    def __init__(self, command: ReservationCommand, parsed_args: argparse.Namespace) -> None:
        self._command = command
        self._args = parsed_args

    def describe(self, alternatives: Iterable[Alternative]) -> list[str]:
        """Return the lines. An alternative that no command line can ask for is left out."""
        lines: list[str] = []
        for alternative in alternatives:
            with suppress(Inexpressible):
                words = self._command_words(self._changed(alternative))
                lines += [f"  {self._described(alternative)}:", f"    {shlex.join(words)}"]
        return ["Possible instead:", *map(printable, lines)] if lines else []

    def refusal(self, error: NotEnoughResources) -> exceptions.CommandError:
        """Return the error of the refused command, with the alternatives."""
        return exceptions.CommandError("\n".join([describe(error), *self.describe(error.alternatives)]))

    @abstractmethod
    def _command_words(self, options: argparse.Namespace) -> list[str]:
        """Return the words of the command with these options."""

    @abstractmethod
    def _with_dates(self, alternative: Alternative) -> argparse.Namespace:
        """Return the options with the dates of an alternative. What does not change stays as it was typed."""

    @abstractmethod
    def _with_amount(self, amount: int, position: int) -> argparse.Namespace:
        """Return the options with another amount of the reservation at this position of the request."""

    @abstractmethod
    def _with_condition(self, condition: str, position: int) -> argparse.Namespace:
        """Return the options with another condition on the resources of the reservation at this position."""

    @abstractmethod
    def _types(self) -> Sequence[str]:
        """Return the resource types of the reservations in the request."""

    def _changed(self, alternative: Alternative) -> argparse.Namespace:
        position = -1 if alternative.reservation is None else alternative.reservation
        match alternative.change:
            case "start" | "end":
                return self._with_dates(alternative)
            case "amount" if alternative.amount is not None:
                return self._with_amount(alternative.amount, position)
            case "kind" if alternative.resource_properties is not None:
                return self._with_condition(alternative.resource_properties, position)
        raise Inexpressible

    def _described(self, alternative: Alternative) -> str:
        zone = self._command.zone
        start, end = (format_moment(date, zone) for date in (alternative.start_date, alternative.end_date))
        match alternative.change:
            case "start":
                return f"a later start: {start} to {end}"
            case "end":
                length = format_duration(alternative.end_date - alternative.start_date)
                return f"an earlier end: {end}, after {length}"
            case "amount":
                known = RESERVATION_TYPES.get(self._type(alternative))
                units = ("unit", "units") if known is None else known.units
                amount = alternative.amount or 0
                return f"a smaller amount{self._number(alternative)}: {amount} {units[amount != 1]}"
            case "kind":
                conditions = conditions_from_json(alternative.resource_properties or "")
                return f"another kind{self._number(alternative)}: {' and '.join(conditions)}"
        raise Inexpressible

    def _type(self, alternative: Alternative) -> str:
        types, position = self._types(), alternative.reservation
        if position is None or not 0 <= position < len(types):
            raise Inexpressible
        return types[position]

    def _number(self, alternative: Alternative) -> str:
        """Return the number of the reservation that changes, as the refusal above counts them."""
        is_only = len(self._types()) == 1 or alternative.reservation is None
        return "" if is_only else f" of number {(alternative.reservation or 0) + 1}"


class CreateAlternatives(Alternatives):
    """The alternatives to ``lease create``."""

    def __init__(
        self,
        command: ReservationCommand,
        parsed_args: argparse.Namespace,
        reservations: Sequence[ReservationRequest],
        dates: Dates,
    ) -> None:
        super().__init__(command, parsed_args)
        self._reservations = reservations
        self._dates = dates

    def _command_words(self, options: argparse.Namespace) -> list[str]:
        others = words_of_other_options(self._command.get_parser(""), options)
        words = first_words(self._command, "lease", "create")
        return _with_name(words, options.name, [*words_of_reservations(options), *others])

    def _with_dates(self, alternative: Alternative) -> argparse.Namespace:
        return _with_dates(without_window(self._args), self._dates, alternative, alternative.start_date)

    def _with_amount(self, amount: int, position: int) -> argparse.Namespace:
        return with_amount(self._args, amount, position)

    def _with_condition(self, condition: str, position: int) -> argparse.Namespace:
        return with_condition(self._args, condition, position)

    def _types(self) -> Sequence[str]:
        return [reservation.resource_type for reservation in self._reservations]


class ChangeAlternatives(Alternatives):
    """The alternatives to a change of a lease, as commands ``lease set``."""

    def __init__(
        self,
        command: ReservationCommand,
        parser: argparse.ArgumentParser,
        parsed_args: argparse.Namespace,
        lease: Lease,
        dates: Dates,
    ) -> None:
        """``parser`` and ``parsed_args`` are those of ``lease set``, which another command may stand for."""
        super().__init__(command, parsed_args)
        self._parser = parser
        self._lease = lease
        self._dates = dates

    def _command_words(self, options: argparse.Namespace) -> list[str]:
        actions = [action for action in self._parser._actions if action.option_strings]
        words = first_words(self._command, "lease", "set")
        return _with_name(words, options.lease, words_of_options(actions, options))

    def _with_dates(self, alternative: Alternative) -> argparse.Namespace:
        options = argparse.Namespace(**vars(self._args))
        earliest = max(alternative.start_date, self._command.surroundings.now())
        return _with_dates(options, self._dates, alternative, earliest)

    def _with_amount(self, amount: int, position: int) -> argparse.Namespace:
        return with_amount_of_change(self._args, amount, position)

    def _with_condition(self, condition: str, position: int) -> argparse.Namespace:
        return with_condition_of_change(self._args, condition, position)

    def _types(self) -> Sequence[str]:
        types = {reservation.id: reservation.resource_type for reservation in self._lease.reservations}
        return [types.get(change.id, "") for change in self._args.reservation]


class AddAlternatives(Alternatives):
    """The alternatives to ``lease reservation add``."""

    def __init__(
        self, command: ReservationCommand, parsed_args: argparse.Namespace, request: ReservationRequest
    ) -> None:
        super().__init__(command, parsed_args)
        self._request = request

    def _command_words(self, options: argparse.Namespace) -> list[str]:
        others = words_of_other_options(self._command.get_parser(""), options)
        words = first_words(self._command, "lease", "reservation", "add")
        return _with_name(words, options.lease, [*words_of_reservations(options), *others])

    def _with_dates(self, alternative: Alternative) -> argparse.Namespace:
        raise Inexpressible  # the dates are those of the lease

    def _with_amount(self, amount: int, position: int) -> argparse.Namespace:
        return with_amount(self._args, amount, position)

    def _with_condition(self, condition: str, position: int) -> argparse.Namespace:
        return with_condition(self._args, condition, position)

    def _types(self) -> Sequence[str]:
        return [self._request.resource_type]


def _with_name(words: Sequence[str], name: str, options: Sequence[str]) -> list[str]:
    """Return the words of a command for the lease of this name, which may look like an option."""
    return [*words, *options, "--", name] if name.startswith("-") else [*words, name, *options]


#: The options that move the start of a lease. They would move it again if the command ran twice.
_MOVES_OF_START = ("defer_by", "advance_by")
#: The other options for the start and for the end of a lease.
_OTHER_STARTS = ("start_date", *_MOVES_OF_START)
_OTHER_ENDS = ("length", "end_date", "prolong_for", "reduce_by")


def _with_dates(
    options: argparse.Namespace, dates: Dates, alternative: Alternative, earliest: datetime
) -> argparse.Namespace:
    """Change the dates of options that had these, and return the options.

    The moment before the end keeps its distance to the end; unless it is after ``earliest`` then, it has its
    default. Notifications move with the start, and with an end that would come before them.
    """
    is_moved = any(getattr(options, name, None) is not None for name in _MOVES_OF_START)
    if alternative.change == "start" or is_moved:
        options.start = rfc3339(alternative.start_date)
        vars(options).update({name: None for name in _OTHER_STARTS if hasattr(options, name)})
    options.end = rfc3339(alternative.end_date)
    vars(options).update({name: None for name in _OTHER_ENDS if hasattr(options, name)})
    if dates.before_end is not None:
        before_end = dates.before_end + (alternative.end_date - dates.end)
        has_room = before_end > earliest
        options.before_end, options.before_end_date = rfc3339(before_end) if has_room else None, None
    later = alternative.start_date - dates.start if alternative.change == "start" else timedelta()
    moved = [min(event.time + later, alternative.end_date) for event in dates.events]
    options.notify = [
        typed if moment == event.time else [rfc3339(moment), event.message]
        for typed, event, moment in zip(options.notify, dates.events, moved, strict=True)
    ]
    return options
