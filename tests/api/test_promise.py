"""The table of the requirements of OPNFV Promise is true: each call in it works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from urllib.parse import quote

import pytest

from tests.api.rig import NETWORK, Api, open_api
from tests.support.samples import sampled_inventories

TABLE = Path(__file__).parents[2] / "docs" / "api" / "promise.md"
#: A call in a cell: method and target, and the body, if there is one.
_CALL = re.compile(r"`(GET|POST|PUT|DELETE) (/[^` ]*)`(?: `(\{[^`]*\})`)?")


@dataclass(frozen=True)
class Row:
    """A requirement, how far it is served, and the call that serves it."""

    requirement: str
    status: str
    call: str


def rows() -> list[Row]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|")[:3])) for line in lines[1:]]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        for wire, samples in sampled_inventories():
            api.stock(wire, samples)
        yield api.using(version="1.3")


def test_there_is_a_row_for_every_requirement():
    found = rows()
    assert len(found) > 20
    assert len({row.requirement for row in found}) == len(found)
    assert {row.status for row in found} == {"served", "partly", "not yet"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.requirement)
def test_a_row_names_a_call_that_works(api: Api, row: Row):
    assert bool(row.call) or row.status != "served"
    assert not (row.call and row.status == "not yet")
    if not row.call:
        return
    found = _CALL.fullmatch(row.call)
    assert found is not None, row.call
    method, target, body = found.groups()
    lease = api.book(start=10, hours=24)
    known = {"lease": lease["id"], "network": NETWORK}
    path = quote(Template(target).substitute(known), safe="/?&=:")
    answer = api.call(method, path, json.loads(Template(body).substitute(known)) if body else None)
    assert answer.status_code in {200, 201, 204}, answer.text
