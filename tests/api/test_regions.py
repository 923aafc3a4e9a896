"""Regions on the wire, from 1.2 on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.rig import HOSTS, Api, open_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as opened:
        yield opened.using(version="1.2")


def test_a_region_cannot_be_named_without_configured_regions(api: Api) -> None:
    lease = api.book(reservations=[{**HOSTS, "region": None}])
    assert lease["reservations"][0]["region"] is None
    assert "region" not in api.using(version="1.1").get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]
    refused = api.post("/v1/leases", api.lease_body(reservations=[HOSTS, {**HOSTS, "region": "south"}]))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[1].region")
    assert refused.json["error_message"] == "There is no region south: this service has no regions."
    added = api.post(f"/v1/leases/{lease['id']}/reservations", {**HOSTS, "region": "south"})
    assert (added.status_code, added.json["field"]) == (400, "region")
    host = api.using("admin").get("/v1/os-hosts/1").json["host"]
    assert host["region"] is None


@pytest.mark.parametrize("region", ["", "a b", "x" * 25, 7, "south:1", "\u00e9"])
def test_an_invalid_region_name_is_refused(api: Api, region: object) -> None:
    refused = api.post("/v1/leases", api.lease_body(reservations=[{**HOSTS, "region": region}]))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].region")
    refused = api.using("admin").post("/v1/os-hosts", {"name": "sim-host-001", "region": region})
    assert (refused.status_code, refused.json["field"]) == (400, "region")


def test_regions_are_refused_without_configuration_and_in_older_versions(api: Api) -> None:
    refused = api.using("admin").post("/v1/os-hosts", {"name": "sim-host-001", "region": "south"})
    assert (refused.status_code, refused.json["field"]) == (400, "region")
    old = api.using("admin", "1.1").post("/v1/os-hosts", {"name": "sim-host-001", "region": "south"})
    assert old.json["error_message"] == "region is not known here."
    old = api.using(version="1.1").post("/v1/leases", api.lease_body(reservations=[{**HOSTS, "region": "south"}]))
    assert (old.status_code, old.json["field"]) == (400, "reservations[0].region")
