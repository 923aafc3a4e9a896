"""Dates and durations as people write them.

The moment "now" and the zone are arguments, so that the same text always means the same. A zone of
None is that of this machine, with its summer and winter time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

NOW: Final = "now"
Moment: TypeAlias = datetime | Literal["now"]

MOMENT_FORMS = (
    "now, +2h, 'tomorrow 09:00', 'friday 14:00', 14:00, '2027-03-01 09:30', '2027-03-01 09:30"
    " Europe/Berlin', 2027-03-01T09:30:00Z"
)
DURATION_FORMS = "90m, 2h, 3d, 1w, 1d12h, 1.5h"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
#: Other words for the units; each has a plural with "s".
_WORDS = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hr": "h", "hour": "h", "day": "d", "week": "w"}
_UNIT_NAMES = {unit: unit for unit in _UNITS} | _WORDS | {f"{word}s": unit for word, unit in _WORDS.items()}
_DURATION_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
DAYS_OF_THE_WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ]+(\d{2}:\d{2}.*))?", re.ASCII | re.IGNORECASE)
#: The letters of a zone; some zones have a number instead.
_LETTERS = re.compile(r"[A-Z]{3,5}|[+-]\d{2}(?:\d{2})?", re.ASCII)
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?\s*(am|pm)?", re.ASCII)


class UnreadableMoment(ValueError):
    """The text is not a date, or the date does not exist."""


class UnreadableDuration(ValueError):
    """The text is not a duration."""


def parse_duration(text: str) -> timedelta:
    """Return a duration such as ``90m``, ``2h``, ``3d``, ``1w``, ``1d12h`` or ``2 days``.

    A day is always 24 hours, even if a clock change lies in between.
    """
    seconds = 0.0
    position = 0
    lowered = text.strip().lower()
    while match := _DURATION_PART.match(lowered, position):
        unit = _UNIT_NAMES.get(match[2])
        if unit is None:
            break
        seconds += float(match[1]) * _UNITS[unit]
        position = match.end()
    if not lowered or position != len(lowered):
        raise UnreadableDuration(f"'{text}' is not a duration; write it like {DURATION_FORMS}.")
    try:
        return timedelta(seconds=round(seconds))
    except OverflowError:
        raise UnreadableDuration(f"'{text}' is too long.") from None


def parse_length(text: str) -> timedelta:
    """Return a duration as ``parse_duration`` does, of at least one second."""
    duration = parse_duration(text)
    if not duration:
        raise UnreadableDuration(f"'{text}' is no time at all; write it like {DURATION_FORMS}.")
    return duration


def format_duration(duration: timedelta) -> str:
    """Return a duration in the form that ``parse_duration`` reads, rounded to seconds."""
    seconds = round(duration.total_seconds())
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    counts = []
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _UNITS[unit])
        if count:
            counts.append(f"{count}{unit}")
    return sign + ("".join(counts) or "0s")


def parse_moment(text: str, *, now: datetime, zone: tzinfo | None = None, after: datetime | None = None) -> Moment:
    """Return the moment that a text means, in UTC. ``now`` stays a word: the server resolves it.

    A time of day alone is its next occurrence, a day of the week alone its next beginning. With ``after``
    later than now, it is the next one after that, as for an end after its start. A date without a zone is
    in ``zone``; a text may end in the name of another zone.
    """
    words = text.split()
    if [word.lower() for word in words] == [NOW]:
        return NOW
    try:
        return _read(text, words, now, zone, now if after is None else max(now, after))
    except OverflowError:
        raise UnreadableMoment(f"'{text}' is too far away.") from None


def format_moment(moment: datetime, zone: tzinfo | None = None) -> str:
    """Return a moment in the local time of a zone, with the zone's name."""
    local = moment.astimezone(zone)
    seconds = ":%S" if local.second or local.microsecond else ""
    return local.strftime(f"%Y-%m-%d %H:%M{seconds} %Z")


def _read(text: str, words: list[str], now: datetime, zone: tzinfo | None, after: datetime) -> datetime:
    stripped = " ".join(words)
    if stripped.startswith("+"):
        return _after(now, parse_duration(stripped[1:]))
    if len(words) > 1 and words[0].lower() == "in":
        return _after(now, parse_duration(" ".join(words[1:])))
    if len(words) > 1 and (named := _zone_named(words[-1])) is not None:
        words, zone = words[:-1], named
    moment = None
    if len(words) > 2 and _LETTERS.fullmatch(words[-1]):
        moment = _with_letters(text, words, zone)
    moment = moment or _date(text, " ".join(words), zone) or _day_and_clock(words, now, zone, after)
    if moment is None:
        raise UnreadableMoment(f"'{text}' is not a date; write it like {MOMENT_FORMS}.")
    return moment


def _after(now: datetime, duration: timedelta) -> datetime:
    """Return the moment this long after now, in whole seconds: users mean no fractions here."""
    return now.astimezone(UTC).replace(microsecond=0) + duration


def _with_letters(text: str, words: list[str], zone: tzinfo | None) -> datetime | None:
    """Read a date that ends in the letters of the zone, such as CET, as ``format_moment`` writes it.

    The letters tell the two hours apart that a change of clocks makes alike. Those of another zone are
    refused: the same letters mean several zones.
    """
    match = _DATE.fullmatch(" ".join(words[:-1]))
    if match is None or match[2] is None:
        return None
    try:
        wall = datetime.fromisoformat(f"{match[1]}T{match[2]}")
    except ValueError as error:
        raise UnreadableMoment(f"'{text}' is not a date: {error}.") from None
    if wall.tzinfo is not None:
        return None
    for fold in (0, 1):
        folded = wall.replace(fold=fold)
        moment = (folded.astimezone() if zone is None else folded.replace(tzinfo=zone)).astimezone(UTC)
        local = moment.astimezone(zone)
        if local.replace(tzinfo=None, fold=0) == wall and local.strftime("%Z") == words[-1]:
            return moment
    if not words[-1].isalpha():
        return None
    raise UnreadableMoment(
        f"'{text}': {words[-1]} is not the local zone at that date; write UTC, or the name of a zone such as"
        " Europe/Berlin."
    )


def zone_of(name: str) -> ZoneInfo:
    """Return the zone of this name in the time zone database; raise ``UnreadableMoment`` if there is none.

    Copies of zones in other directories of a machine's database, and its own settings, are no zones.
    """
    if not name.startswith(("right/", "posix/")) and name not in ("localtime", "posixrules"):
        with suppress(ZoneInfoNotFoundError, ValueError, OSError):
            return ZoneInfo(name)
    raise UnreadableMoment(f"'{name}' is not a time zone that is known here.")


def _zone_named(name: str) -> tzinfo | None:
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if "/" not in name:
        return None
    return zone_of(name)


def _date(text: str, stripped: str, zone: tzinfo | None) -> datetime | None:
    """Read the forms that begin with a calendar date."""
    match = _DATE.fullmatch(stripped)
    if match is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{(match[2] or '00:00').replace(' ', '').upper()}")
    except ValueError as error:
        raise UnreadableMoment(f"'{text}' is not a date: {error}.") from None
    return _at_local_time(zone, moment) if moment.tzinfo is None else moment.astimezone(UTC)


def _day_and_clock(words: list[str], now: datetime, zone: tzinfo | None, after: datetime) -> datetime | None:
    """Read a day's name, a time of day, or both. Today and tomorrow are relative to now."""
    words = [word.lower() for word in words if word.lower() != "at"]
    if not words:
        return None
    counted = words[0] in ("today", "tomorrow")
    today = (now if counted else after).astimezone(zone).date()
    days = _days_ahead(words[0], today.weekday())
    clock = _clock(" ".join(words if days is None else words[1:]), default=days is not None)
    if clock is None:
        return None
    moment = _at_local_time(zone, datetime.combine(today + timedelta(days=days or 0), clock))
    if moment <= after and not counted:
        period = 1 if days is None else 7
        later = today + timedelta(days=(days or 0) + period)
        moment = _at_local_time(zone, datetime.combine(later, clock))
    return moment


def _days_ahead(word: str, weekday: int) -> int | None:
    if word in ("today", "tomorrow"):
        return int(word == "tomorrow")
    for index, name in enumerate(DAYS_OF_THE_WEEK):
        if word in (name, name[:3]):
            return (index - weekday) % 7
    return None


def _clock(text: str, *, default: bool) -> time | None:
    if not text:
        return time() if default else None
    match = _CLOCK.fullmatch(text)
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, half = int(match[1]), match[4]
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    try:
        return time(hour, int(match[2] or 0), int(match[3] or 0))
    except ValueError:
        return None


def _at_local_time(zone: tzinfo | None, wall: datetime) -> datetime:
    """Return the moment of this local time in a zone. If the time occurs twice, it is the first."""
    local = wall.astimezone() if zone is None else wall.replace(tzinfo=zone)
    moment = local.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) != wall:
        raise UnreadableMoment(
            f"{wall:%Y-%m-%d %H:%M} does not exist in this time zone: the clocks are put forward then."
        )
    return moment
