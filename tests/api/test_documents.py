"""What ``docs/api`` says, held against the API."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tenure.api.openapi import describe
from tenure.api.schemas.leases import LeaseSchemas
from tenure.api.versions import Version
from tests.api.rig import Api

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "docs" / "api"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EXAMPLE = re.compile(r"<!-- (1\.[012]) ([A-Z]+) (\S+)(?: (\{.*\}))?(?: (\w+))? -->\n```json\n([^`]*)```")
EXAMPLES = EXAMPLE.findall((PAGES / "README.md").read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: f"{one[0]} {one[1]} {one[2]}")
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


def test_the_table_of_endpoints_is_that_of_the_description(api: Api) -> None:
    told: dict[str, set[tuple[str, str]]] = {version.value: set() for version in Version}
    page = (PAGES / "README.md").read_text()
    for method, paths, since in re.findall(r"^\| ([A-Z]+) \| (`.*?) \| .*? \| (1\.\d) \|", page, re.MULTILINE):
        for path in re.findall(r"`(.*?)`", paths):
            for version in Version:
                if not version < Version(since):
                    told[version.value].add((method, path))
    kinds = api.world.service.parts.types
    for version in Version:
        described = describe(LeaseSchemas(kinds, version), kinds, version)["paths"]
        served = {(method.upper(), path) for path, methods in described.items() for method in methods}
        assert told[version.value] == (served - {("GET", "/v1/")}) | {("GET", "/openapi.json")}


@pytest.mark.parametrize("page", ["README.md", "differences-from-blazar.md", "microversions.md"])
def test_names_exist(page: str) -> None:
    """Every field, parameter and status in the pages is one of the code, or was one of Blazar's answers."""
    sources = [path.read_text() for path in (REPOSITORY / "src" / "tenure").rglob("*.py")]
    sources.append((REPOSITORY / "tests" / "support" / "blazar-exchanges.jsonl").read_text())
    known = set(re.findall(r"\w+", "\n".join(sources)))
    words = re.findall(r"`([A-Za-z_]\w+)`", (PAGES / page).read_text())
    assert len(words) > 20
    assert sorted(set(words) - known) == []
