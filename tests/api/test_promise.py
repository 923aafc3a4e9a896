"""The calls of the requirements of OPNFV Promise are answered as the table says: they work, or are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from string import Template
from urllib.parse import quote

import pytest

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import Version
from tests.api.rig import HOSTS, NETWORK, Api, open_api
from tests.support.samples import sampled_inventories
from tools.designs import CALL, CALLS_PAGE, DATA, REPOSITORY, Designs, read_designs

PAGE = REPOSITORY / CALLS_PAGE
_PERIOD = '"start_date": "2030-01-02T00:00:00Z", "end_date": "2030-01-03T00:00:00Z"'
#: What is about leases, capacity and usage, unlike the inventories of single types.
_OPERATIONS = re.compile(r"/v1/(leases|offers|availability|usage|limits)\b")


def calls(designs: Designs) -> Iterator[tuple[str, str, bool]]:
    """Return each call of the table, with the id of its statement, and whether it works."""
    for statement in designs.statements:
        yield from ((statement.id, call, True) for call in statement.calls)
        yield from ((statement.id, call, False) for call in statement.refused)


CALLS = list(calls(read_designs(DATA.read_text())))


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


def test_the_abbreviations_are_those_of_the_page():
    text = " ".join(PAGE.read_text().split())
    assert f"`$period` for `{_PERIOD}`" in text
    assert f"`$hosts` for `{json.dumps(HOSTS)}`" in text


def test_every_operation_serves_a_requirement(api: Api):
    """What was added to the API is in the table: itself, or by a URL with a slash at its end, which is above it."""
    description = describe(operations_of(tuple(api.world.service.components.types)), Version("1.3"))
    served = {
        f"{method.upper()} {path}"
        for path, methods in description["paths"].items()
        for method in methods
        if _OPERATIONS.match(path)
    }
    named = {
        name.replace("$lease", "{lease_id}")
        for name in re.findall(r"`((?:GET|POST|PUT|DELETE) /v1/[^`? ]*)", PAGE.read_text())
    }
    folders = {name for name in named if name.endswith("/")}
    below = {folder: {call for call in served if call.startswith(folder)} for folder in folders}
    assert all(below.values())
    assert served - named - set().union(*below.values()) == set()


@pytest.mark.parametrize(("number", "call", "works"), CALLS, ids=[f"{number} {call}" for number, call, _ in CALLS])
def test_a_call_is_answered_as_the_table_says(api: Api, number: str, call: str, works: bool):
    found = CALL.fullmatch(call)
    assert found is not None, call
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
    # `$vcpus` in a condition is no abbreviation, hence the safe form.
    path = quote(Template(target).safe_substitute(known), safe="/?&=:")
    caller = admin if path.startswith(("/v1/os-hosts", "/v1/volume-pools")) else api
    answer = caller.call(method, path, json.loads(Template(body).safe_substitute(known)) if body else None)
    expected = {200, 201, 204} if works else {400, 404}
    assert answer.status_code in expected, f"{number}: {answer.text}"
    assert answer.status_code != 400 or answer.json["field"], f"{number}: {answer.text}"
