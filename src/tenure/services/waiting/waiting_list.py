"""The waiting list: leases wait on it for room, and get it in the order of their requests.

A waiting lease has no reservations and holds nothing. Each transaction that frees something says so in the ledger
(``tenure.store.waiting``); then the leases that wait for something of this inventory are served, the earliest first:
each is booked if it fits as things are. A lease that fits does not wait for an earlier one that does not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from pydantic import TypeAdapter

from tenure import deadlines
from tenure.deadlines import Deadline, SearchTooLong
from tenure.domain.actor import Actor
from tenure.domain.errors import (
    Busy,
    Conflict,
    InvalidParameter,
    NotEnoughResources,
    OverQuota,
    TenureError,
    TooManyConflicts,
    Unavailable,
)
from tenure.domain.lanes import Lane
from tenure.domain.lease import Event, EventStatus, EventType, Lease, LeaseStatus
from tenure.domain.period import minute_of
from tenure.domain.reason import Reason
from tenure.domain.regions import region_of
from tenure.domain.request import FlexibleRequest, ReservationRequest, Window
from tenure.services.booking.admission import Admission, NoPeriod
from tenure.services.booking.new_leases import booked_before
from tenure.services.booking.precedence import Precedence
from tenure.services.context import Context, ContextualService, new_id
from tenure.services.lanes import Lanes
from tenure.services.leases.dates import resolve
from tenure.services.leases.intake import Completed
from tenure.services.leases.parameters import placed_demand
from tenure.services.leases.undoing import fail_waiting
from tenure.services.notifications.records import notify, write_history
from tenure.services.search.flexible import ChosenLease, FlexibleBooker
from tenure.services.search.periods import MINUTE, PeriodSearch
from tenure.store.conflict import WaitersFirst
from tenure.store.database import Transaction
from tenure.store.waiting import Line, Waiter

LOG = logging.getLogger(__name__)

#: How often a pass over waiting leases begins again because an earlier lease comes first.
PASSES = 10
#: How often all leases are served, also if nothing was freed: the limits of a project may have become larger.
SERVED_ANYWAY = timedelta(minutes=10)
#: The largest number of leases of a project on the waiting list.
MOST_WAITING = 100

_REQUEST = TypeAdapter(FlexibleRequest)


class _TurnTimes:
    """The time that is left for turns in a pass over waiting leases, in seconds."""

    def __init__(self, of_project: float) -> None:
        self._each = of_project
        self._of_project: dict[str, float] = {}
        self._of_all = 2 * of_project

    def next_of(self, project_id: str) -> Deadline:
        """Return the end of the next turn of a project."""
        return deadlines.until_at_most(max(0.0, min(self._of_project.get(project_id, self._each), self._of_all)))

    def spend(self, project_id: str, seconds: float) -> None:
        """Count the time of a turn."""
        self._of_project[project_id] = self._of_project.get(project_id, self._each) - seconds
        self._of_all -= seconds


class WaitingList(ContextualService):
    """Puts leases on the waiting list, and serves them."""

    def __init__(
        self,
        context: Context,
        admission: Admission,
        flexible: FlexibleBooker,
        periods: PeriodSearch,
        lanes: Lanes,
    ) -> None:
        super().__init__(context)
        self._lanes = lanes
        self._admission = admission
        self._flexible = flexible
        self._periods = periods
        #: One thread of the process serves at a time; the others wait for it.
        self._guard = threading.Lock()
        #: The leases whose turn did not suffice, by id, the earliest first: they get more time, after the others.
        self._slow: dict[str, Waiter] = {}
        self._all_served_at: datetime | None = None

    # --- waiting

    def check(self, request: FlexibleRequest) -> None:
        """Raise ``InvalidParameter`` if a lease cannot wait for its start, because it is not in the future."""
        latest = _window_of(self._opened(request)).latest
        if latest is None or latest <= self._clock.now():
            raise InvalidParameter(
                "A lease can only wait if it may start later: give a later start, or a duration.", field="if_full"
            )

    def may_ever_fit(self, actor: Actor, request: FlexibleRequest) -> bool:
        """Whether one of the choices, which are complete, could fit if nothing else were booked. Else it waits in vain.

        Raises ``Unavailable`` if the database or the source of limits does not answer.
        """
        window = _window_of(self._opened(request))
        return any(
            self._periods.may_ever_fit(actor.project_id, completed, window) for completed in self._completed(request)
        )

    def enter(self, actor: Actor, request: FlexibleRequest, *, lease_id: str | None, trust_id: str | None) -> Lease:
        """Put a lease on the waiting list, whose reservations are complete; return the lease.

        If the caller already has a lease of that id, it is returned. Raises ``Conflict`` if it belongs to another user,
        or if too many leases of the project wait.
        """
        now = self._clock.now()
        request = self._opened(request)
        first = self._periods.earliest(request, 0)
        starts_at, ends_at = resolve(first.starts_at, now), resolve(first.ends_at, now)
        latest = _window_of(request).latest
        assert latest is not None
        lease_id = lease_id or new_id()
        lease = Lease(
            **request.details(),
            id=lease_id,
            project_id=actor.project_id,
            user_id=actor.user_id,
            starts_at=starts_at,
            ends_at=ends_at,
            status=LeaseStatus.WAITING,
            status_reason=None,
            degraded=False,
            version=1,
            reservations=(),
            events=(Event(new_id(), lease_id, EventType.WAIT, latest, EventStatus.UNDONE, 0, now),),
            created_at=now,
            trust_id=trust_id,
        )
        lines = {
            Line(demand.inventory, demand.region)
            for completed in self._completed(request)
            for demand in completed.demands
        }

        return self._db.write(_enter, actor, request, lease, lines, latest)

    def _opened(self, request: FlexibleRequest) -> FlexibleRequest:
        """Return the request with a window in place of fixed dates, and dates in place of moments such as ``now``."""
        window = request.window
        if window is None:
            assert request.starts_at is not None
            assert request.ends_at is not None
            now = self._clock.now()
            start, end = resolve(request.starts_at, now), resolve(request.ends_at, now)
            return replace(request, window=Window(end - start, start, start), starts_at=None, ends_at=None)
        allowed = self._periods.starts(window)
        return replace(request, window=replace(window, earliest=allowed.earliest, latest=allowed.latest))

    # --- serving

    def run(self) -> int:
        """Serve the lines in which something was freed, and from time to time all; return how many leases got room."""
        now = self._clock.now()
        if self._all_served_at is None or not timedelta(0) <= now - self._all_served_at < SERVED_ANYWAY:
            self._db.write(lambda tx: tx.waiting.serve_all())
            self._all_served_at = now
        return self.serve_fully()

    def serve_fully(self) -> int:
        """Serve the lines in which something was freed, and those whose turns did not suffice; return as ``serve``."""
        return self.serve() + self._serve_slow()

    def serve(self) -> int:
        """Serve the lines in which something was freed, once; return how many leases got room.

        Requests for the same lines wait for this, so it takes a bounded time: a lease has a short turn, and so have all
        leases of a project together, and all projects. A lease whose turn does not suffice is served again by ``run``,
        with the time of a search; until then, requests that come later may take what was freed.

        Raises ``Unavailable``, and ``TooManyConflicts`` if other transactions come in between again and again.
        """
        with self._guard, deadlines.on_behalf_of(""), deadlines.within(None):  # not those of the request that waits
            for _ in range(PASSES):
                with self._db.read() as tx:
                    freed = tx.waiting.freed()
                    waiters = tx.waiting.in_lines(freed) if freed else []
                if not freed:
                    return 0
                freed_ids = [freed_id for ids in freed.values() for freed_id in ids]
                with suppress(WaitersFirst):  # something was freed meanwhile, for which an earlier lease comes first
                    turns = _TurnTimes(self._rules.turn_time.total_seconds())
                    booked = sum([self._serve_in_turn(waiter, freed_ids, turns) for waiter in waiters])
                    self._db.write(partial(_forget, freed_ids=freed_ids))
                    return booked
        raise TooManyConflicts

    def _serve_in_turn(self, waiter: Waiter, freed_ids: Collection[int], turns: _TurnTimes) -> bool:
        """Serve a lease for as long as its turn lasts; note it if that does not suffice."""
        with self._db.read() as tx:
            lease = tx.leases.get(waiter.lease_id)
        if lease is None or lease.waiting is None:
            return False
        began = time.monotonic()
        try:
            with deadlines.on_behalf_of(lease.project_id), deadlines.within(turns.next_of(lease.project_id)):
                return self._serve(waiter, lease, freed_ids)
        except SearchTooLong:
            self._slow.setdefault(waiter.lease_id, waiter)
            return False
        finally:
            turns.spend(lease.project_id, time.monotonic() - began)

    def _serve_slow(self) -> int:
        """Serve the leases whose turn did not suffice, each as a search of its project; return how many got room."""
        booked = 0
        for waiter in sorted(self._slow.values(), key=lambda waiter: waiter.number):
            with self._db.read() as tx:
                lease = tx.leases.get(waiter.lease_id)
            del self._slow[waiter.lease_id]
            if lease is None or lease.waiting is None:
                continue
            try:
                with self._lanes.enter(Lane.SEARCHING, lease.project_id):
                    booked += self._serve(waiter, lease, ())
            except Busy:
                self._slow.setdefault(waiter.lease_id, waiter)  # another time
            except (SearchTooLong, WaitersFirst):
                continue  # as with a search that finds nothing; it is served when something is freed
        return booked

    def _serve(self, waiter: Waiter, lease: Lease, freed_ids: Collection[int]) -> bool:
        """Book a waiting lease if it fits; return whether it was booked. Earlier leases were offered what was freed.

        Raises ``WaitersFirst`` if an earlier lease comes first, ``SearchTooLong`` if its time did not suffice to find
        out, ``Unavailable`` and ``TooManyConflicts``.
        """
        owner = Actor(user_id=lease.user_id, project_id=lease.project_id)
        is_complete = True
        try:
            request = self._still_possible(_REQUEST.validate_python(waiter.request))
            if request is None:
                return False
            for index, choice in enumerate(request.choices):
                completed = self._completed_choice(choice)
                try:
                    precedence = Precedence(waiter.number, freed_ids)
                    return self._book(owner, lease, request, index, completed, precedence)
                except NoPeriod as error:
                    is_complete = is_complete and error.found.is_complete
                except (NotEnoughResources, OverQuota, Conflict):
                    continue
        except (Unavailable, TooManyConflicts, WaitersFirst):
            raise
        except TenureError as error:
            LOG.warning("the waiting lease %s cannot be booked: %s", lease.id, error)
            reason = Reason(f"It cannot be booked: {error}").cut()
            self._db.write(partial(_fail, lease_id=lease.id, reason=reason))
        except Exception:
            LOG.exception("the waiting lease %s could not be served; the others are", lease.id)
        if not is_complete:
            deadlines.check()  # raises if it was cut short by its turn
        return False

    def _still_possible(self, request: FlexibleRequest) -> FlexibleRequest | None:
        """Return the request for the starts that are still to come; None if there are none."""
        now = self._clock.now()
        window = _window_of(request)
        earliest = max(resolve(window.earliest or now, now), minute_of(now) + MINUTE)
        if window.latest is None or earliest > window.latest:
            return None
        return replace(request, window=replace(window, earliest=earliest))

    def _completed(self, request: FlexibleRequest) -> Sequence[Completed]:
        """Return the reservations of each choice, with their demands."""
        return [self._completed_choice(choice) for choice in request.choices]

    def _completed_choice(self, choice: Sequence[ReservationRequest]) -> Completed:
        placed, demands = [], []
        for position, reservation in enumerate(choice):
            deadlines.check()
            placed.append(
                replace(reservation, region=region_of(reservation.region, self._rules.regions, field="region"))
            )
            demands.append(placed_demand(self._types, placed[-1], position))
        return Completed(placed, demands)

    def _book(
        self,
        owner: Actor,
        lease: Lease,
        request: FlexibleRequest,
        position: int,
        completed: Completed,
        precedence: Precedence,
    ) -> bool:
        """Book a waiting lease in its first period; return whether it has waited until now. Raises ``NoPeriod``."""
        assert lease.waiting is not None
        chosen = ChosenLease(
            self._flexible,
            owner,
            replace(request, hold_for=lease.waiting.confirm_within),
            position,
            completed,
            self._clock.now(),
            lease.id,
            waiting=lease,
            precedence=precedence,
        )
        return self._admission.admit(chosen).is_new


def _window_of(request: FlexibleRequest) -> Window:
    assert request.window is not None
    return request.window


def _fail(tx: Transaction, *, lease_id: str, reason: Reason) -> None:
    lease = tx.leases.get(lease_id, lock=True)
    if lease is not None and lease.status is LeaseStatus.WAITING:
        fail_waiting(tx, lease, reason, now=tx.now())


def _forget(tx: Transaction, *, freed_ids: Sequence[int]) -> None:
    tx.waiting.forget(freed_ids)


def _enter(
    tx: Transaction, actor: Actor, request: FlexibleRequest, lease: Lease, lines: Collection[Line], latest: datetime
) -> Lease:
    tx.projects.lock(actor.project_id)  # else requests at the same time count without each other
    there = booked_before(tx, actor, lease.id)
    if there is not None:
        return there
    if tx.leases.count(actor.project_id, LeaseStatus.WAITING) >= MOST_WAITING:
        raise Conflict(f"{MOST_WAITING} leases of the project are on the waiting list already.")
    tx.leases.add(lease)
    if request.boot is not None:
        tx.boots.add(lease, request.boot)
    tx.events.add(lease.events)
    asked = _REQUEST.dump_python(replace(request, boot=None), mode="json")
    tx.waiting.add(lease.id, latest, request.confirm_within, asked, lines)
    write_history(tx, lease.id, "wait", None, lease.status, actor=actor, now=lease.created_at)
    notify(tx, "lease.wait", lease, now=lease.created_at)
    entered = tx.leases.get(lease.id)
    assert entered is not None
    return entered
