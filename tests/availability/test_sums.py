"""The amounts over time equal sums over the tables of the ledger, after any history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from tenure.domain.availability import AvailabilityQuery, AvailabilityStep, Grouping
from tenure.domain.capacity import WHOLE
from tenure.domain.lease import AllocationState
from tenure.domain.period import OVERDUE_MATTERS
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.services.context import Context
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.search.service import AvailabilityService
from tenure.store.tables import AllocationRow, LeaseRow, ReservationRow, ResourceRow
from tests.availability.test_index import History
from tests.support.world import ADMIN, HOST, World, open_world

ADDRESS = "virtual:floatingip"
HOUR = timedelta(hours=1)
SPAN = 24 * HOUR
#: A type of reservation, and a class of what it is counted in.
COUNTED = ((HOST, WHOLE), (HOST, "VCPU"), ("virtual:instance", "VCPU"), (HOST, "MEMORY_MB"), (ADDRESS, WHOLE))
ZONE = "availability_zone"
STEPS = 60


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=4) as world:
        world.resources.register(ADMIN, ADDRESS, f"{PUBLIC_NETWORK}/203.0.113.10", {})
        yield world


@dataclass(frozen=True)
class Use:
    """A row of the ledger: what a project has of a resource, and when."""

    starts_at: datetime
    ends_at: datetime
    planned: bool
    exclusive: bool
    amount: int
    project_id: str


@dataclass(frozen=True)
class Resource:
    """A row of a resource: what it has of a class, and what is on it."""

    amount: int
    reservable: bool
    zone: str | None
    uses: Sequence[Use]

    def used(self, uses: Sequence[Use], at: datetime, resource_class: str) -> int:
        """Return how much of the resource these uses take at an instant."""
        current = [use for use in uses if use.starts_at <= at < use.ends_at]
        if resource_class == WHOLE:
            return min(1, len(current))
        return sum(self.amount if use.exclusive else use.amount for use in current)


def read(world: World, inventory: str, resource_class: str) -> list[Resource]:
    """Read the tables."""
    now = world.clock.now()
    with world.db.read() as tx:
        rows = tx.session.execute(
            select(AllocationRow, LeaseRow.project_id)
            .join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id)
            .join(LeaseRow, LeaseRow.id == ReservationRow.lease_id)
            .where(AllocationRow.state != AllocationState.RELEASED.value)
        ).all()
        found = tx.session.execute(select(ResourceRow).where(ResourceRow.resource_type == inventory)).scalars().all()
        return [
            Resource(
                1 if resource_class == WHOLE else row.capacity.get(resource_class, 0),
                row.reservable,
                row.facts.get(ZONE),
                [
                    _use(each, project_id, resource_class, now)
                    for each, project_id in rows
                    if each.resource_id == row.id
                ],
            )
            for row in found
            if row.registration == "registered"
        ]


def _use(row: AllocationRow, project_id: str, resource_class: str, now: datetime) -> Use:
    is_late = row.state == AllocationState.HELD.value and row.ends_at <= now
    return Use(
        row.starts_at,
        now + OVERDUE_MATTERS if is_late else row.ends_at,
        row.state == AllocationState.PLANNED.value,
        row.exclusive,
        row.amounts.get(resource_class, 0),
        project_id,
    )


def expected(resources: Sequence[Resource], at: datetime, resource_class: str) -> tuple[int, int, int, int]:
    """Return what is reserved, allocated, out of order and available at an instant."""
    reserved = allocated = out_of_order = available = 0
    for resource in resources:
        used = resource.used(resource.uses, at, resource_class)
        held = resource.used([use for use in resource.uses if not use.planned], at, resource_class)
        allocated += held
        reserved += used - held
        if resource.reservable:
            available += resource.amount - used
        else:
            out_of_order += resource.amount - used
    return reserved, allocated, out_of_order, available


def expected_of_project(
    resources: Sequence[Resource], at: datetime, resource_class: str, project_id: str
) -> tuple[int, int]:
    """Return what is reserved and allocated for a project at an instant."""
    reserved = allocated = 0
    for resource in resources:
        mine = [use for use in resource.uses if use.project_id == project_id]
        held = resource.used([use for use in mine if not use.planned], at, resource_class)
        allocated += held
        reserved += resource.used(mine, at, resource_class) - held
    return reserved, allocated


def instants(resources: Sequence[Resource], start: datetime, end: datetime) -> list[datetime]:
    """Return the start, each change before the end, and the middle between each two of them."""
    times = {time for resource in resources for use in resource.uses for time in (use.starts_at, use.ends_at)}
    changes = sorted({start, *(time for time in times if start < time < end)})
    middles = [earlier + (later - earlier) / 2 for earlier, later in zip(changes, [*changes[1:], end], strict=True)]
    return sorted(changes + middles)


def at(steps: Sequence[AvailabilityStep], time: datetime) -> AvailabilityStep:
    return [step for step in steps if step.starts_at <= time][-1]


def amounts(step: AvailabilityStep) -> tuple[int | None, ...]:
    return step.reserved, step.allocated, step.out_of_order, step.available


def check(world: World) -> int:
    """Compare all answers with sums over the tables; return how many instants were compared."""
    service = world.service.manager.availability
    start = world.clock.now()
    compared = 0
    for resource_type, resource_class in COUNTED:
        inventory = world.service.components.types[resource_type].inventory
        resources = read(world, inventory, resource_class)
        times = instants(resources, start, start + SPAN)

        def ask(**fields: object) -> AvailabilityQuery:
            end = start + SPAN
            return AvailabilityQuery(resource_type, ends_at=end, resource_class=resource_class, **fields)  # type: ignore[arg-type]  # noqa: B023

        [whole] = service.show(ADMIN, ask()).groups
        assert (whole.resources, whole.total) == (len(resources), sum(resource.amount for resource in resources))
        for time in times:
            assert amounts(at(whole.steps, time)) == expected(resources, time, resource_class), time
        assert whole.least == min(expected(resources, time, resource_class)[3] for time in times)
        for group in service.show(ADMIN, ask(group_by=Grouping.ZONE)).groups:
            there = [resource for resource in resources if resource.zone == group.zone]
            assert there
            for time in times:
                assert amounts(at(group.steps, time)) == expected(there, time, resource_class), (group.zone, time)
        for group in service.show(ADMIN, ask(group_by=Grouping.PROJECT)).groups:
            assert group.project_id is not None
            for time in times:
                found = at(group.steps, time)
                assert (found.reserved, found.allocated) == expected_of_project(
                    resources, time, resource_class, group.project_id
                )
        [coarse] = service.show(ADMIN, ask(step=HOUR)).groups
        for step in coarse.steps:
            inside = [step.starts_at, *(time for time in times if step.starts_at <= time < step.starts_at + HOUR)]
            tightest = min(expected(resources, time, resource_class)[3] for time in inside)
            assert step.available == tightest, step
        compared += len(times)
    return compared


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in (3, 4, *range(6, 46)))]
)
def test_amounts_equal_sums_over_the_ledger_after_any_history(world: World, seed: int):
    history, compared = History(world, seed), 0
    for number in range(STEPS):
        history.step()
        if number % 4 == 0:
            compared += check(world)
    assert compared > 5 * STEPS


@pytest.mark.slow
def test_another_manager_shows_the_same_as_one_that_has_just_started(world: World):
    components = world.service.components
    history = History(world, 5)

    def started() -> AvailabilityService:
        index = AvailabilityIndex(components.db, components.clock)
        return AvailabilityService(
            Context(components.db, components.clock, components.types, components.authorize, components.rules), index
        )

    other = started()
    queries = [
        AvailabilityQuery(resource_type, resource_class=resource_class, group_by=grouping)
        for resource_type, resource_class in COUNTED
        for grouping in (Grouping.NONE, Grouping.RESOURCE, Grouping.PROJECT)
    ]
    for _ in range(STEPS // 4):
        for _ in range(4):
            history.step()
        fresh = started()
        for query in queries:
            shown = world.service.manager.availability.show(ADMIN, query)
            assert other.show(ADMIN, query) == shown
            assert fresh.show(ADMIN, query) == shown
