"""Mixtures of all types, booked, changed, added to, robbed of reservations, started and deleted, against counting.

Never is more promised than there is, and never is refused what there is room for as things are: that is counted here
hour by hour and class by class, from the rows of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from tenure.domain.errors import InvalidParameter, InvalidState, NotEnoughResources, TenureError
from tenure.domain.lease import Lease, LeaseStatus, Reservation, ReservationStatus
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.openstack.pci_aliases import read_aliases
from tenure.store.tables import AllocationRow, ResourceRow
from tests.support import ledger
from tests.support.agreement import disagreements
from tests.support.world import ADMIN, HOST, OWNER, World, open_world

HOUR = timedelta(hours=1)
INSTANCE, FLAVOR, ADDRESS = "virtual:instance", "flavor:instance", "virtual:floatingip"
#: What an instance of each flavor takes, and what its host must be.
FLAVORS: dict[str, dict[str, int]] = {
    "plain": {"VCPU": 3, "MEMORY_MB": 2048, "DISK_GB": 10},
    "thick": {"VCPU": 1, "MEMORY_MB": 10240, "DISK_GB": 10},
    "device": {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1, "CUSTOM_DEVICE": 1},
}
TRAIT = "CUSTOM_ODD"
ADDRESSES = ("203.0.113.10", "203.0.113.11", "203.0.113.12")
#: The hours from now in which something is booked.
HORIZON = 6


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three hosts of eight VCPUs and 16 GiB; one has devices with a trait, on two cards. Three addresses."""
    aliases = read_aliases(['{"name": "device", "resource_class": "device", "traits": "odd"}'])
    with open_world(tmp_path, hosts=3, pci_aliases=aliases) as world:
        for host in ("1", "2", "3"):
            sizes = {"vcpus": 8, "memory_mb": 16384, "local_gb": 100}
            world.cloud.world.change_host(host, facts=sizes, traits=["COMPUTE_NODE"], inventory={})
        for card, devices in (("card-1", 1), ("card-2", 2)):
            world.cloud.world.add_provider("3", card, {"CUSTOM_DEVICE": {"total": devices}}, [TRAIT])
        world.service.refresh.run()
        for name, sizes in FLAVORS.items():
            specs = {"pci_passthrough:alias": "device:1"} if name == "device" else {}
            world.cloud.world.instances.add_flavor(
                name, vcpus=sizes["VCPU"], ram=sizes["MEMORY_MB"], disk=sizes["DISK_GB"], extra_specs=specs
            )
        for address in ADDRESSES:
            world.resources.register(ADMIN, ADDRESS, f"{world.cloud.world.addresses.public}/{address}", {})
        yield world


@dataclass(frozen=True)
class Asked:
    """The parameters of a reservation: the amount, the size or flavor, and the affinity."""

    resource_type: str
    amount: int
    #: How many processors, or which flavor.
    kind: Any = None
    affinity: bool | None = None

    def request(self, world: World) -> ReservationRequest:
        more: dict[str, object] = {"amount": self.amount, "affinity": self.affinity}
        if self.resource_type == HOST:
            more = {"min": self.amount, "max": self.amount, "hypervisor_properties": "", "before_end": ""}
        elif self.resource_type == INSTANCE:
            more |= {"vcpus": self.kind, "memory_mb": 1024, "disk_gb": 1}
        elif self.resource_type == FLAVOR:
            return ReservationRequest(FLAVOR, {**more, "flavor_id": self.kind})
        else:
            network = world.cloud.world.addresses.public
            return ReservationRequest(
                ADDRESS, {"amount": self.amount, "network_id": network, "required_floatingips": []}
            )
        return ReservationRequest(self.resource_type, {**more, "resource_properties": ""})


affinities = st.sampled_from([None, None, True, False])
asked = st.one_of(
    st.builds(Asked, st.just(HOST), st.integers(1, 2)),
    st.builds(Asked, st.just(INSTANCE), st.integers(1, 5), st.sampled_from([1, 2, 3, 5, 8]), affinities),
    st.builds(Asked, st.just(FLAVOR), st.integers(1, 3), st.sampled_from(sorted(FLAVORS)), affinities),
    st.builds(Asked, st.just(ADDRESS), st.integers(1, 2)),
)
periods = st.lists(st.integers(1, HORIZON), min_size=2, max_size=2, unique=True).map(sorted)
leases = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("book"), st.lists(asked, min_size=1, max_size=1), periods),
    st.tuples(st.just("book"), st.lists(asked, min_size=1, max_size=1), periods),
    st.tuples(st.just("book"), st.lists(asked, min_size=2, max_size=3), periods),
    st.tuples(st.just("resize"), leases, st.integers(1, 6)),
    st.tuples(st.just("move"), leases, periods),
    st.tuples(st.just("add"), leases, asked),
    st.tuples(st.just("drop"), leases, leases),
    st.tuples(st.just("delete"), leases),
    st.tuples(st.just("pass"), st.integers(1, 2)),
)


@pytest.mark.slow
@settings(
    max_examples=max(20, settings().max_examples // 5),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(steps, min_size=3, max_size=12))
def test_mixed_types_are_never_overbooked_nor_refused_with_room(world: World, done: list[Any]):
    booked: list[str] = []
    for step, *what in done:
        if step == "book":
            booked += book(world, *what)
        elif step == "pass":
            world.pass_time(what[0] * HOUR)
            assert disagreements(str(world.db.engine.url), world.cloud) == []
        elif booked:
            CHANGES[step](world, world.leases.get(OWNER, booked[what[0] % len(booked)]), *what[1:])
            if step == "delete":
                del booked[what[0] % len(booked)]
        assert ledger.faults(str(world.db.engine.url), now=world.clock.now()) == []
    for lease_id in booked:
        world.leases.delete(OWNER, lease_id)
    world.engine.settle()
    world.service.reconciler.run()
    assert disagreements(str(world.db.engine.url), world.cloud) == []
    assert world.cloud.world.instances.server_groups() == {}


def refusal_of(operation: Callable[[], object]) -> TenureError | None:
    """Return the reason of a refusal: lack of resources, or the lease's state."""
    try:
        operation()
    except (NotEnoughResources, InvalidState, InvalidParameter) as refusal:
        return refusal
    return None


def book(world: World, requested: list[Asked], period: list[int]) -> list[str]:
    begin, end = (world.clock.now() + hour * HOUR for hour in period)
    fits = len(requested) == 1 and has_room(world, requested[0], begin, end)
    request = LeaseRequest("mixed", begin, end, reservations=tuple(kind.request(world) for kind in requested))
    lease_id = str(uuid4())
    refusal = refusal_of(lambda: world.leases.create(OWNER, request, lease_id=lease_id))
    assert refusal is None or not fits, f"{requested} was refused: {refusal}"
    return [] if refusal else [lease_id]


def resize(world: World, lease: Lease, amount: int) -> None:
    live = [reservation for reservation in lease.reservations if reservation.status is not ReservationStatus.DELETED]
    if not live:
        return
    reservation = live[0]
    named = {"min": amount, "max": amount} if reservation.resource_type == HOST else {"amount": amount}
    change(world, lease, LeaseChange(reservations=(ReservationChange(reservation.id, named),)), reservation, amount)


def move(world: World, lease: Lease, period: list[int]) -> None:
    begin, end = (world.clock.now() + hour * HOUR for hour in period)
    live = [reservation for reservation in lease.reservations if reservation.status is not ReservationStatus.DELETED]
    alone = live[0] if len(live) == 1 else None
    change(world, lease, LeaseChange(starts_at=begin, ends_at=end), alone, None, begin, end)


def change(
    world: World,
    lease: Lease,
    asked_for: LeaseChange,
    reservation: Reservation | None,
    amount: int | None,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> None:
    """Change a lease; a change of a plan may be refused only if there is no room without the lease's own plan."""
    fits = (
        reservation is not None
        and lease.status is LeaseStatus.PENDING
        and has_room(
            world, described(reservation, amount), begin or lease.starts_at, end or lease.ends_at, but=reservation.id
        )
    )
    before = {reservation.id: reservation.parameters for reservation in lease.reservations}
    refusal = refusal_of(lambda: world.leases.update(OWNER, lease.id, asked_for))
    if refusal is not None:
        assert not fits, f"{asked_for} of {lease.reservations} was refused: {refusal}"
        assert {
            reservation.id: reservation.parameters for reservation in world.leases.get(OWNER, lease.id).reservations
        } == before
    world.engine.settle()


def add(world: World, lease: Lease, requested: Asked) -> None:
    fits = lease.status is LeaseStatus.PENDING and has_room(world, requested, lease.starts_at, lease.ends_at)
    refusal = refusal_of(lambda: world.leases.add_reservation(OWNER, lease.id, requested.request(world)))
    assert refusal is None or not fits, f"{requested} was refused: {refusal}"
    world.engine.settle()


def drop(world: World, lease: Lease, number: int) -> None:
    reservation = lease.reservations[number % len(lease.reservations)]
    if lease.status in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}:
        world.leases.drop_reservation(OWNER, lease.id, reservation.id)
    world.engine.settle()


def delete(world: World, lease: Lease) -> None:
    world.leases.delete(OWNER, lease.id)
    world.engine.settle()


CHANGES: Mapping[str, Callable[..., None]] = {
    "resize": resize,
    "move": move,
    "add": add,
    "drop": drop,
    "delete": delete,
}


def described(reservation: Reservation, amount: int | None) -> Asked:
    parameters: Mapping[str, Any] = reservation.parameters
    count = amount or parameters.get("min", parameters.get("amount"))
    kind = parameters.get("flavor_id") if reservation.resource_type == FLAVOR else parameters.get("vcpus")
    return Asked(reservation.resource_type, int(str(count)), kind, parameters.get("affinity"))


def has_room(world: World, requested: Asked, begin: datetime, end: datetime, *, but: str | None = None) -> bool:
    """Whether there is room without moving any plan, counted hour by hour, without what ``but`` has."""
    inventory = ADDRESS if requested.resource_type == ADDRESS else HOST
    with world.db.read() as tx:
        uses = tx.session.execute(
            select(
                AllocationRow.resource_id,
                AllocationRow.starts_at,
                AllocationRow.ends_at,
                AllocationRow.amounts,
                AllocationRow.exclusive,
            ).where(AllocationRow.reservation_id != (but or ""))
        ).all()
        resources = tx.session.execute(
            select(ResourceRow.id, ResourceRow.capacity, ResourceRow.traits).where(
                ResourceRow.resource_type == inventory
            )
        ).all()
    sizes: dict[str, int] = {"WHOLE": 1}
    if requested.resource_type == INSTANCE:
        sizes = {"VCPU": requested.kind, "MEMORY_MB": 1024, "DISK_GB": 1}
    elif requested.resource_type == FLAVOR:
        sizes = FLAVORS[requested.kind]
    rooms = []
    for resource in resources:
        if requested.kind == "device" and TRAIT not in resource.traits:
            continue
        moments = [begin + step * HOUR for step in range(round((end - begin) / HOUR))]
        rooms.append(min(_units_at(resource, uses, moment, sizes) for moment in moments))
    if requested.resource_type in {HOST, ADDRESS} or requested.affinity is False:
        return sum(map(bool, rooms)) >= requested.amount
    return (max(rooms, default=0) if requested.affinity else sum(rooms)) >= requested.amount


def _units_at(resource: Any, uses: Any, moment: datetime, sizes: Mapping[str, int]) -> int:
    """Return for how many units the resource has room in the hour from that moment on."""
    there = [
        use for use in uses if use.resource_id == resource.id and use.starts_at < moment + HOUR and use.ends_at > moment
    ]
    if any(use.exclusive for use in there):
        return 0
    if "WHOLE" in sizes:
        return 0 if there else 1
    left = {name: resource.capacity.get(name, 0) - sum(use.amounts.get(name, 0) for use in there) for name in sizes}
    return max(0, min(left[name] // size for name, size in sizes.items()))
