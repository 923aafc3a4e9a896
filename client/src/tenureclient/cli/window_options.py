"""Options that say when a lease may start."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from osc_lib import exceptions

from tenureclient.cli.command import ReservationCommand
from tenureclient.moments import DAYS_OF_THE_WEEK, MOMENT_FORMS, Moment, UnreadableMoment, parse_length, zone_of
from tenureclient.offers import WEEKDAYS, StartWindow
from tenureclient.options import OneOf, Option, every_option

_LOCAL_ZONE = Path("/etc/localtime")
_DATABASE = "/zoneinfo/"


def _weekdays(text: str) -> list[str]:
    """Read days of the week, separated by commas. Raises ``ValueError``."""
    days = [day.strip().lower() for day in text.split(",")]
    for day in days:
        if day not in (*WEEKDAYS, *DAYS_OF_THE_WEEK):
            raise ValueError(f"'{day}' is not a day of the week; write {', '.join(WEEKDAYS)}.")
    return [day[:3] for day in days]


def _times(text: str) -> tuple[time, time]:
    """Read two times of day, such as ``09:00-17:00`` or ``22:00-02:00``. Raises ``ValueError``."""
    try:
        since, before = (datetime.strptime(clock.strip(), "%H:%M").time() for clock in text.split("-"))
    except ValueError:
        raise ValueError(f"'{text}' is not two times of day; write it like 09:00-17:00.") from None
    return since, before


def _zone(name: str) -> str:
    """Return the name of a zone that is known; an empty text is refused with those of other options."""
    return zone_of(name).key if name else name


WINDOW_OPTIONS = (
    Option("--earliest", "DATE", help=f"The earliest start: {MOMENT_FORMS} (default: the next full minute)"),
    OneOf(
        Option(
            "--within",
            "DURATION",
            parse_length,
            help="The lease starts within this time from now, or from --earliest (default: 30d)",
        ),
        Option("--latest", "DATE", help="The latest start, written like the earliest"),
    ),
    Option(
        "--on",
        "DAY[,DAY...]",
        _weekdays,
        default=[],
        field="weekdays",
        help="The lease starts on one of these days of the week, such as mon,tue (default: any)",
    ),
    Option(
        "--between",
        "TIME-TIME",
        _times,
        default=(None, None),
        field="times",
        help="The lease starts at a time of day from the first to the second, such as 09:00-17:00, or"
        " 22:00-02:00 for a night (default: any)",
    ),
    Option(
        "--time-zone",
        "ZONE",
        _zone,
        help="The zone of these days and times, such as Europe/Paris (default: that of this machine)",
    ),
)
_DEFAULTS = {option.name: option.default for option in every_option(WINDOW_OPTIONS)}


def has_window(parsed_args: argparse.Namespace) -> bool:
    """Whether any of the options is given."""
    return any(getattr(parsed_args, name) != default for name, default in _DEFAULTS.items())


def without_window(parsed_args: argparse.Namespace) -> argparse.Namespace:
    """Return the options as if none of these were given."""
    return argparse.Namespace(**{**vars(parsed_args), **_DEFAULTS})


def read_window(command: ReservationCommand, parsed_args: argparse.Namespace, length: timedelta) -> StartWindow:
    """Return the window for a lease of this length. Raises ``CommandError``."""
    earliest = command.date(parsed_args.earliest, "--earliest")
    since, before = parsed_args.times
    return StartWindow(
        duration=length,
        earliest=earliest,
        latest=_latest(command, parsed_args, earliest),
        weekdays=parsed_args.weekdays,
        starts_after=since,
        starts_before=before,
        time_zone=_time_zone(command, parsed_args),
    )


def _latest(command: ReservationCommand, parsed_args: argparse.Namespace, earliest: Moment | None) -> datetime | None:
    begin = command.present(earliest)
    if parsed_args.latest is not None:
        return command.instant(parsed_args.latest, "--latest", after=begin)
    if parsed_args.within is None:
        return None
    return later(begin, parsed_args.within, "--within")


def _time_zone(command: ReservationCommand, parsed_args: argparse.Namespace) -> str | None:
    """Return the zone of the days and times; None if there are none."""
    if parsed_args.time_zone is not None:
        zone: str = parsed_args.time_zone
        return zone
    if not parsed_args.weekdays and parsed_args.times == (None, None):
        return None
    name = name_of_zone(command.zone)
    if name is None:
        raise exceptions.CommandError(
            "--time-zone: the zone of this machine has no known name; give the one that is meant, such as"
            " Europe/Paris or UTC."
        )
    return name


def later(moment: datetime, length: timedelta, option: str) -> datetime:
    """Return the moment this long after another one, in whole seconds; an error names the option."""
    try:
        return moment.astimezone(UTC).replace(microsecond=0) + length
    except OverflowError:
        raise exceptions.CommandError(f"{option}: the date is too far away.") from None


def name_of_zone(zone: tzinfo | None) -> str | None:
    """Return the zone's name in the time zone database; None if it has none. None is the machine's zone."""
    if isinstance(zone, ZoneInfo):
        return zone.key
    if zone is not None:
        return None
    given = os.environ.get("TZ")
    if given is not None:
        return _known(given.removeprefix(":") or "UTC")
    _, _, name = os.path.realpath(_LOCAL_ZONE).partition(_DATABASE)
    return _known(name) if name else None


def _known(name: str) -> str | None:
    try:
        return zone_of(name).key
    except UnreadableMoment:
        return None
