"""What clients send back as it was shown is no change, at each address of the table that is read and changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.api.table import operations_of
from tenure.api.versions import Version
from tenure.resources.contract import load_types
from tests.api.rig import Api, open_api
from tests.support.samples import sampled_inventories

LEASE = "/v1/leases/{lease_id}"
INVENTORIES = {wire.resource_path: (wire, samples) for wire, samples in sampled_inventories()}
#: What is refused: fields that only the service sets, by the versions before 1.3 that refuse all that they do not know,
#: and the dates of leases at 1.0, which Blazar does not read as it shows them.
REFUSED = {
    **{(path, version): "field" for path in (LEASE, *INVENTORIES) for version in (Version.V1_1, Version.V1_2)},
    (LEASE, Version.V1_0): "error_message",
}


def _changeable() -> Iterator[Any]:
    """Yield each address that is read and changed, with each version that serves it."""
    table = {(operation.method, operation.path): operation for operation in operations_of(tuple(load_types()))}
    for (method, path), operation in table.items():
        if method == "PUT":
            assert ("GET", path) in table
            for version in Version:
                if version >= operation.since:
                    yield pytest.param(path, version, id=f"{path}-{version.value}")


def _make(api: Api, path: str, version: Version) -> tuple[str, str]:
    """Make what the address stands for; return its URL and its key in documents."""
    if path == LEASE:
        return f"/v1/leases/{api.using('demo').book()['id']}", "lease"
    wire, samples = INVENTORIES[path]
    found = api.get(wire.path).json[wire.many]
    if not found:
        answer = api.post(wire.path, samples.registration(version).good)
        assert answer.status_code == 201, answer.text
        found = [answer.json[wire.one]]
    return f"{wire.path}/{found[0]['id']}", wire.one


@pytest.mark.parametrize(("path", "version"), list(_changeable()))
def test_what_is_sent_back_as_it_was_shown_is_no_change(tmp_path: Path, path: str, version: Version):
    with open_api(tmp_path, hosts=1) as api:
        admin = api.using("admin", version.value)
        url, key = _make(admin, path, version)
        change = {"name": "renamed"}
        if path in INVENTORIES:
            samples = INVENTORIES[path][1]
            assert samples.change is not None
            change = dict(samples.change(version).good)
        for _ in range(2):  # as it was made, and after a change
            shown = admin.get(url).json[key]
            api.world.clock.advance(timedelta(minutes=1))
            answer = admin.put(url, shown)
            if refused := REFUSED.get((path, version)):
                assert answer.status_code == 400
                assert refused in answer.json
            else:
                assert answer.status_code == 200, answer.text
                assert answer.json[key] == shown
            assert admin.get(url).json[key] == shown
            assert admin.put(url, change).status_code == 200


@pytest.mark.parametrize("path", [path for path, (_, samples) in INVENTORIES.items() if samples.change is not None])
def test_what_is_changed_in_it_is_changed(tmp_path: Path, path: str):
    with open_api(tmp_path, hosts=1) as api:
        admin = api.using("admin", "1.3")
        wire, samples = INVENTORIES[path]
        assert samples.change is not None
        url, key = _make(admin, path, Version.V1_3)
        shown = admin.get(url).json[key]
        change = samples.change(Version.V1_3).good
        after = admin.put(url, shown | change).json[key]
        assert after == shown | change | {"updated_at": after["updated_at"]}
        for field, value in {"id": "another", "reservable": not shown["reservable"], "elephants": 1}.items():
            refused = admin.put(url, after | {field: value})
            assert (refused.status_code, refused.json["field"]) == (400, field)
        member = admin.using("demo")
        assert member.put(url, shown).status_code == 403
        assert admin.put(f"{wire.path}/another", shown).status_code == 404
        assert admin.put(url, after | {"updated_at": None}).status_code == 200
        assert admin.get(url).json[key] == after


def test_a_field_alone_is_no_host_that_is_sent_back_at_1_0(tmp_path: Path):
    with open_api(tmp_path, hosts=1) as api:
        admin = api.using("admin", "1.0")
        for field, value in {"status": None, "trust_id": ""}.items():
            assert admin.put("/v1/os-hosts/1", {field: value}).status_code == 400
