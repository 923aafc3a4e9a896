"""The definitions of the hints for Glance's catalogue, from which Horizon offers them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import tenurenova
from tenurenova.boot import FIELDS, PARAMETERS, RESERVED, HintError, read_wanted_lease
from tenurenova.decision import HINT

FILE = Path(tenurenova.__file__).parent / "metadefs" / "scheduler-hints.json"

#: What Glance accepts of a namespace and of a property, by field: the types, and the maximum length of a text.
NAMESPACE: Mapping[str, tuple[type, int | None]] = {
    "namespace": (str, 80),
    "display_name": (str, 80),
    "description": (str, 500),
    "visibility": (str, None),
    "protected": (bool, None),
    "resource_type_associations": (list, None),
    "properties": (dict, None),
}
PROPERTY: Mapping[str, tuple[type, int | None]] = {
    "title": (str, None),
    "description": (str, None),
    "type": (str, None),
    "minLength": (int, None),
    "default": (object, None),
}
#: The Python types of a property's values, by its type.
TYPES: Mapping[str, type] = {"string": str, "boolean": bool}


def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what Glance would refuse in a namespace, and what would keep Horizon from offering it for a boot."""
    yield from _wrong_fields("namespace", document, NAMESPACE, required={"namespace"})
    if document.get("visibility") != "public":
        yield "namespace: users cannot see it"
    if {"name": "OS::Nova::Server", "properties_target": "scheduler_hints"} not in document.get(
        "resource_type_associations", []
    ):
        yield "namespace: it is not for the hints of a server, without a prefix"
    for name, definition in document.get("properties", {}).items():
        yield from _wrong_fields(name, definition, PROPERTY, required={"title", "type"})
        of_type = TYPES.get(definition.get("type"))
        if of_type is None:
            yield f"{name}: unknown type"
        elif "default" in definition and not isinstance(definition["default"], of_type):
            yield f"{name}: the default is of another type"


def _wrong_fields(
    name: str, given: Mapping[str, Any], known: Mapping[str, tuple[type, int | None]], *, required: set[str]
) -> Iterator[str]:
    yield from (f"{name}: {field} is missing" for field in sorted(required - given.keys()))
    for field, value in given.items():
        of_type, longest = known.get(field, (None, None))
        too_long = longest is not None and len(str(value)) > longest
        if of_type is None or not isinstance(value, of_type) or too_long:
            yield f"{name}: {field} is wrong"


def test_glance_accepts_the_definitions() -> None:
    assert list(problems(definitions())) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("namespace", None, "namespace: namespace is missing"),
        ("description", "x" * 501, "namespace: description is wrong"),
        ("visibility", "private", "namespace: users cannot see it"),
        ("resource_type_associations", [{"name": "OS::Nova::Server"}], "namespace: it is not for the hints"),
        ("properties.reserved.title", None, "reserved: title is missing"),
        ("properties.reserved.type", "text", "reserved: unknown type"),
        ("properties.reserved.default", "true", "reserved: the default is of another type"),
        ("properties.reserved.titel", "Reserved", "reserved: titel is wrong"),
    ],
)
def test_mistakes_in_definitions_are_noticed(path: str, value: Any, said: str) -> None:
    document = deepcopy(definitions())
    *folders, name = path.split(".")
    place = document
    for folder in folders:
        place = place[folder]
    if value is None:
        del place[name]
    else:
        place[name] = value
    assert [problem for problem in problems(document) if problem.startswith(said)]


def test_the_hints_are_those_that_are_understood() -> None:
    assert definitions()["properties"].keys() == {HINT, RESERVED, PARAMETERS}


def test_the_parameters_of_a_lease_are_described() -> None:
    described = re.findall(r"\b(\w+): ", definitions()["properties"][PARAMETERS]["description"])
    assert sorted(described) == sorted(FIELDS)


def sent_by_horizon(**filled_in: str) -> dict[str, Any]:
    """Return a boot as Horizon sends it: all hints are texts, by default as they are offered."""
    properties = definitions()["properties"]
    offered = {RESERVED: str(properties[RESERVED]["default"]).lower(), PARAMETERS: properties[PARAMETERS]["default"]}
    server = {"name": "web", "flavorRef": "3", "min_count": 1, "max_count": 1}
    return {"server": server, "os:scheduler_hints": {**offered, **filled_in}}


def test_what_horizon_offers_is_refused_until_it_is_filled_in() -> None:
    with pytest.raises(HintError, match=r"^The hint 'lease_params': end is a minute in UTC"):
        read_wanted_lease(sent_by_horizon())
    offered = definitions()["properties"][PARAMETERS]["default"]
    wanted = read_wanted_lease(sent_by_horizon(lease_params=offered.replace("YYYY-MM-DD HH:MM", "2027-12-01 16:07")))
    assert wanted is not None
    assert (wanted.name, wanted.start, wanted.end) == ("web", "now", "2027-12-01T16:07:00Z")
