"""Trusts: created for actions as the owner, and deleted with the lease."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import event

from tenure.domain.capacity import Capacity
from tenure.domain.errors import InvalidParameter, NotEnoughResources, NotFound, Unavailable
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange, LeaseQuery, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.contract import CloudBusy
from tenure.drivers.simulated import Fault, FaultKind
from tests.support.breaker import Breaker
from tests.support.databases import SERVER_KINDS
from tests.support.engines import watch
from tests.support.world import ADMIN, OWNER, World, open_world, reservation


def trusts(world: World) -> set[str]:
    return set(world.cloud.world.trusts())


def to_snapshot(lease) -> LeaseChange:
    return LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"before_end": "snapshot"}),))


def test_lease_without_actions_as_owner_needs_no_trust(world: World):
    lease = world.book(1)
    world.leases.update(OWNER, lease.id, LeaseChange(name="other"))
    assert trusts(world) == set()


def test_trust_lasts_as_long_as_the_lease(world: World):
    lease = world.book(1, hours=3, before_end="snapshot")
    (trust,) = trusts(world)
    world.pass_time(timedelta(hours=2, minutes=30))
    world.service.reconciler.run()
    assert trusts(world) == {trust}
    world.pass_time(timedelta(hours=1))
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.TERMINATED
    world.service.reconciler.run()
    assert trusts(world) == set()


@pytest.mark.parametrize("at_end", ["delete", "keep", "snapshot"])
def test_volumes_always_need_a_trust(world: World, at_end: str):
    world.resources.register(ADMIN, "virtual:volume", world.cloud.world.volumes.fast, {}, Capacity({"DISK_GB": 4}))
    asked = {"amount": 2, "size_gb": 1, "volume_type": "fast", "at_end": at_end, "before_end": "default"}
    now = world.clock.now()
    request = LeaseRequest(
        "lease", now, now + timedelta(hours=1), reservations=(ReservationRequest("virtual:volume", asked),)
    )
    lease = world.leases.create(OWNER, request)
    assert len(trusts(world)) == 1
    world.pass_time(timedelta(minutes=1))
    lease = world.leases.get(OWNER, lease.id)
    assert (lease.status, {lease.trust_id}) == (LeaseStatus.ACTIVE, trusts(world))
    assert len(world.cloud.world.volumes.all()) == 2


def test_trust_is_deleted_with_a_pending_lease(world: World):
    lease = world.book(1, start=5, before_end="snapshot")
    assert len(trusts(world)) == 1
    world.leases.delete(OWNER, lease.id)
    world.service.reconciler.run()
    assert trusts(world) == set()


def test_refused_request_leaves_no_trust(world: World):
    with pytest.raises(NotEnoughResources):
        world.book(99, before_end="snapshot")
    assert trusts(world) == set()


def test_repeated_change_leaves_one_trust(world: World):
    lease = world.book(1, hours=3)
    for _ in range(2):
        world.leases.update(OWNER, lease.id, to_snapshot(lease))
        assert len(trusts(world)) == 1


def call_twice(world: World, call: Callable[[], object]) -> None:
    """Make a call, and the same call again before the first one has its trust."""
    waiting = [call]

    def interfere(verb: str, *_arguments: object) -> None:
        if verb == "delegate" and waiting:
            waiting.pop()()

    watch(world, interfere)
    call()
    assert not waiting, "no trust was asked for"


class TestTwoCallsAtTheSameTime:
    """Both calls create a trust. The lease keeps one, and the other is deleted."""

    def book(self, world: World, *, hold_for: timedelta | None = None):
        now = world.clock.now()
        times = (now + timedelta(hours=1), now + timedelta(hours=2))
        return world.leases.create(
            OWNER, LeaseRequest("lease", *times, reservations=(reservation(1, 1),), hold_for=hold_for)
        )

    def assert_one_trust(self, world: World, lease_id: str) -> None:
        assert trusts(world) == {world.leases.get(OWNER, lease_id).trust_id}

    def test_two_creates_with_one_id_leave_one_trust(self, world: World):
        now, lease_id = world.clock.now(), "6f0f6a4e-0b5b-4b0e-9d4f-3f1f2c6f0001"
        snapshot = reservation(1, 1, before_end="snapshot")
        request = LeaseRequest("lease", now + timedelta(hours=1), now + timedelta(hours=2), reservations=(snapshot,))
        call_twice(world, lambda: world.leases.create(OWNER, request, lease_id=lease_id))
        self.assert_one_trust(world, lease_id)

    def test_two_updates_leave_one_trust(self, world: World):
        lease = self.book(world)
        call_twice(world, lambda: world.leases.update(OWNER, lease.id, to_snapshot(lease)))
        self.assert_one_trust(world, lease.id)

    def test_two_confirmations_leave_one_trust(self, world: World):
        lease = self.book(world, hold_for=timedelta(minutes=10))
        call_twice(world, lambda: world.leases.confirm(OWNER, lease.id, to_snapshot(lease).reservations))
        assert world.leases.get(OWNER, lease.id).status is LeaseStatus.PENDING
        self.assert_one_trust(world, lease.id)

    def test_two_added_reservations_leave_one_trust(self, world: World):
        lease = self.book(world)
        snapshot = reservation(1, 1, before_end="snapshot")
        call_twice(world, lambda: world.leases.add_reservation(OWNER, lease.id, snapshot))
        assert len(world.leases.get(OWNER, lease.id).reservations) == 3
        self.assert_one_trust(world, lease.id)


def test_member_of_another_project_cannot_delegate(world: World):
    lease = world.book(1, hours=3)
    with pytest.raises(InvalidParameter, match="Only a member of the lease's project") as refused:
        world.leases.update(ADMIN, lease.id, to_snapshot(lease))
    assert refused.value.field == "before_end"
    assert trusts(world) == set()
    assert world.leases.get(OWNER, lease.id).reservations[0].parameters["before_end"] == "default"


def test_member_of_another_project_cannot_add_actions_as_owner(world: World):
    """The group would belong to the administrator, and the lease would have his rights."""
    lease = world.book(1, hours=3)
    size = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1, "resource_properties": "", "amount": 1}
    together = ReservationRequest("virtual:instance", {**size, "affinity": True})
    volumes = ReservationRequest("virtual:volume", {"amount": 1, "size_gb": 1, "volume_type": "fast"})
    refused_ones = (
        (together, "affinity"),
        (reservation(1, 1, before_end="snapshot"), "before_end"),
        (volumes, "resource_type"),
    )
    for asked, field in refused_ones:
        with pytest.raises(InvalidParameter, match="Only a member of the lease's project") as refused:
            world.leases.add_reservation(ADMIN, lease.id, asked)
        assert refused.value.field == field
    assert trusts(world) == set()
    world.leases.add_reservation(ADMIN, lease.id, reservation(1, 1))
    assert len(world.leases.add_reservation(OWNER, lease.id, together).reservations) == 3
    assert len(trusts(world)) == 1


def test_request_is_refused_while_trusts_cannot_be_created(world: World):
    world.cloud.inject(Fault(FaultKind.BUSY, verb="delegate", count=1))
    with pytest.raises(Unavailable):
        world.book(4, before_end="snapshot")
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="delegate", count=1))
    with pytest.raises(InvalidParameter) as refused:
        world.book(4, before_end="snapshot")
    assert refused.value.field == "before_end"
    assert world.book(4, before_end="snapshot")


def test_undeletable_trust_does_not_block_the_lease(world: World):
    lease = world.book(4, before_end="snapshot")
    world.pass_time(timedelta(minutes=1))
    world.cloud.inject(Fault(FaultKind.BUSY, verb="revoke", count=1))
    world.leases.delete(OWNER, lease.id)
    with pytest.raises(NotFound):
        world.leases.get(OWNER, lease.id)
    assert world.book(4)
    world.service.reconciler.run()
    assert len(trusts(world)) == 1
    world.service.reconciler.run()
    assert trusts(world) == set()


def test_surplus_trust_is_deleted_later(world: World):
    """The request of this trust is refused while Keystone deletes no trusts."""
    world.cloud.inject(Fault(FaultKind.BUSY, verb="revoke", count=2))
    with pytest.raises(NotEnoughResources):
        world.book(99, before_end="snapshot")
    assert len(trusts(world)) == 1
    world.service.reconciler.run()
    assert len(trusts(world)) == 1
    world.service.reconciler.run()
    assert trusts(world) == set()
    with world.db.read() as tx:
        assert tx.leases.idle_trusts(10) == []


def test_unavailable_keystone_is_asked_once_in_a_reconciliation_pass(world: World):
    """Each attempt would take half a minute and delay the repair of other differences."""
    for _ in range(3):
        world.leases.delete(OWNER, world.book(1, before_end="snapshot").id)
    asked: list[str] = []
    watch(world, lambda verb, *_: asked.append(verb))
    world.cloud.inject(Fault(FaultKind.BUSY, verb="revoke", count=None))
    world.service.reconciler.run()
    assert (asked.count("revoke"), len(trusts(world))) == (1, 3)
    world.cloud.clear_faults()
    world.service.reconciler.run()
    assert trusts(world) == set()


def test_undeletable_trust_does_not_block_other_trusts(world: World):
    for _ in range(3):
        world.leases.delete(OWNER, world.book(1, before_end="snapshot").id)
    resisting = min(trusts(world))  # the first that is tried

    def resist(verb: str, *arguments: object) -> None:
        if verb == "revoke" and arguments == (resisting,):
            raise CloudBusy("not that one")

    watch(world, resist)
    world.service.reconciler.run()
    world.service.reconciler.run()
    assert trusts(world) == {resisting}
    watch(world, lambda *_: None)
    world.service.reconciler.run()
    assert trusts(world) == set()


def test_database_failure_leaves_no_trust(world: World):
    """The disk is full."""

    def fill(connection, _record) -> None:
        [(pages,)] = connection.execute("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(world.db.engine, "connect", fill)
    world.db.engine.dispose()
    with pytest.raises(Unavailable):
        world.book(1, name="n" * 100_000, before_end="snapshot")
    assert trusts(world) == set()


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in SERVER_KINDS])
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
def test_lease_with_unknown_outcome_keeps_its_trust(fresh_database, kind: str, when: str):
    """Only if the connection is lost during the commit; the trust can be used for that lease only."""
    with fresh_database(kind) as url, open_world(url) as world:
        Breaker(world.db).end_before("INSERT INTO outbox")
        with pytest.raises(Unavailable):
            world.book(1, before_end="snapshot")
        assert trusts(world) == set()
        Breaker(world.db).end_at_commit(committed=when == "after the commit")
        with pytest.raises(Unavailable, match="may have been made or not"):
            world.book(1, before_end="snapshot")
        assert len(trusts(world)) == 1
        with world.db.read() as tx:
            found = tx.leases.page(LeaseQuery(limit=10))
        assert [lease.trust_id for lease in found] == (list(trusts(world)) if when == "after the commit" else [])
