"""What a project can leave behind in the database: its room is bounded, whatever members do within their limits."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import select

from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange
from tenure.store.tables import Base, LeaseRow
from tests.support.world import OWNER, World, instance_reservation

#: A condition that no host fails, of as many characters as one may have.
LONG = json.dumps(["!=", "$hypervisor_hostname", "x" * 2000])
MANY = tuple(instance_reservation(resource_properties=LONG) for _ in range(20))


def stored(world: World) -> int:
    """Return how many characters all rows have."""
    with world.db.read() as tx:
        return sum(
            sum(len(str(value)) for value in row if value is not None)
            for table in Base.metadata.sorted_tables
            for row in tx.session.execute(select(table))
        )


def left_by(world: World, *, start: float) -> int:
    """Return the characters that a lease with long conditions leaves after its deletion."""
    before = stored(world)
    lease = world.reserve(*MANY, start=start)
    world.engine.settle()
    world.leases.delete(OWNER, lease.id)
    world.engine.settle()
    return stored(world) - before


@pytest.mark.parametrize("start", [1.0, 0.0], ids=["not begun", "begun"])
def test_deleted_lease_leaves_no_long_texts(world: World, start: float):
    assert left_by(world, start=start) < len(MANY) * len(LONG) / 2


def test_delivered_notification_leaves_no_text(world: World):
    lease = world.reserve(*MANY, start=1)
    before = stored(world)
    world.engine.settle()
    assert stored(world) < before - len(MANY) * len(LONG) / 2
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.PENDING


def test_changes_without_end_leave_a_bounded_history(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tenure.store.leases.UPDATES_KEPT", 10)
    lease = world.book(start=1)
    for number in range(30):
        world.leases.update(OWNER, lease.id, LeaseChange(name=f"name {number}"))
    history = world.leases.history(OWNER, lease.id)
    assert [entry.action for entry in history] == ["create", *["update"] * 10]
    assert history[-1].reason == "name: name 28 → name 29"


def test_only_the_newest_leases_that_never_began_are_kept(world: World):
    """They have no part in accounts. One that has begun is history, and stays."""
    begun = world.book(hours=2)
    world.engine.settle()
    world.pass_time(timedelta(hours=1))
    world.leases.delete(OWNER, begun.id)
    world.engine.settle()
    deleted = []
    for _ in range(6):
        lease = world.book(start=5)
        world.leases.delete(OWNER, lease.id)
        deleted.append(lease.id)
        world.clock.advance(timedelta(seconds=1))
    living = world.book(start=5)
    world.engine.settle()
    world.service.purge.bound_unbegun(2)
    with world.db.read() as tx:
        kept = set(tx.session.execute(select(LeaseRow.id)).scalars())
    assert kept == {begun.id, living.id, *deleted[-2:]}
