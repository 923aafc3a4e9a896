"""A site of four hosts in which a change of a lease fits only if two plans move, one after the other.

The change needs host 1, the only one of rack a. The plan on it may move to host 2 only, and the plan there to host 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange, ReservationChange
from tests.support.engines import HOUR, MINUTE, rebuild
from tests.support.world import ADMIN, HOST, OWNER, World, reservation

RACK_A, RACK_D, RACK_A_OR_B, RACK_B_OR_C, RACK_A_OR_D = (
    '["==", "$rack", "a"]',
    '["==", "$rack", "d"]',
    '["in", "$rack", "a", "b"]',
    '["in", "$rack", "b", "c"]',
    '["in", "$rack", "a", "d"]',
)
NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Case:
    """A lease on a host, for some hours, and its change. All times are in hours from the beginning."""

    name: str
    host: int
    kind: str
    hours: tuple[int, int]
    #: The changed parameters of its reservation, its changed dates, and the kind of an added reservation.
    parameters: Mapping[str, object] = field(default_factory=dict)
    dates: tuple[int, int] | None = None
    adds: str = ""

    @property
    def runs(self) -> bool:
        return self.hours[0] == 0


CASES = (
    Case("grows", 4, RACK_A_OR_D, (2, 4), parameters={"min": 2, "max": 2}),
    Case("other-properties", 4, RACK_D, (2, 4), parameters={"resource_properties": RACK_A}),
    Case("other-dates", 1, RACK_A, (6, 8), dates=(2, 4)),
    Case("earlier-start", 1, RACK_A, (5, 8), dates=(3, 8)),
    Case("runs-and-is-prolonged", 1, RACK_A, (0, 1), dates=(0, 4)),
    Case("runs-and-grows", 4, RACK_A_OR_D, (0, 4), parameters={"min": 2, "max": 2}),
    Case("another-reservation", 4, RACK_D, (2, 4), adds=RACK_A),
    Case("runs-and-gets-another-reservation", 4, RACK_D, (0, 4), adds=RACK_A),
)


@dataclass(frozen=True)
class Chain:
    """The leases of a case: the one that is changed, and the two that make way."""

    lease: Lease
    first: Lease
    second: Lease
    began: datetime

    def date(self, hours: int) -> datetime:
        return self.began + hours * HOUR


def crowd(world: World, case: Case) -> Chain:
    """Book the leases of a case, and start the first one if it runs."""
    began = world.clock.now()
    for host, rack in enumerate("abcd", 1):
        world.resources.update(ADMIN, HOST, str(host), {"rack": rack})
    start, end = case.hours
    asked = reservation(1, 1, resource_properties=case.kind)
    lease = world.reserve_on(case.host, asked, start=start, hours=end - start)
    if case.runs:
        world.pass_time(MINUTE)
    left = (began + 2 * HOUR - world.clock.now()) / HOUR
    first = world.reserve_on(1, reservation(1, 1, resource_properties=RACK_A_OR_B), start=left, hours=2)
    second = world.reserve_on(2, reservation(1, 1, resource_properties=RACK_B_OR_C), start=left, hours=2)
    return Chain(lease, first, second, began)


def carry_out(world: World, case: Case, chain: Chain) -> Lease:
    """Make the change of a case."""
    lease = chain.lease
    if case.adds:
        return world.leases.add_reservation(OWNER, lease.id, reservation(1, 1, resource_properties=case.adds))
    return world.leases.update(OWNER, lease.id, change_of(case, chain))


def change_of(case: Case, chain: Chain) -> LeaseChange:
    """Return the change of dates and parameters of a case."""
    starts_at = ends_at = None
    if case.dates is not None:
        starts_at, ends_at = (chain.date(hours) for hours in case.dates)
    changes = (ReservationChange(chain.lease.reservations[0].id, case.parameters),) if case.parameters else ()
    return LeaseChange(starts_at=None if case.runs else starts_at, ends_at=ends_at, reservations=changes)


def search_for(world: World, allowed: timedelta) -> None:
    """Set the time of the exact search; zero switches it off."""
    rebuild(world, rules=replace(world.service.components.rules, exact_time=allowed))
