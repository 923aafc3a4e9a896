"""Leases as filters, and services of the site behind them, receive them: values under the names of API 1.0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from tenure.domain.allocation import Allocation
from tenure.domain.capacity import WHOLE
from tenure.domain.lease import AllocationState, EventType, Lease, Reservation, ReservationStatus
from tenure.domain.resource import Resource
from tenure.services.notifications.notices import notification_payload
from tenure.store.database import Transaction

Values = dict[str, Any]

#: The allocations of each reservation, with their resources.
Served = Mapping[str, list[tuple[Resource, Allocation]]]
#: The names of the values that are dates, for the conversion from JSON.
_DATES = frozenset({"start_date", "end_date", "before_end_date", "time"})


def served(tx: Transaction, lease: Lease) -> Served:
    """Return the current and planned allocations of each reservation of a lease, with their resources."""
    allocations = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
    resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
    return served_by(lease, allocations, resources)


def served_by(lease: Lease, allocations: Iterable[Allocation], resources: Mapping[int, Resource]) -> Served:
    """Return those of the allocations that are current or planned, by reservation, with their resources by id.

    They are in order of resource.
    """
    found: dict[str, list[tuple[Resource, Allocation]]] = {reservation.id: [] for reservation in lease.reservations}
    for allocation in sorted(allocations, key=lambda allocation: allocation.resource_id):
        if allocation.state is not AllocationState.RELEASED:
            found[allocation.reservation_id].append((resources[allocation.resource_id], allocation))
    return found


def proposal(lease: Lease, by: Served) -> Values:
    """Return a lease that would be created: what was asked for, and the resources that would serve it."""
    notice = lease.event(EventType.BEFORE_END)
    return {
        "id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        **_dates(lease),
        **({} if notice is None else {"before_end_date": _naive(notice.due_at)}),
        "status": "CREATING",
        "reservations": [
            {
                **reservation.parameters,
                "resource_type": reservation.resource_type,
                "allocations": _allocations(by[reservation.id]),
            }
            for reservation in lease.reservations
        ],
        "resource_requests": resource_requests(by),
    }


def revision(lease: Lease, by: Served, *, without: Collection[str | None] = ()) -> Values:
    """Return a lease as it would be after a change, without the reservations that are dropped."""
    live = [reservation for reservation in _live(lease) if reservation.id not in without]
    kept = {reservation.id: by[reservation.id] for reservation in live}
    return {
        "id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        **_dates(lease),
        "reservations": [
            {
                **reservation.parameters,
                "id": reservation.id,
                "resource_type": reservation.resource_type,
                "allocations": _allocations(kept[reservation.id]),
            }
            for reservation in live
        ],
        "resource_requests": resource_requests(kept),
    }


def statement(lease: Lease, by: Served) -> Values:
    """Return a lease as it is: the values of its notifications, and the resources that serve it."""
    announced = notification_payload(lease)
    live = {reservation.id for reservation in _live(lease)}
    return {
        **announced,
        "id": lease.id,
        **_dates(lease),
        "reservations": [
            {**reservation, "allocations": _allocations(by[reservation["id"]])}
            for reservation in _dicts(announced["reservations"])
            if reservation["id"] in live
        ],
        "events": [
            {**event, "time": datetime.fromisoformat(str(event["time"]))} for event in _dicts(announced["events"])
        ],
        "resource_requests": resource_requests(by),
    }


def resource_requests(by: Served) -> dict[str, int]:
    """Return the amount of each resource class: for exclusive allocations, the whole capacity of the resource.

    A resource without a class, such as an address, counts under a class named after its type.
    """
    total: Counter[str] = Counter()
    for resource, allocation in chain.from_iterable(by.values()):
        amounts = resource.capacity if allocation.exclusive else allocation.amounts
        counted = {name: amount for name, amount in amounts.items() if name != WHOLE}
        own = "CUSTOM_" + "".join(letter if letter.isalnum() else "_" for letter in resource.resource_type).upper()
        total.update(counted or {own: allocation.units})
    return dict(sorted(total.items()))


def to_json(values: object) -> Any:
    """Return the values with dates as text, ISO 8601 without a zone."""
    if isinstance(values, Mapping):
        return {name: to_json(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [to_json(value) for value in values]
    return values.isoformat() if isinstance(values, datetime) else values


def from_json(values: Any) -> Any:
    """Return the values that ``to_json`` was given."""
    if isinstance(values, Mapping):
        return {
            name: datetime.fromisoformat(value) if name in _DATES and isinstance(value, str) else from_json(value)
            for name, value in values.items()
        }
    if isinstance(values, list):
        return [from_json(value) for value in values]
    return values


def _dates(lease: Lease) -> Values:
    return {"start_date": _naive(lease.starts_at), "end_date": _naive(lease.ends_at)}


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _live(lease: Lease) -> list[Reservation]:
    return [reservation for reservation in lease.reservations if reservation.status is not ReservationStatus.DELETED]


def _dicts(values: object) -> list[Values]:
    assert isinstance(values, list)
    return values


def _allocations(parts: list[tuple[Resource, Allocation]]) -> list[Values]:
    """Return the resource once for each unit, as Blazar does."""
    return [_resource(resource) for resource, allocation in parts for _ in range(allocation.units)]


def _resource(resource: Resource) -> Values:
    """Return a whole resource: its properties and its fields; a field wins over a property of the same name."""
    return {
        **resource.properties,
        **resource.facts,
        "id": resource.external_id,
        "name": resource.name,
        "status": None,
        "trust_id": "",
        "reservable": resource.reservable,
        "created_at": _stamp(resource.created_at),
        "updated_at": _stamp(resource.updated_at),
    }


def _stamp(moment: datetime | None) -> str | None:
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else None
