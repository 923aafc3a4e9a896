"""Admission: how a request that takes resources is carried out, or tried in a dry run.

This is the one way by which new and changed leases, and leases on the waiting list, get their resources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Generic, TypeVar

from tenure import deadlines
from tenure.clock import Clock
from tenure.domain.admission import AdmissionWay
from tenure.domain.allocation import Allocation
from tenure.domain.availability import Offers
from tenure.domain.changes import Changes
from tenure.domain.dry_run import Cost, DryRunOutcome, ExpectedAllowance
from tenure.domain.errors import NotEnoughResources, TooManyConflicts
from tenure.domain.lanes import Lane
from tenure.domain.lease import PAST, Lease, LeaseStatus
from tenure.domain.resource import Resource
from tenure.planning.renewal import renewed
from tenure.planning.snapshot import Snapshot
from tenure.resources.contract import ResourceTypes
from tenure.services.booking.precedence import LAST, Precedence
from tenure.services.enforcement.filters import Enforcement, Judgement, Question
from tenure.services.lanes import Lanes
from tenure.services.limits.quotas import (
    NOTHING,
    UNLIMITED,
    Account,
    ProjectLimits,
    Quotas,
    account_of,
    name_of,
    names_of,
)
from tenure.services.planning.planning import Planning
from tenure.store.conflict import WaitersFirst
from tenure.store.database import Database, Transaction
from tenure.store.fair_lock import FairLock

R = TypeVar("R")
P = TypeVar("P", bound="Proposal")

#: How long a request waits at most for the turn of this process, in seconds; then it is carried out beside others.
TURN_SECONDS = 0.1
#: How many statements an attempt to book a new lease takes at most, unless more than 500 resources are booked or
#: have changed since the last snapshot.
STATEMENTS = 25


class NoPeriod(Exception):
    """No period was found in which a request with an open start fits; ``found`` is the search."""

    def __init__(self, found: Offers) -> None:
        super().__init__()
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a request would write."""

    #: The lease as it would be, and as it is; None if it is new.
    lease: Lease
    before: Lease | None
    #: The allocations that the lease has, and what changes in the ledger.
    allocations: Sequence[Allocation] = ()
    changes: Changes = field(default_factory=Changes)
    way: AdmissionWay = AdmissionWay.GREEDY

    @property
    def allocations_after(self) -> list[Allocation]:
        """The allocations that the lease would have."""
        return self.changes.applied_to(self.allocations, {reservation.id for reservation in self.lease.reservations})

    @property
    def is_new(self) -> bool:
        """Whether the project would have a lease more."""
        return self.before is None or self.before.status is LeaseStatus.WAITING


class Request(ABC, Generic[P, R]):
    """A request that takes resources."""

    #: Which waiting leases come before it.
    precedence: Precedence = LAST

    @property
    @abstractmethod
    def project_id(self) -> str:
        """The project of the lease."""

    @property
    @abstractmethod
    def now(self) -> datetime:
        """When it came in: what was before does not matter to it."""

    @property
    def is_large(self) -> bool:
        """Whether it is for so much that such requests of a project are carried out one after the other."""
        return False

    @property
    def is_search(self) -> bool:
        """Whether it is carried out in the lane of searches, but for its transactions."""
        return False

    @abstractmethod
    def propose(self, snapshot: Snapshot) -> P:
        """Return what the request would write, on this state of the ledger.

        Raises the refusals of the request, ``NoPeriod`` if its start is open and no period is found, and ``Overtaken``
        if the ledger has changed since.
        """

    @abstractmethod
    def question(self, proposal: P, resources: Mapping[int, Resource]) -> Question | None:
        """Return what the filters are asked; None if it does not concern them.

        ``resources`` are those of the lease before and after the request, by id.
        """

    @abstractmethod
    def begin(self, tx: Transaction, proposal: P) -> R | None:
        """Write the lease, without its allocations, and lock it; return a result if there is nothing left to do.

        Raises ``Overtaken`` if the lease has changed since the proposal.
        """

    @abstractmethod
    def finish(self, tx: Transaction, proposal: P) -> R:
        """Write what follows from the allocations, which are written: events, history and notifications."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The limits of a project, and what it has booked: in all, and without the lease that a request is about."""

    limits: ProjectLimits
    account: Account
    others: Account


@dataclass(frozen=True, slots=True)
class _Planned(Generic[P]):
    """A proposal, the snapshot that it was made on, and the question to the filters."""

    proposal: P
    snapshot: Snapshot
    question: Question | None


class _NotAgreed(Exception):
    """A plan is not the one to which the filters have agreed."""

    def __init__(self, planned: _Planned[Any]) -> None:
        super().__init__()
        self.planned = planned


class Admission:
    """Admits requests."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        types: ResourceTypes,
        quotas: Quotas,
        planning: Planning,
        enforcement: Enforcement,
        lanes: Lanes,
        on_admitted: Callable[[AdmissionWay], None],
    ) -> None:
        """``on_admitted`` is called for each new lease that is committed."""
        self._db = db
        self._clock = clock
        self._types = types
        self._inventories = {resource_type.inventory for resource_type in types}
        self._quotas = quotas
        self._planning = planning
        self._enforcement = enforcement
        self._lanes = lanes
        self._on_admitted = on_admitted
        #: The turn of the requests of this process; it goes round the projects.
        self._turns = FairLock()

    def admit(self, request: Request[P, R], *, make_way: Callable[[], object] | None = None) -> R:
        """Carry out a request, and return its result.

        ``make_way`` serves leases on the waiting list that come first; without it, ``WaitersFirst`` is raised. Raises
        the refusals of the request and of the filters, ``OverQuota``, and ``TooManyConflicts`` if other transactions
        come in between in each of ``ATTEMPTS`` (10) attempts, or for longer than ``PATIENCE_SECONDS`` (60).

        So a request takes ten attempts at most, the last of which begins within 60 seconds. Each attempt waits for its
        turn for ``TURN_SECONDS`` (0.1) at most, searches for ``Rules.planning_time`` (5 seconds) at most, and takes
        ``STATEMENTS`` (25) statements for a new lease, with one more for every further 500 resources. Filters are asked
        for as long as they have (``again_within``).
        """
        # 1. The limits of the project.
        limits = self._quotas.for_booking(request.project_id, self._types)
        with (
            self._db.project_lock() if request.is_large else nullcontext(),
            self._enforcement.judgement() as judgement,
        ):
            planned: _Planned[P] | None = None
            for attempt in self._db.attempts():
                try:
                    with attempt, self._turn_of(request):
                        # 2. The snapshot, the plan, and the agreement of the filters to it. A plan before which only
                        #    others have changed its resources stays if it can.
                        if not attempt.locks_first:
                            planned = self._planned(request, judgement, planned)
                            judgement.ask(planned.question)
                        with self._lane_of(request), attempt.transaction() as tx:
                            # 3. If others came in between again and again: the plan while the resources are locked.
                            if attempt.locks_first:
                                planned = self._planned_locked(tx, request, judgement, planned)
                            assert planned is not None
                            # 4. The lease.
                            done = request.begin(tx, planned.proposal)
                            judgement.confirm(tx, is_new=done is None)
                            # 5. The changes of the ledger, under the versions with which they were planned.
                            result = self._finish(tx, request, planned.proposal, limits) if done is None else done
                            tx.commit()
                        if done is None and planned.proposal.is_new:
                            self._on_admitted(planned.proposal.way)
                        return result
                    if not attempt.bumped:
                        planned = None  # the lease has changed
                except WaitersFirst:
                    if make_way is None:
                        raise
                    make_way()
                except _NotAgreed as other:
                    planned = other.planned
                    judgement.ask(planned.question)
        raise TooManyConflicts

    @contextmanager
    def _turn_of(self, request: Request[P, R]) -> Iterator[None]:
        """Carry out an attempt alone in this process, unless that would mean to wait for long.

        Requests beside each other plan with the same resources, of which all but one then plan again. Searches, large
        requests, and those about which filters are asked, take so long that they have no turn.
        """
        has_turn = not (request.is_search or request.is_large or self._enforcement.is_asked)
        has_turn = has_turn and self._turns.acquire(
            request.project_id, seconds=min(TURN_SECONDS, deadlines.seconds_left())
        )
        try:
            yield
        finally:
            if has_turn:
                self._turns.release()

    def _lane_of(self, request: Request[P, R]) -> AbstractContextManager[None]:
        """Return the lane of bookings for a request that comes from the lane of searches."""
        return self._lanes.enter(Lane.BOOKING, request.project_id) if request.is_search else nullcontext()

    def try_out(self, request: Request[P, R]) -> DryRunOutcome:
        """Return what carrying out a request would do; nothing is written, and nothing waits for it.

        Filters that keep accounts of what they agree to are not asked. Raises what ``admit`` raises.
        """
        proposal = request.propose(self._planning.snapshot())
        limits = self._quotas.for_booking(request.project_id, self._types)
        standing = self._standing(limits, request.project_id, without="" if proposal.is_new else proposal.lease.id)
        used = self._quotas.usage(standing.account, self._types, self._clock.now())
        would_use = self._would_use(standing.others, proposal)
        limits.check(used, would_use)
        with self._db.read() as tx:
            question = self._question(tx, request, proposal)
        unasked = self._enforcement.try_out(question)
        return DryRunOutcome(
            proposal.lease,
            self._cost(proposal),
            tuple(
                ExpectedAllowance(name, limits.limits.get(name, UNLIMITED), used.get(name, 0), would_use.get(name, 0))
                for name in names_of(self._types)
            ),
            unasked,
        )

    def _planned_locked(
        self, tx: Transaction, request: Request[P, R], judgement: Judgement, before: _Planned[P] | None
    ) -> _Planned[P]:
        """Return what a request would write on resources that are locked, so that no other request comes in between.

        Raises ``_NotAgreed`` if the filters have not agreed to that.
        """
        tx.lock_contended(self._inventories)
        planned = self._planned(request, judgement, before)
        if not judgement.agrees(planned.question):
            raise _NotAgreed(planned)
        return planned

    def _planned(self, request: Request[P, R], judgement: Judgement, before: _Planned[P] | None) -> _Planned[P]:
        """Return what a request would write now: what it would have written ``before``, if that is still possible."""
        with judgement.planning() as claimed:
            snapshot = self._planning.snapshot()
            if before is not None:
                changes = renewed(before.proposal.changes, before.snapshot, snapshot)
                if changes is not None:
                    return _Planned(replace(before.proposal, changes=changes), snapshot, before.question)
            try:
                proposal = request.propose(snapshot.beside(claimed) if claimed else snapshot)
            except (NotEnoughResources, NoPeriod):
                if not claimed:
                    raise
                proposal = request.propose(snapshot)  # these requests may yet be refused
            judgement.claim(proposal.changes.added)
        if not self._enforcement.is_asked:
            return _Planned(proposal, snapshot, None)
        with self._db.read() as tx:
            return _Planned(proposal, snapshot, self._question(tx, request, proposal))

    def _question(self, tx: Transaction, request: Request[P, R], proposal: P) -> Question | None:
        if not self._enforcement.is_asked:
            return None
        allocations = [*proposal.allocations, *proposal.allocations_after]
        resources = tx.resources.by_ids({allocation.resource_id for allocation in allocations})
        return request.question(proposal, resources)

    def _finish(self, tx: Transaction, request: Request[P, R], proposal: P, limits: ProjectLimits) -> R:
        """Write what is left of a proposal, under the versions that it was planned with."""
        changes = proposal.changes
        if limits:
            tx.projects.lock(request.project_id)
            self._check_booked(tx, request.project_id, limits, proposal)
        if changes:
            request.precedence.check(tx, changes.versions.keys())
            tx.raise_versions(changes.versions)
            tx.allocations.apply(changes, now=request.now)
        return request.finish(tx, proposal)

    def standing_of(self, project_id: str, *, without: str = "") -> Standing:
        """Return the limits of a project, and what it has booked, for ``check``; nothing booked if nothing is limited.

        ``without`` is the lease that the requests are about, unless it is new.
        """
        limits = self._quotas.for_booking(project_id, self._types)
        return self._standing(limits, project_id, without) if limits else Standing(limits, NOTHING, NOTHING)

    def _standing(self, limits: ProjectLimits, project_id: str, without: str) -> Standing:
        now = self._clock.now()
        with self._db.read() as tx:
            account = account_of(tx, project_id, now)
            others = account_of(tx, project_id, now, without=without) if without else account
        return Standing(limits, account, others)

    def check(self, request: Request[P, R], snapshot: Snapshot, standing: Standing) -> None:
        """Raise the refusals of a request on a state of the ledger, but those of filters; for searches.

        ``standing`` is that of the project.
        """
        proposal = request.propose(snapshot)
        if standing.limits:
            self._check(standing, proposal)

    def _check_booked(self, tx: Transaction, project_id: str, limits: ProjectLimits, proposal: Proposal) -> None:
        """Raise ``OverQuota`` if a project would have more than it may, of which the lease is written if it is new.

        As long as no limit is reached, what is booked at other times than ``window_of`` does not matter.
        """
        lease, now = proposal.lease, self._clock.now()
        start, end = self._quotas.window_of(limits, lease.starts_at, lease.ends_at, now)
        others = account_of(tx, project_id, start, until=end, without=lease.id).with_fewer(proposal.is_new)
        if not limits.are_exceeded_by(self._would_use(others, proposal)):
            return
        account = account_of(tx, project_id, now).with_fewer(proposal.is_new)
        others = account_of(tx, project_id, now, without=lease.id).with_fewer(proposal.is_new)
        self._check(Standing(limits, account, others), proposal)

    def _check(self, standing: Standing, proposal: Proposal) -> None:
        """Raise ``OverQuota`` if a project would use more than it may."""
        would_use = self._would_use(standing.others, proposal)
        if standing.limits.are_exceeded_by(would_use):
            used = self._quotas.usage(standing.account, self._types, self._clock.now())
            standing.limits.check(used, would_use)

    def _would_use(self, others: Account, proposal: Proposal) -> Mapping[str, int]:
        after = others.with_lease(proposal.lease, proposal.allocations_after, is_new=proposal.is_new)
        return self._quotas.usage(after, self._types, self._clock.now())

    def _cost(self, proposal: Proposal) -> tuple[Cost, ...]:
        """Return what the reservations of the lease would take, by the names of limits."""
        hours = self._hours(proposal.before, proposal.allocations)
        cost = [
            Cost(name, amount, hours_after, hours.get(name, (0, 0))[1])
            for name, (amount, hours_after) in self._hours(proposal.lease, proposal.allocations_after).items()
        ]
        named = {item.name for item in cost}
        gone = [Cost(name, 0, 0, before) for name, (_, before) in hours.items() if name not in named]
        return (*cost, *gone)

    def _hours(self, lease: Lease | None, allocations: Collection[Allocation]) -> Mapping[str, tuple[int, int]]:
        """Return the units of a lease, and the hours of all of them together, by the names of limits."""
        if lease is None or lease.ends_at <= lease.starts_at:
            return {}
        types = {reservation.id: reservation.resource_type for reservation in lease.reservations}
        units: Counter[str] = Counter()
        for allocation in allocations:
            if allocation.state not in PAST:
                units[name_of(self._types[types[allocation.reservation_id]])] += allocation.units
        hours = (lease.ends_at - lease.starts_at) / timedelta(hours=1)
        return {name: (amount, ceil(amount * hours)) for name, amount in sorted(units.items())}
