"""Changed reservations of a lease: what each of them is to have, and the plan for that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from zlib import crc32

from tenure.domain.allocation import Allocation, Demand, Spread, units_by_resource
from tenure.domain.changes import Changes
from tenure.domain.lease import AllocationState, Lease, LeaseStatus, Reservation
from tenure.domain.period import ENDLESS, TICK, Period
from tenure.planning.changes import changes_of
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, NewUnits, Revision, Task
from tenure.services.booking.context import BookingContext
from tenure.services.booking.subjects import check_unbound
from tenure.services.planning.planning import check_same
from tenure.store.database import Transaction


@dataclass(frozen=True, slots=True)
class Dates:
    """The dates of a lease after a change."""

    starts_at: datetime
    ends_at: datetime
    #: When the action before the end is due; None keeps its distance from the end.
    notice_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReservationDraft:
    """A reservation as it is to be."""

    reservation: Reservation
    #: The position of the reservation in the request.
    position: int
    parameters: Mapping[str, object]
    before: Demand
    demand: Demand
    #: Whether a parameter changes by which a running reservation may grow.
    grows: bool = False


@dataclass(frozen=True, slots=True)
class PlannedReservations:
    """What changes in the ledger for some reservations of a lease."""

    changes: Changes = field(default_factory=Changes)
    #: The allocations of a running lease that get an earlier end, by that end, once the cloud has followed.
    shorter: Mapping[datetime, Collection[int]] = field(default_factory=dict)
    #: Those that were to last beyond the end of the lease and are no longer, and those that now are.
    ending: tuple[int, ...] = ()
    lasting: tuple[int, ...] = ()
    #: The reservations that are to be bound to a subject.
    bound: tuple[str, ...] = ()


def plan_reservations(
    tx: Transaction,
    context: BookingContext,
    lease: Lease,
    drafts: Sequence[ReservationDraft],
    dates: Dates,
    allocations: Sequence[Allocation],
    snapshot: Snapshot,
    *,
    now: datetime,
) -> PlannedReservations:
    """Return what changes in the ledger for these reservations of a lease, which has these allocations.

    Raises the errors of ``Planning.plan``, ``Conflict`` and ``InvalidParameter`` for things that exist and that others
    have reserved, and ``Overtaken`` if the snapshot has other allocations.
    """
    if not drafts:
        return PlannedReservations()
    bound = _to_bind(tx, drafts)
    running = _Running.of(context, lease, dates, now) if lease.status is LeaseStatus.ACTIVE else None
    state = AllocationState.PLANNED if running is None else AllocationState.HELD
    of_drafts: dict[str, list[Allocation]] = {draft.reservation.id: [] for draft in drafts}
    for allocation in allocations:
        if allocation.reservation_id in of_drafts and allocation.state is state:
            of_drafts[allocation.reservation_id].append(allocation)
    check_same(snapshot, [allocation for theirs in of_drafts.values() for allocation in theirs])
    before, tasks = snapshot, list[Task]()
    if running is None:
        period = _time_of_plans(context, dates, now)
        if period is None:
            before = snapshot.without(plan for plans in of_drafts.values() for plan in plans)
        else:
            keeps_start = dates.starts_at == lease.starts_at
            adds_no_time = lease.starts_at <= dates.starts_at and dates.ends_at <= lease.ends_at
            tasks = [
                Revision(
                    draft.reservation.id,
                    draft.before,
                    draft.demand,
                    tuple(of_drafts[draft.reservation.id]),
                    period,
                    keeps_start=keeps_start,
                    adds_no_time=adds_no_time,
                    position=draft.position,
                )
                for draft in drafts
            ]
    else:
        for draft in drafts:
            tasks += running.tasks(snapshot, draft, of_drafts[draft.reservation.id])
    seed = crc32(lease.id.encode())
    after = context.planning.plan(before, tasks, now=now, seed=seed).snapshot if tasks else before
    return _planned(changes_of(snapshot, after), drafts, of_drafts, running, bound)


@dataclass(frozen=True, slots=True)
class _Running:
    """The change of a running lease: its allocations stay, and it can only grow."""

    context: BookingContext
    now: datetime
    ends_at: datetime
    #: When the resources are clean after the lease.
    cleaned_at: datetime
    is_prolonged: bool

    @classmethod
    def of(cls, context: BookingContext, lease: Lease, dates: Dates, now: datetime) -> _Running:
        cleaned_at = dates.ends_at + context.rules.cleaning_time
        return cls(context, now, dates.ends_at, cleaned_at, is_prolonged=dates.ends_at > lease.ends_at)

    def span(self, demand: Demand, pinned: Sequence[Allocation]) -> Period:
        """Return the time from now on in which a reservation takes its resources: earlier uses do not matter."""
        latest = max((allocation.period.start for allocation in pinned), default=self.now)
        until = max(self.cleaned_at, self.now, latest + TICK)
        return demand.span(Period(max(latest, min(self.now, until - TICK)), until))

    def tasks(self, snapshot: Snapshot, draft: ReservationDraft, pinned: Sequence[Allocation]) -> Iterator[Task]:
        """Yield what a reservation gets: more time for its allocations, and more units.

        A change to the same or an earlier end adds no time, not even for cleaning. Raises ``NotEnoughResources`` if the
        reservation has more units than it asks for.
        """
        demand, position = draft.demand, draft.position
        units = units_by_resource(pinned)
        retained, span = units.total(), self.span(demand, pinned)
        if retained > demand.maximum:
            raise self.context.planning.refusal_of_retained(
                snapshot, demand, span, position=position, retained=retained
            )
        if self.is_prolonged or demand.lasting:
            longer = tuple(allocation for allocation in pinned if allocation.period.end < span.end)
            field_name = f"reservations[{position}]" if draft.grows else "end_date"
            if longer:
                yield Extension(
                    draft.reservation.id,
                    demand,
                    longer,
                    span.end,
                    span.start,
                    position,
                    retained=retained,
                    field=field_name,
                )
        if draft.grows and retained < demand.maximum and self.ends_at > self.now:
            yield NewUnits(
                draft.reservation.id,
                replace(demand, minimum=max(0, demand.minimum - retained), maximum=demand.maximum - retained),
                Period(self.now, self.cleaned_at),
                without=frozenset(units) if demand.spread is Spread.ANTI_AFFINITY else frozenset(),
                only=frozenset(units) if demand.spread is Spread.AFFINITY else None,
                state=AllocationState.HELD,
                position=position,
                requested=demand.minimum,
                retained=retained,
            )


def _planned(
    changes: Changes,
    drafts: Sequence[ReservationDraft],
    of_drafts: Mapping[str, Sequence[Allocation]],
    running: _Running | None,
    bound: tuple[str, ...],
) -> PlannedReservations:
    if running is None:
        return PlannedReservations(changes, bound=bound)
    shorter: dict[datetime, list[int]] = {}
    ending: list[int] = []
    lasting: list[int] = []
    for draft in drafts:
        pinned = of_drafts[draft.reservation.id]
        end = running.span(draft.demand, pinned).end
        shorter.setdefault(end, []).extend(allocation.id for allocation in pinned if allocation.period.end > end)
        if draft.demand.lasting:
            lasting += [allocation.id for allocation in pinned if allocation.period.end != ENDLESS]
        else:
            ending += [allocation.id for allocation in pinned if allocation.period.end == ENDLESS]
    return PlannedReservations(changes, shorter, tuple(ending), tuple(lasting), bound)


def _to_bind(tx: Transaction, drafts: Sequence[ReservationDraft]) -> tuple[str, ...]:
    """Return the reservations that are to be bound to a subject, and are not yet."""
    check_unbound(tx, ((draft.position, draft.reservation.id, draft.demand) for draft in drafts))
    return tuple(
        draft.reservation.id
        for draft in drafts
        if draft.demand.subject is not None and tx.leases.bound(draft.demand.subject) != draft.reservation.id
    )


def _time_of_plans(context: BookingContext, dates: Dates, now: datetime) -> Period | None:
    """Return the period of the plans of a lease with these dates; None if it never has any allocation."""
    start, end = max(dates.starts_at, now), dates.ends_at + context.rules.cleaning_time
    return Period(start, end) if start < dates.ends_at else None
