"""What leases hold, as a driver sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from tenure.domain.lease import AllocationState, EventStatus, EventType, Lease, Reservation, ReservationStatus
from tenure.domain.period import Period
from tenure.domain.resource import Resource
from tenure.drivers.contract import Order, ResourceRef
from tenure.services.before_end import given_up
from tenure.store.database import Transaction


def orders_of(
    tx: Transaction, leases: Sequence[Lease], *, held_only: bool, without: Collection[int] = ()
) -> Iterator[Order]:
    """What the leases hold now, but for the allocations in ``without``: two statements, however many there are.

    With ``held_only`` without reservations that hold nothing, and for which nothing was made.
    """
    reservation_ids = [reservation.id for lease in leases for reservation in lease.reservations]
    allocations = tx.allocations.of_reservations(reservation_ids, planned=False)
    resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
    held: dict[str, dict[int, ResourceRef]] = {}
    former: dict[str, dict[int, ResourceRef]] = {}
    units: Counter[tuple[str, str]] = Counter()
    for allocation in allocations:
        has_it = allocation.state is AllocationState.HELD and allocation.id not in without
        refs = (held if has_it else former).setdefault(allocation.reservation_id, {})
        refs[allocation.resource_id] = _ref(resources[allocation.resource_id])
        if has_it:
            units[allocation.reservation_id, refs[allocation.resource_id].external_id] += allocation.units
    for lease in leases:
        for one in lease.reservations:
            if one.status is not ReservationStatus.DELETED and (one.id in held or _is_made(one) or not held_only):
                own = held.get(one.id, {})
                returning = [ref for number, ref in former.get(one.id, {}).items() if number not in own]
                counts = {ref.external_id: units[one.id, ref.external_id] for ref in own.values()}
                yield _order(lease, one, own.values(), returning, counts)


def planned_orders(tx: Transaction, lease: Lease) -> Iterator[Order]:
    """What a lease that waits for its start is planned to have."""
    allocations = tx.allocations.of_reservations([one.id for one in lease.reservations])
    resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
    for one in lease.reservations:
        plans = [
            plan for plan in allocations if plan.reservation_id == one.id and plan.state is AllocationState.PLANNED
        ]
        units: Counter[str] = Counter()
        for plan in plans:
            units[resources[plan.resource_id].external_id] += plan.units
        refs = {plan.resource_id: _ref(resources[plan.resource_id]) for plan in plans}
        yield _order(lease, one, refs.values(), (), units)


def leftover_orders(tx: Transaction, reservation_ids: Collection[str]) -> Iterator[Order]:
    """Reservations that are over, as a driver takes them back; unknown ones are left out."""
    reservations = tx.leases.reservations_by_ids(reservation_ids)
    lease_ids = {reservation.lease_id for reservation in reservations.values()}
    leases = {lease.id: lease for lease in tx.leases.by_ids(lease_ids, deleted=True)}
    spared = frozenset[str]().union(*(given_up(tx, lease) for lease in leases.values()))
    had: dict[str, set[int]] = {}
    for allocation in tx.allocations.of_reservations(reservations):
        had.setdefault(allocation.reservation_id, set()).add(allocation.resource_id)
    resources = tx.resources.by_ids(resource_id for resource_ids in had.values() for resource_id in resource_ids)
    for reservation_id, reservation in sorted(reservations.items()):
        refs = [_ref(resources[resource_id]) for resource_id in sorted(had.get(reservation_id, ()))]
        order = _order(leases[reservation.lease_id], reservation, (), refs, {})
        yield replace(order, is_over=True, spared=order.spared or reservation_id in spared)


def kept_orders(tx: Transaction, reservation_ids: Collection[str]) -> Iterator[Order]:
    """Reservations that are over, as a driver is asked what is kept of them."""
    reservations = tx.leases.reservations_by_ids(reservation_ids)
    leases = {one.id: one for one in tx.leases.by_ids({one.lease_id for one in reservations.values()}, deleted=True)}
    for number in sorted(reservations):
        yield _order(leases[reservations[number].lease_id], reservations[number], (), (), {})


def _is_made(reservation: Reservation) -> bool:
    """Whether something was made for it in the cloud that has an id of its own."""
    return any(made not in (None, [], reservation.id) for made in reservation.effects.values())


def _ref(resource: Resource) -> ResourceRef:
    return ResourceRef(resource.external_id, resource.name, resource.region)


def _order(
    lease: Lease,
    reservation: Reservation,
    resources: Iterable[ResourceRef],
    returning: Iterable[ResourceRef],
    units: Mapping[str, int],
) -> Order:
    return Order(
        reservation_id=reservation.id,
        lease_id=lease.id,
        lease_name=lease.name,
        project_id=lease.project_id,
        user_id=lease.user_id,
        resource_type=reservation.resource_type,
        parameters=reservation.parameters,
        resources=tuple(resources),
        ends_at=lease.ends_at,
        trust_id=lease.trust_id,
        returning=tuple(returning),
        units=units,
        effects=reservation.effects,
        starts_at=lease.starts_at,
        region=reservation.region,
        hold=_hold(lease),
        spared=_has_failed_to_start(lease),
    )


def _has_failed_to_start(lease: Lease) -> bool:
    start = lease.event(EventType.START)
    return start is not None and start.status is EventStatus.ERROR


def _hold(lease: Lease) -> Period | None:
    """In which time the lease waited to be confirmed; None for one that was, or never did."""
    event = lease.event(EventType.HOLD)
    return (
        None if event is None else Period(lease.created_at, max(event.due_at, lease.created_at + timedelta(seconds=1)))
    )
