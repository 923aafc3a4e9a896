"""Resource types that an operator has switched off: nothing new of them, and everything promised is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth
from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import LATEST
from tenure.resources.contract import load_types
from tests.api.rig import ADDRESSES, Api
from tests.support.engines import HOUR, rebuild

HOST_LIMITS = {"leases", "hosts", "hours_of_hosts"}


def only(api: Api, tmp_path: Path, *enabled: str) -> Api:
    """Return the API after a restart with these types."""
    types = api.world.service.components.types.only(enabled)
    service = rebuild(api.world, types=types)
    app = create_app(service.manager, types, lambda inner: TokenFileAuth(inner, tmp_path / "tokens.yaml"))
    return Api(api.world, app, api.database)


@pytest.mark.parametrize("version", [None, "1.2", "1.3"])
def test_a_type_that_is_off_cannot_be_booked(api: Api, tmp_path: Path, version: str | None):
    api.register_address()
    hosts_only = only(api, tmp_path, "physical:host").using(version=version)
    refused = hosts_only.post("/v1/leases", hosts_only.lease_body(reservations=[ADDRESSES]))
    assert refused.status_code == 400
    assert "The virtual:floatingip resource type is not supported" in refused.json["error_message"]
    assert hosts_only.book()["reservations"][0]["resource_type"] == "physical:host"


def test_a_manager_refuses_a_type_that_only_the_api_has(api: Api, tmp_path: Path):
    """Their configurations may differ during a restart."""
    api.register_address()
    types = api.world.service.components.types
    service = rebuild(api.world, types=types.only(["physical:host"]))
    app = create_app(service.manager, types, lambda inner: TokenFileAuth(inner, tmp_path / "tokens.yaml"))
    newer = Api(api.world, app, api.database).using(version="1.2")
    refused = newer.post("/v1/leases", newer.lease_body(reservations=[ADDRESSES]))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].resource_type")
    assert refused.json["error_message"] == "The virtual:floatingip resource type is not supported"


def test_its_resources_have_no_urls(api: Api, tmp_path: Path):
    number = api.register_address()["id"]
    hosts_only = only(api, tmp_path, "physical:host").using("admin", "1.2")
    unknown = hosts_only.get("/v1/no-such-thing")
    for path in ("/v1/floatingips", f"/v1/floatingips/{number}", "/v1/volume-pools"):
        answer = hosts_only.get(path)
        assert (answer.status_code, answer.json) == (404, unknown.json)
    assert hosts_only.get("/v1/os-hosts").status_code == 200


def test_hosts_have_urls_if_only_parts_of_them_can_be_booked(api: Api, tmp_path: Path):
    instances_only = only(api, tmp_path, "virtual:instance").using("admin", "1.2")
    assert len(instances_only.get("/v1/os-hosts").json["hosts"]) == 4
    refused = instances_only.post("/v1/leases", instances_only.lease_body())
    assert refused.status_code == 400
    assert "The physical:host resource type is not supported" in refused.json["error_message"]


def test_lists_of_types_and_limits_leave_it_out(api: Api, tmp_path: Path):
    types = load_types()
    enabled = types.only(["physical:host"]).enabled
    description = describe(operations_of(tuple(types), enabled), LATEST)
    assert not [path for path in description["paths"] if "floatingip" in path or "volume" in path]
    hosts_only = only(api, tmp_path, "physical:host").using(version="1.2")
    assert {limit["name"] for limit in hosts_only.get("/v1/limits").json["limits"]} == HOST_LIMITS
    refused = hosts_only.using(version="1.3").get("/v1/availability?resource_type=virtual:floatingip")
    assert (refused.status_code, refused.json["field"]) == (400, "resource_type")


def test_what_was_booked_of_it_starts_is_shown_and_ends(api: Api, tmp_path: Path):
    api.register_address()
    lease = api.using(version="1.2").book(reservations=[ADDRESSES], hours=2)
    before = api.using(version="1.2").get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"]
    hosts_only = only(api, tmp_path, "physical:host").using(version="1.2")
    path = f"/v1/leases/{lease['id']}"
    assert hosts_only.get(path).json["lease"]["reservations"] == before
    api.world.clock.advance(HOUR)
    api.world.engine.settle()
    assert hosts_only.get(path).json["lease"]["status"] == "ACTIVE"
    assert len(api.world.cloud.openstack.floating_ips) == 1
    assert hosts_only.put(path, {"name": "other"}).status_code == 200
    number = lease["reservations"][0]["id"]
    changed = hosts_only.put(path, {"reservations": [{"id": number, "amount": 2}]})
    assert changed.status_code == 400
    assert "The virtual:floatingip resource type is not supported" in changed.json["error_message"]
    api.world.clock.advance(2 * HOUR)
    api.world.engine.settle()
    assert hosts_only.get(path).json["lease"]["status"] == "TERMINATED"
    assert not api.world.cloud.openstack.floating_ips


def test_a_lease_of_a_type_that_is_off_can_be_deleted(api: Api, tmp_path: Path):
    api.register_address()
    lease = api.using(version="1.2").book(reservations=[ADDRESSES])
    hosts_only = only(api, tmp_path, "physical:host").using(version="1.2")
    assert hosts_only.delete(f"/v1/leases/{lease['id']}").status_code == 204
    assert hosts_only.get(f"/v1/leases/{lease['id']}").status_code == 404


def test_the_cloud_is_asked_only_for_inventories_that_are_in_use(api: Api, tmp_path: Path):
    """The service of an inventory that nothing uses may not exist."""
    only(api, tmp_path, "physical:host")
    asked: list[str] = []
    held = api.world.cloud.held

    def watched(resource_type: str):
        asked.append(resource_type)
        return held(resource_type)

    api.world.cloud.held = watched  # type: ignore[method-assign]  # seen, and answered as before
    api.world.service.reconciler.run()
    assert asked == ["physical:host"]
