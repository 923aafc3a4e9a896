"""What others are told of a lease after the fact, because they keep account of it: written with what it tells of.

Each of those who are told has a channel of its own in the outbox, so that one who is away holds up nobody else.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from tenure.domain.lease import Lease
from tenure.services.statements import Values, served, statement, to_json
from tenure.store.database import Transaction

#: What a receiver may want to be told; the topics of the messages.
COMMIT_CREATE = "commit_create"
COMMIT_UPDATE = "commit_update"
ON_END = "on_end"
#: What of a lease a receiver keeps account of.
_ACCOUNTED = ("start_date", "end_date", "resource_requests")


def tell_made(tx: Transaction, lease_id: str, *, now: datetime) -> None:
    """Tell that a lease exists; for those who want to know of changes alone, note what the first one changes."""
    for channel, topics in tx.listeners.items():
        if topics & {COMMIT_CREATE, COMMIT_UPDATE} and (told := _stated(tx, lease_id)) is not None:
            unwanted = COMMIT_CREATE not in topics
            _once(tx, channel, COMMIT_CREATE, lease_id, {"lease": told}, now=now, only_noted=unwanted)


def tell_changed(tx: Transaction, lease_id: str, *, now: datetime) -> None:
    """Tell what a lease is now, where its dates, its reservations, or what serves them are not what was told last."""
    for channel in _listening(tx, COMMIT_UPDATE):
        told = _stated(tx, lease_id)
        last = tx.outbox.latest(lease_id, channel=channel, topics=(COMMIT_CREATE, COMMIT_UPDATE))
        if told is None or last is None:
            continue  # not made yet, or before anybody wanted to know
        before: Values = dict(last.payload)["lease"]  # type: ignore[assignment]  # as it was written
        if _account(before) != _account(told):
            payload = {"current_lease": before, "lease": told}
            key = str(uuid.uuid4())
            tx.outbox.add(key=key, lease_id=lease_id, topic=COMMIT_UPDATE, payload=payload, now=now, channel=channel)


def tell_end(tx: Transaction, lease: Lease, *, now: datetime) -> None:
    """Tell that a lease is over, once; to be called while it still has what serves it."""
    for channel in _listening(tx, ON_END):
        payload = {"lease": to_json(statement(lease, served(tx, lease)))}
        _once(tx, channel, ON_END, lease.id, payload, now=now)


def promise_withdrawal(
    tx: Transaction, lease: Values, channels: Iterable[str], *, now: datetime, ready_at: datetime
) -> None:
    """Have receivers told that a lease never came about, unless that is cancelled before ``ready_at``.

    A promise that waits already is the same one. One that was kept is not: what the receiver has agreed to since, is
    to be withdrawn once more.
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
    """Have nobody told so; False where somebody has been told, or may have been."""
    waiting = tx.outbox.waiting(lease_id, topic=ON_END)
    keys = [key for channel in channels for key in waiting.get(channel, ())]
    return waiting.keys() >= set(channels) and tx.outbox.cancel(keys) == len(keys)


def withdraw(tx: Transaction, lease_id: str, channels: Collection[str], *, now: datetime) -> None:
    """Have them told at once; nobody, where somebody else has made the lease."""
    if tx.leases.get(lease_id) is not None:
        cancel_withdrawal(tx, lease_id, channels)
        return
    waiting = tx.outbox.waiting(lease_id, topic=ON_END)
    tx.outbox.hurry([key for channel in channels for key in waiting.get(channel, ())], now=now)


def _listening(tx: Transaction, topic: str) -> Iterator[str]:
    return (channel for channel, topics in tx.listeners.items() if topic in topics)


def _stated(tx: Transaction, lease_id: str) -> Values | None:
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
    """Write a message that a lease has one of."""
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


def _account(lease: Mapping[str, Any]) -> object:
    """What must be told where it changes: not what the cloud says of a resource, but which one it is."""
    noise = {"status", "created_at", "updated_at", "missing_resources", "resources_changed", "allocations"}
    return [lease[name] for name in _ACCOUNTED], [
        (
            {name: value for name, value in one.items() if name not in noise},
            [(resource["id"], resource.get("region")) for resource in one["allocations"]],
        )
        for one in lease["reservations"]
    ]
