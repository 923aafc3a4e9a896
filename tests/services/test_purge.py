"""Purging: what is deleted for good, what stays, and who is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from tenure.domain.errors import NotFound
from tenure.domain.usage import Usage, UsageQuery
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.upkeep.purge import Purged, PurgeService, PurgeTerms
from tenure.store.tables import Base
from tests.support.changing import moved
from tests.support.world import ADMIN, NOW, OWNER, World, open_world

DAY = timedelta(days=1)
#: Tables with rows of leases.
OF_LEASES = ("leases", "reservations", "allocations", "events", "history", "outbox")


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    with open_world(database_url) as world:
        yield world


def rows(world: World) -> dict[str, int]:
    with world.db.read() as tx:
        return {
            name: tx.session.execute(select(func.count()).select_from(Base.metadata.tables[name])).scalar_one()
            for name in OF_LEASES
        }


def usage(world: World, *, since: timedelta) -> Usage:
    query = UsageQuery(NOW + since, NOW + 100 * DAY, None, None)
    return world.service.manager.usage.show(ADMIN, query)


def allocations_in(index: AvailabilityIndex) -> int:
    """Return how many allocations a reader of the feed knows of."""
    view = index.view()
    unchanged = int((~view.changed[view.base.uses.rows]).sum())
    return unchanged + len(view.latest.uses.rows)


def past_leases(world: World) -> None:
    """Let one lease end, and delete one before its start, one while it runs, and one after its end."""
    world.book(hours=2)
    unbegun, running, ended = world.book(start=5), world.book(hours=3), world.book(hours=1)
    world.leases.delete(OWNER, unbegun.id)
    world.engine.settle()
    world.pass_time(DAY / 24)
    world.leases.delete(OWNER, running.id)
    world.pass_time(DAY / 24)
    world.leases.delete(OWNER, ended.id)
    world.pass_time(DAY / 24)


def test_what_is_over_is_deleted_with_all_that_belongs_to_it(world: World):
    past_leases(world)
    world.clock.advance(2 * DAY)
    before = world.clock.now() - DAY
    purge = PurgeService(world.db)
    seen = purge.preview(before)
    there = rows(world)
    assert seen.leases == 4
    assert seen.messages == there["outbox"] > 0
    assert rows(world) == there  # a preview changes nothing
    assert purge.purge(before).leases == 4
    assert rows(world) == dict.fromkeys(OF_LEASES, 0)
    assert purge.purge(before) == Purged()


def test_lease_that_started_late_elsewhere_is_deleted_too(world: World):
    lease = world.book(hours=2)
    world.clock.advance(DAY / 24)
    now = world.clock.now()
    with world.db.read() as tx:
        plans = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
        [plan], hosts = plans, [host.id for host in tx.ledger.resources()]
    now, other = world.clock.now(), next(host for host in hosts if host != plan.resource_id)
    world.db.write(lambda tx: tx.allocations.apply(moved(plan, other, start=now), now=now))
    world.pass_time(DAY / 12)
    world.clock.advance(2 * DAY)
    assert PurgeService(world.db).purge(world.clock.now() - DAY).leases == 1
    assert rows(world) == dict.fromkeys(OF_LEASES, 0)


def test_what_lives_or_ended_later_stays(world: World):
    running, pending = world.book(hours=24 * 10), world.book(start=24 * 20)
    world.engine.settle()
    world.clock.advance(2 * DAY)
    late = world.book(hours=1)
    world.engine.settle()
    world.pass_time(DAY / 12)
    PurgeService(world.db).purge(world.clock.now() - DAY)
    for lease in (running, pending, late):
        assert world.leases.get(OWNER, lease.id).id == lease.id
        assert world.leases.history(OWNER, lease.id)
    world.leases.delete(OWNER, running.id)
    world.engine.settle()
    with pytest.raises(NotFound):
        world.leases.get(OWNER, running.id)


def test_accounts_say_before_when_they_are_incomplete(world: World):
    past_leases(world)
    world.clock.advance(2 * DAY)
    complete = usage(world, since=-DAY)
    assert complete.incomplete_before is None
    assert complete.sums
    mark = world.clock.now() - DAY
    PurgeService(world.db).purge(mark)
    lacking = usage(world, since=-DAY)
    assert (lacking.incomplete_before, lacking.sums) == (mark, ())
    assert usage(world, since=mark - NOW).incomplete_before is None


def test_purge_without_leases_marks_no_accounts(world: World):
    PurgeService(world.db).purge(world.clock.now() - DAY)
    assert usage(world, since=-DAY).incomplete_before is None


def test_readers_of_the_feed_survive_a_purge(world: World):
    """A reader that has not read of the end before the lease was purged learns of its hosts all the same."""
    index = AvailabilityIndex(world.db, world.clock)
    lease = world.book(4, hours=24 * 365)
    world.engine.settle()
    assert allocations_in(index) == 4
    world.pass_time(DAY / 24)
    world.leases.delete(OWNER, lease.id)
    world.engine.settle()
    world.pass_time(DAY)  # nothing is left to be done for it
    with world.db.read() as tx:
        position = tx.feed.newest()
    assert PurgeService(world.db).purge(world.clock.now()).leases == 1
    with world.db.read() as tx:
        assert len(tx.feed.after(position)[0].every) == 4  # whatever the entry of the end named
    assert allocations_in(index) == allocations_in(AvailabilityIndex(world.db, world.clock)) == 0
    assert world.book(4, hours=1).id


def test_periodic_purge_keeps_leases_unless_told(world: World):
    past_leases(world)
    world.clock.advance(30 * DAY)
    before = rows(world)
    world.service.purge.run()
    after = rows(world)
    assert after["outbox"] == 0 < before["outbox"]
    assert {name: after[name] for name in OF_LEASES[:-1]} == {name: before[name] for name in OF_LEASES[:-1]}
    PurgeService(world.db, PurgeTerms(ended_leases=DAY)).run()
    assert rows(world) == dict.fromkeys(OF_LEASES, 0)
