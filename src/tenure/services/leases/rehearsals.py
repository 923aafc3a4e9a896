"""Dry runs: requests for leases are carried out in a transaction that is rolled back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from typing import TypeVar

from tenure.domain.actor import Actor
from tenure.domain.lease import AllocationState, Lease
from tenure.domain.rehearsal import Cost, ExpectedAllowance, Rehearsal
from tenure.domain.request import FlexibleRequest, LeaseChange, LeaseRequest, ReservationRequest
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Context, ContextualService, require, target_of
from tenure.services.enforcement.filters import Enforcement
from tenure.services.leases.access import LeaseAccess
from tenure.services.leases.booking import Booker, new_reservation
from tenure.services.leases.change_admission import ChangeAdmission
from tenure.services.leases.changes import NO_FACTS, Changed, Facts, LeaseChanger
from tenure.services.leases.flexible import FlexibleBooker
from tenure.services.leases.intake import Intake
from tenure.services.limits.quotas import UNLIMITED, Quotas, name_of, names_of
from tenure.store.database import Transaction

R = TypeVar("R")


class RehearsalService(ContextualService):
    """The use cases of dry runs. Each raises what the request itself would raise, and leaves no trace.

    The cloud is not asked whether it would carry out the request.
    """

    def __init__(
        self,
        context: Context,
        quotas: Quotas,
        access: LeaseAccess,
        intake: Intake,
        booker: Booker,
        flexible: FlexibleBooker,
        enforcement: Enforcement,
        change_admission: ChangeAdmission,
    ) -> None:
        super().__init__(context)
        self._quotas = quotas
        self._access = access
        self._intake = intake
        self._booker = booker
        self._flexible = flexible
        self._enforcement = enforcement
        self._change_admission = change_admission

    def create(self, actor: Actor, request: LeaseRequest | FlexibleRequest) -> Rehearsal:
        """Return what creating this lease would do."""
        target = target_of(actor)
        require(self._authorize, "blazar:leases:post", actor, target)
        if isinstance(request, FlexibleRequest):
            return self._flexible.book(actor, request, partial(self._rehearse_create, actor))
        return self._rehearse_create(actor, request)

    def _rehearse_create(self, actor: Actor, request: LeaseRequest) -> Rehearsal:
        draft = self._booker.draft(actor, request)
        account = _Account(self._quotas, self._types, actor.project_id, draft.lease.id, self._clock.now())
        rehearsal, unasked = self._booker.admit(
            actor,
            draft,
            lambda booking: self._enforcement.rehearse_create(
                draft.lease, account.opened(booking.work), account.close, survey=booking.survey
            ),
        )
        return replace(rehearsal, unasked=unasked)

    def update(
        self, actor: Actor, lease_id: str, change: LeaseChange, *, if_version: tuple[int, ...] | None = None
    ) -> Rehearsal:
        """Return what this change of a lease would do."""
        lease = self._find(actor, lease_id)
        facts = self._intake.facts_of_change(actor, lease, change) if change.reservations else NO_FACTS
        return self._rehearse(
            actor, lease, lambda changer, current: changer.apply(current, change), facts, if_version=if_version
        )

    def add_reservation(
        self,
        actor: Actor,
        lease_id: str,
        request: ReservationRequest,
        *,
        if_version: tuple[int, ...] | None = None,
    ) -> Rehearsal:
        """Return what adding this reservation would do."""
        lease = self._find(actor, lease_id)
        request = self._intake.completed_one(actor, request, len(lease.reservations))
        reservation = new_reservation(self._types, lease_id, request, self._clock.now())

        def add(changer: LeaseChanger, current: Lease) -> Changed:
            return changer.add(current, reservation, checks_values=request.checks_values)

        return self._rehearse(actor, lease, add, if_version=if_version)

    def drop_reservation(
        self, actor: Actor, lease_id: str, reservation_id: str, *, if_version: tuple[int, ...] | None = None
    ) -> Rehearsal:
        """Return what dropping this reservation would do."""
        lease = self._find(actor, lease_id)
        return self._rehearse(
            actor,
            lease,
            lambda changer, current: changer.drop(current, reservation_id),
            dropped=reservation_id,
            if_version=if_version,
        )

    def _find(self, actor: Actor, lease_id: str) -> Lease:
        with self._db.read() as tx:
            return self._access.get_for(tx, actor, lease_id, "blazar:leases:put")

    def _rehearse(
        self,
        actor: Actor,
        lease: Lease,
        change: Callable[[LeaseChanger, Lease], Changed],
        facts: Facts = NO_FACTS,
        *,
        dropped: str = "",
        if_version: tuple[int, ...] | None = None,
    ) -> Rehearsal:
        account = _Account(self._quotas, self._types, lease.project_id, lease.id, self._clock.now(), without=dropped)
        rehearsal, unasked = self._change_admission.admit(
            actor,
            lease.id,
            change,
            lambda work: self._enforcement.rehearse_update(
                lease.id, account.opened(work), account.close, dropped=dropped
            ),
            facts,
            if_version=if_version,
        )
        return replace(rehearsal, lease=self._access.redacted(actor, rehearsal.lease), unasked=unasked)


class _Account:
    """What a lease takes and what its project uses, before and after a change, within a transaction."""

    def __init__(
        self,
        quotas: Quotas,
        types: ResourceTypes,
        project_id: str,
        lease_id: str,
        now: datetime,
        *,
        without: str = "",
    ) -> None:
        """``without`` is a reservation that is dropped: its resources are taken back only after the transaction."""
        self._quotas = quotas
        self._types = types
        self._project_id = project_id
        self._lease_id = lease_id
        self._now = now
        self._without = without
        #: Read before the transaction: the limits may come from another service.
        self._limits = quotas.of_project(project_id, types)
        self._used: Mapping[str, int] = {}
        self._hours: Mapping[str, int] = {}

    def opened(self, work: Callable[[Transaction], R]) -> Callable[[Transaction], R]:
        """Return the same work; before it, what there is then is noted."""

        def noted(tx: Transaction) -> R:
            self._used = self._quotas.usage(tx, self._project_id, self._types, self._now)
            self._hours = {cost.name: cost.hours for cost in self._cost(tx)}
            return work(tx)

        return noted

    def close(self, tx: Transaction) -> Rehearsal:
        """Return the difference to what was noted."""
        tx.session.flush()
        lease = tx.leases.get(self._lease_id)
        assert lease is not None
        used = self._quotas.usage(tx, self._project_id, self._types, self._now)
        cost = [replace(each, hours_before=self._hours.get(each.name, 0)) for each in self._cost(tx, self._without)]
        gone = [
            Cost(name, 0, 0, hours) for name, hours in self._hours.items() if name not in {each.name for each in cost}
        ]
        return Rehearsal(
            lease,
            tuple(cost + gone),
            tuple(
                ExpectedAllowance(name, self._limits.get(name, UNLIMITED), self._used.get(name, 0), used.get(name, 0))
                for name in names_of(self._types)
            ),
        )

    def _cost(self, tx: Transaction, without: str = "") -> list[Cost]:
        """Return what the reservations of the lease take, by the names of limits."""
        lease = tx.leases.get(self._lease_id)
        if lease is None or lease.ends_at <= lease.starts_at:
            return []
        units: Counter[str] = Counter()
        types = {reservation.id: reservation.resource_type for reservation in lease.reservations}
        for allocation in tx.allocations.of_reservations([each for each in types if each != without]):
            if allocation.state is not AllocationState.RELEASED:
                units[name_of(self._types[types[allocation.reservation_id]])] += allocation.units
        hours = (lease.ends_at - lease.starts_at) / timedelta(hours=1)
        return [Cost(name, amount, ceil(amount * hours)) for name, amount in sorted(units.items())]
