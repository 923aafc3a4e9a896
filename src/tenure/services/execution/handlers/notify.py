"""The events of the owner."""

from __future__ import annotations

from datetime import datetime

from tenure.domain.lease import Lease
from tenure.drivers.contract import DONE, Progress
from tenure.services.events.payloads import NotifyPayload
from tenure.services.events.user_events import notify_event
from tenure.services.execution.handler import Attempt, Handler, Work
from tenure.store.database import Transaction


class NotifyHandler(Handler[NotifyPayload]):
    """Sends the notification of the owner's event."""

    is_visible = False

    def act(self, attempt: Attempt[NotifyPayload]) -> Progress:
        return DONE  # it only has to be recorded

    def done(self, tx: Transaction, work: Work[NotifyPayload], lease: Lease, now: datetime) -> None:
        notify_event(tx, lease, next(event for event in lease.events if event.id == work.event_id), now=now)
