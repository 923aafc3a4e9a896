"""The errors of a model as a refusal, which names the first problem."""

from __future__ import annotations

import json
from collections.abc import Collection

from pydantic_core import ErrorDetails

from tenure.domain.errors import InvalidParameter, MissingParameter, TenureError

#: How many characters of the client's input are repeated in an error text.
SHOWN = 200
#: Our own errors whose texts have the value.
_SHOW_THE_VALUE = frozenset({"invalid_address", "malformed_requirements"})
#: How many characters of a text that is refused are repeated.
_GIVEN = 100


def refusal(problems: list[ErrorDetails], tags: Collection[str]) -> TenureError:
    """Return the refusal for the problems of a document.

    ``tags`` are the names of a union's members, which are no part of a field's path.
    """
    missing = missing_fields(problems)
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


def missing_fields(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the missing fields of the outermost object that lacks fields."""
    missing = [problem for problem in problems if problem["type"] == "missing"]
    missing.sort(key=lambda problem: len(problem["loc"]))
    return [problem for problem in missing if problem["loc"][:-1] == missing[0]["loc"][:-1]]


def fields_of(loc: tuple[int | str, ...], tags: Collection[str]) -> list[int | str]:
    """Return a location in the document, without the fields that pydantic adds."""
    return [field for field in loc if field != "[key]" and field not in tags]


def _path(loc: tuple[int | str, ...], tags: Collection[str]) -> str:
    path = ""
    for field in fields_of(loc, tags):
        if isinstance(field, int):
            path += f"[{field}]"
        else:
            path += f".{field}" if path else field
    return path[:SHOWN]
