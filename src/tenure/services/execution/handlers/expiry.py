"""The end of the time in which a provisional lease waits for its confirmation, and the search for its remains."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tenure.domain.lease import Lease
from tenure.domain.reason import Reason
from tenure.drivers.contract import DONE, SLOWEST_BOOT, Command, Progress
from tenure.services.events.commands import leftover_commands
from tenure.services.events.payloads import Payload
from tenure.services.execution.handler import Attempt, Effects, Handler, Work, put_off
from tenure.services.execution.handlers.calls import end_all
from tenure.services.leases.undoing import unmake
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent


class ExpiryHandler(Handler[Payload]):
    """Removes a lease that was not confirmed in time; no notification is sent."""

    def commands(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Iterable[Command]:
        return ()

    def act(self, attempt: Attempt[Payload]) -> Progress:
        return DONE  # it only has to be recorded

    def done(self, tx: Transaction, work: Work[Payload], lease: Lease, now: datetime) -> None:
        unmake(tx, lease, Reason("It was not confirmed in time."), now=now)


class SearchHandler(Handler[Payload]):
    """Searches for remains of a provisional lease that has failed or was removed; nothing is shown on the lease.

    It searches at once, and again once the slowest boot must be over; then the event is deleted.
    """

    is_visible = False
    is_timed = False

    def commands(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Iterable[Command]:
        return leftover_commands(tx, [reservation.id for reservation in lease.reservations])

    def act(self, attempt: Attempt[Payload]) -> Progress:
        return end_all(attempt, attempt.work.commands).combined()

    def record(self, tx: Transaction, work: Work[Payload], effects: Effects, now: datetime) -> bool:
        last_at = work.due_at + SLOWEST_BOOT
        if last_at > now:
            return put_off(tx, work, last_at, now, attempts=0)
        return tx.events.remove(work.event_id, token=work.token)

    def postpone(self, tx: Transaction, work: Work[Payload], progress: Progress, now: datetime) -> None:
        put_off(tx, work, now + progress.look_again_after, now, attempts=0)

    def fail(self, tx: Transaction, work: Work[Payload], reason: Reason, now: datetime, *, final: bool) -> bool:
        if final and work.due_at + SLOWEST_BOOT <= now:  # no attempt can succeed, and nothing more can appear
            tx.events.remove(work.event_id, token=work.token)
        else:
            put_off(tx, work, now + self._rules.delay_after(work.attempts), now, attempts=work.attempts)
        return False
