"""Each operation of the API is in the documents, with its command."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.api.table import operations_of
from tenure.resources.contract import load_types

REPOSITORY = Path(__file__).parents[2]
CLIENT = REPOSITORY / "client" / "pyproject.toml"
#: A row of a table of endpoints: the method, the paths, and the command, or the reason why there is none.
ROW = re.compile(r"^\| (GET|POST|PUT|PATCH|DELETE) \| ([^|]+) \|.*\| ([^|]+) \|$", re.MULTILINE)
#: The types of the first argument of commands for several types of resources.
TYPES = ("floatingip", "host", "volumepool")


def rows() -> Iterator[tuple[str, str]]:
    """Yield the operations in the tables of endpoints, each with what its row says of the command."""
    for page in (REPOSITORY / "docs").rglob("*.md"):
        text = page.read_text()
        if "| who | command |" in text:
            for method, paths, command in ROW.findall(text):
                for path in re.findall("`([^`]+)`", paths):
                    yield f"{method} {path}", command


def test_each_operation_is_in_a_table_of_endpoints() -> None:
    served = {f"{operation.method} {operation.path}" for operation in operations_of(tuple(load_types()))}
    listed = [operation for operation, _ in rows()]
    assert len(listed) == len(set(listed))
    assert set(listed) == {*served, "GET /openapi.json"} - {"GET /v1/"}  # which is the same as without the slash


@pytest.mark.parametrize(("group", "prefix"), [("tenure.commands", ""), ("openstack.tenure.v1", "reservation_")])
def test_each_command_exists(group: str, prefix: str) -> None:
    known = tomllib.loads(CLIENT.read_text())["project"]["entry-points"][group]
    commands = [command.strip("`").removeprefix("tenure ") for _, command in rows() if command.startswith("`")]
    assert len(commands) > 40
    missing = []
    for command in commands:
        words = [word for word in command.split() if word not in TYPES or not command.startswith("allocation ")]
        if f"{prefix}{'_'.join(words)}" not in known:
            missing.append(command)
    assert missing == []
