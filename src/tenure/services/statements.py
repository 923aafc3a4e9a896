"""What filters, and services of the site behind them, are told of a lease: values under the names of API 1.0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from tenure.domain.allocation import Allocation
from tenure.domain.capacity import WHOLE
from tenure.domain.lease import AllocationState, EventType, Lease, Reservation, ReservationStatus
from tenure.domain.resource import Resource
from tenure.services.notices import announce
from tenure.store.database import Transaction

Values = dict[str, Any]

#: What serves a reservation: each resource, and how much of it.
Served = Mapping[str, list[tuple[Resource, Allocation]]]
#: The values that are dates, on their way through JSON.
_DATES = frozenset({"start_date", "end_date", "before_end_date", "time"})


def served(tx: Transaction, lease: Lease) -> Served:
    """What serves each reservation of a lease, or is to serve it."""
    allocations = tx.allocations.of_reservations([one.id for one in lease.reservations])
    current = [one for one in allocations if one.state is not AllocationState.RELEASED]
    resources = tx.resources.by_ids(one.resource_id for one in current)
    found: dict[str, list[tuple[Resource, Allocation]]] = {one.id: [] for one in lease.reservations}
    for one in current:
        found[one.reservation_id].append((resources[one.resource_id], one))
    return found


def proposal(lease: Lease, by: Served) -> Values:
    """A lease that would be made: what was asked for, and what would serve it."""
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
            {**one.parameters, "resource_type": one.resource_type, "allocations": _allocations(by[one.id])}
            for one in lease.reservations
        ],
        "resource_requests": resource_requests(by),
    }


def revision(lease: Lease, by: Served, *, without: Collection[str] = ()) -> Values:
    """A lease after a change, but for reservations that are given back."""
    live = [one for one in _live(lease) if one.id not in without]
    kept = {one.id: by[one.id] for one in live}
    return {
        "id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        **_dates(lease),
        "reservations": [
            {
                **one.parameters,
                "id": one.id,
                "resource_type": one.resource_type,
                "allocations": _allocations(kept[one.id]),
            }
            for one in live
        ],
        "resource_requests": resource_requests(kept),
    }


def statement(lease: Lease, by: Served) -> Values:
    """A lease as it is: all that notifications say of it, and what serves it."""
    told = announce(lease)
    live = {one.id for one in _live(lease)}
    return {
        **told,
        "id": lease.id,
        **_dates(lease),
        "reservations": [
            {**one, "allocations": _allocations(by[one["id"]])}
            for one in _dicts(told["reservations"])
            if one["id"] in live
        ],
        "events": [{**one, "time": datetime.fromisoformat(str(one["time"]))} for one in _dicts(told["events"])],
        "resource_requests": resource_requests(by),
    }


def resource_requests(by: Served) -> dict[str, int]:
    """How much is taken of each resource class: of what is taken whole all that it has.

    What has no class of its own, such as an address, counts under one that is made of the name of its type.
    """
    total: Counter[str] = Counter()
    for resource, allocation in (one for parts in by.values() for one in parts):
        amounts = resource.capacity if allocation.exclusive else allocation.amounts
        counted = {name: amount for name, amount in amounts.items() if name != WHOLE}
        own = "CUSTOM_" + "".join(letter if letter.isalnum() else "_" for letter in resource.resource_type).upper()
        total.update(counted or {own: allocation.units})
    return dict(sorted(total.items()))


def to_json(values: object) -> Any:
    """The same with dates as text, ISO 8601 without a zone."""
    if isinstance(values, Mapping):
        return {name: to_json(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [to_json(value) for value in values]
    return values.isoformat() if isinstance(values, datetime) else values


def from_json(values: Any) -> Any:
    """What ``to_json`` was given."""
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
    return [one for one in lease.reservations if one.status is not ReservationStatus.DELETED]


def _dicts(values: object) -> list[Values]:
    assert isinstance(values, list)
    return values


def _allocations(parts: list[tuple[Resource, Allocation]]) -> list[Values]:
    """A resource for each unit, as Blazar has them."""
    return [_resource(resource) for resource, allocation in parts for _ in range(allocation.units)]


def _resource(resource: Resource) -> Values:
    """A whole resource: its properties beside its fields, which none of them hides."""
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
