"""The errors of a model as the errors of each version."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from tenure.api.versions import OLDEST, Version
from tenure.domain.errors import InvalidParameter, MissingParameter, TenureError

M = TypeVar("M", bound=BaseModel)

_BUILT_IN = frozenset(get_args(ErrorType))
#: Errors whose reason is added to the text at 1.0; the others say only that the parameter is malformed.
_LIMITS = frozenset(
    {"string_too_long", "string_too_short", "too_long", "greater_than_equal", "less_than_equal", "bool_type"}
)
#: How many characters of the client's input are repeated in an error text.
_SHOWN = 200
#: Our own errors whose texts have the value.
_SHOW_THE_VALUE = frozenset({"invalid_address", "malformed_requirements"})
#: How many characters of a text that is refused are repeated.
_GIVEN = 100


def check(model: type[M], document: Mapping[str, Any], version: Version, *, tags: Collection[str] = ()) -> M:
    """Read ``document`` as ``model``. Raises the error of the version for the first problem.

    ``tags`` are the names of a union's members, which are no part of a field's path.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise (_refusal_1_0 if version is OLDEST else _refusal)(problems, tags) from None


def _refusal_1_0(problems: list[ErrorDetails], tags: Collection[str]) -> TenureError:
    missing = _missing(problems)
    if missing:
        return MissingParameter(*(_name(problem["loc"], tags) for problem in missing))
    problem = problems[0]
    name = _name(problem["loc"], tags)
    if problem["type"] not in _BUILT_IN:
        return InvalidParameter(problem["msg"], field=name)
    reason = f" ({problem['msg']})" if problem["type"] in _LIMITS else ""
    return InvalidParameter(f"Malformed parameter {name}{reason}", field=name)


def _refusal(problems: list[ErrorDetails], tags: Collection[str]) -> TenureError:
    missing = _missing(problems)
    if missing:
        return MissingParameter(*(_path(problem["loc"], tags) for problem in missing))
    problem = problems[0]
    path = _path(problem["loc"], tags)
    if problem["type"] == "extra_forbidden":
        return InvalidParameter(f"{path} is not known here.", field=path)
    text = problem["msg"] + _given(problem)
    return InvalidParameter(f"{path}: {text}" if path else text, field=path or None)


def _given(problem: ErrorDetails) -> str:
    """Return what the client gave, as it was read, unless the text of the problem shows it or it is large."""
    value = problem["input"]
    if value is not None and not isinstance(value, str | int | float):
        return ""
    if problem["type"] in _SHOW_THE_VALUE:
        return ""
    text = value[:_GIVEN] if isinstance(value, str) else value
    shown = "".join(character if character.isprintable() else "?" for character in json.dumps(text, ensure_ascii=False))
    return f" (given: {shown}{'...' if text != value else ''})"


def _missing(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the missing fields of the outermost object that lacks fields."""
    missing = [problem for problem in problems if problem["type"] == "missing"]
    missing.sort(key=lambda problem: len(problem["loc"]))
    return [problem for problem in missing if problem["loc"][:-1] == missing[0]["loc"][:-1]]


def _parts(loc: tuple[int | str, ...], tags: Collection[str]) -> list[int | str]:
    """Return a location in the document, without the parts that pydantic adds."""
    return [part for part in loc if part != "[key]" and part not in tags]


def _path(loc: tuple[int | str, ...], tags: Collection[str]) -> str:
    path = ""
    for part in _parts(loc, tags):
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path[:_SHOWN]


def _name(loc: tuple[int | str, ...], tags: Collection[str]) -> str:
    """Return the name of the field; for the id of a reservation it is the term of Blazar."""
    parts = _parts(loc, tags)
    if len(parts) == 3 and parts[0] == "reservations" and parts[2] == "id":
        return "reservation ID"
    return next((part for part in reversed(parts) if isinstance(part, str)), "body")[:_SHOWN]
