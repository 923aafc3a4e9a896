"""Reservations as commands for a driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from tenure.domain.lease import AllocationState, EventStatus, EventType, Lease, Reservation, ReservationStatus
from tenure.domain.period import Period
from tenure.domain.resource import Resource
from tenure.drivers.contract import Command, ResourceRef
from tenure.services.boots import boots_of
from tenure.services.events.before_end import given_up_reservations
from tenure.store.database import Transaction


def commands_of(
    tx: Transaction, leases: Sequence[Lease], *, pinned_only: bool, without: Collection[int] = ()
) -> Iterator[Command]:
    """Yield the commands of the leases' reservations, but for the allocations in ``without``; uses two statements.

    A third one reads the requests of servers that are to be made, if there are any.

    With ``pinned_only``, reservations without pinned allocations and without created cloud resources are left out.
    """
    reservation_ids = [reservation.id for lease in leases for reservation in lease.reservations]
    allocations = tx.allocations.of_reservations(reservation_ids, planned=False)
    resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
    pinned: dict[str, dict[int, ResourceRef]] = {}
    former: dict[str, dict[int, ResourceRef]] = {}
    units: Counter[tuple[str, str]] = Counter()
    for allocation in allocations:
        is_pinned = allocation.state is AllocationState.HELD and allocation.id not in without
        refs = (pinned if is_pinned else former).setdefault(allocation.reservation_id, {})
        refs[allocation.resource_id] = _ref(resources[allocation.resource_id])
        if is_pinned:
            units[allocation.reservation_id, refs[allocation.resource_id].external_id] += allocation.units
    boots = boots_of(tx, leases)
    for lease in leases:
        for reservation in lease.reservations:
            if reservation.status is not ReservationStatus.DELETED and (
                reservation.id in pinned or _has_cloud_resources(reservation) or not pinned_only
            ):
                own = pinned.get(reservation.id, {})
                returning = [
                    ref for resource_id, ref in former.get(reservation.id, {}).items() if resource_id not in own
                ]
                counts = {ref.external_id: units[reservation.id, ref.external_id] for ref in own.values()}
                command = _command(lease, reservation, own.values(), returning, counts)
                yield replace(command, boot=boots.get(reservation.id))


def planned_commands(tx: Transaction, lease: Lease) -> Iterator[Command]:
    """Yield the commands of a lease that waits for its start, with its planned resources."""
    allocations = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
    resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
    for reservation in lease.reservations:
        plans = [
            plan
            for plan in allocations
            if plan.reservation_id == reservation.id and plan.state is AllocationState.PLANNED
        ]
        units: Counter[str] = Counter()
        for plan in plans:
            units[resources[plan.resource_id].external_id] += plan.units
        refs = {plan.resource_id: _ref(resources[plan.resource_id]) for plan in plans}
        yield _command(lease, reservation, refs.values(), (), units)


def leftover_commands(tx: Transaction, reservation_ids: Collection[str]) -> Iterator[Command]:
    """Yield the commands to take back ended reservations; unknown reservations are left out."""
    reservations = tx.leases.reservations_by_ids(reservation_ids)
    lease_ids = {reservation.lease_id for reservation in reservations.values()}
    leases = {lease.id: lease for lease in tx.leases.by_ids(lease_ids, deleted=True)}
    spared = frozenset[str]().union(*(given_up_reservations(tx, lease) for lease in leases.values()))
    had: dict[str, set[int]] = {}
    for allocation in tx.allocations.of_reservations(reservations):
        had.setdefault(allocation.reservation_id, set()).add(allocation.resource_id)
    resources = tx.resources.by_ids(resource_id for resource_ids in had.values() for resource_id in resource_ids)
    for reservation_id, reservation in sorted(reservations.items()):
        refs = [_ref(resources[resource_id]) for resource_id in sorted(had.get(reservation_id, ()))]
        command = _command(leases[reservation.lease_id], reservation, (), refs, {})
        yield replace(command, is_over=True, spared=command.spared or reservation_id in spared)


def kept_commands(tx: Transaction, reservation_ids: Collection[str]) -> Iterator[Command]:
    """Yield the commands of ended reservations, to ask a driver what is kept of them."""
    reservations = tx.leases.reservations_by_ids(reservation_ids)
    leases = {
        lease.id: lease
        for lease in tx.leases.by_ids({reservation.lease_id for reservation in reservations.values()}, deleted=True)
    }
    for reservation_id in sorted(reservations):
        reservation = reservations[reservation_id]
        yield _command(leases[reservation.lease_id], reservation, (), (), {})


def _has_cloud_resources(reservation: Reservation) -> bool:
    """Whether something with an id of its own was created in the cloud for the reservation."""
    return any(made not in (None, [], reservation.id) for made in reservation.effects.values())


def _ref(resource: Resource) -> ResourceRef:
    return ResourceRef(resource.external_id, resource.name, resource.region)


def _command(
    lease: Lease,
    reservation: Reservation,
    resources: Iterable[ResourceRef],
    returning: Iterable[ResourceRef],
    units: Mapping[str, int],
) -> Command:
    return Command(
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
        provisional=_provisional_period(lease),
        spared=_has_failed_to_start(lease),
    )


def _has_failed_to_start(lease: Lease) -> bool:
    start = lease.event(EventType.START)
    return start is not None and start.status is EventStatus.ERROR


def _provisional_period(lease: Lease) -> Period | None:
    """Return the period in which the lease waited for its confirmation; None if it was confirmed, or need not be."""
    event = lease.event(EventType.HOLD)
    return (
        None if event is None else Period(lease.created_at, max(event.due_at, lease.created_at + timedelta(seconds=1)))
    )
