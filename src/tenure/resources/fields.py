"""The parameters that several resource types share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from tenure.domain.errors import InvalidParameter
from tenure.domain.requirement import Language, parse_expression
from tenure.resources.contract import NOTIFY
from tenure.resources.parameters import ABSENT, Forms

#: The largest integer that fits every database.
MAX_AMOUNT = 2**31 - 1


def _whole_number(value: Any) -> Any:
    """Convert a number as Blazar's clients send it: ``2`` or ``"2"``."""
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit() and len(value) < 20:
        return int(value)
    return value


def _text(value: Any) -> Any:
    """Convert an expression as Blazar's clients send it: text, or null for none."""
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
    """A number as Blazar's clients send it, documented as at least ``minimum``; its range is the type's own affair."""
    first = "[1-9][0-9]{0,8}" if minimum else "(0|[1-9][0-9]{0,8})"
    return WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": minimum, "maximum": MAX_AMOUNT},
                {"type": "string", "pattern": f"^{first}$"},
            ]
        }
    )


LenientCount = Annotated[StrictInt, Field(le=MAX_AMOUNT), BeforeValidator(_whole_number), _number_schema(1)]
#: The same, where none is allowed.
LenientAmount = Annotated[StrictInt, Field(le=MAX_AMOUNT), BeforeValidator(_whole_number), _number_schema(0)]
#: An expression as any version may have given it.
KeptExpression = Annotated[
    StrictStr,
    Field(max_length=16384),
    BeforeValidator(_text),
    WithJsonSchema({"type": ["string", "null"], "maxLength": 16384}),
]
#: The same in Blazar's language.
LenientExpression = Annotated[KeptExpression, AfterValidator(_blazar_only)]
#: The action before the end, as Blazar's clients send it.
LenientAction = Annotated[
    Literal["default", "snapshot", ""],
    BeforeValidator(_before_end),
    WithJsonSchema({"enum": ["default", "snapshot", "", None]}),
]
#: The same in a change: clients may send back the values of answers.
LenientActionChange = Annotated[
    Literal["default", "snapshot", "notify", "none", ""],
    BeforeValidator(_before_end),
    WithJsonSchema({"enum": ["default", "snapshot", "notify", "none", "", None]}),
]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_AMOUNT)]
PropertyExpression = Annotated[
    StrictStr,
    Field(
        max_length=16384,
        description="An expression of the property language as JSON text, such as "
        '`["==", "$gpu", "a100"]` or `["in", "$rack", "r1", "r2"]`, joined by `and`, `or` and `not`; empty for none.',
    ),
]
BeforeEnd = Annotated[
    Literal["default", "snapshot", "notify", "none", ""],
    Field(
        description="What is done before the end: `snapshot` (an image of each server), `notify` (a notification), "
        "`none` or an empty text, or `default`: what the operator has set."
    ),
]

#: A number that has to be there.
Number = Annotated[LenientCount, Forms(strict=Count)]
#: What is asked of the properties.
Requirements = Annotated[KeptExpression, Forms(strict=PropertyExpression, lenient=LenientExpression, default="")]
#: What is done before the end.
Action = Annotated[BeforeEnd, Forms(lenient=LenientAction, lenient_change=LenientActionChange)]
#: The same, where only others can be told: what Blazar does not have.
Notice = Annotated[
    Literal["default", "notify", "none", ""],
    Field(description="What is done before the end: `notify` (a notification); nothing for every other."),
    Forms(lenient=ABSENT),
]


def action_of(parameters: Mapping[str, object], default: str = "") -> str | None:
    """Return the action before the end in the parameters, or None; ``default`` is the operator's."""
    action = parameters.get("before_end", "default")
    action = default if action == "default" else str(action)
    return None if action in {"", "none"} else action


def acts_as_owner(action: str | None) -> bool:
    """Whether an action before the end is done in the cloud, and so as the owner."""
    return action not in {None, NOTIFY}


_TRUE = ("1", "t", "true", "on", "y", "yes")
_FALSE = ("0", "f", "false", "off", "n", "no")
_NONE = ("", "none")


def _affinity(value: Any) -> Any:
    """Convert the affinity as Blazar's clients send it: together, apart, or neither."""
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


LenientAffinity = Annotated[
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
Affinity = Annotated[
    StrictBool | None,
    Field(description="`true`: all on one host; `false`: each on a host of its own; `null`: no matter."),
]
#: How the units lie, where that has to be said.
Spreading = Annotated[LenientAffinity, Forms(strict=Affinity, default=None)]
