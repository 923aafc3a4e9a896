"""Flavors that ask for something which reservations do not count are refused at every door, with the names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.rig import Api

SPECS = {"pci_passthrough:alias": "a1:1", "hw:numa_nodes": "2", "resources:CUSTOM_GPU": "1"}
NAMED = "hw:numa_nodes, pci_passthrough:alias"


@pytest.fixture
def newest(api: Api) -> Api:
    instances = api.world.cloud.world.instances
    instances.add_flavor("special", extra_specs=SPECS)
    instances.add_flavor("usual")
    api.world.cloud.world.add_host("general")
    return api.using(version="1.3")


def asked(resource_type: str, flavor: str) -> dict[str, Any]:
    if resource_type == "flavor:instance":
        return {"resource_type": resource_type, "amount": 1, "flavor_id": flavor}
    return {"resource_type": resource_type, "flavor_id": flavor}


def refused(answer: Any) -> None:
    assert answer.status_code == 400, answer.text
    assert answer.json["field"].endswith(("flavor_id", "server_id"))
    assert NAMED in answer.json["error_message"]


@pytest.mark.parametrize("resource_type", ["flavor:instance", "virtual:server"])
def test_an_uncounted_flavor_is_refused_by_name(newest: Api, resource_type: str) -> None:
    requested = asked(resource_type, "special")
    body = newest.lease_body(reservations=[requested])
    refused(newest.post("/v1/leases", body))
    refused(newest.post("/v1/leases?dry_run=true", body))
    refused(newest.post("/v1/offers", {"duration": 3600, "reservations": [requested]}))
    assert newest.get("/v1/leases").json["leases"] == []


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_uncounted_flavor_is_refused_at_each_version(newest: Api, version: str) -> None:
    requested = {**asked("flavor:instance", "special"), "affinity": None}
    older = newest.using(version=version)
    answer = older.post("/v1/leases", older.lease_body(reservations=[requested]))
    assert answer.status_code == 400
    assert NAMED in answer.json["error_message"]


def test_a_reservation_is_not_changed_to_an_uncounted_flavor(newest: Api) -> None:
    lease = newest.book(start=1, hours=1, reservations=[asked("flavor:instance", "usual")])
    change = {"reservations": [{"id": lease["reservations"][0]["id"], "flavor_id": "special"}]}
    refused(newest.put(f"/v1/leases/{lease['id']}", change))


def test_a_reservation_made_before_a_flavor_became_uncounted_goes_on(newest: Api) -> None:
    lease = newest.book(start=1, hours=1, reservations=[asked("flavor:instance", "usual")])
    newest.world.cloud.world.instances.change_extra_specs("usual", **{"hw:numa_nodes": "2"})
    change = {"reservations": [{"id": lease["reservations"][0]["id"], "amount": 2}]}
    changed = newest.put(f"/v1/leases/{lease['id']}", change)
    assert changed.status_code == 200, changed.text


def test_a_server_of_an_uncounted_flavor_is_refused_by_name(newest: Api) -> None:
    server_id = newest.world.cloud.world.instances.boot("demo-project", "usual")
    servers = newest.world.cloud.openstack.servers
    flavor = servers[server_id].flavor
    assert flavor is not None
    flavor.extra_specs = dict(SPECS)
    requested = {"resource_type": "virtual:server", "server_id": server_id}
    refused(newest.post("/v1/leases", newest.lease_body(reservations=[requested])))
    # No room is promised to a server that stays in its place, only its end is set: nothing has to be counted.
    in_place = newest.lease_body(reservations=[{**requested, "in_place": True}])
    assert newest.post("/v1/leases", in_place).status_code == 201
