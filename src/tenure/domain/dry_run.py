"""What a request would do if it were carried out now."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.lease import Lease


@dataclass(frozen=True, slots=True)
class Cost:
    """What the reservations of a lease take of one resource type, under the name of its limit.

    ``amount`` is the number of units at any one time. ``hours`` are those of all units together over the whole lease,
    where a begun hour counts; ``hours_before`` are those without the change, 0 for a new lease.
    """

    name: str
    amount: int
    hours: int
    hours_before: int = 0


@dataclass(frozen=True, slots=True)
class ExpectedAllowance:
    """A limit of a project (-1: none), how much is booked, and how much would be."""

    name: str
    limit: int
    used: int
    would_use: int


@dataclass(frozen=True, slots=True)
class DryRunOutcome:
    """The lease as it would be, what it would cost, and what would be left of the limits of its project.

    ``unasked`` are the enforcement filters that were not asked, since they keep accounts of what they agree to.
    """

    lease: Lease
    cost: tuple[Cost, ...]
    allowances: tuple[ExpectedAllowance, ...]
    unasked: tuple[str, ...] = ()
