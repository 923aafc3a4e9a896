"""What a refused command could do instead: a description and the command of each alternative."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from osc_lib import exceptions

from tenureclient.cli.command import ReservationCommand
from tenureclient.cli.printable import printable
from tenureclient.cli.report import describe
from tenureclient.cli.reservation_words import (
    Inexpressible,
    first_words,
    words_of_options,
    words_of_other_options,
    words_of_reservations,
)
from tenureclient.cli.window_options import without_window
from tenureclient.conditions import conditions_from_json
from tenureclient.errors import Alternative, NotEnoughResources
from tenureclient.models import Lease
from tenureclient.moments import format_duration, format_moment
from tenureclient.reservation_request import OwnEvent
from tenureclient.reservation_type import ReservationType
from tenureclient.resources import RESERVATION_TYPES
from tenureclient.wire import JsonObject, rfc3339


@dataclass(frozen=True, slots=True)
class Dates:
    """The dates of a refused lease, and the moments that have to stay within it."""

    start: datetime
    end: datetime
    before_end: datetime | None
    events: tuple[OwnEvent, ...]


class Alternatives:
    """The alternatives to one refused command that describes reservations by its options, as lines of text."""

    #: The words of the command, and the name under which its options have the lease.
    words: ClassVar[Sequence[str]]
    lease: ClassVar[str] = "lease"

    def __init__(
        self, command: ReservationCommand, parsed_args: argparse.Namespace, types: Sequence[str], dates: Dates | None
    ) -> None:
        """``types`` are those of the reservations in the request; without ``dates``, they cannot change."""
        self._command = command
        self._args = parsed_args
        self._types = types
        self._dates = dates

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

    def _option_words(self, options: argparse.Namespace) -> list[str]:
        """Return the words of these options."""
        others = words_of_other_options(self._command.get_parser(""), options)
        return [*words_of_reservations(options), *others]

    def _with_dates(self, alternative: Alternative) -> argparse.Namespace:
        """Return the options with the dates of an alternative. What does not change stays as it was typed."""
        return _with_dates(without_window(self._args), self._dates, alternative, alternative.start_date)

    def _with_amount(self, amount: int, position: int) -> argparse.Namespace:
        """Return the options with another amount of the reservation at this position of the request."""
        return with_amount(self._args, amount, position)

    def _with_condition(self, condition: str, position: int) -> argparse.Namespace:
        """Return the options with another condition on the resources of the reservation at this position.

        Raises ``Inexpressible`` if no option gives it one.
        """
        options, slot = _slot(self._args, position)
        if isinstance(slot, int):
            _change(options.reservation, slot, {"resource_properties": condition})
        elif slot.takes_conditions(options):
            options.conditions = conditions_from_json(condition)
        else:
            raise Inexpressible
        return options

    def _command_words(self, options: argparse.Namespace) -> list[str]:
        """Return the words of the command with these options. The name of a lease may look like an option."""
        words, name = first_words(self._command, *self.words), vars(options)[self.lease]
        given = self._option_words(options)
        return [*words, *given, "--", name] if name.startswith("-") else [*words, name, *given]

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
                reservation_type = RESERVATION_TYPES.get(self._type(alternative))
                units = ("unit", "units") if reservation_type is None else reservation_type.units
                amount = alternative.amount or 0
                return f"a smaller amount{self._number(alternative)}: {amount} {units[amount != 1]}"
            case "kind":
                conditions = conditions_from_json(alternative.resource_properties or "")
                return f"another kind{self._number(alternative)}: {' and '.join(conditions)}"
        raise Inexpressible

    def _type(self, alternative: Alternative) -> str:
        types, position = self._types, alternative.reservation
        if position is None or not 0 <= position < len(types):
            raise Inexpressible
        return types[position]

    def _number(self, alternative: Alternative) -> str:
        """Return the number of the reservation that changes, as the refusal above counts them."""
        is_only = len(self._types) == 1 or alternative.reservation is None
        return "" if is_only else f" of number {(alternative.reservation or 0) + 1}"


class CreateAlternatives(Alternatives):
    """The alternatives to ``lease create``."""

    words = ("lease", "create")
    lease = "name"


class AddAlternatives(Alternatives):
    """The alternatives to ``lease reservation add``; the dates are those of the lease."""

    words = ("lease", "reservation", "add")


class ChangeAlternatives(Alternatives):
    """The alternatives to a change of a lease, as commands ``lease set``."""

    words = ("lease", "set")

    def __init__(
        self,
        command: ReservationCommand,
        parser: argparse.ArgumentParser,
        parsed_args: argparse.Namespace,
        lease: Lease,
        dates: Dates,
    ) -> None:
        """``parser`` and ``parsed_args`` are those of ``lease set``, which another command may stand for."""
        types = {reservation.id: reservation.resource_type for reservation in lease.reservations}
        super().__init__(command, parsed_args, [types.get(change.id, "") for change in parsed_args.reservation], dates)
        self._parser = parser

    def _option_words(self, options: argparse.Namespace) -> list[str]:
        return words_of_options([action for action in self._parser._actions if action.option_strings], options)

    def _with_dates(self, alternative: Alternative) -> argparse.Namespace:
        options = argparse.Namespace(**vars(self._args))
        earliest = max(alternative.start_date, self._command.surroundings.now())
        return _with_dates(options, self._dates, alternative, earliest)

    def _with_amount(self, amount: int, position: int) -> argparse.Namespace:
        """Return the options with another amount in the change at this position.

        Raises ``Inexpressible`` if the change has no amount: the reservation keeps its number of units then.
        """
        options = _copied(self._args)
        _change(options.reservation, position, {})
        given = set(options.reservation[position].parameters)
        names = {"min", "max"} if {"min", "max"} & given else {"amount"} & given
        if not names:
            raise Inexpressible
        _change(options.reservation, position, dict.fromkeys(names, amount))
        return options

    def _with_condition(self, condition: str, position: int) -> argparse.Namespace:
        options = _copied(self._args)
        _change(options.reservation, position, {"resource_properties": condition})
        return options


#: The options that move the start of a lease. They would move it again if the command ran twice.
_MOVES_OF_START = ("defer_by", "advance_by")
#: The other options for the start and for the end of a lease.
_OTHER_STARTS = ("start_date", *_MOVES_OF_START)
_OTHER_ENDS = ("length", "end_date", "prolong_for", "reduce_by")


def _with_dates(
    options: argparse.Namespace, dates: Dates | None, alternative: Alternative, earliest: datetime
) -> argparse.Namespace:
    """Change the dates of options that had these, and return the options. Raises ``Inexpressible`` if they had none.

    The moment before the end keeps its distance to the end; unless it is after ``earliest`` then, it has its
    default. Notifications move with the start, and with an end that would come before them.
    """
    if dates is None:
        raise Inexpressible
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


def with_amount(parsed_args: argparse.Namespace, amount: int, position: int) -> argparse.Namespace:
    """Return the options with another amount of the reservation at this position.

    Raises ``Inexpressible`` if it cannot have this amount.
    """
    options, slot = _slot(parsed_args, position)
    if isinstance(slot, int):
        names = {"min", "max", "amount"} & set(options.reservation[slot].parameters)
        if not names and amount != 1:
            raise Inexpressible
        _change(options.reservation, slot, dict.fromkeys(names, amount))
    elif not slot.with_amount(options, amount):
        raise Inexpressible
    return options


def _copied(parsed_args: argparse.Namespace) -> argparse.Namespace:
    """Return a copy of the options whose reservations can be replaced."""
    return argparse.Namespace(**{**vars(parsed_args), "reservation": list(parsed_args.reservation)})


def _change(requests: list[Any], position: int, parameters: JsonObject) -> None:
    """Give other parameters to the request at this position. Raises ``Inexpressible`` if there is none."""
    if not 0 <= position < len(requests):
        raise Inexpressible
    requests[position] = replace(requests[position], parameters={**requests[position].parameters, **parameters})


def _slot(parsed_args: argparse.Namespace, position: int) -> tuple[argparse.Namespace, ReservationType | int]:
    """Return a copy of the options, and the type of the reservation at this position, which has options of its own.

    A number is the position of a reservation in full words. The order is that of ``read_reservations``.
    """
    options = _copied(parsed_args)
    requested = [
        reservation_type for reservation_type in RESERVATION_TYPES.values() if reservation_type.is_requested(options)
    ]
    slots = [*requested, *range(len(options.reservation))]
    if not 0 <= position < len(slots):
        raise Inexpressible
    return options, slots[position]
