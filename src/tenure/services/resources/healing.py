"""Healing: moving leases off resources that have failed, changed, or are to be emptied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import partial
from zlib import crc32

from tenure.domain.actor import ENGINE, Actor
from tenure.domain.allocation import Allocation, Demand
from tenure.domain.changes import Changes
from tenure.domain.errors import Conflict, TooManyConflicts
from tenure.domain.lease import (
    Action,
    AllocationState,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
)
from tenure.domain.period import Period
from tenure.domain.reason import Reason, together
from tenure.domain.request import AffectedAllocation
from tenure.domain.resource import KnownHealth, Resource, ResourceHealth
from tenure.drivers.contract import Health, ResourceRef
from tenure.planning.changes import changes_of
from tenure.planning.moving import duplicate, is_named, moving_with, relocate
from tenure.planning.snapshot import Snapshot
from tenure.planning.terms import Terms
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules, new_id
from tenure.services.events.payloads import ReconcilePayload, UpdatePayload
from tenure.services.notifications.records import apply, columns_of, notify, write_history
from tenure.services.planning.demands import demand_of
from tenure.services.planning.planning import Planning, check_same
from tenure.services.resources.naming import name_for_owner, reason_about
from tenure.store.database import Database, Transaction

LOG = logging.getLogger(__name__)

#: How many resources are marked as reviewed in one transaction.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Healed:
    """The result of healing: how many allocations moved, and which leases still lack some."""

    moved: int = 0
    degraded: tuple[str, ...] = ()
    #: The leases that could not be healed now because of conflicts.
    put_off: tuple[str, ...] = ()


@dataclass(slots=True)
class _HealingPlan:
    """What a lease lacks, and how it is to be healed. It grows while the allocations of the lease are checked."""

    lease: Lease
    now: datetime
    terms: Terms
    #: The ledger as it is, and as it is planned to be.
    before: Snapshot
    after: Snapshot
    #: The allocations of each reservation, and the resources that they are on.
    allocations: Mapping[str, Sequence[Allocation]]
    resources: Mapping[int, Resource]
    #: Whether no worker is acting for the lease.
    is_idle: bool
    #: What a reservation lacks, in words, by reservation id.
    missing: dict[str, Reason] = field(default_factory=dict)
    #: The allocations of a running lease that others replace once the cloud has followed, by reservation id.
    replaced: dict[str, list[int]] = field(default_factory=dict)
    words: list[Reason] = field(default_factory=list)
    #: The id of the new resource by allocation id.
    moved: dict[int, int] = field(default_factory=dict)
    #: The versions of the failed resources off which something moves.
    depended_on: dict[int, int] = field(default_factory=dict)

    @property
    def changes(self) -> Changes:
        """What is planned to change."""
        changes = changes_of(self.before, self.after)
        return replace(changes, versions={**self.depended_on, **changes.versions}) if changes else changes

    def allocations_with_resources(self, reservation: Reservation) -> list[tuple[Allocation, Resource]]:
        """Return the reservation's allocations with their resources, as they were read."""
        allocations = self.allocations[reservation.id]
        return [(allocation, self.resources[allocation.resource_id]) for allocation in allocations]


class Healer:
    """Heals one lease inside a transaction of the caller."""

    def __init__(self, types: ResourceTypes, rules: Rules, planning: Planning) -> None:
        self._types = types
        self._rules = rules
        self._planning = planning

    def heal(self, tx: Transaction, lease_id: str) -> tuple[int, bool]:
        """Heal a lease; return how many of its allocations moved, and whether it still lacks something.

        Planned allocations on failed resources move, and those of a start between two attempts, too. An allocation of a
        running lease is replaced only if its resource has not worked for a while. The flags of the lease are set to
        what it lacks.
        """
        lease = tx.leases.get(lease_id, lock=True)
        if lease is None or lease.status not in _HEALABLE:
            return 0, False
        plan = self._plan(tx, lease)
        for reservation in _live(lease):
            allocations = plan.allocations_with_resources(reservation)
            failures = self._failures(plan, reservation, allocations)
            left: set[int] = set()
            for allocation, resource in allocations:
                if self._has_moved_along(plan, allocation):
                    continue
                if resource.id in left:  # there is more room where another allocation was
                    failures.pop(allocation.id, None)
                    failures |= self._failures(plan, reservation, [(allocation, resource)])
                reason = failures.get(allocation.id)
                if reason is None:
                    continue
                if allocation.state is AllocationState.PLANNED:
                    healed = self._move(plan, reservation, allocation, resource)
                elif resource.health.works or not plan.is_idle:
                    healed = False
                elif lease.status is LeaseStatus.STARTING:
                    healed = self._move(plan, reservation, allocation, resource)
                else:
                    if self._is_due(resource, plan.now):
                        self._replace(tx, plan, reservation, allocation, resource)
                    healed = False  # not before the cloud has followed
                if healed:
                    left.add(resource.id)
                else:
                    plan.missing.setdefault(reservation.id, reason)
        self._write(tx, plan, ENGINE)
        return len(plan.moved), bool(plan.missing)

    def empty(
        self, tx: Transaction, lease_id: str, resource: Resource, *, running: bool, actor: Actor
    ) -> tuple[AffectedAllocation, ...]:
        """Move the lease's allocations on the resource to others; return each of them with its new resource.

        Plans are moved; pinned allocations are replaced only with ``running``.
        """
        lease = tx.leases.get(lease_id, lock=True)
        if lease is None:
            return ()
        plan = self._plan(tx, lease)
        outcomes = self._move_all_off(tx, plan, resource, running=running)
        if plan.moved:
            self._find_missing(tx, plan)
            self._write(tx, plan, actor)
        return _affected_allocations(tx, plan, outcomes)

    def preview_emptying(
        self, tx: Transaction, lease_id: str, resource: Resource, *, running: bool
    ) -> tuple[AffectedAllocation, ...]:
        """Return what ``empty`` would return; nothing is written."""
        lease = tx.leases.get(lease_id)
        if lease is None:
            return ()
        plan = self._plan(tx, lease)
        return _affected_allocations(tx, plan, self._move_all_off(tx, plan, resource, running=running))

    def keepers(self, tx: Transaction, resource: Resource) -> tuple[AffectedAllocation, ...]:
        """Return the allocations that keep the resource when it is disabled."""
        return tuple(
            _affected(lease, reservation, allocation, None, "It keeps the resource.")
            for lease in sorted(
                tx.leases.by_ids(tx.allocations.leases_on(resource.id)), key=lambda lease: (lease.starts_at, lease.id)
            )
            for reservation in _live(lease)
            for allocation in tx.allocations.with_versions([reservation.id])[0]
            if allocation.resource_id == resource.id
        )

    # --- inside

    def _plan(self, tx: Transaction, lease: Lease) -> _HealingPlan:
        """Raises ``Overtaken`` if the allocations change while they are read."""
        now = tx.now()
        snapshot = self._planning.snapshot()
        allocations, _ = tx.allocations.with_versions([reservation.id for reservation in _live(lease)])
        check_same(snapshot, allocations)
        by_reservation: dict[str, list[Allocation]] = {reservation.id: [] for reservation in _live(lease)}
        for allocation in allocations:
            by_reservation[allocation.reservation_id].append(allocation)
        # Another seed each time, so that a resource which the cloud has refused is not always the first choice.
        terms = self._planning.terms(snapshot, (), now=now, seed=crc32(f"{lease.id} {now}".encode()))
        return _HealingPlan(
            lease,
            now,
            terms,
            before=snapshot,
            after=snapshot,
            allocations=by_reservation,
            resources=tx.resources.by_ids(allocation.resource_id for allocation in allocations),
            is_idle=self._is_idle(tx, lease, now),
        )

    def _is_idle(self, tx: Transaction, lease: Lease, now: datetime) -> bool:
        return not any(
            stored.claim_token and stored.ready_at and stored.ready_at > now for stored in tx.events.of_lease(lease.id)
        )

    def _failures(
        self, plan: _HealingPlan, reservation: Reservation, allocations: Sequence[tuple[Allocation, Resource]]
    ) -> dict[int, Reason]:
        """Return the failed allocations among these, each with the reason."""
        found: dict[int, Reason] = {}
        for allocation, resource in allocations:
            is_pinned = allocation.state is AllocationState.HELD
            if not (resource.health.works if is_pinned else resource.health is ResourceHealth.WELL):
                found[allocation.id] = self._reason(
                    reservation, resource, f"is {_WORDS[resource.health]}", str(resource.health_reason)
                )
        demand = demand_of(self._types, reservation)
        matching = plan.after.catalogue.matching(demand.of_units(1), reservable=False)
        for allocation, resource in allocations:
            if allocation.id in found:
                continue
            if not matching[plan.after.row_of(resource.id)]:
                found[allocation.id] = self._reason(reservation, resource, "no longer meets what was requested")
            elif not demand.exclusive and not self._has_room(plan, reservation, demand, allocation):
                found[allocation.id] = self._reason(
                    reservation, resource, "no longer has room for what is reserved there"
                )
        return found

    def _reason(self, reservation: Reservation, resource: Resource, text: str, more: str = "") -> Reason:
        return reason_about(self._types, reservation, resource, text, more)

    def _has_room(self, plan: _HealingPlan, reservation: Reservation, demand: Demand, allocation: Allocation) -> bool:
        """Whether the resource of an allocation has room for all units of the reservation there, from now on."""
        if allocation.period.end <= plan.now:
            return True
        row = plan.after.row_of(allocation.resource_id)
        own = [other for other in plan.after.on(row) if other.reservation_id == reservation.id]
        rest = Period(max(allocation.period.start, plan.now), allocation.period.end)
        units = sum(other.units for other in own)
        return plan.after.without(own).room_on(row, demand.of_units(1), rest, overdue=False) >= units

    def _is_due(self, resource: Resource, now: datetime) -> bool:
        since, patience = resource.health_since, self._rules.replace_after
        if patience is None or since is None:
            return False
        return since + patience <= now or since > now  # the clock was set back: it has failed for long enough

    def _depend_on_health(self, plan: _HealingPlan, resource: Resource) -> None:
        """Depend on the resource's health: the transaction fails if the resource has recovered since it was read."""
        if resource.health is not ResourceHealth.WELL:
            plan.depended_on[resource.id] = resource.version

    def _move(self, plan: _HealingPlan, reservation: Reservation, allocation: Allocation, resource: Resource) -> bool:
        demand = demand_of(self._types, reservation)
        relocated = relocate(plan.after, allocation, demand, plan.terms, without={allocation.resource_id})
        if relocated is None:
            return False
        self._depend_on_health(plan, resource)
        plan.after = relocated
        return self._has_moved_along(plan, allocation)

    def _has_moved_along(self, plan: _HealingPlan, allocation: Allocation) -> bool:
        """Whether an allocation has moved, by itself or with others of its reservation; then note where it is."""
        other = None if plan.after.has(allocation) else plan.after.resource_of(allocation)
        if other is None:
            return allocation.id in plan.moved
        plan.moved[allocation.id] = other
        return True

    def _replace(
        self, tx: Transaction, plan: _HealingPlan, reservation: Reservation, allocation: Allocation, resource: Resource
    ) -> bool:
        """Allocate another resource to a running reservation; the old one is released once the cloud has followed."""
        until = plan.lease.ends_at + self._rules.cleaning_time
        if plan.lease.ends_at <= plan.now:
            return False
        demand, period = demand_of(self._types, reservation), Period(plan.now, until)
        again = duplicate(plan.after, allocation, demand, period, plan.terms, without={allocation.resource_id})
        if again is None:
            return False
        self._depend_on_health(plan, resource)
        plan.after, other = again
        [taken] = tx.resources.by_ids([other]).values()
        for moving in moving_with(plan.before, allocation, demand):
            plan.replaced.setdefault(reservation.id, []).append(moving.id)
            plan.moved[moving.id] = other
        new_name = name_for_owner(self._types, reservation, taken)
        owner_text = f"{name_for_owner(self._types, reservation, resource)} is replaced"
        if new_name == taken.name:
            plan.words.append(Reason(f"{owner_text} by {new_name}"))
        else:
            plan.words.append(Reason(owner_text, f"{resource.name} is replaced by {taken.name}"))
        return True

    def _move_all_off(
        self, tx: Transaction, plan: _HealingPlan, resource: Resource, *, running: bool
    ) -> list[tuple[Reservation, Allocation, str | None]]:
        """Plan to move a lease's allocations off a resource; return each, with the reason if it stays."""
        return [
            (reservation, allocation, self._move_off(tx, plan, reservation, allocation, found, running))
            for reservation in _live(plan.lease)
            for allocation, found in plan.allocations_with_resources(reservation)
            if found.id == resource.id
        ]

    def _move_off(
        self,
        tx: Transaction,
        plan: _HealingPlan,
        reservation: Reservation,
        allocation: Allocation,
        resource: Resource,
        running: bool,
    ) -> str | None:
        """Move an allocation on request of an operator; return the reason if it stays, or None if it moves."""
        status = plan.lease.status
        if is_named(plan.after, allocation, demand_of(self._types, reservation)):
            return "The reservation names this resource, so it cannot move."
        if self._has_moved_along(plan, allocation):
            return None
        if allocation.state is AllocationState.PLANNED:
            return None if self._move(plan, reservation, allocation, resource) else "No other resource is free for it."
        if status is not LeaseStatus.ACTIVE:
            return f"The lease is {status}; try again later."
        if not running:
            return "The lease is running; its resources are replaced only if the request sets running."
        if not plan.is_idle:
            return "An operation of the lease is in progress in the cloud; try again."
        return (
            None if self._replace(tx, plan, reservation, allocation, resource) else "No other resource is free for it."
        )

    def _find_missing(self, tx: Transaction, plan: _HealingPlan) -> None:
        """Note what the lease lacks once its allocations have moved."""
        for reservation in _live(plan.lease):
            allocations = plan.changes.applied_to(plan.allocations[reservation.id], {reservation.id})
            resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
            placed = [(allocation, resources[allocation.resource_id]) for allocation in allocations]
            for reason in self._failures(plan, reservation, placed).values():
                plan.missing.setdefault(reservation.id, reason)

    def _write(self, tx: Transaction, plan: _HealingPlan, actor: Actor) -> None:
        """Write what is planned and the flags, and have the cloud follow new allocations of a running lease.

        A lease that is still being created is not flagged, and no notification is sent: this follows once it is ready.
        """
        lease, changes = plan.lease, plan.changes
        if changes:
            tx.raise_versions(changes.versions)
            tx.allocations.apply(changes, now=plan.now)
        if lease.status is not LeaseStatus.CREATING:
            lease = flag(tx, lease, plan.missing, now=plan.now)
        if plan.replaced:
            event = Event(new_id(), lease.id, EventType.UPDATE, plan.now, EventStatus.UNDONE, 0, plan.now)
            payload = UpdatePayload(added=_added(tx, plan), replaced=_frozen(plan.replaced))
            tx.events.add([event], payload=payload.to_json())
            lease = apply(tx, lease, Action.UPDATE, actor=actor, now=plan.now, keep_reason=True)
            words = together(plan.words)
            write_history(tx, lease.id, "replace", lease.status, lease.status, actor=actor, now=plan.now, reason=words)
        elif plan.moved and lease is plan.lease:
            # raises only the version, so that concurrent requests read it again
            tx.leases.change(lease, now=lease.updated_at)
        if plan.lease.degraded and not lease.degraded and lease.status is LeaseStatus.ACTIVE:
            request_reconciliation(tx, lease, now=plan.now)  # the missing resource may have lost its aggregate


def _added(tx: Transaction, plan: _HealingPlan) -> Mapping[str, tuple[int, ...]]:
    """Return the ids of the allocations that replace others, by reservation."""
    known = {allocation.id for allocations in plan.allocations.values() for allocation in allocations}
    added: dict[str, list[int]] = {}
    for allocation in tx.allocations.of_reservations(plan.replaced.keys(), planned=False):
        if allocation.id not in known and allocation.state is AllocationState.HELD:
            added.setdefault(allocation.reservation_id, []).append(allocation.id)
    return _frozen(added)


def _affected_allocations(
    tx: Transaction, plan: _HealingPlan, outcomes: Sequence[tuple[Reservation, Allocation, str | None]]
) -> tuple[AffectedAllocation, ...]:
    others = tx.resources.by_ids(plan.moved.values())
    return tuple(
        _affected(
            plan.lease,
            reservation,
            allocation,
            others[plan.moved[allocation.id]].external_id if reason is None else None,
            reason,
        )
        for reservation, allocation, reason in outcomes
    )


#: The statuses in which allocations can be moved off failed resources.
_HEALABLE: frozenset[LeaseStatus] = frozenset(
    {LeaseStatus.CREATING, LeaseStatus.PENDING, LeaseStatus.STARTING, LeaseStatus.ACTIVE}
)

#: The health of a resource, as it is said in a sentence.
_WORDS: Mapping[ResourceHealth, str] = {
    ResourceHealth.WELL: "well",
    ResourceHealth.DISABLED: "disabled",
    ResourceHealth.DOWN: "down",
    ResourceHealth.GONE: "gone",
}

#: The order of health: a higher value is worse.
_SEVERITY: Mapping[ResourceHealth, int] = {
    ResourceHealth.WELL: 0,
    ResourceHealth.DISABLED: 1,
    ResourceHealth.DOWN: 2,
    ResourceHealth.GONE: 3,
}


class _Report(Enum):
    """The result of a report about a resource's health."""

    NEWS = "news"  # the new health was stored
    KNOWN = "known"  # no change, or not a registered resource
    DOUBTED = "doubted"  # it would be a recovery, and was not stored


def _affected(
    lease: Lease, reservation: Reservation, allocation: Allocation, moves_to: str | None, reason: str | None
) -> AffectedAllocation:
    return AffectedAllocation(
        reservation.id, lease.id, lease.starts_at, lease.ends_at, allocation.state, moves_to=moves_to, reason=reason
    )


def _frozen(ids: Mapping[str, Sequence[int]]) -> Mapping[str, tuple[int, ...]]:
    return {reservation_id: tuple(allocation_ids) for reservation_id, allocation_ids in ids.items()}


def _live(lease: Lease) -> list[Reservation]:
    return [reservation for reservation in lease.reservations if reservation.status is not ReservationStatus.DELETED]


def flag(tx: Transaction, lease: Lease, missing: Mapping[str, Reason], *, now: datetime) -> Lease:
    """Set the flags of a lease to what its reservations lack, and notify others of a change.

    ``missing`` says in words what each reservation lacks, by reservation id. Returns the lease; it is compared and
    swapped if anything has changed.
    """
    before = {reservation.id for reservation in lease.reservations if reservation.missing_resources}
    reason = together(missing.values())
    if before == missing.keys() and lease.degraded == bool(missing) and (not missing or reason == lease.reason):
        return lease
    tx.leases.change_reservations(missing.keys() - before, now=now, missing_resources=True)
    tx.leases.change_reservations(before - missing.keys(), now=now, missing_resources=False)
    # While the lease lacks something, the reason is about that, and may be replaced or cleared; otherwise it is kept.
    shown = reason if missing or lease.degraded else lease.reason
    tx.leases.change(lease, now=now, degraded=bool(missing), **columns_of(shown))
    flagged = tx.leases.get(lease.id)
    assert flagged is not None
    if before != missing.keys():
        word = "degraded" if missing else "mended"
        write_history(tx, lease.id, word, lease.status, lease.status, actor=ENGINE, now=now, reason=reason)
        notify(tx, f"lease.{word}", flagged, now=now)
    return flagged


def lacking(tx: Transaction, types: ResourceTypes, lease: Lease, reason: Reason | None) -> dict[str, Reason]:
    """Return the reservations of a running lease with pinned resources that do not work.

    Each with the ``reason`` if it is given, or with a text about the resource.
    """
    allocations, _ = tx.allocations.with_versions([reservation.id for reservation in _live(lease)])
    resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
    reservations = {reservation.id: reservation for reservation in lease.reservations}
    return {
        allocation.reservation_id: reason
        or reason_about(
            types, reservations[allocation.reservation_id], resources[allocation.resource_id], "does not work"
        )
        for allocation in allocations
        if allocation.state is AllocationState.HELD and not resources[allocation.resource_id].health.works
    }


def request_reconciliation(tx: Transaction, lease: Lease, *, now: datetime, drifted: Sequence[str] = ()) -> bool:
    """Request that the cloud is made to match a running lease again.

    Returns False if that is requested already, or not possible. ``drifted`` are the reservations with differences.
    """
    if lease.status is not LeaseStatus.ACTIVE or lease.ends_at <= now:
        return False
    if any(
        stored.event.event_type is EventType.RECONCILE and stored.ready_at is not None
        for stored in tx.events.of_lease(lease.id)
    ):
        return False
    event = Event(new_id(), lease.id, EventType.RECONCILE, now, EventStatus.UNDONE, 0, now)
    tx.events.add([event], payload=ReconcilePayload(drifted=tuple(sorted(drifted))).to_json())
    return True


class HealingService:
    """Stores the health of resources as the engine and the cloud's notifications report it, and heals leases.

    ``wake`` is called when the engine has new work, ``look`` when the cloud should be asked for the health of its
    resources now, because it may be better than is known.
    """

    def __init__(
        self,
        db: Database,
        types: ResourceTypes,
        rules: Rules,
        planning: Planning,
        wake: Callable[[], None] = lambda: None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._db = db
        self._types = types
        self._rules = rules
        self._wake = wake
        self._ask_cloud = look
        self._healer = Healer(types, rules, planning)

    def known(self, resource_type: str, *, region: str | None = None) -> Mapping[str, KnownHealth]:
        """Return the known health of all resources of a type, or those of a region, by external id."""
        with self._db.read() as tx:
            return tx.resources.healths(resource_type, region=region)

    def registered(self, resource_type: str, *, region: str | None = None) -> Iterator[ResourceRef]:
        """Yield the registered resources of the type as references for a driver, of one region or of all.

        They are read when the first one is taken.
        """
        with self._db.read() as tx:
            found = tx.resources.registered(resource_type, region=region)
        for registered in found:
            yield ResourceRef(*registered)

    def observe(
        self,
        resource_type: str,
        healths: Mapping[str, Health],
        *,
        before: Mapping[str, KnownHealth] | None = None,
        region: str | None = None,
    ) -> int:
        """Store the health of all resources of a type, or those of a region, by external id; return how many changed.

        A registered resource that is not in ``healths`` is gone; one whose health is not known keeps it. An empty
        answer is ignored. ``before`` is the known health when the cloud was asked: a change since then is newer than
        the answer, and stays until the next one.
        """
        known = self.known(resource_type, region=region)
        if known and not healths:
            LOG.error("the cloud reports no resource of type %s; the answer is ignored", resource_type)
            return 0
        current = {external_id: _health_of(healths.get(external_id)) for external_id in known}
        unknown = {external_id for external_id, health in healths.items() if not health.is_known}
        changed = [
            external_id
            for external_id, known_health in known.items()
            if external_id not in unknown and current[external_id][0] is not known_health.health
        ]
        reports = [
            self._learn(resource_type, external_id, *current[external_id], before=before) for external_id in changed
        ]
        return reports.count(_Report.NEWS)

    def report(self, resource_type: str, service_host: str, health: Health) -> int:
        """Store a notification about the resources of a service of the cloud, and heal at once.

        A notification knows only the service, not whether its resources work: it can make their health worse, but not
        better. If it says better, the cloud is asked, and its answer decides. ``service_host`` is the name of the
        service, which may differ from the resource's name. Returns how many resources changed; 0 if no registered
        resource belongs to the service.
        """
        with self._db.read() as tx:
            named = tx.resources.with_fact(resource_type, "service_name", service_host)
        reports = [
            self._learn(resource_type, external_id, *_health_of(health), may_recover=False) for external_id in named
        ]
        if _Report.DOUBTED in reports:
            self._ask_cloud()
        if _Report.NEWS in reports:
            self.heal()
        return reports.count(_Report.NEWS)

    def fails(self, resource_type: str) -> bool:
        """Whether any resource of the type is known not to work."""
        with self._db.read() as tx:
            return not all(health.health.works for health in tx.resources.healths(resource_type).values())

    def heal(self) -> Healed:
        """Heal every lease on resources that have failed or changed, and every lease that still lacks something.

        Each lease is a transaction of its own, the earliest first; a lease that cannot be healed now does not stop the
        others.
        """
        with self._db.read() as tx:
            horizon = self._rules.healing_horizon
            before = tx.now() + horizon if horizon else None
            lease_ids = dict.fromkeys([*tx.allocations.ailing_leases(before=before), *tx.leases.degraded_ids()])
            unreviewed = tx.resources.unreviewed()
            lease_ids.update(dict.fromkeys(tx.allocations.unreviewed_leases()))
        healed = self._heal_all(lease_ids)
        if not healed.put_off:  # otherwise the leases that were put off would be forgotten
            for batch in _batches(unreviewed):
                self._db.write(partial(_reviewed, seen=batch))
        return healed

    def review(self, resource_type: str, external_ids: Collection[str]) -> Healed:
        """Heal the leases on these resources after the cloud has changed their description."""
        with self._db.read() as tx:
            found = [tx.resources.by_external_id(resource_type, external_id) for external_id in external_ids]
            lease_ids = dict.fromkeys(
                lease_id
                for resource in found
                if resource is not None
                for lease_id in tx.allocations.leases_on(resource.id)
            )
        return self._heal_all(lease_ids)

    def _heal_all(self, lease_ids: Collection[str]) -> Healed:
        moved, degraded, put_off = 0, [], []
        for lease_id in lease_ids:
            try:
                count, lacks = self._db.write(partial(self._healer.heal, lease_id=lease_id))
            except TooManyConflicts as error:
                LOG.warning("lease %s will be healed later: %s", lease_id, error)
                put_off.append(lease_id)
                continue
            moved += count
            if lacks:
                degraded.append(lease_id)
        if lease_ids:
            self._wake()
        return Healed(moved, tuple(degraded), tuple(put_off))

    def _learn(
        self,
        resource_type: str,
        external_id: str,
        health: ResourceHealth,
        reason: str | None,
        *,
        may_recover: bool = True,
        before: Mapping[str, KnownHealth] | None = None,
    ) -> _Report:
        reports = self._db.write(
            _learn, resource_type, external_id, health, reason, may_recover=may_recover, before=before
        )
        if reports is _Report.NEWS:
            log = LOG.info if health is ResourceHealth.WELL else LOG.warning
            log("%s %s is %s%s", resource_type, external_id, _WORDS[health], f": {reason}" if reason else "")
        return reports


def _learn(
    tx: Transaction,
    resource_type: str,
    external_id: str,
    health: ResourceHealth,
    reason: str | None,
    *,
    may_recover: bool,
    before: Mapping[str, KnownHealth] | None,
) -> _Report:
    """Note the health of a resource."""
    resource = tx.resources.by_external_id(resource_type, external_id)
    if resource is None or resource.health is health:
        return _Report.KNOWN
    if not may_recover and _SEVERITY[health] < _SEVERITY[resource.health]:
        return _Report.DOUBTED
    # Not compared by time: the clock may have been set back.
    if before is not None and before.get(external_id) != KnownHealth(resource.health, resource.health_since):
        return _Report.KNOWN  # or it was not registered yet when the cloud was asked
    now = tx.now()
    tx.resources.change(resource, now=now, health=health, health_reason=reason, health_since=now)
    return _Report.NEWS


def _batches(versions: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Split into batches, so that no transaction changes many rows."""
    ids = sorted(versions)
    for first in range(0, len(ids), _AT_ONCE):
        yield {number: versions[number] for number in ids[first : first + _AT_ONCE]}


def _reviewed(tx: Transaction, seen: Mapping[int, int]) -> None:
    tx.resources.reviewed(seen)


def _health_of(reported: Health | None) -> tuple[ResourceHealth, str | None]:
    if reported is None:
        return ResourceHealth.GONE, "The cloud no longer has it."
    if reported.well:
        return ResourceHealth.WELL, None
    return (
        ResourceHealth.DISABLED if reported.works else ResourceHealth.DOWN
    ), reported.reason or "The cloud gives no reason."


def empty_all(
    db: Database,
    healer: Healer,
    resource: Resource,
    lease_ids: Sequence[str],
    *,
    actor: Actor,
    running: bool,
    dry_run: bool,
) -> tuple[AffectedAllocation, ...]:
    """Move these leases' allocations on the resource to others, each lease in a transaction of its own.

    Returns what happens to each allocation; in a dry run, what would. Raises ``Conflict`` if the resource changed
    meanwhile.
    """
    affected: list[AffectedAllocation] = []
    for lease_id in lease_ids:
        if dry_run:
            with db.read() as tx:
                affected += healer.preview_emptying(tx, lease_id, resource, running=running)
            continue
        work = partial(healer.empty, lease_id=lease_id, resource=resource, running=running, actor=actor)
        try:
            affected += db.write(work)
        except TooManyConflicts:
            raise Conflict(
                "Too many requests change leases on it right now; some of its reservations may have moved already. "
                "Try again."
            ) from None
    return tuple(affected)
