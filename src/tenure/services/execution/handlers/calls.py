"""Calls to the cloud for all reservations of a lease, which several handlers make."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tenure.domain.lease import EventType, Lease
from tenure.domain.reason import Reason
from tenure.drivers.contract import DONE, CloudError, CloudRefused, Command, Progress, ResourceMissing
from tenure.services.events.before_end import record_finished, record_outcome
from tenure.services.execution.handler import NO_ACTIONS, Actions, Attempt, Work, show_reason
from tenure.store.database import Transaction

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Calls:
    """The results of calls for several reservations, of which each was made even if others failed."""

    progresses: list[Progress] = field(default_factory=list)
    errors: list[CloudError] = field(default_factory=list)
    #: The ids of the reservations that are done.
    done: list[str] = field(default_factory=list)

    def add(self, reservation_id: str, progress: Progress) -> None:
        self.progresses.append(progress)
        if progress.done:
            self.done.append(reservation_id)

    @property
    def is_partly_done(self) -> bool:
        return 0 < len(self.done) < len(self.progresses) + len(self.errors)

    def combined(self) -> Progress:
        """Return the progress of all; raise the first error if there was one."""
        if self.errors:
            raise self.errors[0]
        return combined(self.progresses)


def start_all(
    attempt: Attempt[Any], commands: Iterable[Command], *, needs_all: bool = False, waits_for_removal: bool = False
) -> Progress:
    """Start these reservations. Errors in one do not stop the others: they may be in other regions.

    It waits for resources that are being created. It waits for servers to vanish from resources that the lease gives up
    only if ``waits_for_removal``; otherwise the reconciler continues with those. Raises ``ResourceMissing`` only if
    ``needs_all``; otherwise the lease goes on without the missing resources.
    """
    calls = Calls()
    missing: dict[str, str] = {}
    for command in commands:
        attempt.renew()
        try:
            progress = attempt.driver.ensure_started(command)
            attempt.effects[command.reservation_id] = progress.effects
            calls.add(command.reservation_id, progress)
        except ResourceMissing as error:
            missing.update(error.resources)
        except CloudError as error:
            calls.errors.append(error)
    if missing and needs_all:
        raise ResourceMissing(missing)
    removal = calls.combined()
    awaited = combined(progress for progress in calls.progresses if progress.awaited)
    if not awaited.done:
        return awaited
    if not removal.done:
        LOG.warning("lease %s still has what it gave up: %s", attempt.work.lease.id, removal.reason)
    return removal if waits_for_removal else DONE


def end_all(attempt: Attempt[Any], commands: Iterable[Command], actions: Actions = NO_ACTIONS) -> Calls:
    """End these reservations, each after its action before the end."""
    calls = Calls()
    given_up = set(actions.given_up)
    for command in commands:
        try:
            progress = run_action(attempt, command, actions, given_up)
            if progress.done:
                attempt.renew()
                spared = command.spared or command.reservation_id in given_up
                progress = attempt.driver.ensure_ended(replace(command, spared=spared))
            calls.add(command.reservation_id, progress)
        except CloudError as error:
            calls.errors.append(error)
    return calls


def run_action(attempt: Attempt[Any], command: Command, actions: Actions, given_up: set[str]) -> Progress:
    """Run a reservation's action before the end. If it is given up, it counts as done and is added to ``given_up``.

    Raises ``CloudError`` if it shall be tried again.
    """
    action = actions.pending.get(command.reservation_id)
    if action is None:
        return DONE
    attempt.renew()
    reason = None
    try:
        progress = attempt.driver.before_end(replace(command, repetition=actions.repetition), action)
    except CloudError as error:
        if actions.retries and not isinstance(error, CloudRefused):
            raise
        reason = error.reason.cut()
    else:
        if not progress.done and actions.waits:
            return progress
        reason = None if progress.done else _reason_of_giving_up(progress)
    if reason is not None:
        LOG.error("%s of reservation %s is given up: %s", action, command.reservation_id, reason)
        given_up.add(command.reservation_id)
    attempt.claims.write(attempt.work, _record_action, attempt.work, {command.reservation_id: action}, reason)
    return DONE


def _record_action(
    tx: Transaction, lease: Lease, now: datetime, work: Work[Any], finished: Mapping[str, str], reason: Reason | None
) -> None:
    """Record the action of a reservation, by its id, as done or, for a reason, as given up."""
    at_the_end = work.event_type is EventType.END
    record_finished(tx, lease, finished, now=now, failed=reason is not None, at_the_end=at_the_end)
    if reason is not None:
        show_reason(tx, work, reason, now)
        record_outcome(tx, lease, reason, now=now)


def combined(progresses: Iterable[Progress]) -> Progress:
    """Combine the progress of several: done if all are, else to be checked again as soon as the first may be."""
    return min(
        (progress for progress in progresses if not progress.done),
        key=lambda progress: progress.look_again_after,
        default=DONE,
    )


def _reason_of_giving_up(progress: Progress) -> Reason:
    text = progress.shown_reason or Reason("The cloud has not finished yet.")
    return (text + " This was not waited for any longer.").cut()
