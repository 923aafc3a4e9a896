"""What is made before a lease starts, as clients must see it: the server group of instances with a rule."""

from __future__ import annotations

import pytest

from tenure.domain.errors import Conflict
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.reason import Reason
from tenure.domain.request import LeaseChange, ReservationRequest
from tenure.drivers.contract import CloudRefused
from tenure.drivers.simulated import Fault, FaultKind
from tests.support.engines import HOUR, status_of, watch
from tests.support.world import NOW, OWNER, World, instance_reservation


def instances(affinity: bool | None = True) -> ReservationRequest:
    return instance_reservation(affinity=affinity)


def groups(world: World) -> dict[str, str]:
    """The policies of the server groups that there are, by id."""
    return {number: group.policy for number, group in world.cloud.world.instances.server_groups().items()}


def shown(lease: Lease) -> list[object]:
    return [reservation.effects["server_group_id"] for reservation in lease.reservations]


def test_group_is_deleted_with_its_lease(world: World):
    lease = world.reserve(instances(True), instances(False), start=1)
    assert groups(world).keys() == set(shown(lease))
    world.leases.delete(OWNER, lease.id)
    assert groups(world) == {}
    assert world.service.reconciler.run() == 0


def test_lease_is_deleted_while_the_cloud_is_unavailable(world: World):
    lease = world.reserve(instances(True), instances(False), start=1)
    resisting = lease.reservations[0].id
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=resisting, count=1))
    world.leases.delete(OWNER, lease.id)
    assert status_of(world, lease.id) is LeaseStatus.DELETED
    assert list(groups(world)) == shown(lease)[:1]
    assert world.service.reconciler.run() == 1
    assert groups(world) == {}


def test_group_is_deleted_if_the_lease_is_refused(world: World):
    asked: list[str] = []

    def refuse(verb: str, *_: object) -> None:
        asked.append(verb)
        if verb == "ensure_prepared" and asked.count(verb) == 2:
            raise CloudRefused(Reason("Quota exceeded, too many server groups."))

    watch(world, refuse)
    with pytest.raises(Conflict, match="Quota exceeded"):
        world.reserve(instances(True), instances(False), start=1)
    assert groups(world) == {}
    assert world.service.reconciler.run() == 0


def test_group_is_deleted_after_a_missed_start(world: World):
    lease = world.reserve(instances(), start=1)
    world.clock.advance(3 * HOUR)
    world.engine.settle()
    assert status_of(world, lease.id) is LeaseStatus.TERMINATED
    assert groups(world) == {}
    assert world.service.reconciler.run() == 0


def test_group_is_deleted_with_its_reservation(world: World):
    lease = world.reserve(instances(True), instances(False), start=1)
    world.leases.drop_reservation(OWNER, lease.id, lease.reservations[0].id)
    assert list(groups(world)) == shown(lease)[1:]
    assert world.service.reconciler.run() == 0


@pytest.mark.parametrize(("after", "policies"), [(False, ["anti-affinity"]), (None, [])])
def test_group_follows_a_change_before_the_start(world: World, after: bool | None, policies: list[str]):
    lease = world.reserve(instances(), start=1)
    changed = world.change(lease, affinity=after)
    assert list(groups(world).values()) == policies
    assert shown(changed) == [next(iter(groups(world)), None)] != shown(lease)
    world.pass_until(NOW + HOUR)
    started = world.leases.get(OWNER, lease.id)
    assert (started.status, shown(started)) == (LeaseStatus.ACTIVE, shown(changed))


def test_later_affinity_creates_a_group(world: World):
    lease = world.reserve(instances(None), start=1)
    assert groups(world) == {}
    changed = world.change(lease, affinity=True)
    assert shown(changed) == list(groups(world))


def test_added_reservation_has_a_group(world: World):
    lease = world.reserve(instances(None), start=1)
    changed = world.leases.add_reservation(OWNER, lease.id, instances(False))
    assert shown(changed) == [None, *groups(world)]


def test_change_reaches_a_busy_cloud_later(world: World):
    lease = world.reserve(instances(), start=1)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_prepared", count=1))
    assert shown(world.change(lease, affinity=False)) == shown(lease)
    world.pass_until(NOW + HOUR / 2)
    assert list(groups(world).values()) == ["anti-affinity"]
    assert shown(world.leases.get(OWNER, lease.id)) == list(groups(world))


def test_unrelated_changes_do_not_call_the_cloud(world: World):
    lease = world.reserve(instances(), start=1)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_prepared", count=None))
    renamed = world.leases.update(OWNER, lease.id, LeaseChange(name="other", ends_at=NOW + 3 * HOUR))
    assert (renamed.name, renamed.status_reason, shown(renamed)) == ("other", None, shown(lease))
