"""What ``docs/api`` says, held against the API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import Version
from tests.api.rig import Api

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "docs" / "api"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EXAMPLE = re.compile(r"<!-- (1\.[012]) ([A-Z]+) (\S+)(?: (\{.*\}))?(?: (\w+))? -->\n```json\n([^`]*)```")
EXAMPLES = EXAMPLE.findall((PAGES / "README.md").read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example[0]} {example[1]} {example[2]}")
def test_examples_are_real_answers(api: Api, example: tuple[str, ...]) -> None:
    version, method, path, body, part, shown = example
    asked = api.using(version=version)
    for start in (1, 2):
        asked.book(start=start)
    answer = asked.call(method, path, json.loads(body) if body else None).json
    if part:
        answer = answer[part]
    assert json.loads(UUID.sub("-", json.dumps(answer))) == json.loads(UUID.sub("-", shown))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == (PAGES / "README.md").read_text().count("```json") >= 5


#: The columns of a row of an endpoint up to its first version.
ROW = re.compile(r"^\| ([A-Z]+) \| (`.*?) \| .*? \| (1\.\d) \|", re.MULTILINE)


def rows_of_endpoints() -> list[tuple[str, str, Version]]:
    """The method, path and first version of each endpoint in a table of any page."""
    pages = "\n".join(page.read_text() for page in sorted((REPOSITORY / "docs").rglob("*.md")))
    return [
        (method, path, Version(since))
        for method, paths, since in ROW.findall(pages)
        for path in re.findall(r"`(.*?)`", paths)
    ]


def test_the_tables_of_endpoints_are_those_of_the_description(api: Api) -> None:
    """The table of the API, those where fields are described, and those on the pages of types."""
    for version, description in described_in(api).items():
        listed = {(method, path) for method, path, since in rows_of_endpoints() if not version < since}
        served = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
        assert listed == (served - {("GET", "/v1/")}) | {("GET", "/openapi.json")}


def test_an_endpoint_has_one_row() -> None:
    endpoints = [(method, path) for method, path, _ in rows_of_endpoints()]
    assert sorted(set(endpoints)) == sorted(endpoints)


def test_policy_rules_that_blazar_lacks_are_named(api: Api) -> None:
    """Each by its name, or those of an inventory by the beginning of their names."""
    pages = "\n".join(page.read_text() for page in sorted((REPOSITORY / "docs").rglob("*.md")))
    operations = operations_of(tuple(api.world.service.components.types))
    ours = {rule.name for operation in operations for rule in operation.rules if rule.name.startswith("tenure:")}
    assert len(ours) > 5
    assert [name for name in ours if f"`{name}`" not in pages and f"`{name.rpartition(':')[0]}`" not in pages] == []


#: What the pages name beside fields, parameters and values: headers, operators of conditions, and words for them.
#: Resource classes are values that the description does not list.
CLASSES = {"DISK_GB", "MEMORY_MB", "VCPU", "WHOLE"}
OTHER_NAMES = {
    *("Accept", "ETag", "HEAD", "and", "in", "latest", "not", "null", "or"),
    *("true", "True", "yes", "false", "False", "no"),
    "minutes_before_end_lease",
    *CLASSES,
    *("PCPU", "SRIOV_NET_VF"),
}


def names_in(document: object) -> Iterator[str]:
    """The fields, parameters and fixed values that a part of the description names."""
    if isinstance(document, list):
        for part in document:
            yield from names_in(part)
    elif isinstance(document, dict):
        if isinstance(document.get("properties"), dict):
            yield from document["properties"]
        if isinstance(document.get("in"), str):
            yield document["name"]
        if isinstance(document.get("enum"), list):
            yield from map(str, document["enum"])
        if "const" in document:
            yield str(document["const"])
        for part in document.values():
            yield from names_in(part)


def described_in(api: Api) -> dict[Version, Any]:
    types = api.world.service.components.types
    return {version: describe(operations_of(tuple(types)), version) for version in Version}


@pytest.mark.parametrize("page", ["README.md", "differences-from-blazar.md", "microversions.md"])
def test_names_exist(api: Api, page: str) -> None:
    """Every field, parameter, value and method in the pages is one of the description."""
    known = set(OTHER_NAMES)
    for description in described_in(api).values():
        known.update(names_in(description))
        for path, methods in description["paths"].items():
            known.update(path.split("/"), map(str.upper, methods))
    words = re.findall(r"`([A-Za-z_]\w+)`", (PAGES / page).read_text())
    assert len(words) > 20
    assert sorted(set(words) - known) == []


@pytest.mark.parametrize(
    ("thing", "schema"),
    [("A lease", "Lease"), ("An event", "EventDocument"), ("A host", "Host"), ("A floating IP", "FloatingIP")],
)
def test_the_fields_of_an_answer_are_listed(api: Api, thing: str, schema: str) -> None:
    """Those of 1.1, in a paragraph of their own."""
    fields = described_in(api)[Version.V1_1]["components"]["schemas"][schema]["properties"]
    [listed] = re.findall(rf"\b{thing}:\s([^.]*)\.", (PAGES / "microversions.md").read_text())
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(fields)
