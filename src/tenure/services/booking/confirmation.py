"""The confirmation of a provisional lease."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.errors import InvalidState
from tenure.domain.lease import Action, EventStatus, EventType, Lease
from tenure.domain.request import ReservationChange
from tenure.planning.snapshot import Snapshot
from tenure.services.booking.changes import Changed, ChangeProposal, ChangeRequest, again
from tenure.services.booking.reservation_changes import Dates
from tenure.services.leases.provisional import check_confirmed
from tenure.services.notifications.records import apply, notify, write_history
from tenure.store.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation(ChangeRequest):
    """The confirmation of a provisional lease, with changes of its reservations.

    If the lease needs to be prepared in the cloud, it is confirmed when the claimed event is done.
    """

    changes: tuple[ReservationChange, ...] = ()

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        """Raises ``InvalidState`` after the end of the lease, ``Conflict`` if it was confirmed with other values."""
        if lease.hold_until is None:
            check_confirmed(lease, self.changes)
            return self.nothing(lease)
        if lease.ends_at <= self.now:
            raise InvalidState("The lease has come to its end before it was confirmed.")
        matched = self.matched(lease, self.changes)
        positions = {
            reservation_change.reservation_id: position for position, reservation_change in enumerate(self.changes)
        }
        drafts = [
            self.draft(tx, lease, reservation, positions[reservation.id], matched[reservation.id])
            for reservation in lease.reservations
            if reservation.id in matched
        ]
        return self.planned(tx, lease, drafts, Dates(lease.starts_at, lease.ends_at), snapshot)

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease = proposal.before
        self.write_reservations(tx, proposal)
        stored_events = tx.events.of_lease(lease.id)
        deadlines = [stored.event.id for stored in stored_events if stored.event.event_type is EventType.HOLD]
        # A worker that is about to delete the lease loses its claim.
        done = EventStatus.DONE.value
        tx.events.change(deadlines, now=self.now, status=done, ready_at=None, claim_token=None)
        confirmed = again(tx, lease)
        if any(self.is_prepared(reservation) for reservation in confirmed.reservations):
            tx.leases.change(lease, now=self.now)
            write_history(tx, lease.id, "confirm", lease.status, lease.status, actor=self.actor, now=self.now)
            return Changed(confirmed, self.claimed(tx, lease, EventType.PREPARE))
        tx.events.discard(deadlines)
        apply(tx, lease, Action.CONFIRM, actor=self.actor, now=self.now)
        confirmed = again(tx, lease)
        notify(tx, "lease.create", confirmed, now=self.now)
        return Changed(confirmed)
