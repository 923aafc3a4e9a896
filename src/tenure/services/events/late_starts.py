"""Notifications about starts that are late, or come to nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from tenure.domain.lease import Lease
from tenure.services.events.payloads import StartPayload
from tenure.services.notifications.records import notify
from tenure.store.database import Transaction

#: The notification of a start that is late; its reason is that of the lease.
LATE = "lease.late"
#: The notification of a start that was given up, or that the end of the lease has overtaken.
START_FAILED = "lease.start_failed"
#: From when on a start counts as late. A first attempt that fails is repeated within seconds.
LATE_AFTER = timedelta(minutes=1)


def notify_late(tx: Transaction, event_id: str, lease: Lease, *, now: datetime, until: datetime | None = None) -> None:
    """Notify others once of a start that is late; ``until`` is when it is to come, if that is known."""
    if (until or now) < lease.starts_at + LATE_AFTER:
        return
    payload = StartPayload.of(tx.events.get(event_id))
    if not payload.late:
        tx.events.change([event_id], now=now, payload=replace(payload, late=True).to_json())
        notify(tx, LATE, lease, now=now)
