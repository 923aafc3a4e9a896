"""Floating IP addresses that can be reserved, at every version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenure.drivers.simulated.catalogue import PRIVATE_NETWORK as PRIVATE
from tests.api.rig import ADDRESS, ADDRESSES, HOSTS, NETWORK, Api

PATH = "/v1/floatingips"
SUBNET = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0101"
BODY = {"floating_network_id": NETWORK, "floating_ip_address": ADDRESS}
FIELDS = {
    "id",
    "floating_network_id",
    "subnet_id",
    "floating_ip_address",
    "reservable",
    "created_at",
    "updated_at",
}
SINCE_1_2 = {"region", "enabled", "disabled_reason", "health", "health_reason", "health_since"}


@pytest.fixture
def latest(api: Api) -> Api:
    """An administrator at 1.2."""
    return api.using("admin", "1.2")


def test_an_address_as_blazar_shows_it(admin: Api) -> None:
    """The dates have a T in the answer to the POST, and only there."""
    made = admin.post(PATH, BODY)
    assert made.status_code == 201, made.text
    new = made.json["floatingip"]
    assert new.keys() == FIELDS
    assert (new["floating_network_id"], new["subnet_id"], new["floating_ip_address"]) == (NETWORK, SUBNET, ADDRESS)
    assert (new["reservable"], new["created_at"]) == (True, "2030-01-01T10:00:00.000000")
    path = f"{PATH}/{new['id']}"
    shown = admin.get(path).json["floatingip"]
    assert shown["created_at"] == "2030-01-01 10:00:00"
    dates = {"created_at", "updated_at"}
    assert {name: shown[name] for name in FIELDS - dates} == {name: new[name] for name in FIELDS - dates}
    assert admin.get(PATH).json == {"floatingips": [shown]}
    assert admin.get(f"{PATH}?limit=nonsense").json == {"floatingips": [shown]}
    assert admin.delete(path).status_code == 204
    for gone in (admin.get(path), admin.delete(path)):
        assert gone.json == {
            "error_code": 404,
            "error_message": f"Floating IP {new['id']} not found.",
            "error_name": 404,
        }
    assert admin.get(PATH).json == {"floatingips": []}


def test_version_1_0_has_only_the_urls_of_blazar(admin: Api) -> None:
    path = f"{PATH}/{admin.register_address()['id']}"
    assert admin.put(path, {"rack": "r1"}).status_code == 405
    for below in ("/allocation", "/properties", "/disable"):
        assert admin.get(path + below).status_code == 404
    assert admin.get(f"{PATH}/allocations").status_code == 404
    assert admin.get(f"{PATH}/properties").status_code == 404


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_an_address_from_1_1_on(admin: Api, version: str) -> None:
    asked = admin.using(version=version)
    made = asked.post(PATH, BODY)
    assert made.status_code == 201, made.text
    shown = made.json["floatingip"]
    assert shown.keys() == FIELDS | (SINCE_1_2 if version == "1.2" else set())
    assert shown["created_at"] == "2030-01-01T10:00:00Z"
    assert asked.get(f"{PATH}/{shown['id']}").json == made.json
    assert asked.get(PATH).json == {"floatingips": [shown]}
    assert asked.delete(f"{PATH}/{shown['id']}").status_code == 204
    missing = asked.get(f"{PATH}/{shown['id']}")
    assert (missing.status_code, missing.json["error_message"]) == (404, f"Floating IP {shown['id']} not found.")


@pytest.mark.parametrize(
    ("body", "status", "text", "field"),
    [
        ({**BODY, "floating_ip_address": "203.0.113.150"}, 400, "is used in allocation_pools or gateway_ip", "address"),
        ({**BODY, "floating_ip_address": "203.0.113.1"}, 400, "is used in allocation_pools or gateway_ip", "address"),
        (
            {**BODY, "floating_ip_address": "10.9.9.9"},
            404,
            "Valid subnet for the floating IP 10.9.9.9 is not found.",
            "address",
        ),
        ({**BODY, "floating_network_id": "nope"}, 400, "Failed to find network nope", "network"),
        ({**BODY, "floating_network_id": PRIVATE}, 400, f"Failed to find network {PRIVATE}", "network"),
        ({**BODY, "floating_ip_address": "bogus"}, 400, "IP address bogus is invalid form.", "address"),
        ({**BODY, "floating_ip_address": "fe80::1%eth0"}, 400, "IP address fe80::1%eth0 is invalid form.", "address"),
        ({"floating_network_id": NETWORK}, 400, "Missing parameter floating_ip_address", "address"),
        ({"floating_ip_address": ADDRESS}, 400, "Missing parameter floating_network_id", "network"),
    ],
)
def test_invalid_addresses_are_refused(admin: Api, body: dict[str, str], status: int, text: str, field: str) -> None:
    """With the words that were recorded with Blazar."""
    fields = {"address": "floating_ip_address", "network": "floating_network_id"}
    old, new = (admin.using(version=version).post(PATH, body) for version in ("1.0", "1.1"))
    for refused in (old, new):
        assert (refused.status_code, text in refused.json["error_message"]) == (status, True), refused.text
    assert new.json["field"] == fields[field]
    assert admin.get(PATH).json == {"floatingips": []}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_refused_address_is_shown_in_canonical_form(admin: Api, version: str) -> None:
    refused = admin.using(version=version).post(PATH, {**BODY, "floating_ip_address": "2001:DB8:0::0005"})
    assert (refused.status_code, refused.json["error_message"]) == (
        400,
        "Neutron makes no floating IP of 2001:db8::5: it has them of version 4 only.",
    )


def test_pages_and_filters(latest: Api) -> None:
    for last_byte in (30, 10, 20):
        latest.register_address(f"203.0.113.{last_byte}")
    first = latest.get(f"{PATH}?limit=2&sort_key=floating_ip_address&sort_dir=desc").json
    assert [address["floating_ip_address"] for address in first["floatingips"]] == ["203.0.113.30", "203.0.113.20"]
    [link] = first["floatingips_links"]
    rest = latest.get(link["href"].removeprefix("http://falconframework.org")).json
    assert [address["floating_ip_address"] for address in rest["floatingips"]] == ["203.0.113.10"]
    assert "floatingips_links" not in rest
    [found] = latest.get(f"{PATH}?floating_ip_address=203.0.113.20").json["floatingips"]
    assert found["floating_ip_address"] == "203.0.113.20"
    assert len(latest.get(f"{PATH}?reservable=true").json["floatingips"]) == 3
    assert latest.get(f"{PATH}?reservable=false").json == {"floatingips": []}
    assert len(latest.get(f"{PATH}?floating_network_id={NETWORK}").json["floatingips"]) == 3
    assert latest.get(f"{PATH}?floating_network_id={PRIVATE}").json == {"floatingips": []}
    nowhere = latest.get(f"{PATH}?marker=4711")
    assert (nowhere.status_code, nowhere.json["field"]) == (400, "marker")


def test_addresses_are_sorted_as_addresses(latest: Api) -> None:
    """In pages, too: a page goes on after the last address of the one before."""
    for last_byte in (9, 30, 210, 10):
        latest.register_address(f"203.0.113.{last_byte}")
    found, path = [], f"{PATH}?limit=1&sort_key=floating_ip_address"
    while path:
        page = latest.get(path).json
        found += [address["floating_ip_address"] for address in page["floatingips"]]
        links = page.get("floatingips_links", [])
        path = links[0]["href"].removeprefix("http://falconframework.org") if links else ""
    assert found == ["203.0.113.9", "203.0.113.10", "203.0.113.30", "203.0.113.210"]
    down = latest.get(f"{PATH}?sort_key=floating_ip_address&sort_dir=desc").json["floatingips"]
    assert [address["floating_ip_address"] for address in down] == found[::-1]


def test_hosts_and_addresses_are_lists_of_their_own(latest: Api) -> None:
    address = latest.register_address()
    assert len(latest.get("/v1/os-hosts").json["hosts"]) == 4
    assert [known["id"] for known in latest.get(PATH).json["floatingips"]] == [address["id"]]
    assert latest.get(f"{PATH}/1").status_code == 404
    assert latest.get(f"/v1/os-hosts/{address['id']}").status_code == 404


def test_readers_see_addresses_and_only_administrators_change_them(api: Api) -> None:
    """Every reader of a project may list addresses; changes and allocations are for administrators."""
    path = f"{PATH}/{api.register_address()['id']}"
    for name in ("reader", "demo", "other"):
        user = api.using(name, "1.2")
        assert (user.get(PATH).status_code, user.get(path).status_code) == (200, 200)
        calls = [
            user.post(PATH, BODY),
            user.delete(path),
            *(user.post(f"{path}/{action}") for action in ("disable", "enable", "reallocate")),
            user.get(f"{PATH}/allocations"),
            user.get(f"{path}/allocation"),
        ]
        assert [answer.status_code for answer in calls] == [403] * len(calls)
    assert "blazar:floatingips:delete" in api.using("demo").delete(path).json["error_message"]
    assert api.using("nobody").get(PATH).status_code == 403


class TestReserved:
    """Addresses that are part of a lease."""

    def book(self, api: Api, **fields: Any) -> dict[str, Any]:
        return api.using("demo", "1.2").book(reservations=[{**ADDRESSES, **fields}])

    def test_the_owner_sees_the_addresses_of_his_lease(self, latest: Api) -> None:
        address = latest.register_address()
        lease = self.book(latest)
        path = f"/v1/leases/{lease['id']}/floatingips"
        assert latest.using("demo", "1.1").get(path).json == {
            "floatingips": [
                {
                    "id": address["id"],
                    "floating_network_id": NETWORK,
                    "subnet_id": SUBNET,
                    "floating_ip_address": ADDRESS,
                    "reservation_id": lease["reservations"][0]["id"],
                    "start_date": lease["start_date"],
                    "end_date": lease["end_date"],
                    "status": "planned",
                }
            ]
        }
        assert latest.get(f"/v1/leases/{lease['id']}/hosts").json == {"hosts": []}
        assert latest.using("other").get(path).status_code == 404
        assert latest.using("demo", "1.0").get(path).status_code == 404

    @pytest.mark.parametrize("version", ["1.1", "1.2"])
    def test_allocations_are_listed_by_address(self, latest: Api, version: str) -> None:
        asked = latest.using(version=version)
        address, other = latest.register_address(), latest.register_address("203.0.113.11")
        lease = self.book(latest, required_floatingips=[ADDRESS])
        part = {
            "id": lease["reservations"][0]["id"],
            "lease_id": lease["id"],
            "start_date": lease["start_date"],
            "end_date": lease["end_date"],
        }
        taken = {"resource_id": address["id"], "reservations": [part]}
        free = {"resource_id": other["id"], "reservations": []}
        assert asked.get(f"{PATH}/allocations").json == {"allocations": [taken, free]}
        assert asked.get(f"{PATH}/allocations?lease_id={lease['id']}").json == {"allocations": [taken]}
        assert asked.get(f"{PATH}/{address['id']}/allocation").json == {"allocation": taken}
        hosts = latest.get("/v1/os-hosts/allocations").json["allocations"]
        assert [allocation["reservations"] for allocation in hosts] == [[]] * 4

    @pytest.mark.parametrize("running", [False, True])
    def test_a_reservation_grows_and_keeps_its_required_addresses(self, latest: Api, running: bool) -> None:
        for address in (ADDRESS, "203.0.113.11", "203.0.113.12"):
            latest.register_address(address)
        lease = self.book(latest, required_floatingips=[ADDRESS, "203.0.113.12"], amount=2)
        if running:
            latest.world.pass_time(timedelta(hours=1, minutes=5))
        more = {"reservations": [{"id": lease["reservations"][0]["id"], "amount": 3}]}
        grown = latest.using("demo").put(f"/v1/leases/{lease['id']}", more)
        assert grown.status_code == 200, grown.text
        seen = latest.using("demo").get(f"/v1/leases/{lease['id']}/floatingips").json["floatingips"]
        assert {address["floating_ip_address"] for address in seen} == {ADDRESS, "203.0.113.11", "203.0.113.12"}

    def test_a_refusal_names_only_the_missing_addresses(self, latest: Api) -> None:
        refused = latest.using("demo").post("/v1/leases", latest.lease_body(reservations=[ADDRESSES]))
        assert refused.status_code == 409
        assert refused.json["details"]["unknown_properties"] == []
        assert "property" not in refused.json["error_message"]

    def test_only_addresses_of_the_network_are_booked(self, latest: Api) -> None:
        world = latest.world.cloud.world.addresses
        network = world.add_network("other")
        world.add_subnet(network, "198.51.100.0/24")
        latest.register_address()
        body = {"floating_network_id": network, "floating_ip_address": "198.51.100.7"}
        assert latest.post(PATH, body).status_code == 201
        lease = self.book(latest, network_id=network)
        [booked] = latest.using("demo").get(f"/v1/leases/{lease['id']}/floatingips").json["floatingips"]
        assert (booked["floating_network_id"], booked["floating_ip_address"]) == (network, "198.51.100.7")
        another = latest.lease_body(reservations=[{**ADDRESSES, "network_id": network}])
        assert latest.using("demo").post("/v1/leases", another).status_code == 409
        self.book(latest)

    def test_a_reserved_address_is_not_unregistered(self, latest: Api) -> None:
        address = latest.register_address()
        lease = self.book(latest)
        refused = latest.using(version="1.0").delete(f"{PATH}/{address['id']}")
        assert (refused.status_code, refused.json["error_message"]) == (
            409,
            f"Can't delete floating IP {address['id']}. The floating IP is reserved.",
        )
        assert latest.using("demo").delete(f"/v1/leases/{lease['id']}").status_code == 204
        assert latest.delete(f"{PATH}/{address['id']}").status_code == 204

    def test_disabled_address_stays_with_its_lease_and_takes_no_new_lease(self, latest: Api) -> None:
        address = latest.register_address()
        lease = self.book(latest)
        path = f"{PATH}/{address['id']}"
        previewed = latest.post(f"{path}/disable", {"reason": "in use elsewhere", "dry_run": True}).json
        assert latest.get(path).json["floatingip"]["reservable"] is True
        done = latest.post(f"{path}/disable", {"reason": "in use elsewhere"}).json
        assert done["reservations"] == previewed["reservations"]
        assert [affected["lease_id"] for affected in done["reservations"]] == [lease["id"]]
        shown = done["floatingip"]
        assert (shown["enabled"], shown["disabled_reason"], shown["reservable"]) == (False, "in use elsewhere", False)
        assert latest.get(path).json == {"floatingip": shown}
        later = latest.lease_body(start=50, reservations=[ADDRESSES])
        refused = latest.using("demo").post("/v1/leases", later)
        assert refused.json["error_message"].startswith("Not enough floating IPs available")
        opened = latest.post(f"{path}/enable").json["floatingip"]
        assert (opened["enabled"], opened["reservable"]) == (True, True)
        assert latest.using("demo").post("/v1/leases", later).status_code == 201

    def test_a_reservation_moves_to_another_address(self, latest: Api) -> None:
        address = latest.register_address()
        lease = self.book(latest)
        other = latest.register_address("203.0.113.11")
        [part] = latest.post(f"{PATH}/{address['id']}/reallocate").json["reservations"]
        assert (part["lease_id"], part["moves_to"]) == (lease["id"], other["id"])
        [leased] = latest.get(f"/v1/leases/{lease['id']}/floatingips").json["floatingips"]
        assert leased["id"] == other["id"]

    def test_a_required_address_is_not_replaced(self, latest: Api) -> None:
        address = latest.register_address()
        self.book(latest, required_floatingips=[address["floating_ip_address"]])
        latest.register_address("203.0.113.11")
        [part] = latest.post(f"{PATH}/{address['id']}/reallocate").json["reservations"]
        assert (part["moves_to"], part["reason"]) == (None, "The reservation names this resource, so it cannot move.")


def test_a_reservation_is_added_to_a_lease_and_dropped(api: Api) -> None:
    api.register_address()
    demo = api.using("demo", "1.1")
    lease = demo.book(reservations=[HOSTS])
    path = f"/v1/leases/{lease['id']}/reservations"
    added = demo.post(path, ADDRESSES)
    assert added.status_code == 201, added.text
    assert added.json["lease"]["reservations"][0] == lease["reservations"][0]
    reservation = added.json["lease"]["reservations"][1]
    assert (reservation["resource_type"], reservation["status"]) == ("virtual:floatingip", "pending")
    assert demo.get(f"/v1/leases/{lease['id']}").json == added.json
    full = demo.post(path, ADDRESSES)
    assert (full.status_code, full.json["error_name"]) == (409, "NotEnoughResources")
    assert demo.delete(f"{path}/{reservation['id']}").status_code == 204
    assert demo.post(path, ADDRESSES).status_code == 201
    assert api.using("other", "1.1").post(path, ADDRESSES).status_code == 404
    assert api.using("reader", "1.1").post(path, ADDRESSES).status_code == 403
    assert demo.using(version="1.0").post(path, ADDRESSES).status_code == 404
