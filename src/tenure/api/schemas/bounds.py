"""What is refused in every body (see ``tenure.api.bodies``), said in the schemas of bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.api.schemas.texts import NUMBER_LIMIT, PRINTABLE

Document = dict[str, Any]

#: The name of the schema of what is taken and ignored.
ANYTHING = "Anything"
_NAMES: Mapping[str, Any] = {"pattern": PRINTABLE}
_NUMBERS: Mapping[str, Any] = {"exclusiveMinimum": -NUMBER_LIMIT, "exclusiveMaximum": NUMBER_LIMIT}
#: These say already which texts or numbers they mean.
_EXACT = frozenset({"pattern", "enum", "const", "format"})
_BOUNDED = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"})


def anything(reference: str) -> Document:
    """The schema of any JSON that a body may hold; ``reference`` is how it refers to itself."""
    again = {"$ref": reference}
    return {
        "description": "Any JSON, without NUL characters and without huge numbers.",
        "anyOf": [
            {"type": ["null", "boolean"]},
            {"type": "number", **_NUMBERS},
            {"type": "string", "pattern": PRINTABLE},
            {"type": "array", "items": again},
            {"type": "object", "propertyNames": dict(_NAMES), "additionalProperties": again},
        ],
    }


def bounded(schema: Any, reference: str) -> Any:
    """``schema`` with what no body may hold taken out; ``reference`` is where ``anything`` is found."""
    if isinstance(schema, list):
        return [bounded(part, reference) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    found: Document = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: bounded(part, reference) for name, part in value.items()}
        elif key in {"default", "examples", "enum", "const", "required", "propertyNames"}:
            found[key] = value
        else:
            found[key] = bounded(value, reference)
    if "string" in kinds and not _EXACT & schema.keys():
        found["pattern"] = PRINTABLE
    if {"number", "integer"} & set(kinds) and not _BOUNDED & schema.keys():
        found |= _NUMBERS
    if "object" in kinds:
        _bound_names(found, reference)
    return found


def _bound_names(found: Document, reference: str) -> None:
    patterns = found.pop("patternProperties", {})
    if patterns:
        [(_, found["additionalProperties"])] = patterns.items()  # pydantic knows one pattern of names, ours
    if found.get("additionalProperties", True) is True:
        found["additionalProperties"] = {"$ref": reference}
    if found["additionalProperties"] is not False:
        found["propertyNames"] = {**_NAMES, **found.get("propertyNames", {})}
