"""Dates on the wire from 1.1 on: RFC 3339."""

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

#: The valid years, as a regular expression.
YEAR = r"(19[7-9][0-9]|[2-8][0-9]{3})"
_YEAR_AND_MONTH = rf"{YEAR}-(0[1-9]|1[0-2])"
_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)
#: The texts that the expression above accepts, in valid years, as a pattern of JSON Schema.
RFC3339_PATTERN = (
    rf"^{_YEAR_AND_MONTH}-(0[1-9]|1[0-9]|2[0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)


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


_STRICT_SCHEMA = {
    "type": "string",
    "format": "date-time",
    "pattern": RFC3339_PATTERN,
    "examples": ["2027-03-01T09:30:00Z"],
}

#: To the second and with a zone.
Rfc3339 = Annotated[datetime, PlainValidator(_rfc3339), WithJsonSchema(_STRICT_SCHEMA)]
#: The same, or ``now``.
Rfc3339OrNow = Annotated[
    When, PlainValidator(_rfc3339_or_now), WithJsonSchema({"anyOf": [_STRICT_SCHEMA, {"const": "now"}]})
]


#: The length of the zone of a date in UTC.
ZONE = len("+00:00")


def show_rfc3339(moment: datetime) -> str:
    """Write a date in UTC, without a fraction of zero."""
    return moment.astimezone(UTC).isoformat()[:-ZONE] + "Z"
