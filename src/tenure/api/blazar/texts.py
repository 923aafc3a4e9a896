"""Types of texts at 1.0, which takes numbers as texts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictStr, WithJsonSchema
from pydantic_core import PydanticKnownError

from tenure.api.schemas.texts import MAX_EXTERNAL_ID, MAX_NAME, MAX_PROPERTY_VALUE, PRINTABLE


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
