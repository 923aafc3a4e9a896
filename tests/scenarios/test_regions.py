"""Two regions in a ledger: leases in both, and the effects of a failing region on the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import InvalidParameter, NotEnoughResources, Unavailable
from tenure.domain.lease import EventType, Lease, LeaseStatus
from tenure.domain.request import FlexibleRequest, LeaseQuery, LeaseRequest, ReservationRequest, ResourceQuery, Window
from tenure.drivers.contract import CloudBusy, ResourceRef
from tenure.drivers.router import Router
from tenure.drivers.simulated import Fault, FaultKind
from tenure.factory import build
from tenure.services.regions import RegionService
from tests.support.engines import wait_for_leases
from tests.support.regions import NORTH, SOUTH, Regions, open_regions
from tests.support.simulated import HostHealth, SimulatedCloud
from tests.support.waiting import wait_for
from tests.support.world import ADMIN, HOST, NOW, OWNER, World, open_world, reservation


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    with open_regions(tmp_path) as opened:
        yield opened


def fail(cloud: SimulatedCloud, verb: str) -> None:
    cloud.inject(Fault(FaultKind.BUSY, verb=verb, count=None))


def test_hosts_with_the_same_id_in_two_regions_are_distinguished(regions: Regions) -> None:
    hosts = regions.resources.list(ADMIN, ResourceQuery(HOST, 10)).items
    assert [(host.region, host.external_id, host.name) for host in hosts] == [
        (NORTH, "1", "sim-host-001"),
        (NORTH, "2", "sim-host-002"),
        (SOUTH, "south:1", "sim-host-001"),
        (SOUTH, "south:2", "sim-host-002"),
    ]
    assert regions.resources.get(ADMIN, HOST, "south:1").region == SOUTH
    regions.resources.unregister(ADMIN, HOST, "south:1")
    assert regions.free() == (2, 1)


def test_lease_in_both_regions_starts_and_ends_in_both(regions: Regions) -> None:
    lease = regions.over_both()
    assert [reservation.region for reservation in lease.reservations] == [NORTH, SOUTH]
    regions.engine.settle()
    assert regions.status(lease) is LeaseStatus.ACTIVE
    assert regions.free() == (1, 1)
    assert regions.service.reconciler.run() == 0
    leased = regions.leases.resources(OWNER, lease.id, HOST)
    prefixes = {leased_host.resource.external_id.partition(":")[0] for leased_host in leased}
    assert len(prefixes - {SOUTH}) == len(prefixes) - 1 == 1
    regions.clock.advance(timedelta(hours=1))
    regions.engine.settle()
    assert regions.status(lease) is LeaseStatus.TERMINATED
    assert regions.free() == (2, 2)


def test_lease_in_both_regions_is_booked_as_a_whole_or_not_at_all(regions: Regions) -> None:
    with pytest.raises(NotEnoughResources) as caught:
        regions.over_both(south=3)
    assert [(stage.stage, stage.count) for stage in caught.value.shortfall.stages] == [
        ("reservable", 2),
        ("matching", 2),
        ("free", 2),
    ]
    assert caught.value.field == "reservations[1].min"
    first, second = regions.over_both(), regions.over_both()
    with pytest.raises(NotEnoughResources):
        regions.over_both()
    assert first.id != second.id


def test_reservation_without_a_region_is_booked_only_in_the_home_region(regions: Regions) -> None:
    lease = regions.book(2, start=1)
    assert lease.reservations[0].region == NORTH
    with pytest.raises(NotEnoughResources):
        regions.book(1, start=1)  # hosts of the south do not count
    with pytest.raises(InvalidParameter, match="There is no region west: there are north, south") as caught:
        regions.leases.create(
            OWNER,
            LeaseRequest("x", NOW, NOW + timedelta(hours=1), reservations=(replace(reservation(1, 1), region="west"),)),
        )
    assert caught.value.field == "reservations[0].region"


def test_failing_start_in_a_region_does_not_delay_the_other(regions: Regions) -> None:
    for broken, works in ((regions.cloud, regions.south), (regions.south, regions.cloud)):
        fail(broken, "ensure_started")
        lease = regions.over_both()
        regions.engine.settle()
        assert regions.status(lease) is LeaseStatus.STARTING
        assert lease.reservations[0].id in works.world.groups() or lease.reservations[1].id in works.world.groups()
        broken.clear_faults()
        regions.clock.advance(timedelta(minutes=1))
        regions.engine.settle()
        assert regions.status(lease) is LeaseStatus.ACTIVE
        regions.leases.delete(OWNER, lease.id)
        regions.engine.settle()
        assert regions.free() == (2, 2)


def test_failing_end_in_a_region_keeps_only_hosts_of_that_region(regions: Regions) -> None:
    lease = regions.over_both()
    regions.engine.settle()
    fail(regions.south, "ensure_ended")
    regions.clock.advance(timedelta(hours=1))
    regions.engine.settle()
    assert regions.status(lease) is LeaseStatus.TERMINATING
    assert regions.free() == (2, 1)
    assert regions.book(2).id  # hosts that are back at home can be booked at once
    regions.south.clear_faults()
    regions.clock.advance(timedelta(minutes=5))
    regions.engine.settle()
    assert regions.status(lease) is LeaseStatus.TERMINATED
    assert regions.free()[1] == 2


def reasons_of(regions: Regions, leases: Iterable[Lease]) -> list[str]:
    return [regions.leases.get(OWNER, lease.id).status_reason or "" for lease in leases]


def pass_time_until(regions: Regions, leases: Iterable[Lease], status: LeaseStatus) -> None:
    """Let time pass until the leases have the status: an attempt without a worker is repeated later."""

    def reached() -> bool:
        regions.clock.advance(timedelta(seconds=10))
        return all(regions.status(lease) is status for lease in leases)

    wait_for(f"the leases to be {status}", reached)


def test_hanging_region_leaves_workers_to_the_other(tmp_path: Path) -> None:
    """As many starts, and then ends, hang as there are workers. An attempt that waits for a place is not counted."""
    with open_regions(tmp_path, workers=2) as regions:
        try:
            regions.south.inject(Fault(FaultKind.BLOCK, verb="ensure_started", count=None))
            hung = [regions.host_in(SOUTH), regions.host_in(SOUTH)]
            regions.engine.start()
            wait_for(
                "a start to be postponed",
                lambda: any("the maximum of a region" in reason for reason in reasons_of(regions, hung)),
            )
            lease = regions.host_in(NORTH)
            wait_for_leases(regions, [lease], {LeaseStatus.ACTIVE})
            assert {regions.status(slow) for slow in hung} == {LeaseStatus.STARTING}
            starts = [regions.leases.get(OWNER, slow.id).event(EventType.START) for slow in hung]
            assert sorted(start.attempts for start in starts if start is not None) == [0, 1]
            regions.south.clear_faults()
            pass_time_until(regions, hung, LeaseStatus.ACTIVE)

            regions.south.inject(Fault(FaultKind.BLOCK, verb="ensure_ended", count=None))
            regions.clock.advance(timedelta(hours=1))
            wait_for_leases(regions, [lease], {LeaseStatus.TERMINATED})
            wait_for_leases(regions, hung, {LeaseStatus.TERMINATING})
            regions.south.clear_faults()
            pass_time_until(regions, hung, LeaseStatus.TERMINATED)
            assert regions.free() == (2, 2)
        finally:
            regions.south.clear_faults()
            regions.engine.stop()


def test_health_and_drift_of_a_region_are_found_while_the_other_does_not_answer(regions: Regions) -> None:
    lease = regions.over_both()
    regions.engine.settle()
    for verb in ("check", "drift", "held", "discover"):
        fail(regions.cloud, verb)
    host = next(iter(regions.south.world.groups().values())).hosts[0]
    other = next(external_id for external_id in ("1", "2") if external_id != host)
    regions.south.world.mark_host(other, HostHealth.DOWN)
    regions.service.health_check.run()
    assert regions.resources.get(ADMIN, HOST, f"south:{other}").health.value == "down"
    hosts = regions.resources.list(ADMIN, ResourceQuery(HOST, 10)).items
    assert all(known.health.works for known in hosts[:2])
    regions.south.world.remove_host(other)
    regions.service.health_check.run()
    assert regions.resources.get(ADMIN, HOST, f"south:{other}").health.value == "gone"
    regions.south.world.drop_group(lease.reservations[1].id)
    assert regions.service.reconciler.run() == 1
    regions.engine.settle()
    assert lease.reservations[1].id in regions.south.world.groups()


def test_flavor_of_a_request_is_looked_up_in_the_region_of_the_reservation(regions: Regions) -> None:
    regions.south.world.instances.delete_flavor("2")
    begin = NOW + timedelta(hours=1)
    asked = {"flavor_id": "2", "amount": 1, "affinity": True, "before_end": "default"}

    def book(region: str) -> Lease:
        requested = ReservationRequest("flavor:instance", asked, region)
        return regions.leases.create(
            OWNER, LeaseRequest("x", begin, begin + timedelta(hours=1), reservations=(requested,))
        )

    with pytest.raises(InvalidParameter, match="2"):
        book(SOUTH)
    lease = book(NORTH)
    assert "north=" in (lease.trust_id or "")
    assert len(regions.cloud.world.instances.server_groups()) == 1
    assert regions.south.world.instances.server_groups() == {}
    regions.leases.delete(OWNER, lease.id)
    regions.service.reconciler.run()
    assert regions.cloud.world.trusts() | regions.south.world.trusts() == frozenset()


GROUPED = {"flavor_id": "2", "amount": 1, "affinity": True, "before_end": "default"}


def grouped(*regions: str) -> LeaseRequest:
    """Request instances in these regions with server groups, which are created in the name of the owner."""
    begin = NOW + timedelta(hours=1)
    requested = tuple(ReservationRequest("flavor:instance", GROUPED, region) for region in regions)
    return LeaseRequest("grouped", begin, begin + timedelta(hours=1), reservations=requested)


def trusts(regions: Regions) -> tuple[int, int]:
    """Return the number of trusts in each region."""
    return len(regions.cloud.world.trusts()), len(regions.south.world.trusts())


def test_trust_is_created_in_regions_that_act_as_the_owner(regions: Regions) -> None:
    lease = regions.leases.create(OWNER, grouped(SOUTH))
    assert trusts(regions) == (0, 1)
    regions.leases.add_reservation(OWNER, lease.id, ReservationRequest("flavor:instance", GROUPED, SOUTH))
    assert trusts(regions) == (0, 1)
    regions.leases.add_reservation(OWNER, lease.id, ReservationRequest("flavor:instance", GROUPED, NORTH))
    assert trusts(regions) == (1, 1)
    regions.pass_time(timedelta(hours=1))
    assert regions.status(lease) is LeaseStatus.ACTIVE
    assert len(regions.cloud.world.instances.server_groups()) == 1
    assert len(regions.south.world.instances.server_groups()) == 2
    regions.leases.delete(OWNER, lease.id)
    regions.engine.settle()
    regions.service.reconciler.run()
    assert trusts(regions) == (0, 0)


@pytest.mark.parametrize(("kind", "refusal"), [(FaultKind.REFUSED, InvalidParameter), (FaultKind.BUSY, Unavailable)])
def test_lease_is_refused_if_a_trust_cannot_be_created(
    regions: Regions, kind: FaultKind, refusal: type[Exception]
) -> None:
    regions.south.inject(Fault(kind, verb="delegate", count=None))
    with pytest.raises(refusal, match="Region south"):
        regions.leases.create(OWNER, grouped(NORTH, SOUTH))
    assert trusts(regions) == (0, 0)
    assert regions.leases.list(OWNER, LeaseQuery(limit=1)).items == ()
    assert regions.leases.create(OWNER, grouped(NORTH)).id


def manage(world: World, driver: Router, *regions: str) -> None:
    """Let the service manage these regions, by its other rules."""
    rules = replace(world.service.components.rules, regions=regions)
    world.service = build(replace(world.service.components, driver=driver, rules=rules))


def test_trust_without_a_region_belongs_to_the_home_region(tmp_path: Path) -> None:
    with open_world(tmp_path, hosts=2) as world:
        asked = replace(grouped(""), reservations=(ReservationRequest("flavor:instance", GROUPED),))
        lease = world.leases.create(OWNER, asked)
        RegionService(world.db).name_home(NORTH)
        south = SimulatedCloud.create(hosts=1, clock=world.clock, sleep=lambda _seconds: None)
        driver = Router({NORTH: world.cloud, SOUTH: south})
        manage(world, driver, NORTH, SOUTH)
        world.resources.register(ADMIN, HOST, "1", {}, region=SOUTH)
        for region in (NORTH, SOUTH):
            world.leases.add_reservation(OWNER, lease.id, ReservationRequest("flavor:instance", GROUPED, region))
        assert (len(world.cloud.world.trusts()), len(south.world.trusts())) == (1, 1)
        world.leases.delete(OWNER, lease.id)
        world.service.reconciler.run()
        assert (len(world.cloud.world.trusts()), len(south.world.trusts())) == (0, 0)
        south.close()


def test_lease_waits_for_a_region_that_is_no_longer_configured(regions: Regions) -> None:
    lease = regions.over_both(start=1)
    lone = Router({NORTH: regions.cloud})
    with pytest.raises(CloudBusy, match="There is no region south any more"):
        lone.ensure_unregistered(HOST, ResourceRef("south:1", "sim-host-001", SOUTH))
    regions.service = build(replace(regions.service.components, driver=lone))
    regions.clock.advance(timedelta(hours=1))
    regions.engine.settle()
    assert regions.status(lease) is LeaseStatus.STARTING


def test_earlier_hosts_and_leases_belong_to_the_home_region(tmp_path: Path) -> None:
    with open_world(tmp_path, hosts=2) as world:
        running, later = world.book(1), world.book(2, start=2)
        world.engine.settle()
        assert RegionService(world.db).name_home(NORTH) == (2, 2)
        assert RegionService(world.db).name_home(NORTH) == (0, 0)
        south = SimulatedCloud.create(hosts=1, clock=world.clock, sleep=lambda _seconds: None)
        driver = Router({NORTH: world.cloud, SOUTH: south})
        manage(world, driver, NORTH, SOUTH)
        assert world.resources.register(ADMIN, HOST, "1", {}, region=SOUTH).external_id == "south:1"
        assert world.service.reconciler.run() == 0
        world.clock.advance(timedelta(hours=2))
        world.engine.settle()
        assert world.leases.get(OWNER, running.id).status is LeaseStatus.TERMINATED
        assert world.leases.get(OWNER, later.id).status is LeaseStatus.ACTIVE
        assert world.hosts_of(later.id) == ["sim-host-001", "sim-host-002"]
        south.close()


def test_lease_that_waits_is_booked_in_the_home_region(tmp_path: Path) -> None:
    with open_world(tmp_path, hosts=2) as world:
        taken = world.book(2, start=1)
        window = Window(timedelta(hours=1), world.clock.now() + timedelta(hours=1), latest=taken.starts_at)
        waits = FlexibleRequest("waits", ((reservation(2, 2),),), window, waits=True)
        waiting = world.leases.create(OWNER, waits)
        assert waiting.status is LeaseStatus.WAITING
        RegionService(world.db).name_home(NORTH)
        manage(world, Router({NORTH: world.cloud}), NORTH)
        world.leases.delete(OWNER, taken.id)
        with pytest.raises(NotEnoughResources):  # the lease that waits comes first
            world.reserve(replace(reservation(2, 2), region=NORTH), start=1)
        world.engine.settle()
        booked = world.leases.get(OWNER, waiting.id)
        assert booked.status is LeaseStatus.PENDING
        assert [reservation.region for reservation in booked.reservations] == [NORTH]
