"""Dates on the wire: to the minute and without a zone at 1.0, RFC 3339 from 1.1 on."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from tenure.domain.request import Moment, When

#: The years of valid dates, without the last; calculations with later dates could overflow.
FIRST_YEAR = 1970
LAST_YEAR = 9000

MINUTE_FORMAT = "%Y-%m-%d %H:%M"
_YEAR = r"(19[7-9][0-9]|[2-8][0-9]{3})"
_YEAR_AND_MONTH = rf"{_YEAR}-(0[1-9]|1[0-2])"
_DAY_OF_YEAR = (
    r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
#: The dates that 1.0 accepts, as a pattern of JSON Schema, which cannot express leap years: it has no 29th of February.
MINUTE_PATTERN = rf"^{_YEAR}-{_DAY_OF_YEAR} ([01][0-9]|2[0-3]):[0-5][0-9]$"
_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)
#: The texts that the expression above accepts, in valid years, as a pattern of JSON Schema.
RFC3339_PATTERN = (
    rf"^{_YEAR_AND_MONTH}-(0[1-9]|1[0-9]|2[0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)


def _minute_or_now(value: object) -> When:
    if value == "now":
        return Moment.THIS_MINUTE
    try:
        date = datetime.strptime(value, MINUTE_FORMAT) if isinstance(value, str) else None  # noqa: DTZ007
    except ValueError:
        date = None
    if date is None or not FIRST_YEAR <= date.year < LAST_YEAR:
        shown = value if isinstance(value, str) else repr(value)
        raise PydanticCustomError(
            "invalid_date", "{date} is an invalid date. Required format: %Y-%m-%d %H:%M", {"date": shown[:100]}
        )
    return date.replace(tzinfo=UTC)


def _rfc3339(value: object) -> datetime:
    match = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    try:
        date = _assembled(match) if match else None
    except (ValueError, OverflowError):
        date = None
    if date is None or not FIRST_YEAR <= date.year < LAST_YEAR:
        hint = "; in the query of a URL, + is written as %2B" if _lost_its_plus(value) else ""
        raise PydanticCustomError(
            "invalid_date",
            "a date must look like 2027-03-01T09:30:00Z or 2027-03-01T10:30:00+01:00, "
            f"with seconds and a zone, in the years {FIRST_YEAR} to {LAST_YEAR - 1}{hint}",
        )
    return date


def _lost_its_plus(value: object) -> bool:
    """Whether a text is a date whose + was decoded as a blank, as in the query of a URL."""
    return isinstance(value, str) and value.count(" ") == 1 and bool(_RFC3339.fullmatch(value.replace(" ", "+")))


def _assembled(match: re.Match[str]) -> datetime:
    day, time, fraction, zone = match.groups(default="")
    micro = fraction[:7]  # digits after the microseconds are cut off
    return datetime.fromisoformat(f"{day}T{time}{micro}{zone.upper()}").astimezone(UTC)


def _rfc3339_or_now(value: object) -> When:
    return Moment.NOW if value == "now" else _rfc3339(value)


_LENIENT_SCHEMA = {"type": "string", "pattern": MINUTE_PATTERN, "examples": ["2027-03-01 09:30"]}
_STRICT_SCHEMA = {
    "type": "string",
    "format": "date-time",
    "pattern": RFC3339_PATTERN,
    "examples": ["2027-03-01T09:30:00Z"],
}

#: At 1.0: UTC to the minute, or ``now``.
MinuteOrNow = Annotated[
    When,
    PlainValidator(_minute_or_now),
    WithJsonSchema({"anyOf": [_LENIENT_SCHEMA, {"const": "now"}]}),
]
#: From 1.1 on: to the second and with a zone.
Rfc3339 = Annotated[datetime, PlainValidator(_rfc3339), WithJsonSchema(_STRICT_SCHEMA)]
#: The same, or ``now``.
Rfc3339OrNow = Annotated[
    When,
    PlainValidator(_rfc3339_or_now),
    WithJsonSchema({"anyOf": [_STRICT_SCHEMA, {"const": "now"}]}),
]


_ZONE = len("+00:00")


def show_with_t(moment: datetime) -> str:
    """Write a date as 1.0 does: always with six digits of the fraction."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-_ZONE]


def show_with_blank(moment: datetime) -> str:
    """Write the time of a creation or change as 1.0 does: to the second."""
    return moment.astimezone(UTC).isoformat(" ", timespec="seconds")[:-_ZONE]


def show_rfc3339(moment: datetime) -> str:
    """Write a date in UTC, without a fraction of zero."""
    return moment.astimezone(UTC).isoformat()[:-_ZONE] + "Z"
