"""Changes in the cloud from outside: found, reconciled under a claim, and then left alone."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import HealthCheck as Hypothesis
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tenure.domain.errors import LeaseBusy
from tenure.domain.lease import EventType, Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange
from tenure.drivers.simulated import Fault, FaultKind
from tests.support.engines import (
    HOUR,
    MINUTE,
    SECOND,
    Checkpoints,
    Killed,
    another,
    event_of,
    lease_of,
    rebuild,
    status_of,
    watch,
)
from tests.support.world import ADMIN, HOST, OWNER, World, open_world


def running(world: World, hosts: int = 1, hours: float = 10.0) -> Lease:
    lease = world.book(hosts, hours=hours)
    world.engine.settle()
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
    return lease


def group_of(world: World, lease: Lease) -> str:
    return lease.reservations[0].id


def assert_as_it_should_be(world: World) -> None:
    """Every started reservation has its hosts, and its owner; all others are in the pool."""
    groups = world.cloud.world.groups()
    expected = {command.reservation_id: command for command in world.service.reconciliation.running(HOST)}
    assert groups.keys() == expected.keys()
    for reservation_id, command in expected.items():
        assert sorted(groups[reservation_id].hosts) == sorted(resource.external_id for resource in command.resources)
        assert groups[reservation_id].project_id == command.project_id
    assert world.cloud.world.pool() == {resource.external_id for resource in world.service.reconciliation.unheld(HOST)}


def tally(world: World) -> tuple[int, int]:
    found = world.service.reconciler.tally
    return found.found[HOST], found.reconciled[HOST]


def test_deleted_group_is_recreated_once(world: World):
    lease = running(world, 2)
    seen, history = lease_of(world, lease.id), world.leases.history(ADMIN, lease.id)
    world.cloud.world.drop_group(group_of(world, lease))
    assert world.service.reconciler.run() == 1
    world.engine.settle()
    assert_as_it_should_be(world)
    assert tally(world) == (1, 1)
    effects = world.cloud.world.journal()
    assert world.service.reconciler.run() == 0
    assert world.engine.settle() == 0
    assert world.cloud.world.journal() == effects
    assert lease_of(world, lease.id).events == seen.events  # the owner sees nothing of it
    assert lease_of(world, lease.id).updated_at == seen.updated_at
    assert world.leases.history(ADMIN, lease.id) == history


@pytest.mark.parametrize("change", ["taken out", "another owner", "a stranger in it", "swapped"])
def test_every_kind_of_drift_is_reconciled(world: World, change: str):
    first, second = running(world), running(world)
    [mine], [yours] = world.hosts_of(first.id), world.hosts_of(second.id)
    if change == "taken out":
        world.cloud.world.take_out(mine)
    elif change == "another owner":
        world.cloud.world.change_owner(group_of(world, first), "a-thief")
    elif change == "a stranger in it":
        free = next(host.name for host in world.cloud.world.hosts() if host.name not in {mine, yours})
        world.cloud.world.put_in(free, group_of(world, first))
    else:
        world.cloud.world.put_in(mine, group_of(world, second))
        world.cloud.world.put_in(yours, group_of(world, first))
    world.service.reconciler.run()
    world.pass_time(10 * SECOND)
    assert_as_it_should_be(world)
    assert world.service.reconciler.run() == 0


def test_a_free_host_goes_back_into_the_pool(world: World):
    world.cloud.world.take_out("sim-host-002")
    assert world.service.reconciler.run() == 1
    assert_as_it_should_be(world)
    assert tally(world) == (1, 1)


def test_free_host_in_use_by_others_is_logged(world: World, caplog: pytest.LogCaptureFixture):
    world.cloud.world.take_out("sim-host-002")
    world.cloud.world.boot_server("somebody", host="sim-host-002")
    assert world.service.reconciler.run() == 1
    assert tally(world) == (1, 0)
    assert "sim-host-002 is not in the pool any more, and others use it" in caplog.text
    assert len(world.cloud.world.servers()) == 1


def test_occupied_host_of_a_running_lease_stays(world: World):
    lease = running(world)
    [host] = world.hosts_of(lease.id)
    world.cloud.world.take_out(host)
    intruder = world.cloud.world.boot_server("somebody", host=host)
    world.service.reconciler.run()
    world.pass_time(MINUTE)
    assert world.hosts_of(lease.id) == [host]
    assert [server.id for server in world.cloud.world.servers()] == [intruder]
    world.cloud.world.delete_server(intruder)
    world.pass_time(HOUR)
    world.service.reconciler.run()
    world.pass_time(MINUTE)
    assert_as_it_should_be(world)


def test_host_unregistered_during_repair_stays_out_of_the_pool(world: World):
    """The host is unregistered between the read of the ledger and the call."""
    world.cloud.world.take_out("sim-host-002")
    reconciler = world.service.reconciler
    ensure = world.cloud.ensure_registered

    def late(resource_type, resource):
        world.resources.unregister(ADMIN, HOST, resource.external_id)
        ensure(resource_type, resource)

    world.cloud.ensure_registered = late  # type: ignore[method-assign]
    assert reconciler.run() == 1
    assert "2" not in world.cloud.world.pool()


@pytest.mark.parametrize("verb", ["drift", "held"])
def test_lease_that_starts_or_ends_during_the_pass_is_left_alone(world: World, verb: str):
    """One lease ends and another starts between the read of the ledger and the read of the cloud."""
    ending, starting = running(world, hours=1), world.book(1, start=1)
    at_work: list[str] = []

    def before(called: str, *_arguments: object) -> None:
        if called == verb and not at_work:
            at_work.append(called)
            world.clock.advance(HOUR)
            world.engine.settle()

    watch(world, before)
    assert world.service.reconciler.run() == 0
    assert at_work == [verb]
    assert [status_of(world, lease.id) for lease in (ending, starting)] == [LeaseStatus.TERMINATED, LeaseStatus.ACTIVE]
    world.engine.settle()
    assert_as_it_should_be(world)
    assert tally(world) == (0, 0)


class TestUnderAClaim:
    def reconciling(self, world: World) -> Lease:
        lease = running(world, hours=1)
        world.cloud.world.drop_group(group_of(world, lease))
        return lease

    def test_two_managers_mend_once(self, world: World):
        lease = self.reconciling(world)
        other = another(world)
        assert (world.service.reconciler.run(), other.reconciler.run()) == (1, 0)
        world.engine.settle()
        other.engine.settle()
        assert_as_it_should_be(world)
        assert event_count(world, lease) == 3

    def test_end_waits_only_for_the_running_call(self, world: World, checkpoints: Checkpoints):
        lease = self.reconciling(world)
        world.service.reconciler.run()
        seen: list[LeaseStatus] = []
        world.clock.advance(HOUR - 30 * SECOND)  # a claim lasts a minute: the end comes in the middle of it

        def at_the_end() -> None:
            world.clock.advance(31 * SECOND)
            another(world).engine.settle()
            seen.append(lease_of(world, lease.id).status)

        checkpoints.at("reconcile_lease:before_record", at_the_end)
        world.engine.round()
        assert seen == [LeaseStatus.ACTIVE]
        world.engine.settle()
        assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
        assert world.cloud.world.groups() == {}

    def test_ended_lease_is_not_reconciled(self, world: World):
        lease = self.reconciling(world)
        world.service.reconciler.run()
        world.clock.advance(HOUR)
        world.engine.settle()
        assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
        assert world.cloud.world.groups() == {}
        assert world.engine.settle() == 0

    def test_change_by_the_owner_is_refused_as_busy(self, world: World, checkpoints: Checkpoints):
        lease = self.reconciling(world)
        world.service.reconciler.run()
        more = LeaseChange(reservations=(ReservationChange(group_of(world, lease), {"min": 2, "max": 2}),))
        refused: list[type[Exception]] = []

        def ask() -> None:
            with pytest.raises(LeaseBusy) as error:
                another(world).manager.leases.update(OWNER, lease.id, more)
            refused.append(error.type)

        checkpoints.at("reconcile_lease:after_claim", ask)
        world.engine.settle()
        assert refused == [LeaseBusy]
        world.leases.update(OWNER, lease.id, more)
        assert_as_it_should_be(world)

    @pytest.mark.parametrize("point", ["after_claim", "after_act", "before_record"])
    def test_repair_of_a_killed_manager_is_taken_over(self, world: World, checkpoints: Checkpoints, point: str):
        lease = self.reconciling(world)
        world.service.reconciler.run()
        checkpoints.kill_at(f"reconcile_lease:{point}")
        with pytest.raises(Killed):
            world.engine.settle()
        rebuild(world)
        world.clock.advance(2 * MINUTE)
        world.engine.settle()
        assert_as_it_should_be(world)
        assert event_count(world, lease) == 3

    def test_a_cloud_that_refuses_is_asked_again_at_the_next_look(self, world: World):
        lease = self.reconciling(world)
        world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started"))
        world.service.reconciler.run()
        world.engine.settle()
        assert world.cloud.world.groups() == {}
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert world.service.reconciler.run() == 1
        world.engine.settle()
        assert_as_it_should_be(world)
        assert tally(world) == (2, 1)

    def test_a_cloud_that_is_busy_is_asked_again_at_growing_intervals(self, world: World):
        self.reconciling(world)
        world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=3))
        world.service.reconciler.run()
        assert world.service.reconciler.run() == 0  # it is being reconciled already
        world.pass_time(MINUTE)
        assert_as_it_should_be(world)

    def test_repair_event_is_not_visible_to_users(self, world: World):
        lease = self.reconciling(world)
        world.service.reconciler.run()
        assert event_of(world, lease.id, EventType.RECONCILE)
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
        with world.db.engine.connect() as connection:
            messages = connection.execute(text("SELECT payload FROM outbox WHERE lease_id = :id"), {"id": lease.id})
            payloads = [payload for payload in map(str, messages.scalars()) if payload != "{}"]  # not delivered yet
        assert payloads
        assert all("end_lease" in payload and "reconcile_lease" not in payload for payload in payloads)


def event_count(world: World, lease: Lease) -> int:
    return len(lease_of(world, lease.id).events)


def meddle(world: World, rng: random.Random) -> None:
    """Change something that is not ours to change, at random."""
    groups = list(world.cloud.world.groups())
    host = rng.choice(world.cloud.world.hosts()).name
    deed = rng.randrange(4)
    if deed == 0:
        world.cloud.world.take_out(host)
    elif groups and deed == 1:
        world.cloud.world.drop_group(rng.choice(groups))
    elif groups and deed == 2:
        world.cloud.world.put_in(host, rng.choice(groups))
    elif groups:
        world.cloud.world.change_owner(rng.choice(groups), "a-thief")


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[Hypothesis.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), deeds=st.integers(1, 12))
def test_one_pass_repairs_any_combination_of_changes(tmp_path_factory, seed: int, deeds: int):
    """While leases run, start and end; and a second pass writes nothing."""
    rng = random.Random(seed)
    with open_world(f"sqlite:///{tmp_path_factory.mktemp('chaos')}/tenure.db", hosts=8) as world:
        for _ in range(4):
            world.book(rng.randint(1, 2), start=rng.choice([0, 0, 0, 1]), hours=rng.choice([1, 3]))
        world.engine.settle()
        for _ in range(deeds):
            meddle(world, rng)
            if rng.random() < 0.2:
                world.pass_time(timedelta(minutes=rng.randint(1, 40)))
        world.pass_time(5 * MINUTE)
        world.service.reconciler.run()
        world.pass_time(MINUTE)
        assert_as_it_should_be(world)
        effects = world.cloud.world.journal()
        assert world.service.reconciler.run() == 0
        world.pass_time(MINUTE - SECOND)
        assert world.cloud.world.journal() == effects
