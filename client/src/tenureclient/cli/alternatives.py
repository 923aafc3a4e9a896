"""What a refused ``lease create`` could book instead: a description and the command of each alternative."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenureclient.cli.command import ReservationCommand
from tenureclient.cli.printable import printable
from tenureclient.cli.reservation_words import (
    Inexpressible,
    with_amount,
    with_condition,
    words_of_create,
    words_of_other_options,
    words_of_reservations,
)
from tenureclient.cli.window_options import without_window
from tenureclient.conditions import conditions_from_json
from tenureclient.errors import Alternative
from tenureclient.moments import format_duration, format_moment
from tenureclient.reservation_request import OwnEvent, ReservationRequest
from tenureclient.wire import rfc3339

#: What is counted of a resource type: one, and several.
_UNITS = {
    "physical:host": ("host", "hosts"),
    "virtual:instance": ("instance", "instances"),
    "flavor:instance": ("instance", "instances"),
    "virtual:floatingip": ("floating IP", "floating IPs"),
    "virtual:volume": ("volume", "volumes"),
}


@dataclass(frozen=True, slots=True)
class Dates:
    """The dates of a refused lease, and the moments that have to stay within it."""

    start: datetime
    end: datetime
    before_end: datetime | None
    events: tuple[OwnEvent, ...]


class Alternatives:
    """The alternatives to one refused command, as lines of text."""

    def __init__(
        self,
        command: ReservationCommand,
        parsed_args: argparse.Namespace,
        reservations: Sequence[ReservationRequest],
        dates: Dates,
    ) -> None:
        self._command = command
        self._args = parsed_args
        self._reservations = reservations
        self._dates = dates

    def describe(self, alternatives: Iterable[Alternative]) -> list[str]:
        """Return the lines. An alternative that no command line can ask for is left out."""
        lines: list[str] = []
        for alternative in alternatives:
            with suppress(Inexpressible):
                words = self._command_words(alternative)
                lines += [f"  {self._described(alternative)}:", f"    {shlex.join(words)}"]
        return ["Possible instead:", *map(printable, lines)] if lines else []

    def _described(self, alternative: Alternative) -> str:
        zone = self._command.surroundings.zone
        start, end = (format_moment(date, zone) for date in (alternative.start_date, alternative.end_date))
        match alternative.change:
            case "start":
                return f"a later start: {start} to {end}"
            case "end":
                length = format_duration(alternative.end_date - alternative.start_date)
                return f"an earlier end: {end}, after {length}"
            case "amount":
                units = _UNITS.get(self._reservation(alternative).resource_type, ("unit", "units"))
                amount = alternative.amount or 0
                return f"a smaller amount{self._number(alternative)}: {amount} {units[amount != 1]}"
            case "kind":
                conditions = conditions_from_json(alternative.resource_properties or "")
                return f"another kind{self._number(alternative)}: {' and '.join(conditions)}"
        raise Inexpressible

    def _command_words(self, alternative: Alternative) -> list[str]:
        """Return the words of the command that the user typed, with the change of an alternative."""
        options = self._changed(alternative)
        others = words_of_other_options(self._command.get_parser(""), options)
        return [*words_of_create(self._command), options.name, *words_of_reservations(options), *others]

    def _changed(self, alternative: Alternative) -> argparse.Namespace:
        position = -1 if alternative.reservation is None else alternative.reservation
        match alternative.change:
            case "start" | "end":
                return self._with_dates(alternative)
            case "amount" if alternative.amount is not None:
                return with_amount(self._args, alternative.amount, position)
            case "kind" if alternative.resource_properties is not None:
                return with_condition(self._args, alternative.resource_properties, position)
        raise Inexpressible

    def _with_dates(self, alternative: Alternative) -> argparse.Namespace:
        """Return the options with other dates. What does not change stays as it was typed.

        The moment before the end keeps its distance to the end; without room for that, it has its default.
        Notifications move with the start, and with an end that would come before them.
        """
        dates = self._dates
        options = without_window(self._args)
        if alternative.change == "start":
            options.start, options.start_date = rfc3339(alternative.start_date), None
        options.end, options.length, options.end_date = rfc3339(alternative.end_date), None, None
        if dates.before_end is not None:
            before_end = dates.before_end + (alternative.end_date - dates.end)
            has_room = before_end > alternative.start_date
            options.before_end, options.before_end_date = rfc3339(before_end) if has_room else None, None
        later = alternative.start_date - dates.start if alternative.change == "start" else timedelta()
        moved = [min(event.time + later, alternative.end_date) for event in dates.events]
        options.notify = [
            typed if moment == event.time else [rfc3339(moment), event.message]
            for typed, event, moment in zip(self._args.notify, dates.events, moved, strict=True)
        ]
        return options

    def _reservation(self, alternative: Alternative) -> ReservationRequest:
        position = alternative.reservation
        if position is None or not 0 <= position < len(self._reservations):
            raise Inexpressible
        return self._reservations[position]

    def _number(self, alternative: Alternative) -> str:
        """Return the number of the reservation that changes, as the refusal above counts them."""
        is_only = len(self._reservations) == 1 or alternative.reservation is None
        return "" if is_only else f" of number {(alternative.reservation or 0) + 1}"
