"""The description of the API as tools of others read it: a validator, and a generator of clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import Version
from tenure.resources.contract import load_types
from tests.support.waiting import patience

VERSIONS = pytest.mark.parametrize("version", list(Version), ids=str)


def description(version: Version) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(describe(operations_of(tuple(load_types())), version)))
    return found


def schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a document."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from schemas_in(part)


@VERSIONS
def test_a_validator_finds_nothing(version: Version):
    validators = pytest.importorskip("openapi_spec_validator")
    errors = validators.OpenAPIV31SpecValidator(description(version)).iter_errors()
    assert [str(error)[:300] for error in errors] == []


@VERSIONS
def test_names_are_unique(version: Version):
    found = description(version)
    names = Counter(operation["operationId"] for methods in found["paths"].values() for operation in methods.values())
    titles = Counter(schema["title"] for schema in found["components"]["schemas"].values() if "title" in schema)
    assert [name for name, count in (names + titles).items() if count > 1] == []


@VERSIONS
def test_defaults_are_among_the_values(version: Version):
    listed = [schema for schema in schemas_in(description(version)) if isinstance(schema.get("enum"), list)]
    assert [schema for schema in listed if "default" in schema and schema["default"] not in schema["enum"]] == []
    assert [schema for schema in listed if isinstance(schema.get("default"), bool)] == []


@VERSIONS
def test_the_description_does_not_depend_on_the_machine(version: Version):
    """The names of time zones, for example, differ between machines."""
    assert max(len(schema["enum"]) for schema in schemas_in(description(version)) if "enum" in schema) < 50


@pytest.mark.slow
@VERSIONS
def test_a_generator_makes_a_client_of_every_operation(version: Version, tmp_path: Path):
    pytest.importorskip("openapi_python_client")
    found = description(version)
    (tmp_path / "openapi.json").write_text(json.dumps(found))
    program = Path(sys.executable).with_name("openapi-python-client")
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")
    where = ["--path", "openapi.json", "--output-path", "made", "--config", "config.yaml", "--meta", "none"]
    done = subprocess.run(
        [program, "generate", *where, "--fail-on-warning"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.stem for path in (tmp_path / "made" / "api").rglob("*.py") if path.stem != "__init__"}
    served = {operation["operationId"] for methods in found["paths"].values() for operation in methods.values()}
    assert made == served
