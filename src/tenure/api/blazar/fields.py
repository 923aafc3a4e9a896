"""Types of fields at 1.0: numbers are taken as texts; dates are in UTC, and to the minute in requests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from tenure.api.schemas.answers import Written
from tenure.api.schemas.moments import FIRST_YEAR, LAST_YEAR, YEAR, ZONE
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, MAX_NAME, MAX_PROPERTY_VALUE, PRINTABLE
from tenure.domain.request import Moment, When

MINUTE_FORMAT = "%Y-%m-%d %H:%M"
_DAY_OF_YEAR = (
    r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
#: The dates that 1.0 accepts, as a pattern of JSON Schema, which cannot express leap years: it has no 29th of February.
MINUTE_PATTERN = rf"^{YEAR}-{_DAY_OF_YEAR} ([01][0-9]|2[0-3]):[0-5][0-9]$"


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


_SCHEMA = {"type": "string", "pattern": MINUTE_PATTERN, "examples": ["2027-03-01 09:30"]}
#: UTC to the minute, or ``now``.
MinuteOrNow = Annotated[When, PlainValidator(_minute_or_now), WithJsonSchema({"anyOf": [_SCHEMA, {"const": "now"}]})]


def show_with_t(moment: datetime) -> str:
    """Write a date with its time: always with six digits of the fraction."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-ZONE]


def show_with_blank(moment: datetime) -> str:
    """Write the time of a creation or change: to the second."""
    return moment.astimezone(UTC).isoformat(" ", timespec="seconds")[:-ZONE]


#: A date of a lease.
WithT = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}$"), Written(show_with_t)
]
#: The time of a creation or a change.
WithBlank = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}$"), Written(show_with_blank)
]


def _text_of_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _property_text(value: Any) -> str | None:
    """Return the value of a property as a text, as Blazar stores it."""
    if isinstance(value, dict | list):
        raise PydanticKnownError("string_type")
    return None if value is None else str(value)


#: The name of a lease.
Name = Annotated[
    Annotated[StrictStr, Field(max_length=MAX_NAME)],
    BeforeValidator(_text_of_number),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MAX_NAME, "pattern": PRINTABLE}, {"type": "number"}]}),
]
#: The name or the id of a host.
Reference = Annotated[
    Annotated[StrictStr, Field(max_length=MAX_EXTERNAL_ID)] | None,
    BeforeValidator(_text_of_number),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MAX_EXTERNAL_ID}, {"type": "number"}, {"type": "null"}]}),
]
#: The value of a property: every scalar, as a text.
PropertyValue = Annotated[
    Annotated[str, Field(max_length=MAX_PROPERTY_VALUE)] | None,
    BeforeValidator(_property_text),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]
