"""Instances, flavors and floating IPs in the library; added reservations and own events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from conftest import BEGINNING
from tenureclient import (
    NOW,
    BadRequest,
    Client,
    Conflict,
    InvalidState,
    NeedsNewerServer,
    NotEnoughResources,
    NotFound,
    OwnEvent,
    ReservationChange,
    ReservationRequest,
    Stage,
)
from tenureclient.testing import FakeServer

DAY = timedelta(days=1)
NETWORK = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001"


def sent(server: FakeServer) -> Any:
    """The reservations of the last request that had any."""
    bodies: list[Any] = [request.body for request in server.requests]
    return next(body["reservations"] for body in reversed(bodies) if body is not None)


def book(client: Client, name: str, *reservations: ReservationRequest) -> str:
    return client.leases.create(name, start=NOW, end=BEGINNING + DAY, reservations=reservations).id


def addresses(server: FakeServer, *last: int) -> list[str]:
    return [server.add_floatingip(f"203.0.113.{number}", network_id=NETWORK).id for number in last]


def test_instances_say_what_they_are_booted_with(server: FakeServer) -> None:
    server.add_host("c1", vcpus=8)
    server.add_host("c2", vcpus=8)
    client = server.client()
    lease_id = book(client, "web", ReservationRequest.instances(2, vcpus=4, memory_mb=1024, disk_gb=5, affinity=False))
    assert sent(server) == [
        {
            "resource_type": "virtual:instance",
            "amount": 2,
            "vcpus": 4,
            "memory_mb": 1024,
            "disk_gb": 5,
            "affinity": False,
            "resource_properties": "",
        }
    ]
    [reservation] = client.leases.wait(lease_id).reservations
    assert reservation.flavor_id == reservation.id
    assert reservation.server_group_id is not None
    allocations = client.allocations.list(lease_id=lease_id)
    assert {allocation.resource_id for allocation in allocations} == {"1", "2"}
    assert client.leases.hosts(lease_id) == ()  # the owner of instances does not see their hosts


def test_hosts_of_instances_are_shared_but_not_booked_whole(server: FakeServer) -> None:
    server.add_host("c1", vcpus=8)
    client = server.client()
    four = ReservationRequest.instances(1, vcpus=4, memory_mb=1024)
    book(client, "first", four)
    book(client, "second", four)
    for wanted in (ReservationRequest.hosts(1), four):
        with pytest.raises(NotEnoughResources):
            book(client, "third", wanted)


def test_a_refusal_of_instances_says_how_many_would_fit(server: FakeServer) -> None:
    for number in range(3):
        server.add_host(f"c{number}", vcpus=8, properties={"zone": f"z{number % 2}"})
    client = server.client()
    request = ReservationRequest.instances(9, vcpus=2, memory_mb=1024, conditions=["zone=z0"])
    with pytest.raises(NotEnoughResources) as refusal:
        book(client, "web", request)
    assert refusal.value.field == "reservations[0].amount"
    assert refusal.value.shortfall is not None
    assert refusal.value.shortfall.stages == (
        Stage("reservable", 3),
        Stage("matching", 2),
        Stage("roomy", 2),
        Stage("fitting", 8),
    )


@pytest.mark.parametrize(("affinity", "most"), [(True, 4), (False, 3), (None, 12)])
def test_affinity_limits_how_many_instances_fit(server: FakeServer, affinity: bool | None, most: int) -> None:
    for number in range(3):
        server.add_host(f"c{number}", vcpus=8)
    client = server.client()

    def of(amount: int) -> ReservationRequest:
        return ReservationRequest.instances(amount, vcpus=2, memory_mb=1024, affinity=affinity)

    with pytest.raises(NotEnoughResources):
        book(client, "more", of(most + 1))
    [reservation] = client.leases.get(book(client, "most", of(most))).reservations
    assert (reservation.server_group_id is None) is (affinity is None)


def test_a_flavor_tells_its_size_and_is_replaced_by_one_of_the_reservation(server: FakeServer) -> None:
    server.add_host("c1")
    server.add_flavor("3", name="m1.medium", vcpus=2, memory_mb=4096, disk_gb=40)
    client = server.client()
    [reservation] = client.leases.get(book(client, "web", ReservationRequest.flavor("3", 2))).reservations
    assert (reservation.flavor_id, reservation.parameters["vcpus"]) == (reservation.id, 2)
    with pytest.raises(BadRequest) as refusal:
        book(client, "none", ReservationRequest.flavor("nope", 1))
    assert refusal.value.field == "reservations[0].flavor_id"


def test_address_is_booked_only_once(server: FakeServer) -> None:
    addresses(server, 20, 21, 22)
    server.add_floatingip("198.51.100.7", network_id="another")
    client = server.client()
    lease_id = book(client, "web", ReservationRequest.floatingips(NETWORK, 2, addresses=["203.0.113.22"]))
    mine = client.leases.floatingips(lease_id)
    assert len(mine) == 2
    assert "203.0.113.22" in [floatingip.floating_ip_address for floatingip in mine]
    assert {(floatingip.status, floatingip.floating_network_id) for floatingip in mine} == {("held", NETWORK)}
    for request in (
        ReservationRequest.floatingips(NETWORK, 2),
        ReservationRequest.floatingips(NETWORK, addresses=["203.0.113.22"]),
    ):
        with pytest.raises(NotEnoughResources) as refusal:
            book(client, "more", request)
        assert refusal.value.shortfall is not None
        assert refusal.value.shortfall.stages[-1] == Stage("free", 1)


def test_the_amount_of_addresses_is_that_of_the_named_ones() -> None:
    named = ReservationRequest.floatingips("net", addresses=["203.0.113.1", "203.0.113.2"])
    assert named.parameters["amount"] == 2
    assert ReservationRequest.floatingips("net").parameters["amount"] == 1


def test_a_reservation_is_added_to_a_lease(server: FakeServer) -> None:
    server.add_host("c1")
    addresses(server, 20)
    client = server.client()
    lease_id = book(client, "web", ReservationRequest.hosts(1))
    lease = client.leases.add_reservation(lease_id, ReservationRequest.floatingips(NETWORK))
    assert [reservation.resource_type for reservation in lease.reservations] == [
        "physical:host",
        "virtual:floatingip",
    ]
    assert len(client.leases.hosts(lease_id)) == 1
    with pytest.raises(NotEnoughResources) as refusal:
        client.leases.add_reservation(lease_id, ReservationRequest.floatingips(NETWORK))
    assert refusal.value.field == "amount"
    assert len(client.leases.get(lease_id).reservations) == 2
    server.advance(timedelta(hours=1))
    client.leases.drop_reservation(lease_id, lease.reservations[1].id)
    assert [floatingip.status for floatingip in client.leases.floatingips(lease_id)] == ["released"]
    client.leases.add_reservation(lease_id, ReservationRequest.floatingips(NETWORK))
    client.leases.update(lease_id, end=NOW)
    with pytest.raises(InvalidState):
        client.leases.add_reservation(lease_id, ReservationRequest.hosts(1))


def test_the_amount_can_be_changed(server: FakeServer) -> None:
    server.add_host("c1", vcpus=8)
    client = server.client()
    lease_id = book(client, "web", ReservationRequest.instances(1, vcpus=2, memory_mb=512))
    [reservation] = client.leases.get(lease_id).reservations
    client.leases.update(lease_id, reservations=[ReservationChange(reservation.id, {"amount": 4})])
    assert client.leases.get(lease_id).reservations[0].parameters["amount"] == 4
    with pytest.raises(NotEnoughResources):
        client.leases.update(lease_id, reservations=[ReservationChange(reservation.id, {"amount": 5})])


def test_the_inventory_of_addresses(server: FakeServer) -> None:
    client = server.client()
    made = client.floatingips.create(NETWORK, "203.0.113.20")
    assert (made.floating_ip_address, made.floating_network_id) == ("203.0.113.20", NETWORK)
    assert client.floatingips.find("203.0.113.20").id == made.id
    assert client.floatingips.find(made.id).enabled is True
    with pytest.raises(Conflict) as refusal:
        client.floatingips.create(NETWORK, "203.0.113.20")
    assert refusal.value.field == "floating_ip_address"
    with pytest.raises(NotFound, match=r"no floating IP '203\.0\.113\.99'"):
        client.floatingips.find("203.0.113.99")
    with pytest.raises(BadRequest, match="version 4 only"):
        server.add_floatingip("2001:db8::7", network_id=NETWORK)
    with pytest.raises(NotFound):
        client.floatingips.find("2001:db8:0:0::7")
    by_address = [request.query for request in server.requests if "floating_ip_address" in request.query]
    assert by_address[-1]["floating_ip_address"] == "2001:db8::7"
    server.add_floatingip("203.0.113.9", network_id=NETWORK)
    server.add_floatingip("198.51.100.7", network_id="another")
    assert len(list(client.floatingips.list(floating_network_id=NETWORK))) == 2
    client.floatingips.delete(client.floatingips.find("198.51.100.7").id)
    sorted_by_address = client.floatingips.list(sort_key="floating_ip_address", descending=True)
    assert [floatingip.floating_ip_address for floatingip in sorted_by_address] == [
        "203.0.113.20",
        "203.0.113.9",
    ]
    book(client, "web", ReservationRequest.floatingips(NETWORK, addresses=["203.0.113.20"]))
    with pytest.raises(Conflict, match="reserved"):
        client.floatingips.delete(made.id)
    client.floatingips.delete(client.floatingips.find("203.0.113.9").id)
    assert len(server.floatingips) == 1


def test_an_address_is_closed_emptied_and_opened(server: FakeServer) -> None:
    [first] = addresses(server, 20)
    client = server.client()
    lease_id = book(client, "web", ReservationRequest.floatingips(NETWORK))
    [second] = addresses(server, 21)
    plan = client.floatingips.disable(first, reason="listed", dry_run=True)
    assert (plan.dry_run, plan.resource.reservable, server.floatingips[first].reservable) == (
        True,
        False,
        True,
    )
    client.floatingips.disable(first, reason="listed")
    assert client.floatingips.get(first).disabled_reason == "listed"
    assert [floatingip.id for floatingip in client.floatingips.list(reservable=False)] == [first]
    [kept] = client.floatingips.reallocate(first).reservations
    assert (kept.lease_id, kept.moves_to) == (lease_id, None)
    [moved] = client.floatingips.reallocate(first, running=True).reservations
    assert moved.moves_to == second
    assert [floatingip.id for floatingip in client.leases.floatingips(lease_id)] == [second]
    assert client.floatingips.enable(first).resource.reservable


def test_an_address_that_was_asked_for_by_name_stays(server: FakeServer) -> None:
    first, _ = addresses(server, 20, 21)
    client = server.client()
    book(client, "web", ReservationRequest.floatingips(NETWORK, addresses=["203.0.113.20"]))
    [kept] = client.floatingips.reallocate(first, running=True).reservations
    assert kept.moves_to is None


def test_allocations_of_addresses(server: FakeServer) -> None:
    [first] = addresses(server, 20)
    client = server.client()
    lease_id = book(client, "web", ReservationRequest.floatingips(NETWORK))
    [second] = addresses(server, 21)
    allocations = {
        allocation.resource_id: allocation for allocation in client.allocations.list(resource_type="floatingip")
    }
    assert [reserved.lease_id for reserved in allocations[first].reservations] == [lease_id]
    assert allocations[second].reservations == ()
    of_lease = client.allocations.list(resource_type="floatingip", lease_id=lease_id)
    assert [allocation.resource_id for allocation in of_lease] == [first]
    assert client.allocations.get(second, resource_type="floatingip").reservations == ()


def own_events(server: FakeServer, lease_id: str) -> list[str]:
    return [event.message for event in server.leases[lease_id].events if event.message is not None]


def test_own_events_send_notifications(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    noon = BEGINNING + timedelta(hours=4)
    lease = client.leases.create(
        "bio",
        start=NOW,
        end=BEGINNING + DAY,
        reservations=[ReservationRequest.hosts(1)],
        events=[OwnEvent(noon, "eat")],
    )
    assert server.requests[0].version == "1.4"
    [told] = [event for event in client.leases.get(lease.id).events if event.message is not None]
    assert (told.event_type, told.time, told.message) == ("notify_lease", noon, "eat")
    client.leases.update(
        lease.id, events=[OwnEvent(noon, "eat well", told.id), OwnEvent(noon + timedelta(hours=1), "work")]
    )
    events = {event.message: event.id for event in client.leases.get(lease.id).events if event.message}
    assert events.keys() == {"eat well", "work"}
    assert events["eat well"] == told.id
    client.leases.update(lease.id, name="chem")
    assert own_events(server, lease.id) == ["eat well", "work"]
    client.leases.update(lease.id, events=[])
    assert own_events(server, lease.id) == []


def test_own_events_need_version_1_2() -> None:
    with FakeServer(versions=("1.0", "1.1")) as server:
        server.add_host("c1")
        client = server.client()
        with pytest.raises(NeedsNewerServer, match=r"came with API 1\.2"):
            client.leases.create(
                "bio",
                start=NOW,
                end=server.now + DAY,
                reservations=[ReservationRequest.hosts(1)],
                events=[OwnEvent(server.now + timedelta(hours=1), "eat")],
            )
        assert server.leases == {}


def test_a_blazar_has_addresses_and_instances_but_not_what_came_later(blazar: FakeServer) -> None:
    blazar.add_host("c1")
    blazar.add_flavor("3")
    blazar.add_network("net", "203.0.113.0/24")
    client = blazar.client()
    made = client.floatingips.create("net", "203.0.113.20")
    assert client.floatingips.find("203.0.113.20").id == made.id
    assert (made.enabled, made.health) == (None, None)
    lease_id = book(
        client,
        "web",
        ReservationRequest.instances(1, vcpus=1, memory_mb=512),
        ReservationRequest.flavor("3", 1),
        ReservationRequest.floatingips("net"),
    )
    assert ["affinity" in reservation for reservation in sent(blazar)] == [True, True, False]
    newer: list[Callable[[], object]] = [
        lambda: client.leases.floatingips(lease_id),
        lambda: client.leases.add_reservation(lease_id, ReservationRequest.floatingips("net")),
        lambda: client.floatingips.disable(made.id),
        lambda: list(client.allocations.list(resource_type="floatingip")),
        lambda: client.allocations.get(made.id, resource_type="floatingip"),
    ]
    for call in newer:
        with pytest.raises(NeedsNewerServer):
            call()
    assert len(blazar.leases[lease_id].reservations) == 3


def test_before_end_action_is_part_of_the_reservation() -> None:
    request = ReservationRequest.hosts(1)
    assert request.with_before_end("snapshot").parameters == {**request.parameters, "before_end": "snapshot"}
    assert request.with_before_end(None) == request
