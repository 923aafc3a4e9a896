"""What the handlers of all event types share: a claimed event, an attempt to carry it out, and what is recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from tenure.domain.actor import ENGINE
from tenure.domain.errors import InvalidState
from tenure.domain.lease import EventStatus, EventType, Lease
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudDriver, Command, Progress
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.events.commands import commands_of
from tenure.services.events.payloads import Payload
from tenure.services.notifications.records import columns_of, write_history
from tenure.store.database import Database, Transaction
from tenure.store.events import StoredEvent

A = ParamSpec("A")
P = TypeVar("P", bound=Payload)

#: The cloud resources that clients see, such as the id of an aggregate, by reservation id.
Effects = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions before the end that are still to be run."""

    #: The actions by reservation id.
    pending: Mapping[str, str] = field(default_factory=dict)
    #: The reservations whose action was given up at an earlier attempt.
    given_up: frozenset[str] = frozenset()
    #: Whether to wait for actions that are not done.
    waits: bool = True
    #: Whether to retry actions that fail.
    retries: bool = True
    #: How often the actions were armed again.
    repetition: int = 0


NO_ACTIONS = Actions()


class ClaimLost(Exception):
    """Another worker has claimed the event; this one stops at once."""


@dataclass(frozen=True, slots=True)
class Work(Generic[P]):
    """A claimed event, with everything needed to carry it out."""

    handler: Handler[P]
    event_id: str
    token: str
    event_type: EventType
    due_at: datetime
    attempts: int
    lease: Lease
    commands: tuple[Command, ...]
    payload: P
    actions: Actions


class Claims:
    """The claims of events while they are carried out, and what is recorded before the outcome."""

    def __init__(self, db: Database, claim_time: timedelta) -> None:
        self._db = db
        self._claim_time = claim_time

    def renew(self, work: Work[Any]) -> bool:
        """Extend the claim; return False if it is lost, and the worker must stop."""
        return self._db.write(_renew, work, self._claim_time)

    def write(
        self,
        work: Work[Any],
        record: Callable[Concatenate[Transaction, Lease, datetime, A], None],
        /,
        *arguments: A.args,
        **named_arguments: A.kwargs,
    ) -> None:
        """Record something about the lease, with these arguments; nothing if the claim is lost."""
        self._db.write(_record_if_claimed, work, record, *arguments, **named_arguments)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[P]):
    """An attempt to carry out a claimed event: what its handler acts with, outside any transaction."""

    work: Work[P]
    driver: CloudDriver
    claims: Claims
    #: Wakes the engine: something has become due.
    wake: Callable[[], None]
    #: The cloud resources that clients see, as far as they were created.
    effects: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def renew(self) -> None:
        """Extend the claim, before each call to the cloud. Raises ``ClaimLost``."""
        if not self.claims.renew(self.work):
            raise ClaimLost


class Handler(ABC, Generic[P]):
    """What is done at an event of one type: when it is claimed, in the cloud, and when its outcome is recorded.

    A handler keeps nothing between calls. ``act`` runs outside any transaction; all other methods run inside one.
    """

    #: Whether claiming the event shows on the lease, as a new ``updated_at``.
    is_visible = True
    #: Whether the lease's resources may be replaced by others if the cloud lacks them, or others occupy them.
    replaces = True
    #: Whether it counts how late the event is done.
    is_timed = True

    def __init__(self, types: ResourceTypes, rules: Rules) -> None:
        self._types = types
        self._rules = rules

    # --- the claim

    def may_begin(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> bool:
        """Prepare the ledger for the claim; return False if the due event has to wait."""
        return True

    def begin(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> Lease:
        """Change the lease because its event has been claimed; return it as it is now."""
        tx.leases.change(lease, now=now if self.is_visible else lease.updated_at)
        return lease_of(tx, lease.id)

    def commands(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Iterable[Command]:
        """Return the reservations that the event is about, with their resources."""
        return commands_of(tx, [lease], pinned_only=False)

    def actions(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Actions:
        """Return the actions before the end that the event has to run."""
        return NO_ACTIONS

    # --- the cloud

    @abstractmethod
    def act(self, attempt: Attempt[P]) -> Progress:
        """Make the cloud match. Raises ``CloudError`` and ``ClaimLost``."""

    # --- the outcome

    def record(self, tx: Transaction, work: Work[P], effects: Effects, now: datetime) -> bool:
        """Record that the cloud matches; return False if the claim is lost."""
        if not finish(tx, work, now, self.outcome(tx, work)):
            return False
        tx.leases.add_effects(effects, now=now)
        self.done(tx, work, lease_of(tx, work.lease.id), now)
        return True

    def outcome(self, tx: Transaction, work: Work[P]) -> EventStatus:
        """Return the status of the event once the cloud matches."""
        return EventStatus.DONE

    def done(self, tx: Transaction, work: Work[P], lease: Lease, now: datetime) -> None:
        """Change the lease because the cloud matches."""

    def after_record(self, work: Work[P]) -> None:
        """Called once the outcome is committed."""

    def postpone(self, tx: Transaction, work: Work[P], progress: Progress, now: datetime) -> None:
        """Release the claim because the cloud is not ready yet; this counts neither as a failure nor as an attempt."""
        again_at, attempts = now + progress.look_again_after, max(0, work.attempts - 1)
        if put_off(tx, work, again_at, now, attempts=attempts) and progress.shown_reason is not None:
            show_reason(tx, work, progress.shown_reason.cut(), now)

    def fail(self, tx: Transaction, work: Work[P], reason: Reason, now: datetime, *, final: bool) -> bool:
        """Record a failed attempt; ``final`` if another attempt cannot succeed. Return whether to try again at once.

        The event is retried at growing intervals; it is given up after too many attempts, or after a final error.
        """
        if not final and not self.is_tried_enough(work, now):
            self.retry(tx, work, reason, now)
            return False
        return finish(tx, work, now, EventStatus.ERROR) and self.give_up(
            tx, work, lease_of(tx, work.lease.id), reason, now
        )

    def is_tried_enough(self, work: Work[P], now: datetime) -> bool:
        """Whether the event is given up after this failure."""
        return work.attempts >= self._rules.max_attempts

    def retry(self, tx: Transaction, work: Work[P], reason: Reason, now: datetime) -> None:
        """Try again after a while, and show the reason on the lease."""
        if put_off(tx, work, now + self._rules.delay_after(work.attempts), now):
            show_reason(tx, work, reason, now)

    def give_up(self, tx: Transaction, work: Work[P], lease: Lease, reason: Reason, now: datetime) -> bool:
        """Change the lease because its event will not be tried again; return whether there is more to do at once."""
        show_reason(tx, work, reason, now)
        return False


def _renew(tx: Transaction, work: Work[Any], claim_time: timedelta) -> bool:
    return tx.events.renew(work.event_id, token=work.token, until=tx.now() + claim_time)


def _record_if_claimed(
    tx: Transaction,
    work: Work[Any],
    record: Callable[Concatenate[Transaction, Lease, datetime, A], None],
    /,
    *arguments: A.args,
    **named_arguments: A.kwargs,
) -> None:
    stored = tx.events.get(work.event_id)
    if stored is not None and stored.claim_token == work.token:
        record(tx, lease_of(tx, work.lease.id), tx.now(), *arguments, **named_arguments)


def finish(tx: Transaction, work: Work[Any], now: datetime, status: EventStatus) -> bool:
    """Release the claim for good; return False if it is lost, and nothing may be recorded."""
    return tx.events.finish(work.event_id, token=work.token, now=now, status=status.value, ready_at=None)


def put_off(
    tx: Transaction, work: Work[Any], again_at: datetime, now: datetime, *, attempts: int | None = None
) -> bool:
    """Release the claim until ``again_at``, with this number of ``attempts``; return False if it is lost."""
    counted = {} if attempts is None else {"attempts": attempts}
    return tx.events.finish(
        work.event_id, token=work.token, now=now, status=EventStatus.UNDONE.value, ready_at=again_at, **counted
    )


def lease_of(tx: Transaction, lease_id: str) -> Lease:
    """Return the lease, locked, also if it is deleted."""
    lease = tx.leases.get(lease_id, deleted=True, lock=True)
    if lease is None:
        raise InvalidState(f"The lease {lease_id} has vanished.")
    return lease


def show_reason(tx: Transaction, work: Work[Any], reason: Reason, now: datetime) -> None:
    """Show a reason on the lease without changing its status."""
    lease = lease_of(tx, work.lease.id)
    if lease.reason != reason:
        tx.leases.change(lease, now=now, **columns_of(reason))
        write_history(
            tx, lease.id, work.event_type.value, lease.status, lease.status, actor=ENGINE, now=now, reason=reason
        )
