"""The index that follows the ledger, against one that reads it as a whole."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tenure.domain.errors import TenureError
from tenure.domain.lease import Lease
from tenure.domain.listing import ListedUse
from tenure.domain.request import LeaseChange, ReservationChange, ReservationRequest
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import ticks
from tenure.services.planning import index as index_module
from tenure.services.planning.index import AvailabilityIndex
from tenure.store import feed as feed_module
from tenure.store.feed import Feed
from tenure.store.ledger import LedgerStore
from tests.support.world import (
    ADMIN,
    HOST,
    OWNER,
    World,
    address_reservation,
    instance_reservation,
    open_world,
    reservation,
)

HOUR = timedelta(hours=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=4) as world:
        world.resources.register(ADMIN, "virtual:floatingip", f"{PUBLIC_NETWORK}/203.0.113.10", {})
        yield world


class History:
    """Random requests and the passing of time, with leases of several types."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)  # a test's randomness is not for security
        self.leases: list[Lease] = []

    def step(self) -> None:
        """Make a random request, which may be refused, or let time pass."""
        steps = (self.book, self.book, self.book, self.change, self.delete, self.operate, self.let_pass)
        with suppress(TenureError):
            self.dice.choice(steps)()

    def book(self) -> None:
        dice = self.dice
        requested: list[ReservationRequest] = [
            dice.choice(
                (
                    reservation(1, dice.randint(1, 2)),
                    instance_reservation(dice.randint(1, 3), vcpus=dice.randint(1, 8)),
                    address_reservation(1),
                )
            )
            for _ in range(dice.randint(1, 2))
        ]
        start = dice.randint(0, 6)
        self.leases.append(self.world.reserve(*requested, start=start, hours=dice.randint(1, 4)))

    def change(self) -> None:
        lease, dice = self.dice.choice(self.leases or [None]), self.dice
        if lease is None:
            return
        now = self.world.clock.now()
        change = dice.choice(
            (
                LeaseChange(ends_at=lease.ends_at + dice.randint(-1, 2) * HOUR),
                LeaseChange(starts_at=now + dice.randint(0, 4) * HOUR, ends_at=now + dice.randint(5, 8) * HOUR),
                LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"max": dice.randint(1, 3)}),)),
                LeaseChange(
                    reservations=(ReservationChange(lease.reservations[0].id, {"amount": dice.randint(1, 4)}),)
                ),
            )
        )
        self.world.leases.update(OWNER, lease.id, change)

    def begin(self) -> None:
        """Book a lease that begins at once."""
        self.leases.append(self.world.reserve(reservation(1, 1), start=0, hours=4))
        self.let_pass()

    def give_back(self) -> None:
        """Let the newest lease, which runs, end earlier."""
        lease = self.leases[-1]
        self.world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at - HOUR))

    def delete(self) -> None:
        lease = self.dice.choice(self.leases or [None])
        if lease is not None:
            self.world.leases.delete(OWNER, lease.id)

    def operate(self) -> None:
        dice, resources = self.dice, self.world.resources
        host = str(dice.randint(1, 4))
        dice.choice(
            (
                lambda: resources.disable(ADMIN, HOST, host, reason="test"),
                lambda: resources.enable(ADMIN, HOST, host),
                lambda: resources.update(ADMIN, HOST, host, {"rack": str(dice.randint(1, 3))}),
                lambda: resources.reallocate(ADMIN, HOST, host),
                lambda: resources.unregister(ADMIN, HOST, host),
                lambda: self.world.register(f"compute-{host}"),
            )
        )()

    def let_pass(self) -> None:
        self.world.pass_time(self.dice.choice((HOUR / 2, HOUR)))


def described(view: Snapshot, now: int) -> dict[int, object]:
    """Return what a view says about each resource: itself, and its allocations that are not over."""
    catalogue = view.catalogue
    everything = np.ones(len(catalogue), dtype=np.bool_)
    found: dict[int, tuple[object, ...]] = {}
    for row in np.flatnonzero(catalogue.of_type(HOST) | catalogue.of_type("virtual:floatingip")):
        alone = np.zeros(len(catalogue), dtype=np.bool_)
        alone[row] = True
        found[catalogue.ids[row]] = (
            catalogue.external_ids[row],
            int(view.versions[row]),
            bool(catalogue.reservable[row]),
            catalogue.values("rack", alone),
            [int(catalogue.capacity(name)[row]) for name in ("VCPU", "WHOLE")],
        )
    uses: dict[int, list[tuple[object, ...]]] = {resource_id: [] for resource_id in found}
    for timeline, mask in view.timelines(everything):
        for index, row in enumerate(timeline.uses.rows):
            use = timeline.uses
            if mask[row] and use.ends[index] > now and catalogue.ids[row] in uses:
                uses[catalogue.ids[row]].append(
                    (
                        int(use.starts[index]),
                        int(use.ends[index]),
                        bool(use.exclusive[index]),
                        bool(use.planned[index]),
                        view.distinct.amounts.values[use.amounts[index]],
                        view.distinct.projects.values[use.projects[index]],
                    )
                )
    return {resource_id: (found[resource_id], sorted(uses[resource_id], key=repr)) for resource_id in found}


def differs(world: World, following: AvailabilityIndex) -> bool:
    """Whether the index that follows has something else than one that reads the whole ledger now."""
    now = ticks(world.clock.now())
    anew = AvailabilityIndex(world.db, world.clock)
    return described(following.view(), now) != described(anew.view(), now)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_index_equals_the_ledger_after_any_history(world: World, seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index_module, "CHANGED_LEAST", 2)
    history = History(world, seed)
    following = AvailabilityIndex(world.db, world.clock)
    for step in range(40):
        history.step()
        if step % 7 == 6:
            following.refresh()
        assert not differs(world, following), step


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["add_resources", "add_new", "add_reservations", "add_allocations"])
def test_history_shows_a_change_that_is_missing_in_the_feed(world: World, hook: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Feed, hook, lambda _feed, *_ids, **_named: None)
    for seed in range(8):
        history = History(world, seed)
        following = AvailabilityIndex(world.db, world.clock)
        following.view()
        for step in (history.begin, history.give_back, *[history.step] * 40):
            step()
            if differs(world, following):
                return
    pytest.fail(f"no history shows that {hook} is missing")


def test_a_booking_is_followed_without_reading_what_else_is_booked(world: World, monkeypatch: pytest.MonkeyPatch):
    following = AvailabilityIndex(world.db, world.clock)
    world.reserve(reservation(4, 4), start=1)
    following.view()
    lease = world.reserve(reservation(2, 2), start=3)
    usual, read = LedgerStore.uses_of, list[ListedUse]()

    def noted(store: LedgerStore, now: datetime, reservation_ids: Collection[str]) -> Iterator[ListedUse]:
        read.extend(usual(store, now, reservation_ids))
        return iter(read)

    with monkeypatch.context() as patched:
        patched.setattr(LedgerStore, "uses_of", noted)
        patched.setattr(LedgerStore, "uses", lambda *_given: pytest.fail("all allocations of the hosts are read"))
        following.view()
    assert [use.reservation_id for use in read] == [lease.reservations[0].id] * 2
    assert not differs(world, following)


def test_index_reads_the_ledger_again_when_it_has_missed_entries(world: World):
    following = AvailabilityIndex(world.db, world.clock)
    following.view()
    world.book(1, start=1, hours=48)
    world.clock.set(world.clock.now() + feed_module.RETENTION + HOUR)
    world.book(1, start=1, hours=48)
    world.db.write(lambda tx: tx.feed.prune(world.clock.now() - feed_module.RETENTION))
    world.book(1, start=1, hours=48)
    assert not differs(world, following)


def test_pruning_keeps_what_a_reader_needs(world: World):
    following = AvailabilityIndex(world.db, world.clock)
    world.book(1, start=1)
    following.view()
    world.clock.set(world.clock.now() + 2 * feed_module.RETENTION)
    world.db.write(lambda tx: tx.feed.prune(world.clock.now() - feed_module.RETENTION))
    with world.db.read() as tx:
        changes, _ = tx.feed.after(tx.feed.newest())
    assert changes.every == set()
    world.book(2, start=1)
    assert not differs(world, following)


def test_index_forgets_amounts_and_projects_that_nothing_has(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index_module, "SURPLUS", 5, raising=False)
    following = AvailabilityIndex(world.db, world.clock)
    following.view()
    kept = world.reserve(instance_reservation(memory_mb=700), start=1)
    for number in range(12):
        actor = replace(OWNER, project_id=f"project-{number}")
        lease = world.reserve(instance_reservation(memory_mb=1000 + number), start=1, actor=actor)
        following.view()
        world.leases.delete(actor, lease.id)
        following.refresh()
    distinct = following.view().distinct
    assert len(distinct.amounts.values) + len(distinct.projects.values) <= 10
    assert kept.project_id in distinct.projects.values
    assert not differs(world, following)


def test_index_forgets_properties_that_no_resource_has(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index_module, "SURPLUS", 5, raising=False)
    following = AvailabilityIndex(world.db, world.clock)
    first = following.view().catalogue.size
    for number in range(first + 20):
        world.resources.update(ADMIN, HOST, "1", {"rack": str(number)})
        following.refresh()
    assert following.view().catalogue.size <= 2 * first + 10
    assert not differs(world, following)
