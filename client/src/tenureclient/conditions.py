"""Conditions on resources as people write them, and the expression that the API takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

CONDITION_FORMS = "vcpus>=8, memory_mb>65536, gpu=v100, rack!=r2"

_CONDITION = re.compile(r"\s*([^\s=!<>]+)\s*(==|!=|>=|<=|=|>|<)\s*(.*\S)\s*", re.DOTALL)


class UnreadableCondition(ValueError):
    """A text that is not a property, a comparison and a value."""


def conditions_to_json(conditions: Iterable[str]) -> str:
    """Return the expression that holds where all the conditions do; empty where there are none."""
    terms = [_term(condition) for condition in conditions]
    if not terms:
        return ""
    return json.dumps(terms[0] if len(terms) == 1 else ["and", *terms])


def _term(condition: str) -> list[str]:
    match = _CONDITION.fullmatch(condition)
    if match is None or match[3].startswith(("=", "<", ">")):
        raise UnreadableCondition(f"'{condition}' is not a condition; write it like {CONDITION_FORMS}.")
    comparison = "==" if match[2] == "=" else match[2]
    return [comparison, f"${match[1].removeprefix('$')}", match[3]]
