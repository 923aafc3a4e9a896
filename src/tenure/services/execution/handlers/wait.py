"""The latest start of a lease on the waiting list."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tenure.domain.lease import Lease
from tenure.domain.reason import Reason
from tenure.drivers.contract import DONE, Command, Progress
from tenure.services.events.payloads import Payload
from tenure.services.execution.handler import Attempt, Handler, Work
from tenure.services.leases.undoing import fail_waiting
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent


class WaitHandler(Handler[Payload]):
    """Fails a lease for which there was no room up to its latest start."""

    def commands(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Iterable[Command]:
        return ()

    def act(self, attempt: Attempt[Payload]) -> Progress:
        return DONE  # it only has to be recorded

    def done(self, tx: Transaction, work: Work[Payload], lease: Lease, now: datetime) -> None:
        fail_waiting(tx, lease, Reason("No resources became free for it before its latest start."), now=now)
