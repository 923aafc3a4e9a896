"""Faults of other reservation services, as requests to this service over HTTP, which must give the right answers.

The faults were measured in Blazar 18, or found in its source and in reports of its users. Other modules have the faults
that need more than requests: ``test_races``, ``test_crashes``, ``test_slow_end`` and ``test_hanging_cloud`` for slow
clouds, and ``test_healing`` for failing hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon import testing

from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tests.api.rig import ADDRESS, ADDRESSES, FLAVORS, HOSTS, INSTANCES, Api, minutes, open_api, rfc3339
from tests.support import ledger
from tests.support.agreement import disagreements
from tests.support.simulated import HostHealth

HOUR = timedelta(hours=1)
#: Clients of Blazar use the first version; the other version is tested in long runs only.
VERSIONS = ["1.0", pytest.param("1.2", marks=pytest.mark.long)]
#: The virtual CPUs of each of the four hosts.
VCPUS = 8


@pytest.fixture(params=VERSIONS)
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    """Serve the API of a cloud with four hosts of eight virtual CPUs, and two addresses."""
    with open_api(tmp_path) as opened:
        for host in opened.world.cloud.world.hosts():
            opened.world.cloud.world.change_host(host.id, facts={"vcpus": VCPUS})
        opened.world.service.refresh.run()
        opened.register_address(ADDRESS)
        opened.register_address("203.0.113.11")
        yield opened.using(version=request.param)


def instances(amount: int = 1, vcpus: int = 1, **more: object) -> dict[str, Any]:
    return {**INSTANCES, "amount": amount, "vcpus": vcpus, **more}


def ask(api: Api, *reservations: dict[str, Any], start: float = 1, hours: float = 1, **more: Any) -> testing.Result:
    return api.post("/v1/leases", api.lease_body(start=start, hours=hours, reservations=list(reservations), **more))


def book(api: Api, *reservations: dict[str, Any], start: float = 1, hours: float = 1, **more: Any) -> dict[str, Any]:
    answer = ask(api, *reservations, start=start, hours=hours, **more)
    assert answer.status_code == 201, answer.text
    lease: dict[str, Any] = answer.json["lease"]
    return lease


def running(api: Api, *reservations: dict[str, Any], hours: float = 5, **more: Any) -> dict[str, Any]:
    """Book a lease, and let it start."""
    lease = book(api, *reservations, start=1, hours=hours, **more)
    api.world.pass_time(HOUR)
    assert shown(api, lease)["status"] == "ACTIVE"
    return lease


def is_refused(api: Api, *reservations: dict[str, Any], start: float = 1, hours: float = 1) -> bool:
    """Whether the lease is refused for a lack of resources; other refusals fail the test."""
    answer = ask(api, *reservations, start=start, hours=hours)
    if answer.status_code == 201:
        return False
    assert answer.status_code == (400 if api.version == "1.0" else 409)
    assert "Not enough" in answer.text
    return True


def shown(api: Api, lease: dict[str, Any]) -> dict[str, Any]:
    answer = api.get(f"/v1/leases/{lease['id']}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json["lease"]
    return found


def change(api: Api, lease: dict[str, Any], *changes: dict[str, Any], **more: Any) -> testing.Result:
    """Change the reservations of the lease, in their order; an empty change leaves its reservation out."""
    changed = [
        {"id": reservation["id"], **values}
        for reservation, values in zip(lease["reservations"], changes, strict=False)
        if values
    ]
    return api.put(f"/v1/leases/{lease['id']}", {**({"reservations": changed} if changed else {}), **more})


def assert_sound(api: Api) -> None:
    url = f"sqlite:///{api.database}"
    assert ledger.faults(url) == []
    assert disagreements(url, api.world.cloud) == []


# --- granted without enough resources


def test_two_leases_of_instances_never_overbook_a_host(api: Api):
    """The fault: a reservation counted once for each host, however many instances it had there."""
    first, second = book(api, instances(12, vcpus=2)), book(api, instances(4, vcpus=2))
    assert is_refused(api, instances(3, vcpus=2))
    assert_sound(api)
    api.world.pass_time(HOUR)
    for lease, count in ((first, 12), (second, 4)):
        for _ in range(count):
            api.world.cloud.world.instances.boot("demo-project", lease["reservations"][0]["id"])


def test_reservations_of_a_lease_never_share_room(api: Api):
    """Each of them alone would fit."""
    everything = instances(4, vcpus=VCPUS)
    assert is_refused(api, everything, everything)
    assert is_refused(api, everything, HOSTS)
    assert is_refused(api, everything, FLAVORS)
    assert is_refused(api, {**ADDRESSES, "amount": 2}, ADDRESSES)
    assert api.get("/v1/leases").json["leases"] == []
    book(api, everything)
    assert_sound(api)


def test_instances_of_a_flavor_and_of_a_size_are_counted_together(api: Api):
    book(api, instances(4, vcpus=VCPUS - 2))
    book(api, {**FLAVORS, "flavor_id": "3", "amount": 4})
    assert is_refused(api, FLAVORS)
    assert is_refused(api, instances(1))
    assert_sound(api)


def test_hosts_that_are_down_are_not_booked(api: Api):
    for host in ("1", "2", "3"):
        api.world.cloud.world.mark_host(host, HostHealth.DOWN)
    api.world.service.health_check.run()
    assert is_refused(api, {**HOSTS, "min": 2, "max": 2})
    assert is_refused(api, instances(2, vcpus=VCPUS))
    book(api, instances(1, vcpus=VCPUS))


def test_changes_of_registered_hosts_are_detected(api: Api):
    """The fault: the inventory and traits of a host stayed as they were at its registration."""
    assert is_refused(api, instances(5, vcpus=VCPUS))
    assert ask(api, {**FLAVORS, "flavor_id": "5"}).status_code == 201
    api.world.cloud.world.change_host("1", facts={"vcpus": 2 * VCPUS})
    api.world.cloud.world.change_host("4", traits=["COMPUTE_NODE"])
    api.world.service.refresh.run()
    book(api, instances(5, vcpus=VCPUS), start=3)
    assert is_refused(api, {**FLAVORS, "flavor_id": "5"}, start=5)


# --- refused in spite of enough resources


def test_lease_can_begin_when_another_ends(api: Api):
    everything = [instances(4, vcpus=VCPUS), {**ADDRESSES, "amount": 2}]
    for start in (2, 1, 3):
        book(api, *everything, start=start)
    book(api, {**HOSTS, "min": 4, "max": 4}, start=4)
    book(api, {**FLAVORS, "flavor_id": "3", "amount": 16}, start=5)
    assert_sound(api)


def test_busy_hours_beside_the_period_do_not_count(api: Api):
    book(api, instances(4, vcpus=VCPUS), start=1)
    book(api, instances(4, vcpus=VCPUS), start=3)
    book(api, instances(4, vcpus=VCPUS), start=2)


def test_peaks_at_different_times_are_not_added_up(api: Api):
    half = instances(4, vcpus=VCPUS // 2)
    for start in (1, 2, 3):
        book(api, half, start=start)
    book(api, half, start=1, hours=3)
    assert is_refused(api, instances(1), start=1, hours=3)


def test_all_15_free_slots_can_be_booked(api: Api):
    """The fault: a host counted as used by the whole amount of each lease with an instance there."""
    slot = {**FLAVORS, "flavor_id": "3"}
    book(api, slot)
    for _ in range(3):
        book(api, {**slot, "amount": 5})
    assert is_refused(api, slot)
    assert_sound(api)


def test_flavor_can_be_reserved_beside_instances(api: Api):
    """The fault: every later request was answered with an error."""
    book(api, instances())
    book(api, FLAVORS)
    book(api, HOSTS, start=1)
    lease = book(api, instances(), FLAVORS, ADDRESSES)
    api.world.pass_time(HOUR)
    assert shown(api, lease)["status"] == "ACTIVE"
    assert_sound(api)


def test_host_with_a_reservation_of_a_flavor_can_be_changed(api: Api):
    running(api, {**FLAVORS, "amount": 4, "affinity": False})
    properties = {"rack": "r1"} if api.version == "1.0" else {"properties": {"rack": "r1"}}
    for host in "1", "2", "3", "4":
        answer = api.using("admin").put(f"/v1/os-hosts/{host}", properties)
        assert answer.status_code == 200, answer.text


def test_reservation_of_a_flavor_can_have_affinity(api: Api):
    lease = book(api, {**FLAVORS, "amount": 4, "affinity": False})
    assert is_refused(api, {**FLAVORS, "amount": 5, "affinity": False})
    assert is_refused(api, {**FLAVORS, "flavor_id": "3", "amount": 4, "affinity": True})
    together = book(api, {**FLAVORS, "flavor_id": "3", "amount": 3, "affinity": True})
    api.world.pass_time(HOUR)
    units = api.world.cloud.world.instances.units
    assert sorted(units(lease["reservations"][0]["id"]).values()) == [1, 1, 1, 1]
    assert list(units(together["reservations"][0]["id"]).values()) == [3]


def test_amount_of_a_flavor_can_be_changed(api: Api):
    lease = running(api, FLAVORS)
    answer = change(api, lease, {"amount": 5})
    assert answer.status_code == 200, answer.text
    assert sum(api.world.cloud.world.instances.units(lease["reservations"][0]["id"]).values()) == 5
    assert_sound(api)


def test_flavor_without_a_disk_uses_no_disk_and_keeps_its_swap(api: Api):
    """Servers of a flavor whose disk is 0 boot from volumes."""
    world = api.world.cloud.world.instances
    world.add_flavor("volumes", vcpus=1, ram=512, disk=0, swap=2048)
    for _ in range(3):
        book(api, instances(4, vcpus=1, disk_gb=319, affinity=False))  # 957 of 960 or more gigabytes
    book(api, {**FLAVORS, "flavor_id": "volumes", "amount": 1, "affinity": True}, start=1)
    lease = running(api, {**FLAVORS, "flavor_id": "volumes"})
    flavor = world.flavors()[lease["reservations"][0]["id"]]
    assert (flavor.disk, flavor.swap) == (0, 2048)


# --- requests that were never answered, or did damage


@pytest.mark.parametrize(
    "nothing",
    [
        {"vcpus": 0},
        {"memory_mb": 0},
        {"vcpus": 0, "memory_mb": 0, "disk_gb": 0},
        {"amount": 0},
        {"vcpus": -1},
        {"disk_gb": -1},
        {"amount": -1},
    ],
)
def test_instances_of_size_zero_are_refused(api: Api, nothing: dict[str, int]):
    assert ask(api, instances(**nothing)).status_code == 400
    lease = book(api, instances())
    assert change(api, lease, nothing).status_code == 400
    assert shown(api, lease) == lease


def test_flavor_without_any_size_is_refused(api: Api):
    none = {f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
    api.world.cloud.world.instances.add_flavor("nothing", vcpus=1, disk=0, extra_specs=none)
    answer = ask(api, {**FLAVORS, "flavor_id": "nothing"})
    assert (answer.status_code, "asks for nothing" in answer.text) == (400, True)


def assert_refused(api: Api, answer: testing.Result, field: str, name: str, *, at_1_0: int = 400) -> None:
    """Check the name and the field of the error; at 1.0 only the status."""
    if api.version == "1.0":
        assert answer.status_code == at_1_0, answer.text
    else:
        found = answer.status_code, answer.json["error_name"], answer.json.get("field")
        assert found == (409 if name == "InvalidState" else 400, name, field), answer.text


@pytest.mark.parametrize(
    ("wrong", "field", "name"),
    [
        ({"reservations": "none"}, "reservations", "InvalidParameter"),
        ({"reservations": [{}]}, "reservations[0].id", "MissingParameter"),
        ({"reservations": [{"id": "nothing", "amount": 2}]}, "reservations[0].id", "InvalidParameter"),
        ({"end_date": "yesterday"}, "end_date", "InvalidParameter"),
        ({"end_date": datetime(1999, 1, 1, tzinfo=UTC)}, "end_date", "InvalidParameter"),
        ({"before_end_date": datetime(2999, 1, 1, tzinfo=UTC)}, "before_end_date", "InvalidParameter"),
    ],
)
def test_running_lease_survives_a_wrong_request(api: Api, wrong: dict[str, Any], field: str, name: str):
    lease = running(api, HOSTS, instances(), FLAVORS, ADDRESSES)
    before = shown(api, lease)
    body = {key: date(api, value) if isinstance(value, datetime) else value for key, value in wrong.items()}
    at_1_0 = 403 if field == "before_end_date" else 400  # as Blazar
    assert_refused(api, api.put(f"/v1/leases/{lease['id']}", body), field, name, at_1_0=at_1_0)
    assert shown(api, lease) == before
    assert_sound(api)


def date(api: Api, moment: datetime) -> str:
    return minutes(moment) if api.version == "1.0" else rfc3339(moment)


@pytest.mark.parametrize(
    ("changes", "field", "name"),
    [
        ([{"min": 0, "max": -1}], "min", "InvalidParameter"),
        ([{}, {"amount": "many"}], "amount", "InvalidParameter"),
        ([{}, {"vcpus": 4}], "vcpus", "InvalidState"),
        ([{}, {"amount": 1, "affinity": True}], "affinity", "InvalidState"),
        ([{}, {}, {"flavor_id": "no such flavor"}], "flavor_id", "InvalidParameter"),
        ([{}, {}, {"amount": 1}], "amount", "InvalidState"),
        ([{}, {}, {}, {"amount": 0}], "amount", "InvalidParameter"),
        ([{}, {}, {}, {"network_id": "no such network"}], "network_id", "InvalidParameter"),
        ([{}, {}, {}, {"required_floatingips": ["203.0.113.99"]}], "required_floatingips", "InvalidParameter"),
    ],
)
def test_running_lease_survives_a_wrong_change_of_a_reservation(
    api: Api, changes: list[dict[str, Any]], field: str, name: str
):
    lease = running(api, HOSTS, instances(2), {**FLAVORS, "amount": 2}, ADDRESSES)
    before = shown(api, lease)
    assert_refused(api, change(api, lease, *changes), f"reservations[0].{field}", name)
    assert shown(api, lease) == before
    assert_sound(api)


def test_refused_change_changes_no_reservation(api: Api):
    """The fault: the changes before the refused one stayed."""
    lease = running(api, HOSTS, instances(2), {**FLAVORS, "amount": 2}, ADDRESSES)
    before = shown(api, lease)
    changes = [{"min": 2, "max": 2}, {"amount": 3}, {"amount": 3}, {"amount": 3}]  # there are only two addresses
    later = date(api, api.now + 7 * HOUR)
    answer = change(api, lease, *changes, name="renamed", end_date=later)
    assert (answer.status_code, "Not enough floating IPs" in answer.text) == (
        400 if api.version == "1.0" else 409,
        True,
    )
    assert shown(api, lease) == before
    assert_sound(api)
    changes[-1] = {"amount": 2}
    answer = change(api, lease, *changes, name="renamed", end_date=later)
    assert answer.status_code == 200, answer.text
    assert_sound(api)


def test_change_that_the_cloud_refuses_is_undone(api: Api):
    lease = running(api, HOSTS, instances(2), ADDRESSES)
    before = shown(api, lease)
    last = lease["reservations"][2]["id"]
    api.world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reservation_id=last, count=1))
    assert change(api, lease, {"min": 2, "max": 2}, {"amount": 3}, {"amount": 2}).status_code == 409
    api.world.engine.settle()
    after = shown(api, lease)
    for document in (before, after):
        for field in ("updated_at", "status_reason", "events"):
            document.pop(field, None)
        for reservation in document["reservations"]:
            reservation.pop("updated_at")
    assert after == before
    assert_sound(api)


# --- started and ended


@pytest.mark.parametrize("kind", [FaultKind.BUSY, FaultKind.LOST_REPLY])
def test_lease_survives_a_single_error_of_the_cloud(api: Api, kind: FaultKind):
    lease = book(api, HOSTS, instances(), FLAVORS, ADDRESSES)
    for reservation in lease["reservations"]:
        api.world.cloud.inject(Fault(kind, verb="ensure_started", reservation_id=reservation["id"], count=1))
        api.world.cloud.inject(Fault(kind, verb="ensure_ended", reservation_id=reservation["id"], count=1))
    api.world.pass_time(HOUR + timedelta(minutes=5))
    assert shown(api, lease)["status"] == "ACTIVE"
    assert_sound(api)
    api.world.pass_time(2 * HOUR)
    assert shown(api, lease)["status"] == "TERMINATED"
    assert_sound(api)


def test_reservation_that_does_not_end_does_not_delay_the_others(api: Api):
    lease = running(api, HOSTS, instances(), ADDRESSES, hours=1)
    first = lease["reservations"][0]["id"]
    api.world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=first, count=None))
    api.world.pass_time(HOUR + timedelta(minutes=2))
    assert api.world.cloud.world.instances.inventories() == {}
    assert api.world.cloud.world.addresses.floating_ips() == {}
    assert shown(api, lease)["status"] == "TERMINATING"
    api.world.cloud.clear_faults()
    api.world.pass_time(HOUR)
    assert shown(api, lease)["status"] == "TERMINATED"
    assert api.world.cloud.world.groups() == {}
    assert_sound(api)


def test_failed_start_of_a_reservation_undoes_the_others(api: Api):
    lease = book(api, HOSTS, instances(), ADDRESSES)
    last = lease["reservations"][2]["id"]
    api.world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reservation_id=last, count=None))
    api.world.pass_time(HOUR)
    assert shown(api, lease)["status"] == "ERROR"
    assert api.world.cloud.world.groups() == {}
    assert_sound(api)
    api.world.cloud.clear_faults()
    book(api, {**HOSTS, "min": 4, "max": 4}, start=0.5)


def test_cloud_has_no_flavors_and_aggregates_before_the_start(api: Api):
    """Only the server group is created with the lease, as clients need its id."""
    lease = book(api, instances(2, affinity=False), FLAVORS, HOSTS, ADDRESSES, start=24 * 90)
    for reservation in lease["reservations"]:
        assert api.world.cloud.world.instances.traces(reservation["id"]) <= {"server group"}
    assert api.world.cloud.world.addresses.floating_ips() == {}
    assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    api.world.engine.settle()
    api.world.service.reconciler.run()
    assert api.world.cloud.world.instances.server_groups() == {}


def test_servers_are_deleted_after_their_images_are_saved(api: Api):
    lease = running(api, {**HOSTS, "before_end": "snapshot"}, hours=2)
    server = api.world.cloud.world.boot_server("demo-project", reservation_id=lease["reservations"][0]["id"])
    api.world.pass_time(3 * HOUR)
    kinds = [effect.kind for effect in api.world.cloud.world.journal(lease["reservations"][0]["id"])]
    assert kinds.index(EffectKind.IMAGE_MADE) < kinds.index(EffectKind.SERVER_DELETED)
    assert [(image.server_id, image.status.value) for image in api.world.cloud.world.images()] == [(server, "active")]


def test_trust_of_the_owner_is_deleted_with_the_lease(api: Api):
    lease = running(api, instances(2, affinity=True))
    assert len(api.world.cloud.world.trusts()) == 1
    assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    api.world.pass_time(HOUR)
    api.world.service.reconciler.run()
    assert api.world.cloud.world.trusts() == frozenset()


def test_reservation_of_a_running_lease_can_be_dropped(api: Api):
    """This needs version 1.1 or later."""
    lease = running(api, HOSTS, instances(), ADDRESSES)
    latest = api.using(version="1.2")
    for reservation in lease["reservations"][:2]:
        answer = latest.delete(f"/v1/leases/{lease['id']}/reservations/{reservation['id']}")
        assert answer.status_code == 204, answer.text
        assert_sound(api)
    assert shown(latest, lease)["status"] == "ACTIVE"
    assert len(api.world.cloud.world.addresses.floating_ips()) == 1
    book(api, {**HOSTS, "min": 4, "max": 4}, start=0.5)


# --- access


@pytest.mark.parametrize("method", ["get", "put", "delete"])
def test_leases_of_other_projects_are_not_accessible(api: Api, method: str):
    lease = book(api, HOSTS, instances(), ADDRESSES)
    stranger = api.using("other")
    body = [{"name": "mine"}] if method == "put" else []
    answer = getattr(stranger, method)(f"/v1/leases/{lease['id']}", *body)
    assert answer.status_code == 404, answer.text
    assert stranger.get("/v1/leases").json["leases"] == []
    assert shown(api, lease) == lease
