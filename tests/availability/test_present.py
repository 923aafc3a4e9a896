"""The gauges of resources: what leases have at present, from the index in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import event

from tenure.domain.availability import AvailabilityQuery
from tenure.domain.errors import Unavailable
from tenure.domain.request import ResourceQuery
from tenure.drivers.simulated import Fault, FaultKind
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.metrics import PresentAmounts, PresentGauges
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.search.present import PresentService
from tests.availability.test_index import History
from tests.support.regions import NORTH, SOUTH, open_regions
from tests.support.world import (
    ADMIN,
    HOST,
    World,
    instance_reservation,
    open_world,
    reservation,
)

ADDRESS = "virtual:floatingip"
HOUR = timedelta(hours=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=4) as world:
        world.resources.register(ADMIN, ADDRESS, f"{PUBLIC_NETWORK}/203.0.113.10", {})
        yield world


def present(world: World, resource_class: str = "WHOLE", resource_type: str = HOST) -> tuple[int, ...]:
    """Return total, reserved, allocated, idle reserved and out of order."""
    world.pass_time(timedelta(seconds=5))
    follow(world)
    [found] = [
        amounts
        for amounts in world.service.present.amounts()
        if (amounts.resource_type, amounts.resource_class) == (resource_type, resource_class)
    ]
    return found.total, found.reserved, found.allocated, found.idle_reserved, found.out_of_order


def follow(world: World) -> None:
    """Have the index follow the ledger, as each search does, and the engine every few seconds."""
    world.service.manager.availability.show(ADMIN, AvailabilityQuery(HOST))


def test_leases_of_the_present_count(world: World):
    world.book(1, start=0, hours=2)
    world.book(2, start=1, hours=1)
    assert present(world) == (4, 1, 1, 0, 0)
    world.pass_time(HOUR)
    assert present(world) == (4, 3, 3, 0, 0)
    world.pass_time(HOUR)
    assert present(world) == (4, 0, 0, 0, 0)
    assert present(world, resource_type=ADDRESS) == (1, 0, 0, 0, 0)


def test_parts_of_hosts_count_in_their_classes(world: World):
    world.resize(8, 8, 8, 8)
    world.reserve(instance_reservation(3, vcpus=2), start=0)
    world.book(1, start=0)
    assert present(world, "VCPU") == (32, 14, 14, 0, 0)
    assert present(world) == (4, 2, 2, 0, 0)


def test_lease_that_does_not_start_is_idle(world: World):
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None))
    world.book(2, start=0)
    total, reserved, allocated, idle, _ = present(world)
    assert (total, reserved) == (4, 2)
    assert allocated + idle == 2


def test_disabled_host_is_out_of_order_though_it_is_in_use(world: World):
    world.reserve_on(1, reservation(1, 1), start=0)
    for host in ("1", "2"):
        world.resources.disable(ADMIN, HOST, host, reason="test")
    assert present(world) == (4, 1, 1, 0, 2)


@pytest.mark.parametrize("seed", [3, 4])
def test_amounts_are_those_of_the_api(world: World, seed: int):
    history = History(world, seed)
    for _ in range(40):
        history.step()
        shown = {(amounts.resource_type, amounts.resource_class): amounts for amounts in after_a_moment(world)}
        for resource_type, resource_class in ((HOST, "WHOLE"), (HOST, "VCPU"), (HOST, "MEMORY_MB"), (ADDRESS, "WHOLE")):
            question = AvailabilityQuery(resource_type, resource_class=resource_class)
            [group] = world.service.manager.availability.show(ADMIN, question).groups
            first, found = group.steps[0], shown[resource_type, resource_class]
            assert (found.total, found.allocated) == (group.total, first.allocated)
            assert found.idle_reserved == first.reserved
            assert found.reserved == first.reserved + first.allocated
            assert found.out_of_order == out_of_order(world, resource_type, resource_class)


def after_a_moment(world: World) -> list[PresentAmounts]:
    world.pass_time(timedelta(seconds=5))
    follow(world)
    return world.service.present.amounts()


def out_of_order(world: World, resource_type: str, resource_class: str) -> int:
    with world.db.read() as tx:
        resources = tx.resources.page(ResourceQuery(resource_type, 100))
    closed = [resource for resource in resources if not resource.reservable]
    return sum(1 if resource_class == "WHOLE" else resource.capacity[resource_class] for resource in closed)


def test_regions_are_told_apart(tmp_path: Path):
    with open_regions(tmp_path) as world:
        follow(world)
        regions = {amounts.region for amounts in world.service.present.amounts() if amounts.resource_type == HOST}
        assert regions == {NORTH, SOUTH}


def test_question_asks_the_database_nothing(world: World):
    world.book(1, start=0)
    follow(world)
    statements: list[str] = []
    event.listen(world.db.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert world.service.present.amounts()
    assert statements == []


def test_amounts_vanish_a_minute_after_the_database_was_last_read(world: World, monkeypatch: pytest.MonkeyPatch):
    follow(world)

    def fail(*_given: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(world.db, "read", fail)
    world.clock.set(world.clock.now() + timedelta(seconds=60))
    assert world.service.present.amounts()
    world.clock.set(world.clock.now() + timedelta(seconds=1))
    assert world.service.present.amounts() == []


def test_nothing_is_shown_before_the_ledger_was_read(world: World):
    assert world.service.present.amounts() == []


def test_engine_keeps_the_amounts_fresh(world: World):
    index = AvailabilityIndex(world.db, world.clock)
    service = PresentService(world.clock, index, [HOST])
    assert service.amounts() == []
    for _ in range(3):
        index.refresh()
        assert service.amounts()
        world.pass_time(timedelta(minutes=2))
        assert service.amounts() == []


def test_gauges_are_written_for_prometheus(world: World):
    gauges, registry = PresentGauges(), CollectorRegistry()
    registry.register(gauges)
    assert samples(registry) == {}
    gauges.source = world.service.present.amounts
    world.book(1, start=0)
    world.pass_time(timedelta(seconds=5))
    follow(world)
    labels = f'{{region="",resource_class="WHOLE",resource_type="{HOST}"}}'
    found = samples(registry)
    assert {name: found[f"tenure_resources{name}{labels}"] for name in ("", "_reserved", "_allocated")} == {
        "": 4.0,
        "_reserved": 1.0,
        "_allocated": 1.0,
    }


def samples(registry: CollectorRegistry) -> Mapping[str, float]:
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
