"""Which resource serves which reservation, and when; and the choice of resources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.domain.requirement import Expression


@dataclass(frozen=True, slots=True)
class Demand:
    """What a reservation asks of the ledger, said by its resource type.

    Between ``minimum`` and ``maximum`` resources of type ``inventory`` that match ``expression``. ``amounts`` is what
    is taken of each; ``exclusive`` takes all of it.
    """

    inventory: str
    noun: str
    minimum: int
    maximum: int
    expression: Expression
    amounts: Capacity
    exclusive: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A resource that is free for the whole period, with the free stretch around it.

    ``free_since`` is the end of what is booked before, ``free_until`` the start of what is booked after, None where
    nothing is.
    """

    resource_id: int
    version: int
    scarcity: int
    free_since: datetime | None
    free_until: datetime | None


@dataclass(frozen=True, slots=True)
class Allocation:
    """A resource assigned to a reservation for a period."""

    id: int
    resource_id: int
    reservation_id: str
    period: Period
    state: AllocationState
    amounts: Capacity
    exclusive: bool


@dataclass(frozen=True, slots=True)
class HostOfLease:
    """A resource that a lease has, had or will have."""

    resource_id: int
    reservation_id: str
    period: Period
    state: AllocationState


@dataclass(frozen=True, slots=True)
class Booking:
    """A reservation's part in a resource, as the allocation lists show it: with the dates of the lease."""

    resource_id: int
    reservation_id: str
    lease_id: str
    starts_at: datetime
    ends_at: datetime


#: A gap without an end counts as this long.
_ENDLESS = timedelta(days=365_000)


def choose(candidates: Iterable[Candidate], period: Period, count: int, *, turn: int) -> list[Candidate]:
    """The ``count`` best of ``candidates``, fewer where there are not so many.

    The order of preference, each deciding where the one before is equal:

    1. the least special resources, so that a scarce one is left for those who ask for it;
    2. the tightest gap: the least time left idle before and behind the period in the free stretch around it, so
       that long gaps stay whole;
    3. the id, turned by ``turn`` (made from the request's id), so that requests made at the same time do not all
       reach for the same resource.
    """

    def preference(candidate: Candidate) -> tuple[int, timedelta, bool, int]:
        before = period.start - candidate.free_since if candidate.free_since else _ENDLESS
        behind = candidate.free_until - period.end if candidate.free_until else _ENDLESS
        return candidate.scarcity, before + behind, candidate.resource_id < turn, candidate.resource_id

    return sorted(candidates, key=preference)[:count]
