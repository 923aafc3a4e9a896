"""Carrying out a claimed event: first act on the cloud, outside any transaction, then record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tenure.clock import Clock
from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.domain.reason import Reason
from tenure.drivers.contract import DONE, CloudBusy, CloudDriver, CloudRefused, ResourceMissing, ResourceOccupied
from tenure.metrics import ATTEMPTS, LATENESS
from tenure.services.execution.handler import Attempt, ClaimLost, Work
from tenure.services.execution.service import EventService
from tenure.tracing import GLOBAL_REQUEST_ID, REQUEST_ID, new_request_id, traced

LOG = logging.getLogger(__name__)

#: Called at named points of every event, so that tests can end the process there.
Checkpoint = Callable[[str], None]


class Performer:
    """Carries out events. It may be interrupted anywhere: the claim expires, and another worker continues."""

    def __init__(
        self,
        events: EventService,
        driver: CloudDriver,
        clock: Clock,
        *,
        wake: Callable[[], None] = lambda: None,
        checkpoint: Checkpoint = lambda _point: None,
    ) -> None:
        self._events = events
        self._driver = driver
        self._clock = clock
        self._wake = wake
        self._checkpoint = checkpoint

    def attempt(self, event_id: str, take: Callable[[], Work[Any] | None]) -> bool:
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

    def perform(self, work: Work[Any]) -> None:
        """Act, and record the outcome. Errors of the cloud are recorded; only errors of the database are raised."""
        outcome = self._perform(work)
        ATTEMPTS.labels(work.event_type.value, outcome).inc()
        if outcome == "done":
            late = (self._clock.now() - work.due_at).total_seconds()
            if late >= 0 and work.handler.is_timed:  # an end that a user has brought forward was never late
                LATENESS.labels(work.event_type.value).observe(late)
            self._wake()

    def _perform(self, work: Work[Any]) -> str:
        """Act and record; return the outcome as a label for the metric."""
        event_type = work.event_type.value
        self._checkpoint(f"{event_type}:after_claim")
        attempt = Attempt(work, self._driver, self._events.claims, self._wake)
        try:
            progress = work.handler.act(attempt)
        except ClaimLost:
            LOG.warning("%s of lease %s was taken over by another worker", event_type, work.lease.id)
            return "lost"
        except ResourceMissing as error:
            LOG.warning("%s of lease %s: the cloud does not have all resources: %s", event_type, work.lease.id, error)
            if self._events.move_off(work, error.resources):
                return "missing"
            # Go on without them: health reports the loss, and reconciliation takes them back when they are there again.
            progress = DONE
        except ResourceOccupied as error:
            LOG.warning("%s of lease %s: resources are occupied: %s", event_type, work.lease.id, error)
            if not self._events.move_off(work, error.resources):
                self._events.record_failed(work, error.reason.cut(), final=False)
            return "occupied"
        except CloudBusy as error:
            LOG.warning("%s of lease %s will be tried again: %s", event_type, work.lease.id, error)
            self._events.record_failed(work, error.reason.cut(), final=False)
            return "busy"
        except CloudRefused as error:
            LOG.error("%s of lease %s failed: %s", event_type, work.lease.id, error)
            self._give_up(work, error)
            return "refused"
        except (Unavailable, TooManyConflicts):
            raise  # not the cloud's fault, and not an attempt; the claim expires
        except Exception as error:
            LOG.exception("%s of lease %s met an unexpected error (event %s)", event_type, work.lease.id, work.event_id)
            self._events.record_failed(work, _reason_of_unexpected(work, error), final=False)
            return "defect"
        self._checkpoint(f"{event_type}:after_act")
        if not progress.done:
            self._events.postpone(work, progress)
            return "waiting"
        self._checkpoint(f"{event_type}:before_record")
        self._events.record(work, attempt.effects)
        return "done"

    def _give_up(self, work: Work[Any], error: CloudRefused) -> None:
        """Record that the cloud refuses, and restore it at once to the lease before a refused change."""
        if self._events.record_failed(work, error.reason.cut(), final=True):
            undoing = self._events.claim(work.event_id)
            if undoing is not None:
                self.perform(undoing)
        self._wake()


def _reason_of_unexpected(work: Work[Any], error: Exception) -> Reason:
    """Return the reason for an error that no driver may raise: the owner gets no details."""
    text = f"An internal error; the operator finds it in the log under {work.event_id}."
    return Reason(text, str(error) or type(error).__name__).cut()
