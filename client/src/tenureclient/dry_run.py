"""The answer to a dry run: the effects that a request would have."""

from __future__ import annotations

from dataclasses import dataclass

from tenureclient.models import Lease
from tenureclient.wire import Fields, JsonValue


@dataclass(frozen=True, slots=True)
class Cost:
    """What a lease takes of one kind of resource, under the name of its limit.

    ``amount`` is the number of units at any one time. ``hours`` are those of all units together over the
    whole lease, where a begun hour counts; ``hours_before`` are those without the change.
    """

    name: str
    amount: int
    hours: int
    hours_before: int

    @classmethod
    def from_wire(cls, document: JsonValue) -> Cost:
        fields = Fields(document, "a cost")
        return cls(
            name=fields.text("name"),
            amount=fields.number("amount"),
            hours=fields.number("hours"),
            hours_before=fields.number("hours_before"),
        )


@dataclass(frozen=True, slots=True)
class ExpectedLimit:
    """A limit of the project (-1: no limit), its usage, and the usage that it would have."""

    name: str
    limit: int
    used: int
    would_use: int

    @classmethod
    def from_wire(cls, document: JsonValue) -> ExpectedLimit:
        fields = Fields(document, "a limit")
        return cls(
            name=fields.text("name"),
            limit=fields.number("limit"),
            used=fields.number("used"),
            would_use=fields.number("would_use"),
        )


@dataclass(frozen=True, slots=True)
class DryRun:
    """A lease as it would be, its cost, and the limits of its project. Ids of new things are made up.

    ``unasked_filters`` are the rules of the site that were not asked, since they keep accounts.
    """

    lease: Lease
    cost: tuple[Cost, ...]
    limits: tuple[ExpectedLimit, ...]
    unasked_filters: tuple[str, ...]

    @classmethod
    def from_wire(cls, document: JsonValue) -> DryRun:
        fields = Fields(document, "a dry run")
        return cls(
            lease=Lease.from_wire(fields.value("lease")),
            cost=fields.each("cost", Cost.from_wire),
            limits=fields.each("limits", ExpectedLimit.from_wire),
            unasked_filters=fields.each("unasked_filters", str),
        )
