"""Reconciling a running lease that differs in the cloud from the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from tenure.domain.reason import Reason
from tenure.drivers.contract import Progress
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.events.payloads import ReconcilePayload
from tenure.services.execution.handler import Attempt, Effects, Handler, Work, put_off
from tenure.services.execution.handlers.calls import start_all
from tenure.store.database import Transaction

LOG = logging.getLogger(__name__)


class ReconcileHandler(Handler[ReconcilePayload]):
    """Starts the reservations again. No notification is sent, and nothing is shown: the lease has not changed.

    The event is deleted when it is done, or given up: the next drift pass finds a difference that is left.
    """

    is_visible = False
    replaces = False  # the resources of a running lease do not move here: healing replaces them

    def __init__(self, types: ResourceTypes, rules: Rules, on_reconciled: Callable[[str], None]) -> None:
        """``on_reconciled`` is called with the type of each reservation that was reconciled."""
        super().__init__(types, rules)
        self._on_reconciled = on_reconciled

    def act(self, attempt: Attempt[ReconcilePayload]) -> Progress:
        return start_all(attempt, attempt.work.commands)

    def record(self, tx: Transaction, work: Work[ReconcilePayload], effects: Effects, now: datetime) -> bool:
        kept = tx.events.remove(work.event_id, token=work.token)
        if kept:
            tx.leases.add_effects(effects, now=now)
        return kept

    def after_record(self, work: Work[ReconcilePayload]) -> None:
        for command in work.commands:
            if command.reservation_id in work.payload.drifted:
                LOG.warning("reservation %s is reconciled in the cloud", command.reservation_id)
                self._on_reconciled(command.resource_type)

    def fail(
        self, tx: Transaction, work: Work[ReconcilePayload], reason: Reason, now: datetime, *, final: bool
    ) -> bool:
        if final or self.is_tried_enough(work, now):
            tx.events.remove(work.event_id, token=work.token)
        else:
            put_off(tx, work, now + self._rules.delay_after(work.attempts), now)
        return False
