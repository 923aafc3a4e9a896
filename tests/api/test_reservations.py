"""How reservations of each type are read and shown, at every version."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tenure.api.table import schemas_of
from tenure.api.versions import Version
from tenure.domain.request import LeaseQuery
from tests.api.rig import ADDRESS, ADDRESSES, FLAVORS, HOSTS, INSTANCES, Api
from tests.support.world import OWNER

VERSIONS = [version.value for version in Version]
COMMON = {
    "id",
    "lease_id",
    "resource_type",
    "status",
    "missing_resources",
    "resources_changed",
    "created_at",
    "updated_at",
}
SERVERS = {
    "vcpus",
    "memory_mb",
    "disk_gb",
    "amount",
    "affinity",
    "resource_properties",
    "flavor_id",
    "aggregate_id",
    "server_group_id",
}
#: What Blazar shows of each type beside what all have.
OWN = {
    "physical:host": {"min", "max", "hypervisor_properties", "resource_properties", "before_end"},
    "virtual:instance": SERVERS,
    "flavor:instance": SERVERS,
    "virtual:floatingip": {"network_id", "amount", "required_floatingips"},
}
ALL = (HOSTS, INSTANCES, FLAVORS, ADDRESSES)


def change(api: Api, lease: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """The reservation of the lease after it was changed."""
    [reservation] = lease["reservations"]
    done = api.put(f"/v1/leases/{lease['id']}", {"reservations": [{"id": reservation["id"], **parameters}]})
    assert done.status_code == 200, done.text
    [changed] = done.json["lease"]["reservations"]
    assert changed == api.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]
    return dict(changed)


#: What they have from 1.2 on.
NEW = {
    "physical:host": {"availability_zone", "extra_specs", "vcpus", "memory_mb", "disk_gb"},
    "virtual:instance": {"availability_zone", "extra_specs"},
    "flavor:instance": {"availability_zone"},
}
#: What they have from 1.4 on.
NEWER = {"physical:host": {"resources"}, "virtual:instance": {"resources"}}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fields_of_each_type(api: Api, version: str) -> None:
    """At 1.0 they are Blazar's. From 1.1 on also what is done before the end of each, and no internal row."""
    api.register_address()
    lease = api.using(version=version).book(reservations=list(ALL))
    for asked, shown in zip(ALL, lease["reservations"], strict=True):
        resource_type = str(asked["resource_type"])
        more = {"resource_id"} if version == "1.0" else {"before_end"}
        more |= {"region"} | NEW.get(resource_type, set()) if version >= "1.2" else set()
        more |= NEWER.get(resource_type, set()) if version >= "1.4" else set()
        assert (shown["resource_type"], shown.keys()) == (resource_type, COMMON | OWN[resource_type] | more)
        given = {name: value for name, value in asked.items() if name != "flavor_id"}
        assert {name: shown[name] for name in given} == given


@pytest.mark.parametrize("version", VERSIONS)
class TestServers:
    def test_flavor_and_server_group_are_shown_at_once(self, api: Api, version: str) -> None:
        asked = api.using(version=version)
        for affinity, grouped in ((None, False), (True, True), (False, True)):
            [shown] = asked.book(reservations=[{**INSTANCES, "affinity": affinity}])["reservations"]
            assert (shown["flavor_id"], shown["affinity"]) == (shown["id"], affinity)
            assert isinstance(shown["server_group_id"], str) is grouped
            assert shown["aggregate_id"] is None

    def test_the_aggregate_is_shown_once_it_is_made(self, api: Api, version: str) -> None:
        asked = api.using(version=version)
        lease = asked.book(start=0, reservations=[INSTANCES])
        api.world.pass_time(timedelta(minutes=5))
        [shown] = asked.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"]
        assert (shown["status"], type(shown["aggregate_id"])) == ("active", int)
        assert shown["flavor_id"] == shown["id"]

    def test_a_flavor_is_shown_with_its_sizes_and_as_text(self, api: Api, version: str) -> None:
        """Clients find the flavor that was asked for in the text."""
        [shown] = api.using(version=version).book(reservations=[FLAVORS])["reservations"]
        assert (shown["vcpus"], shown["memory_mb"], shown["disk_gb"]) == (1, 2048, 20)
        source = json.loads(shown["resource_properties"])
        assert (source["id"], source["name"], source["vcpus"], source["ram"]) == ("2", "m1.small", 1, 2048)
        assert shown["flavor_id"] == shown["id"]

    def test_a_change_to_the_shown_values_changes_nothing(self, api: Api, version: str) -> None:
        asked = api.using(version=version)
        lease = asked.book(reservations=[FLAVORS])
        [shown] = lease["reservations"]
        same = {name: shown[name] for name in ("amount", "flavor_id", "affinity")}
        changed = change(asked, lease, **same)
        assert {name: changed[name] for name in OWN["flavor:instance"]} == {
            name: shown[name] for name in OWN["flavor:instance"]
        }

    def test_a_flavor_is_changed_before_the_start(self, api: Api, version: str) -> None:
        asked = api.using(version=version)
        lease = asked.book(reservations=[FLAVORS])
        changed = change(asked, lease, flavor_id="3", amount=2)
        assert (changed["amount"], changed["vcpus"], changed["memory_mb"]) == (2, 2, 4096)
        assert json.loads(changed["resource_properties"])["id"] == "3"
        assert changed["flavor_id"] == changed["id"]

    def test_a_flavor_is_shown_by_the_names_that_clients_of_nova_know(self, api: Api, version: str) -> None:
        lease = api.using(version=version).book(reservations=[FLAVORS])
        shown = json.loads(lease["reservations"][0]["resource_properties"])
        assert {
            "id",
            "name",
            "vcpus",
            "ram",
            "swap",
            "disk",
            "OS-FLV-EXT-DATA:ephemeral",
            "extra_specs",
        } == shown.keys()

    def test_affinity_is_changed_to_none_by_null(self, api: Api, version: str) -> None:
        asked = api.using(version=version)
        lease = asked.book(reservations=[{**INSTANCES, "amount": 2, "affinity": False}])
        assert change(asked, lease, amount=3)["affinity"] is False
        assert change(asked, lease, affinity=None)["affinity"] is None


class TestClientsOfVersion10:
    """Blazar's clients send numbers as text, and affinity in words."""

    @pytest.mark.parametrize(
        ("said", "meant"),
        [("None", None), ("none", None), ("", None), ("True", True), ("true", True), ("False", False), (False, False)],
    )
    def test_affinity(self, api: Api, said: object, meant: bool | None) -> None:
        [shown] = api.book(reservations=[{**INSTANCES, "affinity": said}])["reservations"]
        assert shown["affinity"] is meant

    def test_numbers(self, api: Api) -> None:
        text = dict.fromkeys(("vcpus", "memory_mb", "disk_gb", "amount"), "1")
        [shown] = api.book(reservations=[{**INSTANCES, **text}])["reservations"]
        assert {name: shown[name] for name in text} == dict.fromkeys(text, 1)

    @pytest.mark.parametrize("number", [2, 2.0])
    def test_the_id_of_a_flavor(self, api: Api, number: float) -> None:
        [shown] = api.book(reservations=[{**FLAVORS, "flavor_id": number}])["reservations"]
        assert json.loads(shown["resource_properties"])["id"] == "2"

    def test_unknown_keys(self, api: Api) -> None:
        """Such keys are sent by forks of Blazar's client."""
        unknown = {"ephemeral_gb": 5, "extra_specs": {"a": "b"}}
        [shown] = api.book(reservations=[{**INSTANCES, **unknown}])["reservations"]
        assert not unknown.keys() & shown.keys()


def test_a_mistake_is_named_by_its_place_in_the_request(api: Api) -> None:
    """Not by that of the reservation in the lease."""
    new = api.using(version="1.1")
    lease = new.book(reservations=[HOSTS, INSTANCES, FLAVORS])
    ids = [reservation["id"] for reservation in lease["reservations"]]
    for wrong, status, field in (
        ({"id": ids[2], "flavor_id": "nope"}, 400, "reservations[0].flavor_id"),
        ({"id": ids[1], "amount": 5000}, 409, "reservations[0].amount"),
        ({"id": ids[1], "resource_properties": "nonsense"}, 400, "reservations[0].resource_properties"),
    ):
        refused = new.put(f"/v1/leases/{lease['id']}", {"reservations": [wrong]})
        assert (refused.status_code, refused.json["field"]) == (status, field), refused.text
    assert new.get(f"/v1/leases/{lease['id']}").json == {"lease": lease}
    added = new.post(f"/v1/leases/{lease['id']}/reservations", {**INSTANCES, "amount": 5000})
    assert (added.status_code, added.json["field"]) == (409, "amount")
    details = added.json["details"]
    assert (details["resource_type"], details["reservation"]) == ("virtual:instance", 0)


def test_a_mistake_of_a_resource_type_is_named_as_well(api: Api) -> None:
    """In a new lease, in a change of a lease, and in a reservation added alone."""
    new = api.using(version="1.1")
    lease = new.book(reservations=[INSTANCES])
    path = f"/v1/leases/{lease['id']}"
    unsupported = {**INSTANCES, "resource_type": "virtual:ship"}
    for method, url, body, name, field in (
        ("POST", "/v1/leases", {"reservations": [HOSTS, {}]}, "MissingParameter", "reservations[1].resource_type"),
        ("POST", "/v1/leases", {"reservations": [unsupported]}, "InvalidParameter", "reservations[0].resource_type"),
        ("POST", "/v1/leases", {"reservations": [1]}, "InvalidParameter", "reservations[0]"),
        ("PUT", path, {"reservations": [unsupported]}, "InvalidParameter", "reservations[0].resource_type"),
        ("PUT", path, {"reservations": [1]}, "InvalidParameter", "reservations[0]"),
        ("POST", f"{path}/reservations", {}, "MissingParameter", "resource_type"),
        ("POST", f"{path}/reservations", unsupported, "InvalidParameter", "resource_type"),
    ):
        document = new.lease_body(**body) if url == "/v1/leases" else body
        refused = new.call(method, url, document)
        assert refused.status_code == 400, refused.text
        assert (refused.json["error_name"], refused.json["field"]) == (name, field), refused.text
        assert "discriminator" not in refused.text
    assert new.get("/v1/leases").json == {"leases": [lease]}


def test_a_mistake_is_named_while_the_lease_runs(api: Api) -> None:
    """What a running reservation may not become, at its place in the request."""
    api.register_address()
    api.register_address("203.0.113.11")
    new = api.using(version="1.1")
    addresses = {**ADDRESSES, "amount": 2}
    lease = new.book(start=0, reservations=[{**INSTANCES, "amount": 2}, {**FLAVORS, "amount": 2}, addresses])
    api.world.pass_time(timedelta(minutes=1))
    path = f"/v1/leases/{lease['id']}"
    lease = new.get(path).json["lease"]
    assert lease["status"] == "ACTIVE"
    instances, flavors, floatingips = (reservation["id"] for reservation in lease["reservations"])
    for wrong, parameter in (
        ({"id": instances, "amount": 1}, "amount"),
        ({"id": instances, "vcpus": 2}, "vcpus"),
        ({"id": instances, "affinity": True}, "affinity"),
        ({"id": flavors, "flavor_id": "3"}, "flavor_id"),
        ({"id": flavors, "amount": 1}, "amount"),
        ({"id": floatingips, "amount": 1}, "amount"),
    ):
        refused = new.put(path, {"reservations": [wrong]})
        assert refused.status_code == 409, refused.text
        named = (refused.json["error_name"], refused.json.get("field"))
        assert named == ("InvalidState", f"reservations[0].{parameter}"), refused.text
    assert new.get(path).json == {"lease": lease}


def test_required_addresses_are_not_more_than_the_amount(api: Api) -> None:
    """No parameter is at fault by itself, so the reservation is named."""
    for address in (ADDRESS, "203.0.113.11"):
        api.register_address(address)
    new = api.using(version="1.1")
    required = {**ADDRESSES, "amount": 2, "required_floatingips": [ADDRESS, "203.0.113.11"]}
    lease = new.book(reservations=[required])
    [reservation] = lease["reservations"]
    path = f"/v1/leases/{lease['id']}"
    refused = new.put(path, {"reservations": [{"id": reservation["id"], "amount": 1}]})
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0]"), refused.text
    assert "required_floatingips" in refused.json["error_message"]
    assert new.get(path).json == {"lease": lease}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("required", [ADDRESS, "203.0.113.77"], ids=["taken", "not registered"])
def test_an_address_that_cannot_be_had_is_the_reason(api: Api, version: str, required: str) -> None:
    """There are enough of them, so the counts alone do not tell why."""
    for address in (ADDRESS, "203.0.113.11", "203.0.113.12"):
        api.register_address(address)
    asked = api.using(version=version)
    lease = asked.book(reservations=[{**ADDRESSES, "required_floatingips": [ADDRESS]}])
    requested = {**ADDRESSES, "required_floatingips": [required]}
    refused = asked.post("/v1/leases", asked.lease_body(reservations=[INSTANCES, requested]))
    assert refused.json["error_message"].startswith("Not enough floating IPs available")
    assert "Not all of those that are required_floatingips can be had." in refused.json["error_message"]
    if version != "1.0":
        assert (refused.status_code, refused.json["field"]) == (409, "reservations[1].required_floatingips")
    too_many = asked.post("/v1/leases", asked.lease_body(reservations=[{**requested, "amount": 9}]))
    assert "required" not in too_many.json["error_message"]
    assert asked.get("/v1/leases").json["leases"] == [lease]


def test_fields_required_by_blazar_can_be_absent(api: Api) -> None:
    """From 1.1 on, what Blazar wants to be sent though it says nothing."""
    api.register_address()
    new = api.using(version="1.1")
    instances = {name: value for name, value in INSTANCES.items() if name not in {"affinity", "resource_properties"}}
    flavors = {name: value for name, value in FLAVORS.items() if name != "affinity"}
    addresses = {name: value for name, value in ADDRESSES.items() if name != "required_floatingips"}
    shown = new.book(reservations=[instances, flavors, addresses])["reservations"]
    assert (shown[0]["affinity"], shown[0]["resource_properties"], shown[0]["before_end"]) == (None, "", "default")
    assert (shown[1]["affinity"], shown[2]["required_floatingips"]) == (None, [])


def test_a_reservation_of_an_uninstalled_type_is_shown(api: Api) -> None:
    api.register_address()
    lease = api.book(reservations=[{**ADDRESSES, "required_floatingips": [ADDRESS]}])
    [stored] = api.world.leases.list(OWNER, LeaseQuery(limit=10)).items
    for version in Version:
        resource_types = [
            resource_type
            for resource_type in api.world.service.components.types
            if resource_type.name == "physical:host"
        ]
        schemas = schemas_of(resource_types)(version)
        [shown] = json.loads(json.dumps(schemas.answer.show(stored)))["reservations"]
        assert (shown["id"], shown["required_floatingips"]) == (lease["reservations"][0]["id"], [ADDRESS])


ACTIONS = ("default", "snapshot", "notify", "none", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [HOSTS, INSTANCES, FLAVORS, ADDRESSES], ids=lambda reservation: str(reservation["resource_type"])
)
def test_the_action_before_the_end_is_set_for_each_reservation(api: Api, asked: dict[str, Any]) -> None:
    api, old = api.using(version="1.1"), api
    api.register_address()
    actions = [action for action in ACTIONS if asked is not ADDRESSES or action != "snapshot"]
    for action in actions:
        lease = api.book(reservations=[{**asked, "before_end": action}])
        assert lease["reservations"][0]["before_end"] == action
        for other in actions:
            assert change(api, lease, before_end=other)["before_end"] == other
            shown = old.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]
            assert shown.get("before_end") == (other if asked is HOSTS else None)
            kept = old.put(f"/v1/leases/{lease['id']}", {"reservations": [shown]})  # as it was shown
            assert kept.status_code == 200, kept.text
        assert api.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]["before_end"] == actions[-1]
        api.delete(f"/v1/leases/{lease['id']}")


def test_an_address_has_no_snapshot(api: Api) -> None:
    api = api.using(version="1.1")
    api.register_address()
    refused = api.post("/v1/leases", api.lease_body(reservations=[{**ADDRESSES, "before_end": "snapshot"}]))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].before_end")
    assert "An address has no snapshot" in refused.json["error_message"]


def test_version_1_0_ignores_unknown_fields_of_an_address(api: Api) -> None:
    api.register_address()
    lease = api.book(reservations=[{**ADDRESSES, "before_end": "snapshot"}])
    shown = api.using(version="1.1").get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]
    assert shown["before_end"] == "default"
