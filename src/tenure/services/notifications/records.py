"""What is recorded of a lease when it changes: its status, its history, and the notifications about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tenure.domain.actor import Actor
from tenure.domain.lease import DETAILS, Action, HistoryEntry, Lease, LeaseStatus, next_status
from tenure.domain.reason import Reason
from tenure.services.boots import empty_boot, forget_boot
from tenure.services.context import ENDED, new_id
from tenure.services.notifications.commitments import notify_created, notify_ended, notify_updated
from tenure.services.notifications.notices import notification_payload
from tenure.store.database import Transaction

#: The statuses in which a lease has nothing, neither planned nor in the cloud.
_GONE = frozenset({LeaseStatus.TERMINATED, LeaseStatus.DELETED})


def apply(
    tx: Transaction,
    lease: Lease,
    action: Action,
    *,
    actor: Actor,
    now: datetime,
    reason: Reason | str | None = None,
    keep_reason: bool = False,
    **values: object,
) -> Lease:
    """Move a lease along the state machine: the only function that changes a status.

    Compares and swaps version and status (raises ``Overtaken``), writes a history entry if the status changes, and
    returns the changed lease. ``reason`` becomes the lease's ``status_reason``; without a reason it is cleared unless
    ``keep_reason``. A reason given as text is shown to the owner. ``values`` are further columns to write.
    """
    status = next_status(lease.status, action)
    shown = lease.reason if reason is None and keep_reason else reason_of(reason)
    if lease.status is LeaseStatus.WAITING:
        tx.waiting.remove(lease.id)  # whatever becomes of it, it does not wait any more
    elif status in ENDED and lease.status not in ENDED:
        notify_ended(tx, replace(lease, status=status), now=now)
    if status is LeaseStatus.DELETED and lease.status is not LeaseStatus.DELETED:
        values["deleted_at"] = now
        tx.leases.drop_long_texts(lease.id)
    tx.leases.change(lease, now=now, status=status.value, **columns_of(shown), **values)
    if status is LeaseStatus.ERROR and lease.status is not LeaseStatus.ERROR:
        empty_boot(tx, lease)
    if status in _GONE and lease.status not in _GONE:
        forget_boot(tx, lease)
    if status is not lease.status:
        write_history(tx, lease.id, action.value, lease.status, status, actor=actor, now=now, reason=reason)
    known = {name: value for name, value in values.items() if name in {*DETAILS, "starts_at", "ends_at", "degraded"}}
    return replace(
        lease,
        status=status,
        status_reason=None if shown is None else shown.text,
        status_detail=None if shown is None else shown.detail,
        version=lease.version + 1,
        updated_at=now,
        **known,  # type: ignore[arg-type]  # columns and fields of these names have the same types
    )


def reason_of(reason: Reason | str | None) -> Reason | None:
    """Return the reason; a text becomes a reason that the owner may read."""
    return Reason(reason) if isinstance(reason, str) else reason


def columns_of(reason: Reason | None) -> dict[str, str | None]:
    """Return the columns of a lease's row that store the reason."""
    if reason is None:
        return {"status_reason": None, "status_detail": None}
    return {"status_reason": reason.text, "status_detail": reason.detail}


def write_history(
    tx: Transaction,
    lease_id: str,
    action: str,
    before: LeaseStatus | None,
    after: LeaseStatus,
    *,
    actor: Actor,
    now: datetime,
    reason: Reason | str | None = None,
) -> None:
    """Write a history entry; a reason given as text is shown to the owner."""
    shown = reason_of(reason)
    tx.leases.remember(
        HistoryEntry(
            lease_id=lease_id,
            at=now,
            actor=actor.user_id,
            action=action,
            from_status=before.value if before else None,
            to_status=after.value,
            reason=None if shown is None else shown.text,
            request_id=actor.request_id,
            detail=None if shown is None else shown.detail,
        )
    )


def notify(tx: Transaction, topic: str, lease: Lease, *, now: datetime, **more: object) -> None:
    """Write a notification about the lease, with ``more`` fields beside it, to be delivered after the commit.

    Services that keep accounts are notified as well: of the new lease, or of what differs from their last message.
    """
    tx.outbox.add(
        key=new_id(), lease_id=lease.id, topic=topic, payload={**notification_payload(lease), **more}, now=now
    )
    if lease.status in ENDED:
        return
    if topic == "lease.create":
        notify_created(tx, lease.id, now=now)
    else:
        notify_updated(tx, lease.id, now=now)
