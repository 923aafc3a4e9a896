"""What the services have in common: who may do what, the rules of the site, and the one door for status changes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from tenure.domain.actor import Actor
from tenure.domain.errors import Forbidden
from tenure.domain.lease import Action, HistoryEntry, Lease, LeaseStatus, next_status
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import ResourceRef
from tenure.services.commitments import tell_changed, tell_end, tell_made
from tenure.services.notices import announce
from tenure.store.database import Transaction

#: Whether an actor may do what a rule is about to a target (``project_id``, ``user_id``).
Authorize = Callable[[str, Actor, Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator may set."""

    #: Added to the end of every allocation.
    cleaning_time: timedelta = timedelta(0)
    #: How long before the end the before-end event comes by default; zero for none.
    notice_before_end: timedelta = timedelta(minutes=60)
    #: The regions that there are, the home region first; none where all is one cloud.
    regions: tuple[str, ...] = ()
    #: No lease lasts longer; None for as long as it likes.
    longest_lease: timedelta | None = None
    #: How long a request may look for room.
    planning_time: timedelta = timedelta(seconds=5)
    #: Whether anybody may ask for properties that only administrators see.
    private_asked_for: bool = False
    #: How many attempts at a start, an update or a before-end action before it is given up.
    max_attempts: int = 10
    #: For how long at least a start is tried from the start date on, however many attempts that takes.
    start_patience: timedelta = timedelta(hours=1)
    #: Which share of the time of a lease may pass until its start is given up, where that is longer.
    start_share: float = 0.1
    #: For how long an end waits for what is to be done before it, such as images that are being saved.
    before_end_patience: timedelta = timedelta(minutes=60)
    #: How long before a start servers in its way are told; zero where nobody may use what is reserved before.
    preemption_notice: timedelta = timedelta(0)
    #: The delay before the second attempt; it doubles with each one.
    first_delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(seconds=60)
    #: How long a claim lasts: the driver's longest call and a margin. Renewed before each call.
    claim_time: timedelta = timedelta(seconds=60)
    #: How far ahead plans are moved off what has failed; zero for as far as there are any.
    healing_horizon: timedelta = timedelta(0)
    #: How long what a running lease has must have failed before it is replaced; None for never.
    replace_after: timedelta | None = timedelta(minutes=5)

    def give_up_start_at(self, starts_at: datetime, ends_at: datetime) -> datetime:
        """From when on the start of a lease may be given up that the cloud does not make."""
        return starts_at + max(self.start_patience, (ends_at - starts_at) * self.start_share)

    def delay_after(self, attempts: int) -> timedelta:
        """How long to wait after so many attempts have failed."""
        return min(self.max_delay, self.first_delay * int(2 ** min(attempts - 1, 20)))


#: What a lease does not come back from: nobody is to pay for it any more.
ENDED = frozenset(
    {
        LeaseStatus.TERMINATING,
        LeaseStatus.TERMINATED,
        LeaseStatus.DELETING,
        LeaseStatus.DELETED,
        LeaseStatus.ERROR,
    }
)


class Effects(Protocol):
    """What the use cases want done in the cloud at once; the engine does it, outside any transaction.

    What belongs to a lease is done when the method returns, or goes on: nobody waits for a cloud for ever.
    """

    def carry_out(self, event_id: str, token: str) -> None:
        """Do what a claimed event is about and record the outcome."""

    def try_now(self, event_id: str) -> None:
        """Make one attempt at a due event, or see how one ends that is being made."""

    def take_back(self, reservation_ids: Collection[str]) -> None:
        """Take back what was made for reservations that are over, or leave it to the repair."""

    def wake(self) -> None:
        """Say that something new is due."""

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        """The thing of the cloud that is called so. Raises what the driver raises."""

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        """What the cloud says of something that a request names. Raises what the driver raises."""

    def register(self, resource_type: str, resource: ResourceRef) -> None:
        """Set a resource aside in the cloud. Raises what the driver raises."""

    def unregister(self, resource_type: str, resource: ResourceRef) -> None:
        """Give a resource back to the cloud. Raises what the driver raises."""

    def delegate(self, actor: Actor, regions: Collection[str]) -> str:
        """Have the caller trust us in these regions; the id of the trust. Raises what the driver raises."""

    def revoke(self, trust_id: str) -> None:
        """Forget a trust. Raises what the driver raises."""


def require(authorize: Authorize, rule: str, actor: Actor, target: Mapping[str, str]) -> None:
    """Raise ``Forbidden`` unless the policy allows it."""
    if not authorize(rule, actor, target):
        raise Forbidden(rule)


def new_id() -> str:
    return str(uuid.uuid4())


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

    Compares and swaps version and status (raises ``Overtaken``), writes a history row where the status changes, and
    returns the lease as it is now. ``reason`` becomes the lease's ``status_reason``; without one it is cleared unless
    ``keep_reason``. A text is one that the owner may read. ``values`` are further columns to write.
    """
    status = next_status(lease.status, action)
    shown = lease.reason if reason is None and keep_reason else reason_of(reason)
    if status in ENDED and lease.status not in ENDED:
        tell_end(tx, replace(lease, status=status), now=now)
    if status is LeaseStatus.DELETED and lease.status is not LeaseStatus.DELETED:
        values["deleted_at"] = now
    tx.leases.change(lease, now=now, status=status.value, **columns_of(shown), **values)
    if status is not lease.status:
        remember(tx, lease.id, action.value, lease.status, status, actor=actor, now=now, reason=reason)
    known = {name: value for name, value in values.items() if name in {"name", "starts_at", "ends_at", "degraded"}}
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
    """The reason, where a text is one of ours that the owner may read."""
    return Reason(reason) if isinstance(reason, str) else reason


def columns_of(reason: Reason | None) -> dict[str, str | None]:
    """What a lease's row has of a reason."""
    if reason is None:
        return {"status_reason": None, "status_detail": None}
    return {"status_reason": reason.text, "status_detail": reason.detail}


def remember(
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
    """Write a history row; a text is a reason that the owner may read."""
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


def tell(tx: Transaction, topic: str, lease: Lease, *, now: datetime, **more: object) -> None:
    """Write a message about the lease, and ``more`` beside that, to be delivered after the commit.

    Those who keep account of it are told as well: that it was made, or what is other than they were told last.
    """
    tx.outbox.add(key=new_id(), lease_id=lease.id, topic=topic, payload={**announce(lease), **more}, now=now)
    if lease.status in ENDED:
        return
    if topic == "lease.create":
        tell_made(tx, lease.id, now=now)
    else:
        tell_changed(tx, lease.id, now=now)
