"""Carrying out one claimed event: acting on the cloud, outside any transaction, then recording."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tenure.clock import Clock
from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.domain.lease import EventType
from tenure.domain.reason import Reason
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudDriver,
    CloudError,
    CloudRefused,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
)
from tenure.metrics import ATTEMPTS, LATENESS
from tenure.services.events import EventService, Work
from tenure.tracing import GLOBAL_REQUEST_ID, REQUEST_ID, new_request_id, traced

LOG = logging.getLogger(__name__)

#: Called at the named points of every event, so that tests can end the process there.
Checkpoint = Callable[[str], None]


class ClaimLost(Exception):
    """The claim is somebody else's by now; whoever held it stops at once."""


class Performer:
    """Does what events are about. Safe to be interrupted anywhere: the claim expires and another takes over."""

    def __init__(
        self,
        events: EventService,
        driver: CloudDriver,
        clock: Clock,
        *,
        wake: Callable[[], None] = lambda: None,
        mended: Callable[[str], None] = lambda _resource_type: None,
        checkpoint: Checkpoint = lambda _point: None,
    ) -> None:
        self._events = events
        self._driver = driver
        self._clock = clock
        self._wake = wake
        self._mended = mended
        self._checkpoint = checkpoint

    def attempt(self, event_id: str, take: Callable[[], Work | None]) -> bool:
        """Carry an event out, if ``take`` yields it; False where that could not be recorded, or not even begun.

        It is taken up again then. Raises nothing.
        """
        try:
            with traced(REQUEST_ID.get() or new_request_id(), GLOBAL_REQUEST_ID.get()):
                work = take()
                if work is not None:
                    self.perform(work)
        except (Unavailable, TooManyConflicts) as error:
            LOG.warning("event %s will be taken up again: %s", event_id, error)
            return False
        except Exception:
            LOG.exception("event %s could not be carried out; it will be taken up again", event_id)
            return False
        return True

    def perform(self, work: Work) -> None:
        """Act, and record what came of it. Does not raise for what a cloud may do, only for what a database may."""
        outcome = self._perform(work)
        ATTEMPTS.labels(work.event_type.value, outcome).inc()
        if outcome == "done":
            late = (self._clock.now() - work.due_at).total_seconds()
            again = work.event_type is EventType.HOLD and work.orders  # what is looked for after it was due
            if late >= 0 and not again:  # what a user ends early has no due time that it could miss
                LATENESS.labels(work.event_type.value).observe(late)
            self._wake()

    def _perform(self, work: Work) -> str:
        """Act and record; in a word, what came of it."""
        kind = work.event_type.value
        self._checkpoint(f"{kind}:after_claim")
        effects: dict[str, Mapping[str, object]] = {}
        try:
            progress = self._act(work, effects)
        except ClaimLost:
            LOG.warning("%s of lease %s was taken over by another worker", kind, work.lease.id)
            return "lost"
        except ResourceMissing as error:
            LOG.warning("%s of lease %s: the cloud does not have all resources: %s", kind, work.lease.id, error)
            if self._events.move_off(work, error.resources):
                return "missing"
            progress = DONE  # without them: health tells what it lacks, and drift when they are back
        except ResourceOccupied as error:
            LOG.warning("%s of lease %s: resources are occupied: %s", kind, work.lease.id, error)
            if not self._events.move_off(work, error.resources):
                self._events.failed(work, error.reason.cut(), final=False)
            return "occupied"
        except CloudBusy as error:
            LOG.warning("%s of lease %s will be tried again: %s", kind, work.lease.id, error)
            self._events.failed(work, error.reason.cut(), final=False)
            return "busy"
        except CloudRefused as error:
            LOG.error("%s of lease %s failed: %s", kind, work.lease.id, error)
            self._fail(work, error)
            return "refused"
        except (Unavailable, TooManyConflicts):
            raise  # no fault of the cloud's, and no attempt; the claim expires
        except Exception as error:
            LOG.exception("%s of lease %s met an unexpected error (event %s)", kind, work.lease.id, work.event_id)
            self._events.failed(work, _unexpected(work, error), final=False)
            return "defect"
        self._checkpoint(f"{kind}:after_act")
        if not progress.done:
            self._events.look_again(work, progress)
            return "waiting"
        self._checkpoint(f"{kind}:before_record")
        self._record(work, effects)
        return "done"

    def _act(self, work: Work, effects: dict[str, Mapping[str, object]]) -> Progress:
        """Act; ``effects`` gets what was made that clients are told of, by reservation."""
        if work.event_type is EventType.END:
            return self._end(work, frozenset(order.reservation_id for order in work.orders))
        if work.event_type is EventType.HOLD:  # has no orders before it is over, and all that is to do is to record it
            return self._end(work, frozenset(order.reservation_id for order in work.orders))
        if work.event_type is EventType.NOTIFY:
            return DONE  # to record it is all that there is to do
        if work.event_type is EventType.BEFORE_END:
            return self._before_end(work)
        if work.event_type is EventType.PREPARE:
            return self._prepare(work, effects)
        progress = self._end(work, work.dropped)
        return self._start(work, effects) if progress.done else progress

    def _prepare(self, work: Work, effects: dict[str, Mapping[str, object]]) -> Progress:
        made: list[Progress] = []
        for order in work.orders:
            self._hold_on(work)
            made.append(self._driver.ensure_prepared(order))
            effects[order.reservation_id] = made[-1].effects
        return _together(made)

    def _start(self, work: Work, effects: dict[str, Mapping[str, object]]) -> Progress:
        """Hand over what the lease has, each reservation whatever became of the others: they may be in other regions.

        It waits for what is being made, but not for servers to vanish on what it gives up: the repair goes on with
        that. Only where a change is undone, what it had added is not free before.
        """
        made: list[Progress] = []
        missing: dict[str, str] = {}
        errors: list[CloudError] = []
        for order in work.orders:
            if order.reservation_id not in work.dropped:
                self._hold_on(work)
                try:
                    made.append(self._driver.ensure_started(order))
                    effects[order.reservation_id] = made[-1].effects
                except ResourceMissing as error:
                    missing.update(error.resources)
                except CloudError as error:
                    errors.append(error)
        if missing and work.event_type is EventType.START:
            raise ResourceMissing(missing)
        if errors:
            raise errors[0]
        awaited = _together(one for one in made if one.awaited)
        if not awaited.done:
            return awaited
        lingering = _together(made)
        if not lingering.done:
            LOG.warning("lease %s still has what it gave up: %s", work.lease.id, lingering.reason)
        return lingering if work.undoing else DONE

    def _end(self, work: Work, reservation_ids: frozenset[str]) -> Progress:
        """Take reservations back, each tried whatever became of the others; done when all are.

        Of a lease that ends, others get at once what is given back, whatever the rest still waits for.
        """
        made, errors, ended = [], [], []
        unsaved = set(work.unsaved)
        for order in work.orders:
            if order.reservation_id not in reservation_ids:
                continue
            try:
                progress = self._settle(work, order, unsaved)
                if progress.done:
                    self._hold_on(work)
                    spared = order.spared or order.reservation_id in unsaved
                    progress = self._driver.ensure_ended(replace(order, spared=spared))
                    if progress.done:
                        ended.append(order.reservation_id)
                made.append(progress)
            except CloudError as error:
                errors.append(error)
        if work.event_type is EventType.END and 0 < len(ended) < len(made) + len(errors):
            self._events.given_back(work, ended)
            self._wake()
        if errors:
            raise errors[0]
        return _together(made)

    def _before_end(self, work: Work) -> Progress:
        """Do for each reservation what is to be done before its end, whatever became of the others."""
        made, errors = [], []
        for order in work.orders:
            try:
                made.append(self._settle(work, order, set()))
            except CloudError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return _together(made)

    def _settle(self, work: Work, order: Order, unsaved: set[str]) -> Progress:
        """Do what is to be done before a reservation's end; done also where that is given up: it is ``unsaved`` then.

        Raises ``CloudError`` where it is to be tried again.
        """
        action = work.actions.get(order.reservation_id)
        if action is None:
            return DONE
        self._hold_on(work)
        reason = None
        try:
            progress = self._driver.before_end(order, action)
        except CloudError as error:
            if work.retries and not isinstance(error, CloudRefused):
                raise
            reason = error.reason.cut()
        else:
            if not progress.done and work.waits:
                return progress
            reason = None if progress.done else _given_up(progress)
        if reason is not None:
            LOG.error("%s of reservation %s is given up: %s", action, order.reservation_id, reason)
            unsaved.add(order.reservation_id)
        self._events.settled(work, order.reservation_id, reason)
        return DONE

    def _hold_on(self, work: Work) -> None:
        if not self._events.renew(work):
            raise ClaimLost

    def _record(self, work: Work, effects: Mapping[str, Mapping[str, object]]) -> None:
        record: Mapping[EventType, Callable[[], object]] = {
            EventType.PREPARE: lambda: self._events.prepared(work, effects),
            EventType.START: lambda: self._events.started(work, effects),
            EventType.UPDATE: lambda: self._events.updated(work, effects),
            EventType.BEFORE_END: lambda: self._events.noticed(work),
            EventType.NOTIFY: lambda: self._events.told(work),
            EventType.END: lambda: self._events.ended(work),
            EventType.MEND: lambda: self._tell_mended(work, effects),
            EventType.HOLD: lambda: self._events.expired(work),
        }
        record[work.event_type]()

    def _tell_mended(self, work: Work, effects: Mapping[str, Mapping[str, object]]) -> None:
        if self._events.mended(work, effects):
            for order in work.orders:
                if order.reservation_id in work.drifted:
                    LOG.warning("reservation %s is in the cloud as it should be again", order.reservation_id)
                    self._mended(order.resource_type)

    def _fail(self, work: Work, error: CloudRefused) -> None:
        self._events.failed(work, error.reason.cut(), final=True)
        if work.event_type is EventType.UPDATE and not work.undoing:
            undoing = self._events.claim(work.event_id)  # makes the cloud match the lease as it was before
            if undoing is not None:
                self.perform(undoing)
        self._wake()


def _unexpected(work: Work, error: Exception) -> Reason:
    """What is said of an error that no driver may raise: nothing of it is for the owner."""
    told = f"An internal error; the operator finds it in the log under {work.event_id}."
    return Reason(told, str(error) or type(error).__name__).cut()


def _given_up(progress: Progress) -> Reason:
    told = progress.told or Reason("The cloud is not done with it yet.")
    return (told + " This was not waited for any longer.").cut()


def _together(made: Iterable[Progress]) -> Progress:
    """How far several got: done when all are, else to be looked at again when the first of them may be."""
    return min((one for one in made if not one.done), key=lambda one: one.look_again_after, default=DONE)
