"""Conditions on resources as people write them, and the expression that the API takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tenureclient.wire import JsonValue

CONDITION_FORMS = (
    "vcpus>=8, memory_mb>65536, gpu=v100, rack!=r2, 'rack in r1,r2', 'not gpu=v100', 'gpu=a100 or gpu=v100'"
)

_OR = re.compile(r"\s+or\s+")
_NOT = re.compile(r"\s*not\s+(.*)", re.DOTALL)
_IN = re.compile(r"\s*([^\s=!<>]+)\s+in\s+([^=!<>]*\S)\s*", re.DOTALL)
_COMPARISON = re.compile(r"\s*([^\s=!<>]+)\s*(==|!=|>=|<=|=|>|<)\s*(.*\S)\s*", re.DOTALL)


class UnreadableCondition(ValueError):
    """A text that is not a property, a comparison and a value, nor several of them."""


def conditions_to_json(conditions: Iterable[str]) -> str:
    """Return the expression that holds where all the conditions do; empty where there are none.

    Raises ``UnreadableCondition``.
    """
    terms = [_alternatives(condition) for condition in conditions]
    if not terms:
        return ""
    return json.dumps(terms[0] if len(terms) == 1 else ["and", *terms])


def _alternatives(condition: str) -> list[JsonValue]:
    terms: list[JsonValue] = [_term(part, condition) for part in _OR.split(condition)]
    return ["or", *terms] if len(terms) > 1 else _term(condition, condition)


def _term(text: str, condition: str) -> list[JsonValue]:
    if negated := _NOT.fullmatch(text):
        return ["not", _term(negated[1], condition)]
    if among := _IN.fullmatch(text):
        values = [value.strip() for value in among[2].split(",")]
        if all(values):
            return ["in", _property(among[1]), *values]
    match = _COMPARISON.fullmatch(text)
    if match is None or match[3].startswith(("=", "<", ">")):
        raise UnreadableCondition(f"'{condition}' is not a condition; write it like {CONDITION_FORMS}.")
    return ["==" if match[2] == "=" else match[2], _property(match[1]), match[3]]


def _property(name: str) -> str:
    return f"${name.removeprefix('$')}"
