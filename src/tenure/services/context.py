"""What the services share: permissions, the rules of the site, and the only function that changes a status."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.errors import Forbidden
from tenure.domain.lease import LeaseStatus
from tenure.resources.contract import ResourceTypes
from tenure.store.database import Database

#: Whether an actor may do what a policy rule covers to a target (``project_id``, ``user_id``).
Authorize = Callable[[str, Actor, Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator may configure."""

    #: The cleaning time added to the end of every allocation.
    cleaning_time: timedelta = timedelta(0)
    #: How long before the end the ``before_end_lease`` event comes by default; zero for no event.
    notice_before_end: timedelta = timedelta(minutes=60)
    #: The configured regions, the home region first; empty if there is only one cloud.
    regions: tuple[str, ...] = ()
    #: The maximum duration of a lease; None for no limit.
    longest_lease: timedelta | None = None
    #: How long a request may search for free resources.
    planning_time: timedelta = timedelta(seconds=5)
    #: How long the exact search for an arrangement of plans may take before a request is refused; zero for none.
    exact_time: timedelta = timedelta(milliseconds=300)
    #: How long a search for offers may try bookings for which plans have to move.
    search_time: timedelta = timedelta(milliseconds=300)
    #: How long the waiting leases of a project, one after the other, may be searched for while requests wait for that;
    #: those of all projects may be searched for twice as long.
    turn_time: timedelta = timedelta(milliseconds=500)
    #: Whether all users may use properties in conditions that only administrators see.
    private_asked_for: bool = False
    #: After how many attempts an update or an action before the end is given up; a start has more time.
    max_attempts: int = 10
    #: For how long after the start date a start is retried at least, however many attempts that takes.
    start_patience: timedelta = timedelta(hours=1)
    #: The share of a lease's duration after which its start is given up, if that is later.
    start_share: float = 0.1
    #: For how long an end waits for actions before it, such as images that are being saved.
    before_end_patience: timedelta = timedelta(minutes=60)
    #: How long before a start the owners of preemptible servers are notified; zero: not at all.
    preemption_notice: timedelta = timedelta(0)
    #: The delay before the second attempt; it doubles with each one.
    first_delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(seconds=60)
    #: The duration of a claim: the driver's longest call and a margin. A claim is renewed before each call.
    claim_time: timedelta = timedelta(seconds=60)
    #: How far ahead plans are moved off failed resources; zero for no limit.
    healing_horizon: timedelta = timedelta(0)
    #: How long a resource must have failed before it is replaced in a running lease; None for never.
    replace_after: timedelta | None = timedelta(minutes=5)

    def give_up_start_at(self, starts_at: datetime, ends_at: datetime) -> datetime:
        """Return the time from which on the start of a lease may be given up."""
        return starts_at + max(self.start_patience, (ends_at - starts_at) * self.start_share)

    def delay_after(self, attempts: int) -> timedelta:
        """Return the delay after so many failed attempts."""
        return min(self.max_delay, self.first_delay * int(2 ** min(attempts - 1, 20)))


#: The statuses from which a lease does not return: it is no longer charged.
ENDED = frozenset(
    {
        LeaseStatus.TERMINATING,
        LeaseStatus.TERMINATED,
        LeaseStatus.DELETING,
        LeaseStatus.DELETED,
        LeaseStatus.ERROR,
    }
)


def require(authorize: Authorize, rule: str, actor: Actor, target: Mapping[str, str]) -> None:
    """Raise ``Forbidden`` unless the policy allows it."""
    if not authorize(rule, actor, target):
        raise Forbidden(rule)


def target_of(actor: Actor) -> Mapping[str, str]:
    """Return what policies are asked about that concern the actor's own project."""
    return {"project_id": actor.project_id, "user_id": actor.user_id}


@dataclass(frozen=True, slots=True)
class Context:
    """What all services of a manager share."""

    db: Database
    clock: Clock
    types: ResourceTypes
    authorize: Authorize
    rules: Rules


class ContextualService:
    """A service with what all services of its manager share."""

    def __init__(self, context: Context) -> None:
        self._db = context.db
        self._clock = context.clock
        self._types = context.types
        self._authorize = context.authorize
        self._rules = context.rules


def new_id() -> str:
    return str(uuid.uuid4())
