"""Preparing a new lease: creating the cloud resources that clients see before it starts."""

from __future__ import annotations

from datetime import datetime

from tenure.domain.actor import ENGINE
from tenure.domain.lease import Action, EventType, Lease, LeaseStatus
from tenure.domain.reason import Reason
from tenure.drivers.contract import Progress
from tenure.services.events.payloads import PreparePayload
from tenure.services.execution.handler import Attempt, Handler, Work, lease_of
from tenure.services.execution.handlers.calls import Calls
from tenure.services.leases.undoing import give_up, is_promised, unmake
from tenure.services.notifications.records import apply, notify
from tenure.store.database import Transaction


class PrepareHandler(Handler[PreparePayload]):
    """Creates what clients must see of a lease. If the cloud refuses, the lease is removed, or fails."""

    def act(self, attempt: Attempt[PreparePayload]) -> Progress:
        calls = Calls()
        for command in attempt.work.commands:
            attempt.renew()
            progress = attempt.driver.ensure_prepared(command)
            attempt.effects[command.reservation_id] = progress.effects
            calls.add(command.reservation_id, progress)
        return calls.combined()

    def done(self, tx: Transaction, work: Work[PreparePayload], lease: Lease, now: datetime) -> None:
        # The lease is confirmed and complete: from now on it is not provisional any more.
        tx.events.discard([event.id for event in lease.events if event.event_type is EventType.HOLD])
        if lease.status is LeaseStatus.CREATING:
            apply(tx, lease, Action.PREPARED, actor=ENGINE, now=now)
            notify(tx, "lease.create", lease_of(tx, lease.id), now=now)

    def is_tried_enough(self, work: Work[PreparePayload], now: datetime) -> bool:
        """Never for a confirmed lease: its owner may have been notified that it exists."""
        return work.lease.event(EventType.HOLD) is None and super().is_tried_enough(work, now)

    def give_up(self, tx: Transaction, work: Work[PreparePayload], lease: Lease, reason: Reason, now: datetime) -> bool:
        if lease.status is not LeaseStatus.CREATING:
            return super().give_up(tx, work, lease, reason, now)
        undo = give_up if is_promised(tx, work.event_id) else unmake
        undo(tx, lease, reason, now=now)
        return False
