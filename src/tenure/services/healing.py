"""Healing: what becomes of leases when resources fail, come back, or are to be emptied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import partial
from zlib import crc32

from tenure.domain.actor import ENGINE, Actor
from tenure.domain.allocation import Allocation, Demand, units_by_resource
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
from tenure.domain.request import AffectedPart
from tenure.domain.resource import KnownHealth, Resource, ResourceHealth
from tenure.drivers.contract import Health, ResourceRef
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules, apply, columns_of, new_id, remember, tell
from tenure.services.demands import demand_of
from tenure.services.naming import name_for_owner, said_of
from tenure.services.planning import Planner
from tenure.store.database import Database, Transaction

LOG = logging.getLogger(__name__)

#: Of how many resources it is noted at a time that the leases on them were looked at.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Healed:
    """What a look at the leases on failed resources came to: how many parts moved, and which leases still lack some."""

    moved: int = 0
    degraded: tuple[str, ...] = ()
    #: The leases that could not be looked at now.
    put_off: tuple[str, ...] = ()


@dataclass(slots=True)
class _Look:
    """What was found of one lease in one transaction, and what was done about it."""

    lease: Lease
    now: datetime
    planner: Planner
    #: What a reservation lacks, in words.
    missing: dict[str, Reason] = field(default_factory=dict)
    #: The allocations that a running lease got, and that go once the cloud has followed; by reservation.
    added: dict[str, list[int]] = field(default_factory=dict)
    replaced: dict[str, list[int]] = field(default_factory=dict)
    words: list[Reason] = field(default_factory=list)
    #: By allocation: the resource it moves to.
    moved: dict[int, int] = field(default_factory=dict)
    #: The failed resources whose health this rests on: several parts may lie on one, and its version is raised once.
    rested: set[int] = field(default_factory=set)


class Healer:
    """What healing does to one lease, inside a transaction of the caller's."""

    def __init__(self, types: ResourceTypes, rules: Rules) -> None:
        self._types = types
        self._rules = rules

    def heal(self, tx: Transaction, lease_id: str) -> tuple[int, bool]:
        """Do for the lease what can be done; how many of its parts moved, and whether it lacks something still.

        A plan on what has failed moves, a start that is between two attempts as well. What a running lease has is
        replaced only where it does not work, and has not for a while. What cannot be had is told: the flags of the
        lease are those of what it lacks, no more and no less.
        """
        lease = tx.leases.get(lease_id, lock=True)
        if lease is None or lease.status not in _HEALED:
            return 0, False
        look = self._look(tx, lease)
        idle = self._is_idle(tx, lease, look.now)
        for reservation in _live(lease):
            parts = self._parts(tx, look, reservation)
            ailing = self._what_ails(tx, reservation, parts)
            left: set[int] = set()
            for part, resource in parts:
                if resource.id in left:  # there is more room where another part was
                    ailing.pop(part.id, None)
                    ailing |= self._what_ails(tx, reservation, [(part, resource)])
                reason = ailing.get(part.id)
                if reason is None:
                    continue
                if part.state is AllocationState.PLANNED:
                    healed = self._move(look, reservation, part, resource)
                elif resource.health.works or not idle:
                    healed = False
                elif lease.status is LeaseStatus.STARTING:
                    healed = self._move(look, reservation, part, resource)
                else:
                    if self._is_due(resource, look.now):
                        self._replace(tx, look, reservation, part, resource)
                    healed = False  # not before the cloud has followed
                if healed:
                    left.add(resource.id)
                else:
                    look.missing.setdefault(reservation.id, reason)
        self._record(tx, look, ENGINE)
        return len(look.moved), bool(look.missing)

    def empty(
        self, tx: Transaction, lease_id: str, resource: Resource, *, running: bool, actor: Actor
    ) -> tuple[AffectedPart, ...]:
        """Move what the lease has on the resource elsewhere; what was found there, and where it goes.

        What has not started is planned anew; what has started is replaced only with ``running``.
        """
        lease = tx.leases.get(lease_id, lock=True)
        if lease is None:
            return ()
        look = self._look(tx, lease)
        told: list[tuple[Reservation, Allocation, str | None]] = []
        for reservation in _live(lease):
            for part, found in self._parts(tx, look, reservation):
                if found.id == resource.id:
                    told.append((reservation, part, self._move_off(tx, look, reservation, part, found, running)))
        if look.moved:
            self._find_missing(tx, look)
            self._record(tx, look, actor)
        others = tx.resources.by_ids(look.moved.values())
        return tuple(
            _affected(
                lease, reservation, part, others[look.moved[part.id]].external_id if reason is None else None, reason
            )
            for reservation, part, reason in told
        )

    def keepers(self, tx: Transaction, resource: Resource) -> tuple[AffectedPart, ...]:
        """Who has a part in the resource and keeps it when nobody else can book it any more."""
        return tuple(
            _affected(lease, reservation, part, None, "It keeps what it has.")
            for lease in sorted(
                tx.leases.by_ids(tx.allocations.leases_on(resource.id)), key=lambda one: (one.starts_at, one.id)
            )
            for reservation in _live(lease)
            for part in tx.allocations.with_versions([reservation.id])[0]
            if part.resource_id == resource.id
        )

    # --- inside

    def _look(self, tx: Transaction, lease: Lease) -> _Look:
        now = tx.now()
        # Another turn each time: what the cloud has refused once is not the first choice for ever.
        planner = Planner(
            tx, self._types, now=now, turn=crc32(f"{lease.id} {now}".encode()), notice=self._rules.preemption_notice
        )
        return _Look(lease, now, planner)

    def _is_idle(self, tx: Transaction, lease: Lease, now: datetime) -> bool:
        return not any(one.claim_token and one.ready_at and one.ready_at > now for one in tx.events.of_lease(lease.id))

    def _parts(self, tx: Transaction, look: _Look, reservation: Reservation) -> list[tuple[Allocation, Resource]]:
        """What the reservation has or is to have."""
        allocations, _ = tx.allocations.with_versions([reservation.id])
        resources = tx.resources.by_ids(one.resource_id for one in allocations)
        return [(allocation, resources[allocation.resource_id]) for allocation in allocations]

    def _what_ails(
        self, tx: Transaction, reservation: Reservation, parts: Sequence[tuple[Allocation, Resource]]
    ) -> dict[int, Reason]:
        """Why the reservation does not have in these parts what it was promised, by allocation; those ailing only."""
        found: dict[int, Reason] = {}
        for part, resource in parts:
            held = part.state is AllocationState.HELD
            if not (resource.health.works if held else resource.health is ResourceHealth.WELL):
                found[part.id] = self._said(
                    reservation, resource, f"is {_WORDS[resource.health]}", str(resource.health_reason)
                )
        serving = [(part, resource) for part, resource in parts if part.id not in found]
        if not serving:
            return found
        demand = demand_of(self._types, reservation)
        matching = tx.allocations.matching(demand.part(1), {resource.id for _, resource in serving})
        for part, resource in serving:
            if resource.id not in matching:
                found[part.id] = self._said(reservation, resource, "is not any more what was asked for")
        if not demand.exclusive:
            fitting = [(part, resource) for part, resource in serving if part.id not in found]
            for part, resource in self._crowded(tx, reservation, demand, fitting):
                found[part.id] = self._said(reservation, resource, "has no room any more for what was promised there")
        return found

    def _said(self, reservation: Reservation, resource: Resource, text: str, more: str = "") -> Reason:
        return said_of(self._types, reservation, resource, text, more)

    def _crowded(
        self,
        tx: Transaction,
        reservation: Reservation,
        demand: Demand,
        parts: Sequence[tuple[Allocation, Resource]],
    ) -> list[tuple[Allocation, Resource]]:
        """Those parts that lie where there is not room for all that the reservation has there."""
        now = tx.now()
        own, _ = tx.allocations.with_versions([reservation.id])
        units = units_by_resource(own)
        by_period: dict[Period, list[tuple[Allocation, Resource]]] = {}
        for part, resource in parts:
            if part.period.end > now:
                rest = Period(max(part.period.start, now), part.period.end)
                by_period.setdefault(rest, []).append((part, resource))
        crowded = []
        for rest, there in by_period.items():
            wanted = {resource.id: units[resource.id] for _, resource in there}
            room = tx.allocations.still_good(demand, rest, wanted, ignoring=reservation.id, keep_unreservable=True)
            crowded += [(part, resource) for part, resource in there if resource.id not in room]
        return crowded

    def _is_due(self, resource: Resource, now: datetime) -> bool:
        since, patience = resource.health_since, self._rules.replace_after
        if patience is None or since is None:
            return False
        return since + patience <= now or since > now  # the clock was set back: it has failed for long enough

    def _rest_on(self, look: _Look, resource: Resource) -> None:
        """Move nothing off a resource that has come back since its health was read."""
        if resource.health is not ResourceHealth.WELL and resource.id not in look.rested:
            look.planner.touch({resource.id: resource.version})
            look.rested.add(resource.id)

    def _move(self, look: _Look, reservation: Reservation, part: Allocation, resource: Resource) -> bool:
        self._rest_on(look, resource)
        demand = demand_of(self._types, reservation)
        without = {part.resource_id}
        other = look.planner.relocate(part, demand, without=without)
        if other is not None:
            look.moved[part.id] = other
        return other is not None

    def _replace(
        self, tx: Transaction, look: _Look, reservation: Reservation, part: Allocation, resource: Resource
    ) -> bool:
        """Give a running reservation another resource for this one; it loses this one once the cloud has followed."""
        until = look.lease.ends_at + self._rules.cleaning_time
        if look.lease.ends_at <= look.now:
            return False
        self._rest_on(look, resource)
        duplicate = look.planner.duplicate(
            part,
            demand_of(self._types, reservation),
            Period(look.now, until),
            without={part.resource_id},
        )
        if duplicate is None:
            return False
        added, other = duplicate
        look.added.setdefault(reservation.id, []).append(added)
        look.replaced.setdefault(reservation.id, []).append(part.id)
        look.moved[part.id] = other
        taken = tx.resources.by_ids([other])[other]
        shown, whole = name_for_owner(self._types, reservation, taken), f"{resource.name} is replaced by {taken.name}"
        told = f"{name_for_owner(self._types, reservation, resource)} is replaced"
        look.words.append(Reason(f"{told} by {shown}") if shown == taken.name else Reason(told, whole))
        return True

    def _move_off(
        self,
        tx: Transaction,
        look: _Look,
        reservation: Reservation,
        part: Allocation,
        resource: Resource,
        running: bool,
    ) -> str | None:
        """Move one part elsewhere, as an operator wants it; why it stays, None where it goes."""
        status = look.lease.status
        if look.planner.is_required(part, demand_of(self._types, reservation)):
            return "The reservation asks for this very one."
        if part.state is AllocationState.PLANNED:
            return None if self._move(look, reservation, part, resource) else "No other is free for it."
        if status is not LeaseStatus.ACTIVE:
            return f"The lease is {status} now."
        if not running:
            return "The lease is running; it loses nothing unless that is asked for."
        if not self._is_idle(tx, look.lease, look.now):
            return "The cloud is doing something for the lease right now; try again."
        return None if self._replace(tx, look, reservation, part, resource) else "No other is free for it."

    def _find_missing(self, tx: Transaction, look: _Look) -> None:
        for reservation in _live(look.lease):
            for reason in self._what_ails(tx, reservation, self._parts(tx, look, reservation)).values():
                look.missing.setdefault(reservation.id, reason)

    def _record(self, tx: Transaction, look: _Look, actor: Actor) -> None:
        """Write the flags, and have the cloud follow what a running lease got.

        Of a lease that is being made, or held, nobody is told yet: what it lacks is told once it is there.
        """
        lease = look.lease
        if lease.status is not LeaseStatus.CREATING:
            lease = flag(tx, lease, look.missing, now=look.now)
        if look.added:
            event = Event(new_id(), lease.id, EventType.UPDATE, look.now, EventStatus.UNDONE, 0, look.now)
            tx.events.add([event], payload={"added": look.added, "replaced": look.replaced})
            lease = apply(tx, lease, Action.UPDATE, actor=actor, now=look.now, keep_reason=True)
            words = together(look.words)
            remember(tx, lease.id, "replace", lease.status, lease.status, actor=actor, now=look.now, reason=words)
        elif look.moved and lease is look.lease:
            tx.leases.change(lease, now=lease.updated_at)  # silently, and so that whoever has read it looks again
        if look.lease.degraded and not lease.degraded and lease.status is LeaseStatus.ACTIVE:
            want_mended(tx, lease, now=look.now)  # what was gone may be in no group


#: The leases of which plans, or what they have, can be moved off what has failed.
_HEALED: frozenset[LeaseStatus] = frozenset(
    {LeaseStatus.CREATING, LeaseStatus.PENDING, LeaseStatus.STARTING, LeaseStatus.ACTIVE}
)

#: How the health of a resource reads in a sentence.
_WORDS: Mapping[ResourceHealth, str] = {
    ResourceHealth.WELL: "well",
    ResourceHealth.DISABLED: "disabled",
    ResourceHealth.DOWN: "down",
    ResourceHealth.GONE: "gone",
}

#: The worse, the greater.
_BADNESS: Mapping[ResourceHealth, int] = {
    ResourceHealth.WELL: 0,
    ResourceHealth.DISABLED: 1,
    ResourceHealth.DOWN: 2,
    ResourceHealth.GONE: 3,
}


class _Heard(Enum):
    """What came of something that was told of a resource's health."""

    NEWS = "news"  # it was taken over
    KNOWN = "known"  # nothing new, or of nothing that is registered
    DOUBTED = "doubted"  # it would be a recovery, and was not taken over


def _affected(
    lease: Lease, reservation: Reservation, part: Allocation, moves_to: str | None, reason: str | None
) -> AffectedPart:
    return AffectedPart(
        reservation.id, lease.id, lease.starts_at, lease.ends_at, part.state, moves_to=moves_to, reason=reason
    )


def _live(lease: Lease) -> list[Reservation]:
    return [one for one in lease.reservations if one.status is not ReservationStatus.DELETED]


def flag(tx: Transaction, lease: Lease, missing: Mapping[str, Reason], *, now: datetime) -> Lease:
    """Let the flags of a lease say what its reservations lack, and tell others where that changed.

    ``missing`` says in words what each reservation lacks. Compares and swaps the lease where anything changed; the
    lease as it is then.
    """
    before = {one.id for one in lease.reservations if one.missing_resources}
    reason = together(missing.values())
    if before == missing.keys() and lease.degraded == bool(missing) and (not missing or reason == lease.reason):
        return lease
    tx.leases.change_reservations(missing.keys() - before, now=now, missing_resources=True)
    tx.leases.change_reservations(before - missing.keys(), now=now, missing_resources=False)
    # The reason is ours to take back as long as the lease lacks something; else it may be about something else.
    shown = reason if missing or lease.degraded else lease.reason
    tx.leases.change(lease, now=now, degraded=bool(missing), **columns_of(shown))
    flagged = tx.leases.get(lease.id)
    assert flagged is not None
    if before != missing.keys():
        word = "degraded" if missing else "mended"
        remember(tx, lease.id, word, lease.status, lease.status, actor=ENGINE, now=now, reason=reason)
        tell(tx, f"lease.{word}", flagged, now=now)
    return flagged


def lacking(tx: Transaction, types: ResourceTypes, lease: Lease, reason: Reason | None) -> dict[str, Reason]:
    """The reservations of a running lease that hold what does not work, with the reason that is known."""
    allocations, _ = tx.allocations.with_versions([one.id for one in _live(lease)])
    resources = tx.resources.by_ids(one.resource_id for one in allocations)
    reservations = {reservation.id: reservation for reservation in lease.reservations}
    return {
        one.reservation_id: reason
        or said_of(types, reservations[one.reservation_id], resources[one.resource_id], "does not work")
        for one in allocations
        if one.state is AllocationState.HELD and not resources[one.resource_id].health.works
    }


def want_mended(tx: Transaction, lease: Lease, *, now: datetime, drifted: Sequence[str] = ()) -> bool:
    """Have the cloud made to match a running lease again; False where that is wanted already, or not possible.

    ``drifted`` are the reservations that were found not to be as they should.
    """
    if lease.status is not LeaseStatus.ACTIVE or lease.ends_at <= now:
        return False
    if any(one.event.event_type is EventType.MEND and one.ready_at is not None for one in tx.events.of_lease(lease.id)):
        return False
    event = Event(new_id(), lease.id, EventType.MEND, now, EventStatus.UNDONE, 0, now)
    tx.events.add([event], payload={"drifted": sorted(drifted)})
    return True


class HealingService:
    """What the engine, and the cloud's notifications, tell of resources; and what follows from it.

    ``wake`` is called when the engine has something new to do, ``look`` when the cloud is to be asked for the health of
    its resources now, because it may be better than is known.
    """

    def __init__(
        self,
        db: Database,
        types: ResourceTypes,
        rules: Rules,
        wake: Callable[[], None] = lambda: None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._db = db
        self._types = types
        self._rules = rules
        self._wake = wake
        self._ask_cloud = look
        self._healer = Healer(types, rules)

    def known(self, resource_type: str, *, region: str | None = None) -> Mapping[str, KnownHealth]:
        """What is known of the health of all resources of a type, or those of a region, by external id."""
        with self._db.read() as tx:
            return tx.resources.healths(resource_type, region=region)

    def registered(self, resource_type: str, *, region: str | None = None) -> Iterator[ResourceRef]:
        """The registered resources of the type as a driver sees them; read when the first one is taken.

        Those of all regions, unless it is one.
        """
        with self._db.read() as tx:
            found = tx.resources.registered(resource_type, region=region)
        for one in found:
            yield ResourceRef(*one)

    def observe(
        self,
        resource_type: str,
        healths: Mapping[str, Health],
        *,
        before: Mapping[str, KnownHealth] | None = None,
        region: str | None = None,
    ) -> int:
        """Take over the health of all resources of a type, or those of a region, by external id; how many changed.

        What is not among them is gone, what is not known keeps its health. An answer that names nothing at all is not
        believed. ``before`` is what was known when the cloud was asked: what was learnt since is newer than the answer,
        and stays until the next one.
        """
        known = self.known(resource_type, region=region)
        if known and not healths:
            LOG.error("the cloud names no resource of type %s at all; nothing is concluded from that", resource_type)
            return 0
        told = {external_id: _judge(healths.get(external_id)) for external_id in known}
        unknown = {external_id for external_id, health in healths.items() if not health.is_known}
        changed = [
            external_id
            for external_id, one in known.items()
            if external_id not in unknown and told[external_id][0] is not one.health
        ]
        heard = [self._learn(resource_type, one, *told[one], before=before) for one in changed]
        return heard.count(_Heard.NEWS)

    def report(self, resource_type: str, service_host: str, health: Health) -> int:
        """Take over what a notification says of the resources behind a service of the cloud, and heal at once.

        A notification knows of the service only, not whether what it serves works: it can make things worse and never
        better. Where it would, the cloud is asked, and its answer decides. ``service_host`` is the name of the service,
        which need not be that of the resource. Returns of how many the health changed; 0 also for a service that no
        registered resource is behind.
        """
        with self._db.read() as tx:
            named = tx.resources.with_fact(resource_type, "service_name", service_host)
        heard = [self._learn(resource_type, one, *_judge(health), may_recover=False) for one in named]
        if _Heard.DOUBTED in heard:
            self._ask_cloud()
        if _Heard.NEWS in heard:
            self.heal()
        return heard.count(_Heard.NEWS)

    def fails(self, resource_type: str) -> bool:
        """Whether any resource of the type is known not to work."""
        with self._db.read() as tx:
            return not all(one.health.works for one in tx.resources.healths(resource_type).values())

    def heal(self) -> Healed:
        """Do for every lease on failed resources what can be done; again for those that lack something.

        Those on resources that the cloud describes differently by now are among them.

        Each lease is a transaction of its own, the earliest first; one that cannot be healed now stops no other.
        """
        with self._db.read() as tx:
            horizon = self._rules.healing_horizon
            before = tx.now() + horizon if horizon else None
            wanted = dict.fromkeys([*tx.allocations.ailing_leases(before=before), *tx.leases.degraded_ids()])
            unreviewed = tx.resources.unreviewed()
            wanted.update(dict.fromkeys(tx.allocations.unreviewed_leases()))
        healed = self._heal_all(wanted)
        if not healed.put_off:  # of those nothing else would tell that they have to be looked at
            for some in _in_turn(unreviewed):
                self._db.write(partial(_reviewed, seen=some))
        return healed

    def review(self, resource_type: str, external_ids: Collection[str]) -> Healed:
        """Do the same for the leases on these resources, of which the cloud says something else by now."""
        with self._db.read() as tx:
            found = [tx.resources.by_external_id(resource_type, external_id) for external_id in external_ids]
            wanted = dict.fromkeys(
                lease_id for one in found if one is not None for lease_id in tx.allocations.leases_on(one.id)
            )
        return self._heal_all(wanted)

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
    ) -> _Heard:
        def learn(tx: Transaction) -> _Heard:
            resource = tx.resources.by_external_id(resource_type, external_id)
            if resource is None or resource.health is health:
                return _Heard.KNOWN
            if not may_recover and _BADNESS[health] < _BADNESS[resource.health]:
                return _Heard.DOUBTED
            # Not by the time at which that was learnt: the clock may have been set back.
            if before is not None and before.get(external_id) != KnownHealth(resource.health, resource.health_since):
                return _Heard.KNOWN  # or not there yet when the cloud was asked
            now = tx.now()
            tx.resources.change(resource, now=now, health=health, health_reason=reason, health_since=now)
            return _Heard.NEWS

        heard = self._db.write(learn)
        if heard is _Heard.NEWS:
            log = LOG.info if health is ResourceHealth.WELL else LOG.warning
            log("%s %s is %s%s", resource_type, external_id, _WORDS[health], f": {reason}" if reason else "")
        return heard


def _in_turn(versions: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """A few at a time, so that no transaction has many rows."""
    ids = sorted(versions)
    for first in range(0, len(ids), _AT_ONCE):
        yield {number: versions[number] for number in ids[first : first + _AT_ONCE]}


def _reviewed(tx: Transaction, seen: Mapping[int, int]) -> None:
    tx.resources.reviewed(seen)


def _judge(told: Health | None) -> tuple[ResourceHealth, str | None]:
    if told is None:
        return ResourceHealth.GONE, "The cloud does not know it any more."
    if told.well:
        return ResourceHealth.WELL, None
    return (ResourceHealth.DISABLED if told.works else ResourceHealth.DOWN), told.reason or "The cloud says no more."


class Rehearsed(Exception):
    """Carries the outcome of a transaction that must not be committed out of it."""

    def __init__(self, parts: tuple[AffectedPart, ...]) -> None:
        super().__init__("a rehearsal")
        self.parts = parts


def _rehearse(tx: Transaction, work: Callable[[Transaction], tuple[AffectedPart, ...]]) -> tuple[AffectedPart, ...]:
    raise Rehearsed(work(tx))


def empty_all(
    db: Database,
    healer: Healer,
    resource: Resource,
    lease_ids: Sequence[str],
    *,
    actor: Actor,
    running: bool,
    rehearse: bool,
) -> tuple[AffectedPart, ...]:
    """Move what these leases have on the resource elsewhere, each in a transaction of its own; what becomes of it.

    A rehearsal does the same and takes it back. Raises ``Conflict`` where the resource changed meanwhile.
    """
    told: list[AffectedPart] = []
    for lease_id in lease_ids:
        work = partial(healer.empty, lease_id=lease_id, resource=resource, running=running, actor=actor)
        try:
            told += db.write(partial(_rehearse, work=work) if rehearse else work)
        except Rehearsed as rehearsed:
            told += rehearsed.parts
        except TooManyConflicts:
            raise Conflict("Too much is being booked and changed on it right now; what was moved is moved.") from None
    return tuple(told)
