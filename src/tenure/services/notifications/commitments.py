"""Messages to services that keep accounts of leases, written in the transaction that changes the lease.

Each service has its own channel in the outbox, so that an unavailable service does not delay the others.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from tenure.domain.lease import Lease, LeaseStatus
from tenure.services.notifications.statements import Values, served, statement, to_json
from tenure.store.database import Transaction

#: The topics that a service may listen to.
COMMIT_CREATE = "commit_create"
COMMIT_UPDATE = "commit_update"
ON_END = "on_end"
#: The fields of a lease that services account for.
_ACCOUNTED = ("start_date", "end_date", "resource_requests")


def notify_created(tx: Transaction, lease_id: str, *, now: datetime) -> None:
    """Notify services that a lease was created.

    For services that only want changes, record the lease, so that the first change has something to compare with.
    """
    for channel, topics in tx.listeners.items():
        if topics & {COMMIT_CREATE, COMMIT_UPDATE} and (current := _statement(tx, lease_id)) is not None:
            unwanted = COMMIT_CREATE not in topics
            _once(tx, channel, COMMIT_CREATE, lease_id, {"lease": current}, now=now, only_noted=unwanted)


def notify_updated(tx: Transaction, lease_id: str, *, now: datetime) -> None:
    """Notify services if the lease's dates, reservations or resources differ from those of the last message."""
    for channel in _listening(tx, COMMIT_UPDATE):
        current = _statement(tx, lease_id)
        last = tx.outbox.latest(lease_id, channel=channel, topics=(COMMIT_CREATE, COMMIT_UPDATE))
        if current is None or last is None:
            continue  # not created yet, or created before the service was configured
        before: Values = dict(last.payload)["lease"]  # type: ignore[assignment]  # as it was written
        if _accounted_values(before) != _accounted_values(current):
            payload = {"current_lease": before, "lease": current}
            key = str(uuid.uuid4())
            tx.outbox.add(key=key, lease_id=lease_id, topic=COMMIT_UPDATE, payload=payload, now=now, channel=channel)


def notify_ended(tx: Transaction, lease: Lease, *, now: datetime) -> None:
    """Notify services once that a lease has ended; to be called while it still has its allocations."""
    for channel in _listening(tx, ON_END):
        payload = {"lease": to_json(statement(lease, served(tx, lease)))}
        _once(tx, channel, ON_END, lease.id, payload, now=now)


def promise_withdrawal(
    tx: Transaction, lease: Values, channels: Iterable[str], *, now: datetime, ready_at: datetime
) -> None:
    """Write a message that the lease was never created; it is sent at ``ready_at`` unless it is cancelled before.

    A waiting message is used again. If the last one was sent, a new one is needed: the service has agreed again since.
    """
    lease_id = str(lease["id"])
    waiting = tx.outbox.waiting(lease_id, topic=ON_END)
    for channel in channels:
        if channel not in waiting:
            tx.outbox.add(
                key=str(uuid.uuid4()),
                lease_id=lease_id,
                topic=ON_END,
                payload={"lease": to_json(lease)},
                now=now,
                channel=channel,
                ready_at=ready_at,
            )


def cancel_withdrawal(tx: Transaction, lease_id: str, channels: Collection[str]) -> bool:
    """Cancel these messages; return False if one was sent, or may have been."""
    waiting = tx.outbox.waiting(lease_id, topic=ON_END)
    keys = [key for channel in channels for key in waiting.get(channel, ())]
    return waiting.keys() >= set(channels) and tx.outbox.cancel(keys) == len(keys)


def withdraw(tx: Transaction, lease_id: str, channels: Collection[str], *, now: datetime) -> None:
    """Send these messages now; cancel them instead if another request has created the lease."""
    if is_booked(tx, lease_id):
        cancel_withdrawal(tx, lease_id, channels)
        return
    waiting = tx.outbox.waiting(lease_id, topic=ON_END)
    tx.outbox.hurry([key for channel in channels for key in waiting.get(channel, ())], now=now)


def is_booked(tx: Transaction, lease_id: str) -> bool:
    """Whether there is such a lease, and it is not on the waiting list."""
    lease = tx.leases.get(lease_id)
    return lease is not None and lease.status is not LeaseStatus.WAITING


def _listening(tx: Transaction, topic: str) -> Iterator[str]:
    return (channel for channel, topics in tx.listeners.items() if topic in topics)


def _statement(tx: Transaction, lease_id: str) -> Values | None:
    lease = tx.leases.get(lease_id)
    if lease is None:
        return None
    values: Values = to_json(statement(lease, served(tx, lease)))
    return values


def _once(
    tx: Transaction,
    channel: str,
    topic: str,
    lease_id: str,
    payload: Mapping[str, object],
    *,
    now: datetime,
    only_noted: bool = False,
) -> None:
    """Write a message that is sent once for each lease."""
    key = str(uuid.uuid5(uuid.UUID(lease_id), f"{channel} {topic}"))
    if not tx.outbox.known([key]):
        tx.outbox.add(
            key=key,
            lease_id=lease_id,
            topic=topic,
            payload=payload,
            now=now,
            channel=channel,
            only_noted=only_noted,
        )


def _accounted_values(lease: Mapping[str, Any]) -> object:
    """Return the values whose change is notified: the ids of resources, but not their descriptions."""
    ignored = {"status", "created_at", "updated_at", "missing_resources", "resources_changed", "allocations"}
    return [lease[name] for name in _ACCOUNTED], [
        (
            {name: value for name, value in reservation.items() if name not in ignored},
            [(resource["id"], resource.get("region")) for resource in reservation["allocations"]],
        )
        for reservation in lease["reservations"]
    ]
