"""Dry runs: what requests for leases would do. Nothing is written."""

from __future__ import annotations

from dataclasses import replace

from tenure.domain.actor import Actor
from tenure.domain.dry_run import DryRunOutcome
from tenure.domain.lease import Lease
from tenure.domain.request import FlexibleRequest, LeaseChange, LeaseRequest, ReservationRequest
from tenure.services.booking.addition import Addition
from tenure.services.booking.admission import Admission
from tenure.services.booking.changes import ChangeRequest
from tenure.services.booking.context import BookingContext
from tenure.services.booking.new_leases import NewLeases, new_reservation
from tenure.services.booking.removal import Removal
from tenure.services.booking.update import Update
from tenure.services.boots import with_flavor
from tenure.services.context import Context, ContextualService, require, target_of
from tenure.services.leases.intake import Intake
from tenure.services.leases.parameters import NO_FACTS
from tenure.services.search.flexible import FlexibleBooker


class DryRunService(ContextualService):
    """The use cases of dry runs. Each raises what the request itself would raise, and leaves no trace.

    The cloud is not asked whether it would carry out the request.
    """

    def __init__(
        self,
        context: Context,
        booking: BookingContext,
        intake: Intake,
        new_leases: NewLeases,
        admission: Admission,
        flexible: FlexibleBooker,
    ) -> None:
        super().__init__(context)
        self._booking = booking
        self._access = booking.access
        self._intake = intake
        self._new_leases = new_leases
        self._admission = admission
        self._flexible = flexible

    def create(self, actor: Actor, request: LeaseRequest | FlexibleRequest) -> DryRunOutcome:
        """Return what creating this lease would do."""
        target = target_of(actor)
        require(self._authorize, "blazar:leases:post", actor, target)
        request = with_flavor(request)
        if isinstance(request, FlexibleRequest):
            return self._flexible.book(actor, request, lambda chosen, _asked: self._admission.try_out(chosen))
        draft = self._new_leases.draft(actor, request)
        return self._admission.try_out(self._new_leases.request(actor, draft))

    def update(
        self, actor: Actor, lease_id: str, change: LeaseChange, *, if_version: tuple[int, ...] | None = None
    ) -> DryRunOutcome:
        """Return what this change of a lease would do."""
        lease, now = self._find(actor, lease_id), self._clock.now()
        facts = self._intake.facts_of_change(actor, lease, change) if change.reservations else NO_FACTS
        return self._try_out(Update(self._booking, actor, lease, now, facts, if_version, change=change))

    def add_reservation(
        self,
        actor: Actor,
        lease_id: str,
        request: ReservationRequest,
        *,
        if_version: tuple[int, ...] | None = None,
    ) -> DryRunOutcome:
        """Return what adding this reservation would do."""
        lease, now = self._find(actor, lease_id), self._clock.now()
        request = self._intake.completed_one(actor, request, len(lease.reservations))
        addition = Addition(
            self._booking,
            actor,
            lease,
            now,
            if_version=if_version,
            reservation=new_reservation(self._types, lease_id, request, now),
            checks_values=request.checks_values,
        )
        return self._try_out(addition)

    def drop_reservation(
        self, actor: Actor, lease_id: str, reservation_id: str, *, if_version: tuple[int, ...] | None = None
    ) -> DryRunOutcome:
        """Return what dropping this reservation would do."""
        lease, now = self._find(actor, lease_id), self._clock.now()
        removal = Removal(self._booking, actor, lease, now, if_version=if_version, reservation_id=reservation_id)
        return self._try_out(removal)

    def _find(self, actor: Actor, lease_id: str) -> Lease:
        with self._db.read() as tx:
            return self._access.get_for(tx, actor, lease_id, "blazar:leases:put")

    def _try_out(self, request: ChangeRequest) -> DryRunOutcome:
        found = self._admission.try_out(request)
        return replace(found, lease=self._access.redacted(request.actor, found.lease))
