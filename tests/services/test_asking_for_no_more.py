"""Changes that ask for no more than a lease has: they are never refused for lack of room, even on shrunk hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, Moment, ReservationChange, ReservationRequest
from tenure.drivers.simulated import Fault, FaultKind
from tenure.services.context import Rules
from tenure.services.leases import bounds
from tests.support import ledger
from tests.support.engines import rebuild
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation, url_in

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
#: A host with 64 VCPUs, or instances that use all of them.
KINDS = {
    "host": reservation(1, 1, resource_properties='[">=", "$vcpus", "64"]'),
    "instances": instance_reservation(2, vcpus=32),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=1) as world:
        set_vcpus(world, 64)
        yield world


def set_vcpus(world: World, count: int) -> None:
    """Set the number of VCPUs of the cloud's host."""
    world.cloud.world.change_host("1", facts={"vcpus": count, "memory_mb": 65536, "local_gb": 100})
    world.service.refresh.run()
    world.engine.settle()


def shorter(lease: Lease) -> LeaseChange:
    return LeaseChange(ends_at=lease.ends_at - HOUR)


def later(lease: Lease) -> LeaseChange:
    return LeaseChange(starts_at=lease.starts_at + HOUR)


def other_action(lease: Lease) -> LeaseChange:
    return LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"before_end": "snapshot"}),))


def end_now(_lease: Lease) -> LeaseChange:
    return LeaseChange(ends_at=Moment.NOW)


def fewer(lease: Lease) -> LeaseChange:
    return LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"amount": 1}),))


def smaller(lease: Lease) -> LeaseChange:
    return LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"vcpus": 16}),))


Change = Callable[[Lease], LeaseChange]
RUNNING = [shorter, end_now, other_action]
WAITING = [shorter, later, other_action, fewer, smaller]


def cases(changes: Sequence[Change]) -> list[object]:
    """Return each kind with its valid changes: a whole host can be neither fewer nor smaller."""
    unknown: dict[str, set[Change]] = {"host": {fewer, smaller}, "instances": set()}
    return [
        pytest.param(asked, change, id=f"{kind}-{change.__name__}")
        for kind, asked in KINDS.items()
        for change in changes
        if change not in unknown[kind]
    ]


@pytest.mark.parametrize(("asked", "change"), cases(RUNNING))
def test_running_lease_on_a_shrunk_host_may_ask_for_less(
    world: World, tmp_path: Path, asked: ReservationRequest, change: Change
):
    lease = world.reserve(asked, hours=5)
    world.engine.settle()
    set_vcpus(world, 32)
    assert world.leases.get(OWNER, lease.id).degraded
    world.leases.update(OWNER, lease.id, change(lease))
    world.pass_time(4 * HOUR)
    status = world.leases.get(OWNER, lease.id).status
    assert status is (LeaseStatus.ACTIVE if change is other_action else LeaseStatus.TERMINATED)
    assert ledger.overlaps(url_in(tmp_path)) == []


def test_two_running_leases_on_a_shrunk_host_may_both_end_early(world: World):
    leases = [world.reserve(instance_reservation(1, vcpus=32), hours=5) for _ in range(2)]
    world.engine.settle()
    set_vcpus(world, 48)
    for lease in leases:
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=Moment.NOW))
    world.engine.settle()
    assert {world.leases.get(OWNER, lease.id).status for lease in leases} == {LeaseStatus.TERMINATED}


@pytest.mark.parametrize(("asked", "change"), cases(WAITING))
def test_pending_lease_on_a_disabled_host_may_ask_for_less(
    world: World, tmp_path: Path, asked: ReservationRequest, change: Change
):
    lease = world.reserve(asked, start=1, hours=5)
    world.resources.disable(ADMIN, HOST, "1", reason="repair")
    changed = world.leases.update(OWNER, lease.id, change(lease))
    assert [host for host, _ in world.units(changed)] == ["sim-host-001"]
    assert ledger.faults(url_in(tmp_path)) == []
    world.resources.enable(ADMIN, HOST, "1")
    free_from = max(changed.ends_at, world.clock.now())
    world.reserve(reservation(1, 1), start=(free_from - world.clock.now()) / HOUR)


@pytest.mark.parametrize(("asked", "change"), cases(WAITING))
def test_pending_lease_behind_a_late_teardown_may_ask_for_less(
    world: World, tmp_path: Path, asked: ReservationRequest, change: Change
):
    before = world.book(1)
    world.engine.settle()
    lease = world.reserve(asked, start=1.1, hours=5)
    world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=before.reservations[0].id))
    world.pass_time(HOUR + MINUTE)
    assert world.leases.get(OWNER, before.id).status is LeaseStatus.TERMINATING
    world.leases.update(OWNER, lease.id, change(lease))
    assert ledger.faults(url_in(tmp_path)) == []


def test_released_hosts_can_be_booked_by_others(tmp_path: Path):
    """Two of three hosts are disabled; the lease keeps the enabled host first, and then one of the others."""
    with open_world(tmp_path, hosts=3) as world:
        lease = world.book(3, start=1)
        for number in ("1", "2"):
            world.resources.disable(ADMIN, HOST, number, reason="repair")
        for count in (2, 1):
            world.change(lease, min=count, max=count)
            assert "sim-host-003" in world.hosts_of(lease.id)
            assert len(world.hosts_of(lease.id)) == count
        for number in ("1", "2"):
            world.resources.enable(ADMIN, HOST, number)
        world.book(2, start=1)


def test_pending_lease_may_end_earlier_after_the_cleaning_time_was_raised(world: World, tmp_path: Path):
    """Another lease follows at once, so there is no time for cleaning before or after the change."""
    waiting = {kind: world.reserve(asked, start=1 + 2 * index) for index, (kind, asked) in enumerate(KINDS.items())}
    for index in range(len(KINDS)):
        world.book(1, start=2 + 2 * index)
    rebuild(world, rules=Rules(cleaning_time=30 * MINUTE))
    for lease in waiting.values():
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at - 15 * MINUTE))
    world.change(waiting["instances"], amount=1)
    assert ledger.overlaps(url_in(tmp_path)) == []


@pytest.mark.slow
def test_lease_that_waits_for_cleaning_may_end_earlier(tmp_path: Path):
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=30 * MINUTE)) as world:
        ending = world.book(1)
        waiting = world.book(1, start=1.5, hours=3)
        world.book(1, start=5, hours=3)
        world.teardown_lasts(ending, until=ending.ends_at + 30 * MINUTE)
        world.pass_until(ending.ends_at + 31 * MINUTE)
        world.leases.update(OWNER, waiting.id, LeaseChange(ends_at=waiting.ends_at - HOUR))
        world.pass_time(HOUR)
        assert world.leases.get(OWNER, waiting.id).status is LeaseStatus.ACTIVE
        assert ledger.faults(url_in(tmp_path)) == []


def test_lease_older_than_a_limit_may_end_earlier(world: World, monkeypatch: pytest.MonkeyPatch):
    running, waiting = (world.book(1, start=start, hours=3 * 24) for start in (0, 4 * 24))
    world.engine.settle()
    rebuild(world, rules=Rules(longest_lease=timedelta(days=1)))
    monkeypatch.setattr(bounds, "MAX_PARAMETERS", 10)
    monkeypatch.setattr(bounds, "MAX_LEASE", 10)
    for lease in (running, waiting):
        changed = world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at - HOUR))
        assert changed.ends_at == lease.ends_at - HOUR
