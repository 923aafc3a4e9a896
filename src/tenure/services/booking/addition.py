"""A reservation that is added to a lease."""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

from tenure.domain.errors import InvalidState
from tenure.domain.lease import AllocationState, EventType, Lease, LeaseStatus, Reservation
from tenure.domain.period import Period
from tenure.planning.changes import changes_of
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits
from tenure.services.booking.changes import (
    Changed,
    ChangeProposal,
    ChangeRequest,
    added_allocations,
    again,
    refuse_busy,
)
from tenure.services.booking.reservation_changes import Dates, ReservationDraft
from tenure.services.booking.subjects import check_unbound
from tenure.services.events.payloads import UpdatePayload
from tenure.services.leases.bounds import check_one_more, check_sizes
from tenure.services.leases.parameters import placed_demand
from tenure.services.leases.properties import check_values
from tenure.store.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition(ChangeRequest):
    """A reservation that is added to a lease for the rest of its time."""

    reservation: Reservation
    #: As in ``ReservationRequest``.
    checks_values: bool = False

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        reservation = self.reservation
        if any(known.id == reservation.id for known in lease.reservations):
            return self.nothing(lease)
        refuse_busy(lease)
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE} or lease.ends_at <= self.now:
            raise InvalidState(f"A lease that is {lease.status} gets no reservation any more.")
        if lease.ends_at <= lease.starts_at:
            raise InvalidState("A lease that lasts for no time gets no reservation.")
        check_one_more(lease)
        check_sizes([known.parameters for known in (*lease.reservations, reservation)])
        position = len(lease.reservations)
        demand = placed_demand(self.context.types, reservation, position)
        self.check_conditions(tx, lease, demand, demand.expression.comparisons, position)
        if self.checks_values:
            check_values(tx, demand, demand.expression.comparisons, position)
        check_unbound(tx, [(position, reservation.id, demand)])
        running = lease.status is LeaseStatus.ACTIVE
        task = NewUnits(
            reservation.id,
            demand,
            Period(max(lease.starts_at, self.now), lease.ends_at + self.context.rules.cleaning_time),
            state=AllocationState.HELD if running else AllocationState.PLANNED,
            position=position,
        )
        plan = self.context.planning.plan(snapshot, [task], now=self.now, seed=crc32(reservation.id.encode()))
        after = replace(
            lease,
            version=lease.version + 1,
            updated_at=self.now,
            status=LeaseStatus.UPDATING if running else lease.status,
            reservations=(*lease.reservations, reservation),
        )
        allocations = tx.allocations.of_reservations([known.id for known in lease.reservations])
        return ChangeProposal(
            lease=after,
            before=lease,
            allocations=allocations,
            changes=changes_of(snapshot, plan.snapshot),
            dates=Dates(lease.starts_at, lease.ends_at),
            drafts=[ReservationDraft(reservation, position, reservation.parameters, demand, demand)],
        )

    def begin(self, tx: Transaction, proposal: ChangeProposal) -> Changed | None:
        """Write the reservation, before its allocations."""
        done = ChangeRequest.begin(self, tx, proposal)
        if done is None:
            tx.leases.add_reservations([self.reservation], first=len(proposal.before.reservations))
        return done

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease, reservation = proposal.before, self.reservation
        self.write_reservations(tx, proposal)
        reason = f"reservation {reservation.id} added"
        if lease.status is LeaseStatus.ACTIVE:
            payload = UpdatePayload(added=added_allocations(tx, proposal), new=(reservation.id,))
            return Changed(lease, self.follow(tx, again(tx, lease), payload=payload, reason=reason))
        changed = self.record(tx, lease, reason)
        return Changed(changed, self.claimed(tx, lease, EventType.PREPARE) if self.is_prepared(reservation) else None)
