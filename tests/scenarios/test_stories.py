"""Stories: requests and faults over weeks of simulated time, and the resulting timeline.

A timeline has the changes of the status of each lease, from the history, in days and hours after the beginning, which
is a Tuesday at ten.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange
from tenure.drivers.simulated import Fault, FaultKind
from tests.support import ledger
from tests.support.engines import HOUR, MINUTE, assert_all_in_pool
from tests.support.world import ADMIN, NOW, OWNER, STRANGER, World, open_world, reservation, url_in

DAY = timedelta(days=1)
WEEK = timedelta(weeks=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    url = url_in(tmp_path)
    with open_world(url, hosts=4) as world:
        yield world
    assert ledger.faults(url) == []


def book(world: World, name: str, hosts: int, begin: timedelta, end: timedelta, *, actor=OWNER, **fields) -> Lease:
    request = LeaseRequest(name, NOW + begin, NOW + end, reservations=(reservation(hosts, hosts, **fields),))
    return world.leases.create(actor, request)


def when(moment: datetime) -> str:
    after = moment - NOW
    hours, rest = divmod(after - after.days * DAY, HOUR)
    return f"day {after.days} {hours:02}:{rest // MINUTE:02}"


def timeline(world: World, *leases: Lease) -> list[str]:
    """Return the times at which each lease reached each lasting status."""
    with world.db.read() as tx:
        changes = [
            (entry.at, f"{when(entry.at)} {lease.name} {entry.to_status}")
            for lease in leases
            for entry in tx.leases.history(lease.id)
            if entry.from_status not in {None, entry.to_status} and not entry.to_status.endswith("ING")
        ]
    return [line for _, line in sorted(changes)]


@pytest.mark.slow
def test_weekly_course_and_a_lease_in_between(world: World):
    """Four weeks of Tuesdays and Thursdays on all four hosts, and a student's lease between two lessons."""
    lessons = [
        book(world, f"lesson {week}.{day}", 4, week * WEEK + day * DAY, week * WEEK + day * DAY + 3 * HOUR)
        for week in range(4)
        for day in (0, 2)
    ]
    with pytest.raises(NotEnoughResources):
        book(world, "thesis", 1, 3 * HOUR, 2 * DAY + MINUTE, actor=STRANGER)
    thesis = book(world, "thesis", 2, 3 * HOUR, 2 * DAY, actor=STRANGER)
    world.pass_time(5 * WEEK)
    assert timeline(world, thesis, *lessons) == [
        "day 0 00:00 lesson 0.0 ACTIVE",
        "day 0 03:00 lesson 0.0 TERMINATED",
        "day 0 03:00 thesis ACTIVE",
        "day 2 00:00 lesson 0.2 ACTIVE",
        "day 2 00:00 thesis TERMINATED",
        "day 2 03:00 lesson 0.2 TERMINATED",
        "day 7 00:00 lesson 1.0 ACTIVE",
        "day 7 03:00 lesson 1.0 TERMINATED",
        "day 9 00:00 lesson 1.2 ACTIVE",
        "day 9 03:00 lesson 1.2 TERMINATED",
        "day 14 00:00 lesson 2.0 ACTIVE",
        "day 14 03:00 lesson 2.0 TERMINATED",
        "day 16 00:00 lesson 2.2 ACTIVE",
        "day 16 03:00 lesson 2.2 TERMINATED",
        "day 21 00:00 lesson 3.0 ACTIVE",
        "day 21 03:00 lesson 3.0 TERMINATED",
        "day 23 00:00 lesson 3.2 ACTIVE",
        "day 23 03:00 lesson 3.2 TERMINATED",
    ]
    assert_all_in_pool(world)


@pytest.mark.slow
def test_cloud_without_teardown_for_an_evening(world: World):
    """No host can be taken back for two hours. Only leases that need those hosts wait."""
    week = book(world, "week", 3, timedelta(0), 3 * DAY + 8 * HOUR)
    spare = book(world, "spare", 1, 3 * DAY + 8 * HOUR, 3 * DAY + 9 * HOUR)
    everything = book(world, "everything", 4, 3 * DAY + 9 * HOUR, 7 * DAY)
    world.pass_until(NOW + 3 * DAY)
    down = world.cloud.inject(
        Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=week.reservations[0].id, count=None, reason="down")
    )
    world.pass_until(NOW + 3 * DAY + 10 * HOUR)
    assert world.leases.get(ADMIN, week.id).status_reason == "ensure_ended: down (busy)"
    assert world.leases.get(ADMIN, everything.id).status == "PENDING"
    world.cloud.clear_faults(down)
    world.pass_until(NOW + 2 * WEEK)
    lines = timeline(world, week, spare, everything)
    assert lines.count("day 3 08:04 week ERROR") == 1
    assert [line for line in lines if not line.endswith("ERROR")] == [
        "day 0 00:00 week ACTIVE",
        "day 3 08:00 spare ACTIVE",
        "day 3 09:00 spare TERMINATED",
        "day 3 10:00 everything ACTIVE",
        "day 3 10:00 week TERMINATED",
        "day 7 00:00 everything TERMINATED",
    ]
    assert_all_in_pool(world)


def test_service_stopped_for_a_week(world: World):
    """Overdue leases end at once, missed leases have a reason, and leases whose end is ahead start late."""
    running = book(world, "running", 1, timedelta(0), 2 * DAY)
    missed = book(world, "missed", 1, 3 * DAY, 4 * DAY)
    late = book(world, "late", 1, 5 * DAY, 9 * DAY)
    ahead = book(world, "ahead", 4, 10 * DAY, 11 * DAY)
    world.engine.settle()
    world.clock.advance(WEEK)
    world.restart()
    world.pass_until(NOW + 2 * WEEK)
    assert timeline(world, running, missed, late, ahead) == [
        "day 0 00:00 running ACTIVE",
        "day 7 00:00 late ACTIVE",
        "day 7 00:00 missed TERMINATED",
        "day 7 00:00 running TERMINATED",
        "day 9 00:00 late TERMINATED",
        "day 10 00:00 ahead ACTIVE",
        "day 11 00:00 ahead TERMINATED",
    ]
    assert world.cloud.world.journal(missed.reservations[0].id) == []
    assert "missed" in (world.leases.get(ADMIN, missed.id).status_reason or "")
    assert_all_in_pool(world)


def test_lease_that_grows_and_is_shortened(world: World):
    """A project books a host, adds another, is refused a third, and gives a day back, which another lease takes."""
    project = book(world, "project", 1, timedelta(0), 10 * DAY, before_end="snapshot")
    rival = book(world, "rival", 2, 4 * DAY, 12 * DAY, actor=STRANGER)
    world.pass_until(NOW + DAY)
    server = world.boot(project)

    def resize(hosts: int) -> None:
        change = ReservationChange(project.reservations[0].id, {"min": hosts, "max": hosts})
        world.leases.update(OWNER, project.id, LeaseChange(reservations=(change,)))

    resize(2)
    with pytest.raises(NotEnoughResources):
        resize(3)
    world.pass_until(NOW + 5 * DAY)
    assert (len(world.hosts_of(project.id)), len(world.hosts_of(rival.id))) == (2, 2)
    with pytest.raises(NotEnoughResources):
        book(world, "third", 1, 9 * DAY, 11 * DAY)
    world.leases.update(OWNER, project.id, LeaseChange(ends_at=NOW + 9 * DAY))
    third = book(world, "third", 2, 9 * DAY, 11 * DAY)
    world.pass_until(NOW + 2 * WEEK)
    assert timeline(world, project, rival, third) == [
        "day 0 00:00 project ACTIVE",
        "day 1 00:00 project ACTIVE",
        "day 4 00:00 rival ACTIVE",
        "day 9 00:00 project TERMINATED",
        "day 9 00:00 third ACTIVE",
        "day 11 00:00 third TERMINATED",
        "day 12 00:00 rival TERMINATED",
    ]
    [image] = world.cloud.world.images()
    assert image.server_id == server
    effects = world.cloud.world.journal(project.reservations[0].id)
    [image_made] = [effect for effect in effects if effect.kind == "image made"]
    assert when(image_made.at) == "day 8 23:00"
    assert_all_in_pool(world)


def test_start_that_the_cloud_refuses(world: World):
    """The lease ends in ERROR with the reason, its hosts are free at once, and after its deletion its history stays."""
    broken = book(world, "broken", 4, DAY, 20 * DAY)
    world.cloud.inject(
        Fault(
            FaultKind.REFUSED,
            verb="ensure_started",
            reservation_id=broken.reservations[0].id,
            after_effects=3,
            reason="aggregate is gone",
        )
    )
    world.pass_until(NOW + DAY + HOUR)
    assert world.leases.get(OWNER, broken.id).status_reason == "ensure_started: aggregate is gone (refused)"
    other = book(world, "other", 4, 2 * DAY, 3 * DAY, actor=STRANGER)
    world.pass_until(NOW + 4 * DAY)
    world.leases.delete(OWNER, broken.id)
    world.pass_until(NOW + 4 * WEEK)
    assert timeline(world, broken, other) == [
        "day 1 00:00 broken ERROR",
        "day 2 00:00 other ACTIVE",
        "day 3 00:00 other TERMINATED",
        "day 4 00:00 broken DELETED",
    ]
    assert_all_in_pool(world)
