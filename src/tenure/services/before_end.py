"""What is done for a reservation before it ends: what is still to be done, and what was.

It is done when the lease's event comes. What that leaves undone is done when the reservation ends, before anything of
it is deleted. What was done is kept with the end, which every lease has.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tenure.domain.errors import InvalidState
from tenure.domain.lease import EventStatus, EventType, Lease, LeaseStatus, ReservationStatus
from tenure.resources.contract import LAST_SNAPSHOT, NOTIFY, ResourceTypes
from tenure.services.context import Rules, tell
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent

#: What is told of a reservation before its end, where that was asked for.
TOPIC = "lease.reservation.before_end"

_SETTLED, _FAILED, _SINCE = "settled", "failed", "awaiting_since"
_GOING = frozenset({LeaseStatus.DELETING, LeaseStatus.DELETED})


def outstanding(tx: Transaction, types: ResourceTypes, lease: Lease, *, at_the_end: bool) -> dict[str, str]:
    """The actions that are still to be done, by reservation; none for what never ran, or is being deleted.

    Those that are left to the end itself are among them only ``at_the_end``.
    """
    if lease.status in _GOING:
        return {}
    wanted = {
        one.id: action
        for one in lease.reservations
        if one.status is ReservationStatus.ACTIVE
        and (action := types[one.resource_type].before_end(one.parameters)) is not None
        and (at_the_end or action != LAST_SNAPSHOT)
    }
    settled = (_end_of(tx, lease).payload or {}).get(_SETTLED, {}) if wanted else {}
    return {number: action for number, action in wanted.items() if settled.get(number) != action}


def settle(tx: Transaction, lease: Lease, actions: Mapping[str, str], *, now: datetime, failed: bool = False) -> None:
    """Keep in mind that these actions, by reservation, are done, or with ``failed`` that they are given up."""
    end = _end_of(tx, lease)
    payload = dict(end.payload or {})
    payload[_SETTLED] = {**payload.get(_SETTLED, {}), **actions}
    if failed:
        payload[_FAILED] = sorted({*payload.get(_FAILED, ()), *actions})
    tx.events.change([end.event.id], now=now, payload=payload)


def given_up(tx: Transaction, lease: Lease) -> frozenset[str]:
    """The reservations of which an action was given up."""
    end = next((one for one in tx.events.of_lease(lease.id) if one.event.event_type is EventType.END), None)
    return frozenset((end.payload or {}).get(_FAILED, ())) if end is not None else frozenset()


def has_failed(tx: Transaction, lease: Lease) -> bool:
    """Whether an action was given up."""
    return bool((_end_of(tx, lease).payload or {}).get(_FAILED))


def tell_of_the_end(tx: Transaction, types: ResourceTypes, lease: Lease, *, now: datetime) -> None:
    """Have others told of each reservation for which that is to be done, once."""
    wanted = {
        number: action for number, action in outstanding(tx, types, lease, at_the_end=False).items() if action == NOTIFY
    }
    for reservation_id in wanted:
        tell(tx, TOPIC, lease, now=now, reservation_id=reservation_id)
    if wanted:
        settle(tx, lease, wanted, now=now)


def begin_to_wait(tx: Transaction, lease: Lease, *, now: datetime) -> None:
    """Note since when the end waits for what is not done; an earlier note stays."""
    end = _end_of(tx, lease)
    payload = dict(end.payload or {})
    if _SINCE not in payload:
        tx.events.change([end.event.id], now=now, payload={**payload, _SINCE: now.isoformat()})


def is_awaited(tx: Transaction, lease: Lease, rules: Rules, *, now: datetime) -> bool:
    """Whether the end still waits for an action that is not done."""
    since = (_end_of(tx, lease).payload or {}).get(_SINCE)
    return since is None or now < datetime.fromisoformat(since) + rules.before_end_patience


def is_retried(lease: Lease, rules: Rules, *, attempts: int) -> bool:
    """Whether an action that fails at the end is tried again; one that was tried to the full before is not."""
    event = lease.event(EventType.BEFORE_END)
    return attempts < rules.max_attempts and (event is None or event.status is not EventStatus.ERROR)


def _end_of(tx: Transaction, lease: Lease) -> StoredEvent:
    for stored in tx.events.of_lease(lease.id):
        if stored.event.event_type is EventType.END:
            return stored
    raise InvalidState(f"The lease {lease.id} has no end.")
