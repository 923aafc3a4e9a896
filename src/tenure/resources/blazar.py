"""Fields as clients of Blazar write them, at API 1.0."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from tenure.domain.capacity import MAX_AMOUNT
from tenure.domain.errors import InvalidParameter
from tenure.domain.requirement import Language, parse_expression


def _whole_number(value: Any) -> Any:
    """Convert a number as its clients send it: ``2`` or ``"2"``."""
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit() and len(value) < 20:
        return int(value)
    return value


def _text(value: Any) -> Any:
    """Convert an expression as its clients send it: text, or null for none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise PydanticCustomError(
            "malformed_requirements", "Malformed requirements {value}", {"value": repr(value)[:200]}
        )
    return value


def _blazar_only(text: str) -> str:
    """Refuse expressions that only our language allows, not Blazar's; invalid ones in both are refused later."""
    for language in (Language.FULL, Language.BLAZAR):
        try:
            parse_expression(text, field="", language=language)
        except InvalidParameter as error:
            if language is Language.FULL:
                return text
            raise PydanticCustomError("malformed_requirements", "{reason}", {"reason": str(error)}) from None
    return text


def _before_end(value: Any) -> Any:
    return "default" if value is None else value


def _number_schema(minimum: int) -> WithJsonSchema:
    """A number as its clients send it, documented as at least ``minimum``; its range is the type's own affair."""
    first = "[1-9][0-9]{0,8}" if minimum else "(0|[1-9][0-9]{0,8})"
    return WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": minimum, "maximum": MAX_AMOUNT},
                {"type": "string", "pattern": f"^{first}$"},
            ]
        }
    )


#: The words for an affinity.
_TRUE = ("1", "t", "true", "on", "y", "yes")
_FALSE = ("0", "f", "false", "off", "n", "no")
_NONE = ("", "none")


def _affinity(value: Any) -> Any:
    """Convert the affinity as its clients send it: together, apart, or neither."""
    if value is None or isinstance(value, bool):
        return value
    text = value.lower() if isinstance(value, str) and value.isascii() else None
    if text in _NONE:
        return None
    if text in _TRUE + _FALSE:
        return text in _TRUE
    raise PydanticCustomError("malformed_affinity", "Malformed parameter affinity (must be a bool value or None)")


def _any_case(word: str) -> str:
    """Return a regular expression for the word in any case, which JSON Schema cannot say otherwise."""
    return "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in word)


#: A number.
Count = Annotated[StrictInt, Field(le=MAX_AMOUNT), BeforeValidator(_whole_number), _number_schema(1)]
#: The same, where none is allowed.
Amount = Annotated[StrictInt, Field(le=MAX_AMOUNT), BeforeValidator(_whole_number), _number_schema(0)]
#: An expression as any version may have given it.
KeptExpression = Annotated[
    StrictStr,
    Field(max_length=16384),
    BeforeValidator(_text),
    WithJsonSchema({"type": ["string", "null"], "maxLength": 16384}),
]
#: The same in Blazar's language.
Expression = Annotated[KeptExpression, AfterValidator(_blazar_only)]
#: The action before the end, as its clients send it.
Action = Annotated[
    Literal["default", "snapshot", ""],
    BeforeValidator(_before_end),
    WithJsonSchema({"enum": ["default", "snapshot", "", None]}),
]
#: The same in a change: clients may send back the values of answers.
ActionChange = Annotated[
    Literal["default", "snapshot", "notify", "none", ""],
    BeforeValidator(_before_end),
    WithJsonSchema({"enum": ["default", "snapshot", "notify", "none", "", None]}),
]
Affinity = Annotated[
    bool | None,
    BeforeValidator(_affinity),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": ["boolean", "null"]},
                {"type": "string", "pattern": f"^({'|'.join(map(_any_case, _TRUE + _FALSE + _NONE))})$"},
            ]
        }
    ),
]
