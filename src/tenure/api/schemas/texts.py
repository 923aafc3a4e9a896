"""Types of texts and numbers that several schemas share."""

from __future__ import annotations

import unicodedata
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, Field, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_NAME = 80
#: The largest length of the id of a lease or reservation.
MAX_ID = 64
#: The largest length of the id or name of a resource, and of stored names of properties.
MAX_EXTERNAL_ID = 255
#: The largest length of the name of a new property.
MAX_PROPERTY_NAME = 64
#: The largest number of properties of a resource; the service counts them.
MAX_PROPERTIES = 500
#: The largest length of the value of a property.
MAX_PROPERTY_VALUE = 16384

#: In JSON Schema: a text without the NUL character, which databases cannot store.
PRINTABLE = r"^[^\x00]*$"


def _address(value: str) -> str:
    """Return the canonical form of an address. An address with a zone is refused: networks do not assign such."""
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


Name = Annotated[StrictStr, Field(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
#: A name in requests from 1.1 on, without control characters, such as terminal escapes and line breaks.
GivenName = Annotated[
    StrictStr,
    Field(min_length=1, max_length=MAX_NAME, json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}),
    AfterValidator(_without_controls),
]
Identifier = Annotated[StrictStr, Field(min_length=1, max_length=MAX_ID, pattern=PRINTABLE)]
ExternalId = Annotated[StrictStr, Field(min_length=1, max_length=MAX_EXTERNAL_ID, pattern=PRINTABLE)]
#: The id of a network. It has no ``/``, as the reference of an address is the network id, ``/``, and the address.
NetworkId = Annotated[StrictStr, Field(min_length=1, max_length=MAX_ID, pattern=r"^[^\x00/]+$")]
Address = Annotated[
    Annotated[StrictStr, Field(max_length=MAX_EXTERNAL_ID)],
    AfterValidator(_address),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]}),
]
PropertyName = Annotated[StrictStr, Field(min_length=1, max_length=MAX_PROPERTY_NAME, pattern=PRINTABLE)]
PropertyValue = Annotated[StrictStr, Field(max_length=MAX_PROPERTY_VALUE, pattern=PRINTABLE)]
#: The reason that an operator gives for an action.
Reason = Annotated[StrictStr, Field(max_length=1000, pattern=PRINTABLE)]
#: The text of the notification of an owner's event.
Message = Annotated[StrictStr, Field(min_length=1, max_length=1000, pattern=PRINTABLE)]

#: The name of a region.
RegionName = Annotated[StrictStr, Field(min_length=1, max_length=24, pattern=r"^[A-Za-z0-9_.-]+$")]
