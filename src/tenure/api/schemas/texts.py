"""Words that several schemas use."""

from __future__ import annotations

import unicodedata
from ipaddress import ip_address
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

MAX_NAME = 80
#: No lease or reservation has a longer id.
MAX_ID = 64
#: No resource and no property has a longer name.
MAX_EXTERNAL_ID = 255
#: No property has a longer name, from now on.
MAX_PROPERTY_NAME = 64
#: How many properties of its own a resource has at most; the service counts them.
MAX_PROPERTIES = 500
#: No property has a longer value.
MAX_PROPERTY_VALUE = 16384
#: Every number in a body is nearer to zero.
NUMBER_LIMIT = 10**19

#: In JSON Schema: a text without the NUL character, which no database keeps.
PRINTABLE = r"^[^\x00]*$"

_LENIENT_NAME_SCHEMA = {
    "anyOf": [{"type": "string", "maxLength": MAX_NAME, "pattern": PRINTABLE}, {"type": "number"}],
}


def _text_of_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _property_text(value: Any) -> str | None:
    """A property's value as text, as Blazar keeps it."""
    if isinstance(value, dict | list):
        raise PydanticKnownError("string_type")
    return None if value is None else str(value)


def _address(value: str) -> str:
    """An address as it is always written; one with a zone is none that a network could hand out."""
    try:
        if "%" in value:
            raise ValueError(value)
        return str(ip_address(value))
    except ValueError:
        raise PydanticCustomError(
            "invalid_address", "IP address {address} is invalid form.", {"address": value[:100]}
        ) from None


def _without_controls(value: str) -> str:
    found = next((character for character in value if unicodedata.category(character) == "Cc"), None)
    if found is not None:
        code = f"U+{ord(found):04X}"
        raise PydanticCustomError("control_character", "it holds the control character {code}", {"code": code})
    return value


#: A lease's name at 1.0, which takes numbers for text.
LenientName = Annotated[
    Annotated[StrictStr, Field(max_length=MAX_NAME)],
    BeforeValidator(_text_of_number),
    WithJsonSchema(_LENIENT_NAME_SCHEMA),
]
Name = Annotated[StrictStr, Field(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
#: A name that is given from 1.1 on: without what a terminal would obey, such as escapes and line breaks.
GivenName = Annotated[
    StrictStr,
    Field(min_length=1, max_length=MAX_NAME, json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}),
    AfterValidator(_without_controls),
]
Identifier = Annotated[StrictStr, Field(min_length=1, max_length=MAX_ID, pattern=PRINTABLE)]
ExternalId = Annotated[StrictStr, Field(min_length=1, max_length=MAX_EXTERNAL_ID, pattern=PRINTABLE)]
#: The id of a network; with an address behind it, after a ``/``, it names that address.
NetworkId = Annotated[StrictStr, Field(min_length=1, max_length=MAX_ID, pattern=r"^[^\x00/]+$")]
Address = Annotated[
    Annotated[StrictStr, Field(max_length=MAX_EXTERNAL_ID)],
    AfterValidator(_address),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]}),
]
#: The name of a host, or its id, at 1.0.
LenientReference = Annotated[
    Annotated[StrictStr, Field(max_length=MAX_EXTERNAL_ID)] | None,
    BeforeValidator(_text_of_number),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MAX_EXTERNAL_ID}, {"type": "number"}, {"type": "null"}]}),
]
PropertyName = Annotated[StrictStr, Field(min_length=1, max_length=MAX_PROPERTY_NAME, pattern=PRINTABLE)]
PropertyValue = Annotated[StrictStr, Field(max_length=MAX_PROPERTY_VALUE, pattern=PRINTABLE)]
#: Why an operator does something, in his own words.
Reason = Annotated[StrictStr, Field(max_length=1000, pattern=PRINTABLE)]
#: What an owner has others told at an event.
Message = Annotated[StrictStr, Field(min_length=1, max_length=1000, pattern=PRINTABLE)]
#: A property's value at 1.0, which takes every scalar for text.
LenientProperty = Annotated[
    Annotated[str, Field(max_length=MAX_PROPERTY_VALUE)] | None,
    BeforeValidator(_property_text),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]

#: What a region can be called.
RegionName = Annotated[StrictStr, Field(min_length=1, max_length=24, pattern=r"^[A-Za-z0-9_.-]+$")]
