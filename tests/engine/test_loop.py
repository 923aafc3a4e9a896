"""The loop: awake when something is due, asleep until then, and never blocked."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tenure.clock import SimulatedClock
from tenure.domain.errors import Unavailable
from tenure.domain.lease import LeaseStatus
from tenure.drivers.simulated import Fault, FaultKind
from tenure.services.execution.service import EventService
from tests.support.engines import HOUR, MINUTE, SECOND, lease_of, rebuild, running, wait_for_leases
from tests.support.waiting import patience, wait_for
from tests.support.world import NOW, OWNER, World, open_world


class WatchedClock(SimulatedClock):
    """Remembers until when it was asked to wait."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.waits: list[datetime] = []

    def wait(self, wake, until: datetime) -> None:
        self.waits.append(until)
        super().wait(wake, until)


def test_the_loop_sleeps_until_the_next_due_time(world: World):
    """It does not sleep for a fixed interval: an event that is due in 1.5 seconds is awaited that long."""
    due = NOW + timedelta(seconds=1.5)
    world.clock = clock = WatchedClock(NOW)
    rebuild(world, clock=clock, workers=2)
    world.book(1, start=1.5 / 3600)
    with running(world):
        wait_for("it to sleep until the due time", lambda: due in clock.waits)
    assert min(clock.waits) == due


def test_event_that_becomes_due_during_a_round_is_not_missed(world: World, monkeypatch: pytest.MonkeyPatch):
    rebuild(world, workers=2)
    lease = world.book(1, start=1)
    look = EventService.ready

    def look_and_take_an_hour(service: EventService, limit: int, *, starts: bool) -> list[str]:
        found = look(service, limit, starts=starts)
        world.clock.set(NOW + HOUR)
        return found

    monkeypatch.setattr(EventService, "ready", look_and_take_an_hour)
    with running(world):
        wait_for_leases(world, [lease], {LeaseStatus.ACTIVE})
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


def test_engine_polls_at_least_every_two_seconds(world: World):
    world.clock = clock = WatchedClock(NOW)
    rebuild(world, clock=clock, workers=2)
    world.book(1, start=5)
    with running(world):
        wait_for("it to sleep for two seconds", lambda: NOW + 2 * SECOND in clock.waits)
    assert min(clock.waits) == NOW + 2 * SECOND


def test_a_start_comes_at_its_time_and_not_before(tmp_path):
    with open_world(tmp_path, workers=2) as world, running(world):
        lease = world.book(1, start=1)
        marker = world.book(1)  # when this lease is active, the engine has run a round
        wait_for_leases(world, [marker], {LeaseStatus.ACTIVE})
        assert lease_of(world, lease.id).status is LeaseStatus.PENDING
        world.clock.set(NOW + HOUR)
        wait_for_leases(world, [lease], {LeaseStatus.ACTIVE})


def test_a_booking_wakes_the_engine_of_its_process(tmp_path):
    """The clock stands still: only the booking itself can have woken it."""
    with open_world(tmp_path, workers=2) as world:
        world.book(1, start=9)
        with running(world):
            leases = []
            for _ in range(3):
                leases.append(world.book(1, hours=3))
                wait_for_leases(world, leases, {LeaseStatus.ACTIVE})
            assert world.clock.now() == NOW
            world.leases.delete(OWNER, leases[0].id)
            wait_for_leases(world, leases[:1], {LeaseStatus.DELETED})


def test_hanging_reconciliation_pass_delays_no_event(tmp_path):
    with open_world(tmp_path, workers=2) as world:
        world.cloud.inject(Fault(FaultKind.BLOCK, verb="held", count=None))
        with running(world):
            assert world.cloud.wait_until_blocked(timeout_seconds=patience())
            lease = world.book(1, hours=1)
            wait_for_leases(world, [lease], {LeaseStatus.ACTIVE})
            world.clock.advance(HOUR)
            wait_for_leases(world, [lease], {LeaseStatus.TERMINATED})


def test_the_running_engine_repairs_once_a_minute(tmp_path):
    with open_world(tmp_path, workers=2) as world:
        lease = world.book(1, hours=1)
        world.engine.settle()
        [command] = world.commands(lease.id)
        world.pass_time(2 * HOUR)
        with running(world):
            for _ in range(2):
                world.cloud.ensure_started(command)
                world.clock.advance(MINUTE)
                wait_for("the reconciler", lambda: world.cloud.world.groups() == {})


def test_a_sink_that_hangs_delays_no_start(tmp_path):
    """Leases start on time without messages."""
    with open_world(tmp_path, workers=2) as world:
        topics: list[str] = []
        holding = Fault(FaultKind.BLOCK, verb="look_up", count=None)

        def hang(message) -> None:
            topics.append(message.topic)
            world.cloud.look_up("physical:host", "1")

        rebuild(world, sink=hang)
        world.cloud.inject(holding)
        with running(world):
            lease = world.book(1, hours=1)
            assert world.cloud.wait_until_blocked(timeout_seconds=patience())
            wait_for_leases(world, [lease], {LeaseStatus.ACTIVE})
            assert topics == ["lease.create"]


def test_a_stopped_engine_begins_nothing(tmp_path):
    with open_world(tmp_path, workers=2) as world:
        with running(world):
            assert world.engine.is_alive
        assert not world.engine.is_alive
        lease = world.book(1)
        assert world.engine.round() == 0
        assert lease_of(world, lease.id).status is LeaseStatus.PENDING


def test_waiting_start_searches_for_other_hosts_every_ten_seconds(world: World, monkeypatch: pytest.MonkeyPatch):
    """The search is expensive, and many starts may wait for one cloud that hangs."""
    slow = world.book(4, hours=1)
    world.engine.settle()
    world.book(4, start=1, hours=1)
    world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=slow.reservations[0].id))
    search = EventService.move_off_unreturned
    searches: list[datetime] = []

    def count(service: EventService, event_id: str) -> bool:
        searches.append(world.clock.now())
        return search(service, event_id)

    monkeypatch.setattr(EventService, "move_off_unreturned", count)
    world.clock.set(NOW + HOUR)
    for _ in range(21):
        world.engine.round()
        world.clock.advance(SECOND)
    assert searches == [NOW + HOUR + wait * SECOND for wait in (0, 10, 20)]


def test_wake_during_a_search_lets_the_start_search_again(world: World, monkeypatch: pytest.MonkeyPatch):
    """A host that becomes free after the search has read the ledger would otherwise be found ten seconds later."""
    slow = world.book(4, hours=1)
    world.engine.settle()
    world.book(4, start=1, hours=1)
    world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=slow.reservations[0].id))
    searches: list[datetime] = []

    def search(_service: EventService, _event_id: str) -> bool:
        searches.append(world.clock.now())
        if len(searches) == 1:
            world.engine.wake()
        return False

    monkeypatch.setattr(EventService, "move_off_unreturned", search)
    world.clock.set(NOW + HOUR)
    for _ in range(5):
        world.engine.round()
        world.clock.advance(SECOND)
    assert searches == [NOW + HOUR, NOW + HOUR + SECOND]


def test_unavailable_database_is_logged_in_one_line(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It is no defect of ours, and looked for every two seconds: traces would fill the disk."""

    def away(service: EventService, limit: int, *, starts: bool) -> list[str]:
        raise Unavailable("the database is away")

    rebuild(world, workers=2)
    monkeypatch.setattr(EventService, "ready", away)
    with running(world):
        wait_for("the line", lambda: "the database is away" in caplog.text)
    assert [record for record in caplog.records if record.exc_info] == []
