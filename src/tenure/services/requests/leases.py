"""The use cases of leases."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from tenure import deadlines
from tenure.deadlines import SearchTooLong
from tenure.domain.actor import Actor
from tenure.domain.allocation import Allocation
from tenure.domain.boot import PlannedServer, PlannedServerQuery
from tenure.domain.errors import (
    Conflict,
    Forbidden,
    InvalidState,
    NotEnoughResources,
    NotFound,
    OverQuota,
    PreconditionFailed,
)
from tenure.domain.lanes import Lane
from tenure.domain.lease import (
    Action,
    AllocationState,
    EventStatus,
    EventType,
    HistoryEntry,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
)
from tenure.domain.period import ENDLESS, Period
from tenure.domain.request import (
    FlexibleRequest,
    LeaseChange,
    LeasedResource,
    LeaseQuery,
    LeaseRequest,
    Page,
    Repeatable,
    ReservationChange,
    ReservationRequest,
)
from tenure.services.booking.addition import Addition
from tenure.services.booking.admission import Admission, P
from tenure.services.booking.changes import ChangeRequest, Claim
from tenure.services.booking.confirmation import Confirmation
from tenure.services.booking.context import BookingContext
from tenure.services.booking.new_leases import LeaseToBook, NewLeases, booked_before, new_reservation, preparation
from tenure.services.booking.removal import Removal
from tenure.services.booking.update import Update
from tenure.services.boots import check_addition, planned_server, with_flavor
from tenure.services.cloud import CloudCalls
from tenure.services.context import ENDED, Context, ContextualService, require, target_of
from tenure.services.events.payloads import UpdatePayload
from tenure.services.execution.at_once import AtOnce
from tenure.services.identities import Identities
from tenure.services.lanes import Lanes
from tenure.services.leases.intake import Intake
from tenure.services.leases.parameters import NO_FACTS, Facts
from tenure.services.leases.provisional import check_confirmed, search_for_remains
from tenure.services.leases.trusts import TrustDemand, Trusts
from tenure.services.leases.undoing import promise
from tenure.services.notifications.commitments import notify_ended
from tenure.services.notifications.records import apply, notify
from tenure.services.repetition import Repetition
from tenure.services.search.flexible import FlexibleBooker
from tenure.services.search.look_ahead import LookAhead
from tenure.services.waiting.waiting_list import WaitingList
from tenure.store.database import Transaction

LOG = logging.getLogger(__name__)


class LeaseService(ContextualService):
    """The use cases of leases. Each is one transaction, and another one if the cloud must follow at once."""

    def __init__(
        self,
        context: Context,
        booking: BookingContext,
        cloud: CloudCalls,
        at_once: AtOnce,
        intake: Intake,
        new_leases: NewLeases,
        admission: Admission,
        flexible: FlexibleBooker,
        look_ahead: LookAhead,
        waiting_list: WaitingList,
        lanes: Lanes,
        identities: Identities,
    ) -> None:
        super().__init__(context)
        self._booking = booking
        self._access = booking.access
        self._identities = identities
        self._lanes = lanes
        self._at_once = at_once
        self._admission = admission
        self._intake = intake
        self._new_leases = new_leases
        self._flexible = flexible
        self._look_ahead = look_ahead
        self._repetition = Repetition(context)
        self._waiting_list = waiting_list
        self._trusts = Trusts(context.db, context.types, cloud, context.rules.regions)

    def create(
        self,
        actor: Actor,
        request: LeaseRequest | FlexibleRequest,
        *,
        lease_id: str | None = None,
        repeatable: Repeatable | None = None,
    ) -> Lease:
        """Book everything the request names, or nothing; with ``hold_for`` the lease must be confirmed in that time.

        Of a flexible request, the first choice that fits is booked, in the first period that fits. If nothing fits, and
        the request ``waits``, the lease is put on the waiting list, unless no choice could ever fit.

        A caller that may repeat the request gives it a new, unguessable ``lease_id``. If the same
        caller already has a lease with that id, it is returned as it is now. A ``repeatable`` request has the id of its
        first time. Raises ``Forbidden``, ``InvalidParameter``, ``NotEnoughResources``, and ``Conflict`` if the lease of
        that id belongs to another user, and for the key of another request.
        """
        target = target_of(actor)
        require(self._authorize, "blazar:leases:post", actor, target)
        lease_id = self._repetition.id_for(actor, repeatable) or lease_id
        if lease_id is not None:
            with self._db.read() as tx:
                booked = booked_before(tx, actor, lease_id)
            if booked is not None:
                promised = self._record_promise(lease_id)
                self._db.flush()  # the first time may have failed for that
                return self._access.redacted(actor, promised or booked)
        request = with_flavor(request)
        self._db.require_space()
        if not isinstance(request, FlexibleRequest):
            draft = self._new_leases.draft(actor, request, lease_id=lease_id)
            return self._create(actor, self._new_leases.request(actor, draft), request)
        if request.waits:
            self._waiting_list.check(request)
        try:
            return self._flexible.book(actor, request, partial(self._create, actor), lease_id=lease_id)
        except (NotEnoughResources, OverQuota, SearchTooLong):
            if not request.waits:
                raise
            with deadlines.within(None):  # what is asked next decides, and is short
                request = self._flexible.completed(actor, request)
                if not self._waiting_list.may_ever_fit(actor, request):
                    raise
        with deadlines.within(None), self._lanes.enter(Lane.BOOKING, actor.project_id):
            return self._wait(actor, request, lease_id)

    def get(self, actor: Actor, lease_id: str, *, look_ahead: bool = False) -> Lease:
        """Return the lease; raise ``NotFound`` if there is none that the actor may see.

        With ``look_ahead`` it says until when it may be prolonged, and how many leases wait before it.
        """
        allocations: Sequence[Allocation] = ()
        with self._db.read() as tx:
            lease = self._access.redacted(actor, self._access.get_for(tx, actor, lease_id, "blazar:leases:get"))
            if look_ahead:
                allocations = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
            if look_ahead and lease.waiting is not None:
                ahead = tx.waiting.ahead_of(lease.id)
                lease = replace(lease, waiting=replace(lease.waiting, ahead=ahead))
        return replace(lease, may_end_at=self._look_ahead.may_end_at(lease, allocations)) if look_ahead else lease

    def list(self, actor: Actor, query: LeaseQuery) -> Page[Lease]:
        """Return a page of the project's leases; for an administrator, of all projects.

        The query may name a project and a user by id or by name. Raises ``Forbidden`` for another project,
        ``InvalidParameter`` for an unknown project or user, and if the marker is not a lease of this list, and never
        was.
        """
        target = target_of(actor)
        require(self._authorize, "blazar:leases:get", actor, target)
        query = self._with_ids(actor, query)
        with self._db.read() as tx:
            found = tx.leases.page(query)
        more = len(found) > query.limit
        items = tuple(self._access.redacted(actor, lease) for lease in found[: query.limit])
        return Page(items, items[-1].id if more else None)

    def update(
        self, actor: Actor, lease_id: str, change: LeaseChange, *, if_version: tuple[int, ...] | None = None
    ) -> Lease:
        """Change everything the request names, or nothing; return the changed lease.

        If a running lease gets more resources and the cloud is not done in time, its status is still ``UPDATING``.
        Raises ``NotFound``, ``Forbidden``, ``LeaseBusy``, ``InvalidState``, ``InvalidParameter``,
        ``NotEnoughResources``, ``Conflict`` if the cloud refuses the new resources, and ``PreconditionFailed`` if the
        lease has none of the versions ``if_version``.
        """
        self._db.require_space()
        seen = self._seen(actor, lease_id)
        trust_demand, facts = self._requirements_of(actor, seen, change)
        now = self._clock.now()
        update = Update(self._booking, actor, seen, now, facts, if_version, change=change)
        return self._change(update, trust_demand)

    def confirm(
        self,
        actor: Actor,
        lease_id: str,
        changes: tuple[ReservationChange, ...] = (),
        *,
        if_version: tuple[int, ...] | None = None,
    ) -> Lease:
        """Confirm a provisional lease, with all of these ``changes`` to its reservations or none; return the lease.

        Confirming it again with the same changes succeeds. Raises the errors of ``update``; ``NotFound`` if the lease
        was removed before, and ``Conflict`` if it was confirmed with other values, or if the cloud refuses something
        that clients must see of it: the lease is removed then.
        """
        with self._db.read() as tx:
            seen = self._access.get_for(tx, actor, lease_id, "blazar:leases:put", if_version=if_version)
        if seen.status is LeaseStatus.WAITING:
            raise InvalidState("The lease is on the waiting list: there is no room for it yet.")
        if seen.hold_until is None:
            check_confirmed(seen, changes)
            return self._access.redacted(actor, self._record_promise(lease_id) or seen)
        trust_demand, facts = self._requirements_of(actor, seen, LeaseChange(reservations=changes))
        now = self._clock.now()
        return self._change(
            Confirmation(self._booking, actor, seen, now, facts, if_version, changes=changes), trust_demand
        )

    def delete(
        self,
        actor: Actor,
        lease_id: str,
        *,
        reason: str | None = None,
        if_version: tuple[int, ...] | None = None,
    ) -> None:
        """Delete the lease and take back its resources, for this ``reason``; no error if it is deleted already.

        Resources of a lease that has not started are free when this returns. Otherwise the lease may still be
        ``DELETING``. Raises ``NotFound``, ``Forbidden``, and ``PreconditionFailed`` if the lease has none of the
        versions ``if_version``.
        """
        event_id, made = self._db.write(self._delete_for, actor, lease_id, reason, if_version, now=self._clock.now())
        if event_id is not None:
            self._at_once.try_now(event_id)
        else:
            self._at_once.take_back(made)
        self._at_once.wake()

    def add_reservation(
        self,
        actor: Actor,
        lease_id: str,
        request: ReservationRequest,
        *,
        reservation_id: str | None = None,
        repeatable: Repeatable | None = None,
        if_version: tuple[int, ...] | None = None,
    ) -> Lease:
        """Add a reservation to a lease for the rest of its time; return the lease.

        A caller that may repeat the request gives it a ``reservation_id``, or it is ``repeatable``, as in ``create``.
        Raises the errors of ``update``, and ``Conflict`` for the key of another request.
        """
        seen, now = self._seen(actor, lease_id), self._clock.now()
        check_addition(request)
        reservation_id = self._repetition.id_for(actor, repeatable) or reservation_id
        request = self._intake.completed_one(actor, request, len(seen.reservations))
        addition = Addition(
            self._booking,
            actor,
            seen,
            now,
            if_version=if_version,
            reservation=new_reservation(self._types, lease_id, request, now, reservation_id),
            checks_values=request.checks_values,
        )
        trust_demand = self._trusts.demand_with(seen, request, actor)
        try:
            return self._change(addition, trust_demand)
        except PreconditionFailed:
            if repeatable is None or not self._has_reservation(lease_id, addition.reservation.id):
                raise
        return self._change(replace(addition, if_version=None), trust_demand)  # this very request has changed the lease

    def _has_reservation(self, lease_id: str, reservation_id: str) -> bool:
        with self._db.read() as tx:
            lease = tx.leases.get(lease_id)
        return lease is not None and reservation_id in {reservation.id for reservation in lease.reservations}

    def drop_reservation(
        self, actor: Actor, lease_id: str, reservation_id: str, *, if_version: tuple[int, ...] | None = None
    ) -> None:
        """Drop a reservation of a lease; no error if it is dropped already. Raises the errors of ``update``."""
        seen, now = self._seen(actor, lease_id), self._clock.now()
        removal = Removal(self._booking, actor, seen, now, if_version=if_version, reservation_id=reservation_id)
        lease = self._change(removal)
        if lease.status is LeaseStatus.PENDING:
            dropped = [reservation for reservation in lease.reservations if reservation.id == reservation_id]
            self._at_once.take_back([reservation.id for reservation in dropped if self._is_made(reservation)])

    def history(
        self, actor: Actor, lease_id: str, *, limit: int | None = None, marker: str | None = None
    ) -> tuple[HistoryEntry, ...]:
        """Return the history of the lease, oldest first: at most ``limit`` entries, and only those after the marker.

        Raises ``InvalidParameter`` if the marker is not an entry of this history.
        """
        with self._db.read() as tx:
            lease = self._access.get_for(tx, actor, lease_id, "blazar:leases:get")
            entries = tx.leases.history(lease.id, limit=limit, marker=marker)
        if self._access.sees(actor, lease):
            return entries
        return tuple(replace(entry, detail=None) for entry in entries)

    def resources(self, actor: Actor, lease_id: str, resource_type: str) -> tuple[LeasedResource, ...]:
        """Return the past, current and planned resources of the lease of a type, without their private properties.

        Only resources that are reserved as a whole: the hosts of instances, for example, are hidden from the owner.
        """
        with self._db.read() as tx:
            lease = self._access.get_for(tx, actor, lease_id, "blazar:leases:get")
            whole = [reservation.id for reservation in lease.reservations if reservation.resource_type == resource_type]
            allocations = tx.allocations.of_reservations(whole)
            resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
            private = tx.resources.private_properties(resource_type)
        if self._access.sees(actor, lease):
            private = frozenset()
        shown = {
            resource_id: replace(
                resource,
                properties={name: value for name, value in resource.properties.items() if name not in private},
            )
            for resource_id, found in resources.items()
            for resource in [found.before_retirement]
            if resource.resource_type == resource_type
        }
        return tuple(
            LeasedResource(
                shown[allocation.resource_id],
                allocation.reservation_id,
                _owned_period(allocation.period, lease),
                allocation.state,
            )
            for allocation in allocations
            if allocation.resource_id in shown
        )

    def planned_servers(self, actor: Actor, query: PlannedServerQuery) -> Page[PlannedServer]:
        """Return a page of the project's servers that are still to be made; for an administrator, of all projects.

        Raises the errors of ``list``.
        """
        require(self._authorize, "blazar:leases:get", actor, target_of(actor))
        query = replace(query, project_id=self._project_of(actor, query.project_id))
        with self._db.read() as tx:
            ids = tx.boots.page(query)
            reservations = tx.leases.reservations_by_ids(ids[: query.limit])
            leases = {lease.id: lease for lease in tx.leases.by_ids({one.lease_id for one in reservations.values()})}
        servers = [
            planned_server(leases[reservation.lease_id], reservation)
            for reservation_id in ids[: query.limit]
            if (reservation := reservations[reservation_id]).lease_id in leases
        ]
        more = len(ids) > query.limit
        return Page(tuple(server for server in servers if server is not None), ids[query.limit - 1] if more else None)

    def planned_server(self, actor: Actor, reservation_id: str) -> PlannedServer:
        """Return the server that is made, or was made, at the start of a reservation.

        Raises ``NotFound`` if there is none that the actor may see.
        """
        missing = NotFound(f"There is no planned server {reservation_id}.")
        with self._db.read() as tx:
            reservation = tx.leases.reservations_by_ids([reservation_id]).get(reservation_id)
            if reservation is None:
                raise missing
            try:
                lease = self._access.get_for(tx, actor, reservation.lease_id, "blazar:leases:get")
            except NotFound:
                raise missing from None
        server = planned_server(lease, reservation)
        if server is None:
            raise missing
        return server

    # --- inside

    def _with_ids(self, actor: Actor, query: LeaseQuery) -> LeaseQuery:
        """Return the query of what the actor may see, with ids of the project and the user that it names."""
        sees_all = self._authorize("admin", actor, target_of(actor))
        project_id, user_id = self._project_of(actor, query.project_id), query.user_id
        if user_id is not None:
            find = self._identities.user if sees_all else self._identities.user_of_project
            user_id = find(actor, user_id)
        return replace(query, project_id=project_id, user_id=user_id)

    def _project_of(self, actor: Actor, reference: str | None) -> str | None:
        """Return the id of the project that a list is about; None for all of them, if the actor may see them."""
        sees_all = self._authorize("admin", actor, target_of(actor))
        if reference is None:
            return None if sees_all else actor.project_id
        project_id = self._identities.project(actor, reference, may_see=sees_all)
        if project_id is None:
            raise Forbidden("blazar:leases:get")
        return project_id

    def _create(self, actor: Actor, request: LeaseToBook[P], lease_request: LeaseRequest) -> Lease:
        """Book a new lease, and have the cloud make what clients must see of it."""
        trust_demand = self._trusts.demand_of(request.reservations)
        with self._trusts.given_by(actor, trust_demand) as trust_id:
            booked = self._admission.admit(request.with_trust(trust_id), make_way=self._waiting_list.serve)
        lease = booked.lease
        if not booked.is_new and trust_id is not None:
            self._trusts.revoke(trust_id)  # the request that booked it has created its own trust
        if booked.is_new and lease.status is LeaseStatus.CREATING and lease_request.hold_for is None:
            lease = self._prepare(lease, Claim(preparation(lease).id, lease.id))
        self._at_once.wake_if_due(lease, self._clock.now())
        return self._access.redacted(actor, lease)

    def _wait(self, actor: Actor, request: FlexibleRequest, lease_id: str | None) -> Lease:
        """Put a lease, whose reservations are complete, on the waiting list.

        Raises the errors of ``create``, and ``Conflict`` if the list is full.
        """
        trust_demand = self._trusts.demand_of(asked for choice in request.choices for asked in choice)
        with self._trusts.given_by(actor, trust_demand) as trust_id:
            lease = self._waiting_list.enter(actor, request, lease_id=lease_id, trust_id=trust_id)
        if trust_id is not None and lease.trust_id != trust_id:
            self._trusts.revoke(trust_id)  # the request that wrote it has created its own trust
        self._at_once.wake()
        return self._access.redacted(actor, lease)

    def _change(self, request: ChangeRequest, trust_demand: TrustDemand | None = None) -> Lease:
        """Change a lease, and have the cloud follow if it must; ``trust_demand`` is the trust that the change needs.

        Returns the lease.
        """
        with self._trusts.given_by(request.actor, trust_demand) as trust_id:
            lease, claim, is_entrusted = self._admission.admit(
                replace(request, trust_id=trust_id), make_way=self._waiting_list.serve
            )
        if trust_id is not None and not is_entrusted:
            self._trusts.revoke(trust_id)  # a request at the same time has created its own trust
        if claim is not None:
            lease = self._follow(lease, claim)
        self._at_once.wake()
        return self._access.redacted(request.actor, lease)

    def _seen(self, actor: Actor, lease_id: str) -> Lease:
        with self._db.read() as tx:
            return self._access.get_for(tx, actor, lease_id, "blazar:leases:put")

    def _follow(self, lease: Lease, claim: Claim) -> Lease:
        """Have the cloud follow a change; return the lease. Raises ``Conflict`` if the cloud refuses."""
        if lease.status is LeaseStatus.CREATING:
            return self._prepare(lease, claim)
        self._at_once.carry_out(*claim)
        return self._outcome(lease.id, claim.event_id)

    def _requirements_of(self, actor: Actor, lease: Lease, change: LeaseChange) -> tuple[TrustDemand | None, Facts]:
        """Return the missing trust that a change of a lease needs, and the facts of the cloud that it needs."""
        if not change.reservations:
            return None, NO_FACTS
        facts = self._intake.facts_of_change(actor, lease, change)
        return self._trusts.demand_of_change(lease, change, actor), facts

    def _prepare(self, lease: Lease, claim: Claim) -> Lease:
        """Create in the cloud what clients must see of a booked lease, and wait for it as long as allowed.

        Returns the lease. Raises ``Conflict`` if the cloud refuses; the lease is removed then.
        """
        self._at_once.carry_out(*claim)
        found = self._record_promise(lease.id)
        if found is None or found.status is LeaseStatus.DELETED:
            self._at_once.take_back(
                [reservation.id for reservation in lease.reservations if self._may_exist_in_cloud(reservation)]
            )
            raise Conflict(f"The lease cannot be made: {found.status_reason if found else 'it was deleted'}")
        return found

    def _record_promise(self, lease_id: str) -> Lease | None:
        """Return the lease and record that its owner knows of it: if it fails from now on, it does not vanish."""
        with self._db.read() as tx:
            found = tx.leases.get(lease_id, deleted=True)
        if found is None or found.status is not LeaseStatus.CREATING or found.hold_until is not None:
            return found
        return self._db.write(partial(promise, lease_id=lease_id))

    def _may_exist_in_cloud(self, reservation: Reservation) -> bool:
        """Whether something may exist in the cloud for a reservation that was never started."""
        return self._is_made(reservation) and reservation.status is ReservationStatus.PENDING

    def _is_made(self, reservation: Reservation) -> bool:
        """Whether something of the reservation is created in the cloud before its start."""
        resource_type = self._types[reservation.resource_type]
        return resource_type.is_prepared(reservation.parameters) or self._has_effects(reservation)

    def _has_effects(self, reservation: Reservation) -> bool:
        return reservation.effects != self._types[reservation.resource_type].effects(reservation.id)

    def _delete_for(
        self,
        tx: Transaction,
        actor: Actor,
        lease_id: str,
        reason: str | None,
        if_version: tuple[int, ...] | None,
        *,
        now: datetime,
    ) -> tuple[str | None, Sequence[str]]:
        """Return the id of the event to carry out at once, and the reservations that may exist in the cloud."""
        lease = self._access.get_for(
            tx, actor, lease_id, "blazar:leases:delete", deleted=True, lock=True, if_version=if_version
        )
        if lease.status is LeaseStatus.DELETED:
            return None, []
        return self._delete(tx, actor, lease, now, reason), [
            reservation.id for reservation in lease.reservations if self._may_exist_in_cloud(reservation)
        ]

    def _delete(self, tx: Transaction, actor: Actor, lease: Lease, now: datetime, reason: str | None) -> str | None:
        """Begin to delete; return the id of the end event if resources in the cloud must be taken back first."""
        ids = [reservation.id for reservation in lease.reservations]
        pinned = any(allocation.state is AllocationState.HELD for allocation in tx.allocations.of_reservations(ids))
        runs = any(
            reservation.status is ReservationStatus.ACTIVE and self._has_effects(reservation)
            for reservation in lease.reservations
        )
        events = tx.events.of_lease(lease.id)
        was_provisional = lease.hold_until is not None
        if not pinned and not runs:
            if lease.status not in {*ENDED, LeaseStatus.WAITING}:
                notify_ended(tx, lease, now=now)  # while it still has its planned resources
            tx.allocations.remove_planned(ids)
            lease = apply(tx, lease, Action.DELETE, actor=actor, now=now, reason=reason)
            lease = apply(tx, lease, Action.DELETED, actor=actor, now=now)
            # Claimed events, too: with nothing to take back there is nothing to do.
            tx.events.change([stored.event.id for stored in events], now=now, ready_at=None, claim_token=None)
            search_for_remains(tx, lease.id, now=tx.now())
            tx.leases.change_reservations(ids, now=now, status=ReservationStatus.DELETED.value)
            if not was_provisional:  # its creation was never notified
                notify(tx, "lease.delete", lease, now=now)
            return None
        apply(tx, lease, Action.DELETE, actor=actor, now=now, reason=reason, keep_reason=True)
        end = next(stored for stored in events if stored.event.event_type is EventType.END)
        idle = [stored.event.id for stored in events if stored.claim_token is None and stored is not end]
        tx.events.change(idle, now=now, ready_at=None)
        if end.claim_token is None:
            tx.events.change([end.event.id], now=now, ready_at=tx.now(), attempts=0, status=EventStatus.UNDONE.value)
        return end.event.id

    def _outcome(self, lease_id: str, event_id: str) -> Lease:
        """Return the lease after an update was carried out; raise ``Conflict`` if the cloud has refused it."""
        with self._db.read() as tx:
            lease = tx.leases.get(lease_id, deleted=True)
            stored = tx.events.get(event_id)
        if lease is None:
            raise NotFound(f"Object with {{'lease_id': '{lease_id}'}} not found")
        if UpdatePayload.of(stored).undoing:
            raise Conflict(f"The change was undone: {lease.status_reason}")
        return lease


def _owned_period(period: Period, lease: Lease) -> Period:
    """Return the part of an allocation's period that belongs to the owner: the time after the lease is for cleaning."""
    is_longer = lease.ends_at < period.end != ENDLESS
    return Period(period.start, lease.ends_at) if is_longer and period.start < lease.ends_at else period
