"""The limits for every body (see ``tenure.domain.json_text``), as a part of the schemas of bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.api.schemas.texts import PRINTABLE
from tenure.domain.json_text import NUMBER_LIMIT

Document = dict[str, Any]

#: The schema of values that are accepted and ignored. One that says more would contain itself, and there are generators
#: of clients that do not read such a schema.
ANYTHING: Mapping[str, Any] = {"description": "Any JSON, without NUL characters and without huge numbers."}
_NAMES: Mapping[str, Any] = {"pattern": PRINTABLE}
_NUMBERS: Mapping[str, Any] = {"exclusiveMinimum": -NUMBER_LIMIT, "exclusiveMaximum": NUMBER_LIMIT}
#: Keywords that already restrict texts, and keywords that already restrict numbers.
_EXACT = frozenset({"pattern", "enum", "const", "format"})
_BOUNDED = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"})


def bounded(schema: Any) -> Any:
    """Return ``schema`` without values that every body must not contain."""
    if isinstance(schema, list):
        return [bounded(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    found: Document = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: bounded(part) for name, part in value.items()}
        elif key in {"default", "examples", "enum", "const", "required", "propertyNames"}:
            found[key] = value
        else:
            found[key] = bounded(value)
    if "string" in kinds and not _EXACT & schema.keys():
        found["pattern"] = PRINTABLE
    if {"number", "integer"} & set(kinds) and not _BOUNDED & schema.keys():
        found |= _NUMBERS
    if "object" in kinds:
        _bound_names(found)
    return found


def _bound_names(found: Document) -> None:
    patterns = found.pop("patternProperties", {})
    if patterns:
        [(pattern, found["additionalProperties"])] = patterns.items()  # pydantic makes a single pattern
        found["propertyNames"] = {"pattern": pattern, **found.get("propertyNames", {})}
    if found.get("additionalProperties", True) is True:
        found["additionalProperties"] = dict(ANYTHING)
    if found["additionalProperties"] is not False:
        found["propertyNames"] = {**_NAMES, **found.get("propertyNames", {})}
