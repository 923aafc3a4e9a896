"""Carrying out a claimed event: first act on the cloud, outside any transaction, then record."""

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
from tenure.services.events.service import EventService, Work
from tenure.tracing import GLOBAL_REQUEST_ID, REQUEST_ID, new_request_id, traced

LOG = logging.getLogger(__name__)

#: Called at named points of every event, so that tests can end the process there.
Checkpoint = Callable[[str], None]


class ClaimLost(Exception):
    """Another worker has claimed the event; this one stops at once."""


class Performer:
    """Carries out events. It may be interrupted anywhere: the claim expires, and another worker continues."""

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
        """Carry out the event if ``take`` returns its work; return False if it could not be begun or recorded.

        In that case it will be tried again. Raises nothing.
        """
        try:
            with traced(REQUEST_ID.get() or new_request_id(), GLOBAL_REQUEST_ID.get()):
                work = take()
                if work is not None:
                    self.perform(work)
        except (Unavailable, TooManyConflicts) as error:
            LOG.warning("event %s will be tried again: %s", event_id, error)
            return False
        except Exception:
            LOG.exception("event %s could not be carried out; it will be tried again", event_id)
            return False
        return True

    def perform(self, work: Work) -> None:
        """Act, and record the outcome. Errors of the cloud are recorded; only errors of the database are raised."""
        outcome = self._perform(work)
        ATTEMPTS.labels(work.event_type.value, outcome).inc()
        if outcome == "done":
            late = (self._clock.now() - work.due_at).total_seconds()
            again = work.event_type is EventType.HOLD and work.orders  # the search for remains, after it was due
            if late >= 0 and not again:  # an end that a user has brought forward was never late
                LATENESS.labels(work.event_type.value).observe(late)
            self._wake()

    def _perform(self, work: Work) -> str:
        """Act and record; return the outcome as a label for the metric."""
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
            progress = DONE  # go on without them: health reports the loss, and drift repairs it when they are back
        except ResourceOccupied as error:
            LOG.warning("%s of lease %s: resources are occupied: %s", kind, work.lease.id, error)
            if not self._events.move_off(work, error.resources):
                self._events.record_failed(work, error.reason.cut(), final=False)
            return "occupied"
        except CloudBusy as error:
            LOG.warning("%s of lease %s will be tried again: %s", kind, work.lease.id, error)
            self._events.record_failed(work, error.reason.cut(), final=False)
            return "busy"
        except CloudRefused as error:
            LOG.error("%s of lease %s failed: %s", kind, work.lease.id, error)
            self._fail(work, error)
            return "refused"
        except (Unavailable, TooManyConflicts):
            raise  # not the cloud's fault, and not an attempt; the claim expires
        except Exception as error:
            LOG.exception("%s of lease %s met an unexpected error (event %s)", kind, work.lease.id, work.event_id)
            self._events.record_failed(work, _reason_of_unexpected(work, error), final=False)
            return "defect"
        self._checkpoint(f"{kind}:after_act")
        if not progress.done:
            self._events.postpone(work, progress)
            return "waiting"
        self._checkpoint(f"{kind}:before_record")
        self._record(work, effects)
        return "done"

    def _act(self, work: Work, effects: dict[str, Mapping[str, object]]) -> Progress:
        """Act; store the created cloud resources that clients see in ``effects``, by reservation id."""
        if work.event_type is EventType.END:
            return self._end(work, frozenset(order.reservation_id for order in work.orders))
        if (
            work.event_type is EventType.HOLD
        ):  # it has no orders before the hold is over: then it only has to be recorded
            return self._end(work, frozenset(order.reservation_id for order in work.orders))
        if work.event_type is EventType.NOTIFY:
            return DONE  # it only has to be recorded
        if work.event_type is EventType.BEFORE_END:
            return self._before_end(work)
        if work.event_type is EventType.PREPARE:
            return self._prepare(work, effects)
        progress = self._end(work, work.dropped)
        return self._start(work, effects) if progress.done else progress

    def _prepare(self, work: Work, effects: dict[str, Mapping[str, object]]) -> Progress:
        prepared: list[Progress] = []
        for order in work.orders:
            self._renew_claim(work)
            prepared.append(self._driver.ensure_prepared(order))
            effects[order.reservation_id] = prepared[-1].effects
        return _combined(prepared)

    def _start(self, work: Work, effects: dict[str, Mapping[str, object]]) -> Progress:
        """Start all reservations of the lease. Errors in one do not stop the others: they may be in other regions.

        It waits for resources that are being created, but not for servers to vanish from resources that the lease gives
        up: the repair continues with those. Only when a change is undone, it waits for those as well.
        """
        started: list[Progress] = []
        missing: dict[str, str] = {}
        errors: list[CloudError] = []
        for order in work.orders:
            if order.reservation_id not in work.dropped:
                self._renew_claim(work)
                try:
                    started.append(self._driver.ensure_started(order))
                    effects[order.reservation_id] = started[-1].effects
                except ResourceMissing as error:
                    missing.update(error.resources)
                except CloudError as error:
                    errors.append(error)
        if missing and work.event_type is EventType.START:
            raise ResourceMissing(missing)
        if errors:
            raise errors[0]
        awaited = _combined(progress for progress in started if progress.awaited)
        if not awaited.done:
            return awaited
        lingering = _combined(started)
        if not lingering.done:
            LOG.warning("lease %s still has what it gave up: %s", work.lease.id, lingering.reason)
        return lingering if work.undoing else DONE

    def _end(self, work: Work, reservation_ids: frozenset[str]) -> Progress:
        """End reservations, each even if others fail; done when all are ended.

        When a lease ends, other leases get each released resource at once, whatever the rest still waits for.
        """
        progresses, errors, ended = [], [], []
        unsaved = set(work.unsaved)
        for order in work.orders:
            if order.reservation_id not in reservation_ids:
                continue
            try:
                progress = self._run_before_end_action(work, order, unsaved)
                if progress.done:
                    self._renew_claim(work)
                    spared = order.spared or order.reservation_id in unsaved
                    progress = self._driver.ensure_ended(replace(order, spared=spared))
                    if progress.done:
                        ended.append(order.reservation_id)
                progresses.append(progress)
            except CloudError as error:
                errors.append(error)
        if work.event_type is EventType.END and 0 < len(ended) < len(progresses) + len(errors):
            self._events.record_released(work, ended)
            self._wake()
        if errors:
            raise errors[0]
        return _combined(progresses)

    def _before_end(self, work: Work) -> Progress:
        """Run the actions before the end of all reservations, each even if others fail."""
        progresses, errors = [], []
        for order in work.orders:
            try:
                progresses.append(self._run_before_end_action(work, order, set()))
            except CloudError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return _combined(progresses)

    def _run_before_end_action(self, work: Work, order: Order, unsaved: set[str]) -> Progress:
        """Run the action before a reservation's end. If it is given up, it counts as done and is noted in ``unsaved``.

        Raises ``CloudError`` if it shall be tried again.
        """
        action = work.actions.get(order.reservation_id)
        if action is None:
            return DONE
        self._renew_claim(work)
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
            reason = None if progress.done else _reason_of_giving_up(progress)
        if reason is not None:
            LOG.error("%s of reservation %s is given up: %s", action, order.reservation_id, reason)
            unsaved.add(order.reservation_id)
        self._events.record_action_finished(work, order.reservation_id, reason)
        return DONE

    def _renew_claim(self, work: Work) -> None:
        if not self._events.renew(work):
            raise ClaimLost

    def _record(self, work: Work, effects: Mapping[str, Mapping[str, object]]) -> None:
        record: Mapping[EventType, Callable[[], object]] = {
            EventType.PREPARE: lambda: self._events.record_prepared(work, effects),
            EventType.START: lambda: self._events.record_started(work, effects),
            EventType.UPDATE: lambda: self._events.record_updated(work, effects),
            EventType.BEFORE_END: lambda: self._events.record_actions_before_end(work),
            EventType.NOTIFY: lambda: self._events.record_notified(work),
            EventType.END: lambda: self._events.record_ended(work),
            EventType.MEND: lambda: self._record_mended(work, effects),
            EventType.HOLD: lambda: self._events.record_expired(work),
        }
        record[work.event_type]()

    def _record_mended(self, work: Work, effects: Mapping[str, Mapping[str, object]]) -> None:
        if self._events.record_mended(work, effects):
            for order in work.orders:
                if order.reservation_id in work.drifted:
                    LOG.warning("reservation %s is in the cloud as it should be again", order.reservation_id)
                    self._mended(order.resource_type)

    def _fail(self, work: Work, error: CloudRefused) -> None:
        self._events.record_failed(work, error.reason.cut(), final=True)
        if work.event_type is EventType.UPDATE and not work.undoing:
            undoing = self._events.claim(work.event_id)  # restores the cloud to the lease before the change
            if undoing is not None:
                self.perform(undoing)
        self._wake()


def _reason_of_unexpected(work: Work, error: Exception) -> Reason:
    """Return the reason for an error that no driver may raise: the owner gets no details."""
    text = f"An internal error; the operator finds it in the log under {work.event_id}."
    return Reason(text, str(error) or type(error).__name__).cut()


def _reason_of_giving_up(progress: Progress) -> Reason:
    text = progress.told or Reason("The cloud is not done with it yet.")
    return (text + " This was not waited for any longer.").cut()


def _combined(progresses: Iterable[Progress]) -> Progress:
    """Combine the progress of several: done if all are, else to be checked again as soon as the first may be."""
    return min(
        (progress for progress in progresses if not progress.done),
        key=lambda progress: progress.look_again_after,
        default=DONE,
    )
