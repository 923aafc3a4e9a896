"""The table of the requirements of OPNFV Promise is true: what is served works, and what is not served is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from urllib.parse import quote

import pytest

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import Version
from tests.api.rig import HOSTS, NETWORK, Api, open_api
from tests.support.samples import sampled_inventories

TABLE = Path(__file__).parents[2] / "docs" / "api" / "promise.md"
#: A call in a cell: method and target, and the body, if there is one.
_CALL = re.compile(r"`(GET|POST|PUT|DELETE) (/[^` ]*)`(?: `(\{[^`]*\})`)?")
_PERIOD = '"start_date": "2030-01-02T00:00:00Z", "end_date": "2030-01-03T00:00:00Z"'
#: What is about leases, capacity and usage, unlike the inventories of single types.
_OPERATIONS = re.compile(r"/v1/(leases|offers|availability|usage|limits)\b")


@dataclass(frozen=True)
class Row:
    """A requirement, how far it is served, the call that serves it, and what the page says about it."""

    requirement: str
    status: str
    call: str
    how: str


def rows() -> list[Row]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[1:]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with resources of each type."""
    with open_api(tmp_path_factory.mktemp("promise")) as api:
        for wire, samples in sampled_inventories():
            api.register_samples(wire, samples)
        yield api.using(version="1.3")


@pytest.fixture
def api(whole: Api) -> Iterator[Api]:
    """The same service for each test, without leases."""
    yield whole
    for lease in whole.call("GET", "/v1/leases").json["leases"]:
        assert whole.call("DELETE", f"/v1/leases/{lease['id']}").status_code == 204


def test_there_is_a_row_for_every_requirement():
    found = rows()
    assert len(found) >= 50
    assert len({row.requirement for row in found}) == len(found)
    assert {row.status for row in found} == {"served", "partly", "not yet"}
    without = [row.requirement for row in found if not row.call and not row.how]
    assert without == []


def test_the_abbreviations_are_those_of_the_page():
    text = " ".join(TABLE.read_text().split())
    assert f"`$period` for `{_PERIOD}`" in text
    assert f"`$hosts` for `{json.dumps(HOSTS)}`" in text


def test_every_operation_serves_a_requirement(api: Api):
    """What was added to the API is in the table."""
    description = describe(operations_of(tuple(api.world.service.components.types)), Version("1.3"))
    served = {
        f"{method.upper()} {path}"
        for path, methods in description["paths"].items()
        for method in methods
        if _OPERATIONS.match(path)
    }
    named = re.findall(r"`((?:GET|POST|PUT|DELETE) /v1/[^`? ]*)", TABLE.read_text())
    assert served - {name.replace("$lease", "{lease_id}") for name in named} == set()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.requirement)
def test_a_row_is_true(api: Api, row: Row):
    """The call of a row works, or is refused if the requirement is not served."""
    if not row.call:
        assert row.status != "served" or "](../operations/" in row.how
        return
    found = _CALL.fullmatch(row.call)
    assert found is not None, row.call
    method, target, body = found.groups()
    lease = api.book(start=10, hours=24)
    admin = api.using(user="admin")
    [host, *_] = admin.call("GET", "/v1/os-hosts").json["hosts"]
    known = {
        "lease": lease["id"],
        "network": NETWORK,
        "host": host["id"],
        "hostname": host["hypervisor_hostname"],
        "project": lease["project_id"],
        "period": _PERIOD,
        "hosts": json.dumps(HOSTS),
    }
    path = quote(Template(target).substitute(known), safe="/?&=:")
    caller = admin if path.startswith(("/v1/os-hosts", "/v1/volume-pools")) else api
    # `$vcpus` in a condition is no abbreviation, hence the safe form.
    answer = caller.call(method, path, json.loads(Template(body).safe_substitute(known)) if body else None)
    expected = {400, 404} if row.status == "not yet" else {200, 201, 204}
    assert answer.status_code in expected, answer.text
