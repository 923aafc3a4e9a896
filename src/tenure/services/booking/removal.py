"""A reservation that is dropped from a lease."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tenure.domain.errors import InvalidState, NotFound
from tenure.domain.lease import Lease, LeaseStatus, ReservationStatus
from tenure.planning.snapshot import Snapshot
from tenure.services.booking.changes import Changed, ChangeProposal, ChangeRequest, refuse_busy
from tenure.services.booking.reservation_changes import Dates
from tenure.services.events.payloads import UpdatePayload
from tenure.store.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal(ChangeRequest):
    """A reservation that is dropped from a lease."""

    reservation_id: str

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        """Raises ``NotFound`` if the lease has no such reservation."""
        found = [reservation for reservation in lease.reservations if reservation.id == self.reservation_id]
        if not found:
            raise NotFound(f"Object with {{'reservation_id': '{self.reservation_id}'}} not found")
        if found[0].status is ReservationStatus.DELETED:
            return self.nothing(lease)
        refuse_busy(lease)
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}:
            raise InvalidState(f"A reservation of a lease that is {lease.status} cannot be dropped.")
        allocations = tx.allocations.of_reservations([known.id for known in lease.reservations])
        is_running = lease.status is LeaseStatus.ACTIVE
        status = found[0].status if is_running else ReservationStatus.DELETED
        after = replace(
            lease,
            version=lease.version + 1,
            updated_at=self.now,
            status=LeaseStatus.UPDATING if is_running else lease.status,
            reservations=tuple(
                replace(reservation, status=status) if reservation.id == self.reservation_id else reservation
                for reservation in lease.reservations
            ),
        )
        return ChangeProposal(
            lease=after,
            before=lease,
            allocations=allocations,
            dates=Dates(lease.starts_at, lease.ends_at),
            dropped=self.reservation_id,
        )

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease = proposal.before
        if lease.status is LeaseStatus.ACTIVE:
            payload = UpdatePayload(dropped=(self.reservation_id,))
            return Changed(lease, self.follow(tx, lease, payload=payload, reason=f"drop {self.reservation_id}"))
        tx.allocations.remove_planned([self.reservation_id])
        tx.leases.change_reservations([self.reservation_id], now=self.now, status=ReservationStatus.DELETED.value)
        return Changed(self.record(tx, lease, f"reservation {self.reservation_id} dropped"))
