"""Hosts that fail, are closed, or come back, and the effects on their leases."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import EventType, Lease, LeaseStatus
from tenure.domain.resource import ResourceHealth
from tenure.drivers.contract import Health
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tenure.services.context import Rules
from tests.support import ledger
from tests.support.engines import (
    HOUR,
    MINUTE,
    POINTS,
    SECOND,
    Checkpoints,
    Killed,
    another,
    assert_all_in_pool,
    effects_of,
    lease_of,
    path_of,
    rebuild,
    running,
    watch,
)
from tests.support.simulated import HostHealth
from tests.support.waiting import wait_for
from tests.support.world import ADMIN, HOST, OWNER, World, open_world


def fail(world: World, *names: str, health: HostHealth = HostHealth.DOWN) -> None:
    """Let hosts fail, and run a health check."""
    for name in names:
        world.cloud.world.mark_host(name, health)
    world.service.health_check.run()


def come_back(world: World, *names: str) -> None:
    fail(world, *names, health=HostHealth.UP)


def flags(world: World, lease: Lease) -> tuple[bool, bool, bool]:
    """Return degraded of the lease, and missing and changed of its reservation."""
    found = lease_of(world, lease.id)
    [reservation] = found.reservations
    return found.degraded, reservation.missing_resources, reservation.resources_changed


def topics(world: World, lease: Lease) -> list[str]:
    """Return the topics of the lease's notifications, in order."""
    with world.db.engine.connect() as connection:
        rows = connection.execute(text("SELECT topic FROM outbox WHERE lease_id = :id ORDER BY id"), {"id": lease.id})
        return list(rows.scalars())


def members(world: World, lease: Lease) -> Collection[str]:
    """The names of the hosts that the cloud has handed to the lease."""
    group = world.cloud.world.groups()[lease.reservations[0].id]
    return sorted(world.cloud.world.host(host).name for host in group.hosts)


def resource(world: World, name: str):
    [found] = [host for host in world.cloud.world.hosts() if host.name == name]
    return world.resources.get(ADMIN, HOST, found.id)


def servers(world: World) -> set[str]:
    return {server.id for server in world.cloud.world.servers()}


@pytest.mark.parametrize("running", [False, True])
def test_cost_of_healing_does_not_grow_with_the_lease(tmp_path: Path, running: bool):
    def statements(size: int) -> int:
        """Count the statements to heal a lease of this many hosts, one of which has failed and cannot be replaced."""
        with open_world(f"sqlite:///{tmp_path / f'{size}.db'}", hosts=size) as world:
            lease = world.book(size, start=0 if running else 1)
            world.cloud.world.mark_host(world.hosts_of(lease.id)[0], HostHealth.DOWN)
            world.service.healing.observe(HOST, world.cloud.check(HOST))
            world.service.healing.heal()
            count = 0

            def note(*_anything: object) -> None:
                nonlocal count
                count += 1

            event.listen(world.db.engine, "before_cursor_execute", note)
            world.service.healing.heal()
            event.remove(world.db.engine, "before_cursor_execute", note)
            assert flags(world, lease) == (True, True, False)
            return count

    assert statements(12) == statements(3)


class TestChangedDescriptions:
    def shrink(self, world: World) -> Lease:
        """Make a plan on a host that no longer matches the request."""
        asked = '[">=", "$vcpus", "64"]'
        lease = world.book(1, start=5, resource_properties=asked)
        [host] = world.hosts_of(lease.id)
        world.cloud.world.change_host(host, facts={"vcpus": 1})
        return lease

    @pytest.mark.slow
    def test_lease_that_could_not_be_healed_is_retried(self, world: World):
        """Only the healing pass finds out that a plan is on the wrong host."""
        lease = self.shrink(world)
        before = world.hosts_of(lease.id)
        busy = True

        def collide(_connection, _cursor, statement: str, *_more: object) -> None:
            if busy and statement.startswith("UPDATE leases"):
                raise OperationalError(statement, {}, sqlite3.OperationalError("database is locked"))

        event.listen(world.db.engine, "before_cursor_execute", collide)
        world.service.refresh.run()
        assert world.hosts_of(lease.id) == before
        busy = False
        world.service.health_check.run()
        assert world.hosts_of(lease.id) != before

    def test_number_of_cloud_calls_does_not_grow_with_the_leases(self, tmp_path: Path):
        """A changed overcommitment ratio affects every host."""

        def statements(hosts: int) -> int:
            count = 0

            def note(*_anything: object) -> None:
                nonlocal count
                count += 1

            with open_world(f"sqlite:///{tmp_path / f'{hosts}.db'}", hosts=hosts) as world:
                for host in world.cloud.world.hosts():
                    world.cloud.world.change_host(host.id, facts={"vcpus": 1})
                world.service.refresh.run()
                with world.db.engine.begin() as connection:
                    connection.execute(text("UPDATE resources SET unreviewed = 1"))
                event.listen(world.db.engine, "before_cursor_execute", note)
                world.service.healing.heal()
            return count

        assert statements(30) == statements(3)


class TestHealth:
    def test_failed_host_is_not_reservable_until_it_is_back(self, world: World):
        seen = resource(world, "sim-host-001")
        fail(world, "sim-host-001")
        failed = resource(world, "sim-host-001")
        assert (failed.reservable, failed.health, failed.health_reason) == (
            False,
            ResourceHealth.DOWN,
            "The hypervisor is down.",
        )
        assert failed.version > seen.version
        with pytest.raises(NotEnoughResources):
            world.book(4, start=1)
        come_back(world, "sim-host-001")
        back = resource(world, "sim-host-001")
        assert (back.reservable, back.health, back.health_reason) == (True, ResourceHealth.WELL, None)
        assert back.version > failed.version
        world.book(4, start=1)

    def test_disabled_and_down_hosts_are_distinguished(self, world: World):
        fail(world, "sim-host-001", health=HostHealth.DISABLED)
        found = resource(world, "sim-host-001")
        assert (found.reservable, found.health) == (False, ResourceHealth.DISABLED)

    def test_host_unknown_to_the_cloud_is_gone(self, world: World):
        world.cloud.world.remove_host("sim-host-001")
        world.service.health_check.run()
        [gone] = [
            gone for gone in (world.resources.get(ADMIN, HOST, str(number)) for number in (1, 2)) if not gone.reservable
        ]
        assert (gone.name, gone.health) == ("sim-host-001", ResourceHealth.GONE)

    def test_empty_answer_is_ignored(self, world: World, caplog: pytest.LogCaptureFixture):
        assert world.service.healing.observe(HOST, {}) == 0
        assert resource(world, "sim-host-001").reservable
        assert "the answer is ignored" in caplog.text

    def test_a_second_look_changes_nothing(self, world: World):
        fail(world, "sim-host-001")
        before = resource(world, "sim-host-001")
        another(world).health_check.run()
        assert resource(world, "sim-host-001") == before

    def test_a_cloud_that_does_not_answer_changes_nothing(self, world: World):
        world.cloud.inject(Fault(FaultKind.BUSY, verb="check"))
        fail(world, "sim-host-001")
        assert resource(world, "sim-host-001").reservable

    def test_a_notification_names_the_service(self, world: World):
        """Not the hypervisor: the names differ if one of them has a domain name."""
        lease = world.book(1, start=1)
        [name] = world.hosts_of(lease.id)
        down = Health(False, "The service is forced down.")
        assert world.service.healing.report(HOST, name, down) == 0
        service = str(world.cloud.world.host(name).facts["service_name"])
        assert world.service.healing.report(HOST, service, down) == 1
        assert not resource(world, name).reservable
        assert world.hosts_of(lease.id) != [name]
        assert world.service.healing.report(HOST, service, down) == 0  # known already


class TestNotifications:
    @pytest.mark.parametrize("failure", ["down", "gone"])
    @pytest.mark.parametrize(
        "reported_health", [Health(False, "Disabled.", works=True), Health(True)], ids=["closed", "well"]
    )
    def test_notifications_do_not_mend_a_failed_host(self, world: World, failure: str, reported_health: Health):
        """For instance when an operator disables or enables the service of a dead host."""
        lease = world.book(1, hours=10)
        world.engine.settle()
        [host] = world.hosts_of(lease.id)
        found = resource(world, host)
        if failure == "down":
            fail(world, host)
        else:
            world.cloud.world.remove_host(host)
            world.service.health_check.run()
        world.clock.advance(4 * MINUTE)
        before = world.resources.get(ADMIN, HOST, found.external_id)
        assert world.service.healing.report(HOST, str(found.facts["service_name"]), reported_health) == 0
        assert world.resources.get(ADMIN, HOST, found.external_id) == before
        assert flags(world, lease) == (True, True, False)
        world.clock.advance(MINUTE)
        world.service.health_check.run()
        world.engine.settle()
        assert flags(world, lease) == (False, False, True)  # five minutes after it failed
        assert topics(world, lease).count("lease.degraded") == 1

    def test_notification_can_only_worsen_a_disabled_host(self, world: World):
        service = str(resource(world, "sim-host-001").facts["service_name"])
        for reported_health, health in (
            (Health(False, "Disabled.", works=True), ResourceHealth.DISABLED),
            (Health(True), ResourceHealth.DISABLED),
            (Health(False, "Forced down."), ResourceHealth.DOWN),
        ):
            world.service.healing.report(HOST, service, reported_health)
            assert resource(world, "sim-host-001").health is health
        world.service.health_check.run()
        assert resource(world, "sim-host-001").health is ResourceHealth.WELL

    def test_notification_during_a_poll_is_newer_than_its_answer(self, world: World):
        service = str(resource(world, "sim-host-001").facts["service_name"])

        def fail_meanwhile(verb: str, *arguments: object) -> None:
            if verb == "check" and HOST in arguments:
                world.clock.advance(SECOND)
                world.service.healing.report(HOST, service, Health(False, "Forced down."))
                world.clock.advance(SECOND)

        watch(world, lambda *_: None, fail_meanwhile)
        world.service.health_check.run()
        assert resource(world, "sim-host-001").health is ResourceHealth.DOWN
        watch(world, lambda *_: None)
        world.service.health_check.run()
        assert resource(world, "sim-host-001").health is ResourceHealth.WELL

    @pytest.mark.parametrize("polling", [True, False])
    def test_notified_recovery_polls_the_cloud_at_once(self, world: World, polling: bool):
        """The clock stands still: nothing but the notification can have been the reason to look."""
        asked: list[str] = []
        watch(world, lambda verb, *_: asked.append(verb))
        rebuild(world, health_interval=MINUTE if polling else None)
        service = str(resource(world, "sim-host-001").facts["service_name"])
        world.service.healing.report(HOST, service, Health(False, "Forced down."))
        each = len(
            {known.inventory for known in world.service.components.types}
        )  # a look at all takes so many questions

        def has_recovered(looks: int) -> bool:
            return resource(world, "sim-host-001").reservable and asked.count("check") >= looks * each

        with running(world):
            if polling:
                wait_for("the look at the beginning", lambda: has_recovered(1))
                world.service.healing.report(HOST, service, Health(False, "Forced down."))
            assert asked.count("check") == each * int(polling)
            world.service.healing.report(HOST, service, Health(True))
            wait_for("the recovery", lambda: has_recovered(1 + int(polling)))
        assert asked.count("check") == each * (1 + int(polling))

    def test_without_polling_the_cloud_is_asked_until_it_confirms_the_recovery(self, world: World):
        """As of a host that is enabled first, and started then; the cloud is asked no more when it works."""
        asked: list[str] = []
        watch(world, lambda verb, *_: asked.append(verb))
        rebuild(world, health_interval=None)
        fail(world, "sim-host-001")
        service = str(resource(world, "sim-host-001").facts["service_name"])
        asked.clear()
        with running(world):
            world.service.healing.report(HOST, service, Health(True))
            wait_for("a look", lambda: "check" in asked)
            world.cloud.inject(Fault(FaultKind.BUSY, verb="check"))
            for _ in range(2):
                looks = asked.count("check")
                world.clock.advance(MINUTE)
                wait_for("the next look", lambda looks=looks: asked.count("check") > looks)  # type: ignore[misc]
            assert not resource(world, "sim-host-001").reservable
            world.cloud.world.mark_host("sim-host-001", HostHealth.UP)
            world.clock.advance(MINUTE)
            wait_for("the recovery", lambda: resource(world, "sim-host-001").reservable)
        looks = asked.count("check")
        assert world.service.health_check.run_if_asked() is None
        assert asked.count("check") == looks


class TestPlans:
    def test_plan_on_a_failed_host_moves_without_notification(self, world: World):
        lease = world.book(1, start=24 * 30, hours=1)
        before, seen = world.hosts_of(lease.id), lease_of(world, lease.id)
        history = world.leases.history(ADMIN, lease.id)
        fail(world, *before)
        assert world.hosts_of(lease.id) != before
        after = lease_of(world, lease.id)
        assert (after.degraded, after.status_reason, after.updated_at) == (False, None, seen.updated_at)
        assert world.leases.history(ADMIN, lease.id) == history
        assert topics(world, lease) == ["lease.create"]

    def test_only_leases_that_start_within_the_horizon_move(self, tmp_path):
        rules = Rules(healing_horizon=HOUR)
        with open_world(f"sqlite:///{tmp_path}/tenure.db", rules=rules) as world:
            soon, late = world.book(1, start=0.5, hours=1), world.book(1, start=2, hours=1)
            assert world.hosts_of(soon.id) == world.hosts_of(late.id)
            [host] = world.hosts_of(late.id)
            fail(world, host)
            assert (world.hosts_of(soon.id) == [host], world.hosts_of(late.id) == [host]) == (False, True)
            assert flags(world, late) == (False, False, False)
            world.clock.advance(2 * HOUR - MINUTE)
            world.service.health_check.run()
            assert world.hosts_of(late.id) != [host]

    def test_other_plans_make_room(self, world: World):
        """The only other matching host is planned for a lease that any host would serve."""
        for host in ("1", "2"):
            world.resources.update(ADMIN, HOST, host, {"gpu": "yes"})
        choosy = world.book(1, start=1, resource_properties='["==", "$gpu", "yes"]')
        others = [world.book(1, start=1) for _ in range(3)]
        [modest] = [lease for lease in others if world.hosts_of(lease.id)[0] in {"sim-host-001", "sim-host-002"}]
        [free] = world.hosts_of(next(lease for lease in others if lease is not modest).id)
        world.leases.delete(OWNER, next(lease for lease in others if lease is not modest).id)
        requested = world.hosts_of(modest.id)
        fail(world, *world.hosts_of(choosy.id))
        assert (world.hosts_of(choosy.id), world.hosts_of(modest.id)) == (requested, [free])
        assert flags(world, choosy) == (False, False, False)

    def test_without_a_free_host_the_lease_is_degraded_until_the_host_is_back(self, world: World):
        lease = world.book(4, start=1)
        fail(world, "sim-host-001")
        assert flags(world, lease) == (True, True, False)
        degraded = lease_of(world, lease.id)
        assert degraded.status is LeaseStatus.PENDING
        assert degraded.status_reason == "sim-host-001 is down."
        assert degraded.status_detail == "sim-host-001 is down: The hypervisor is down."
        world.service.health_check.run()
        assert lease_of(world, lease.id) == degraded  # notified once
        come_back(world, "sim-host-001")
        assert flags(world, lease) == (False, False, False)
        assert lease_of(world, lease.id).status_reason is None
        assert topics(world, lease) == ["lease.create", "lease.degraded", "lease.mended"]
        assert [entry.action for entry in world.leases.history(ADMIN, lease.id)] == ["create", "degraded", "mended"]

    def test_replacement_is_retried_as_soon_as_a_host_is_free(self, world: World):
        lease, other = world.book(3, start=1), world.book(1, start=1)
        fail(world, *world.hosts_of(lease.id)[:1])
        assert flags(world, lease) == (True, True, False)
        world.leases.delete(OWNER, other.id)
        world.service.health_check.run()
        assert flags(world, lease) == (False, False, False)
        assert len(world.hosts_of(lease.id)) == 3

    def test_lease_starts_with_the_remaining_hosts(self, world: World):
        lease = world.book(4, start=1)
        world.cloud.world.remove_host("sim-host-001")
        world.service.health_check.run()
        world.pass_time(HOUR)
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert members(world, lease) == ["sim-host-002", "sim-host-003", "sim-host-004"]
        world.service.health_check.run()
        assert flags(world, lease) == (True, True, False)
        world.pass_time(HOUR)
        assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
        assert_all_in_pool(world)

    def test_a_host_that_left_the_cloud_unseen_is_replaced_at_the_start(self, world: World):
        lease = world.book(2, start=1)
        gone = world.hosts_of(lease.id)[0]
        world.cloud.world.remove_host(gone)
        world.pass_time(HOUR)
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert (len(members(world, lease)), flags(world, lease)) == (2, (False, False, False))
        assert gone not in world.hosts_of(lease.id)

    def test_a_lease_starts_without_the_missing_host_if_no_host_is_free(self, world: World):
        lease = world.book(4, start=1)
        world.cloud.world.remove_host("sim-host-001")
        world.pass_time(HOUR)
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert members(world, lease) == ["sim-host-002", "sim-host-003", "sim-host-004"]
        world.service.health_check.run()
        assert flags(world, lease) == (True, True, False)

    def test_a_start_that_is_under_way_keeps_its_host(self, world: World):
        """The worker that starts the lease would hand over a host that the ledger has given to others."""
        lease = world.book(1, start=1)
        [host] = world.hosts_of(lease.id)
        during_the_start: list[list[str]] = []

        def fail_meanwhile(verb: str, *_: object) -> None:
            if verb == "ensure_started" and not during_the_start:
                fail(world, host)
                during_the_start.append(world.hosts_of(lease.id))

        watch(world, fail_meanwhile)
        world.pass_time(HOUR)
        assert during_the_start == [[host]]
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert members(world, lease) == world.hosts_of(lease.id) == [host]
        assert flags(world, lease) == (True, True, False)

    def test_a_start_between_two_attempts_gets_another_host(self, world: World):
        lease = world.book(1, start=1)
        [host] = world.hosts_of(lease.id)
        world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=3))
        world.clock.advance(HOUR)
        world.engine.settle()
        assert lease_of(world, lease.id).status is LeaseStatus.STARTING
        fail(world, host)
        world.pass_time(MINUTE)
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert members(world, lease) == world.hosts_of(lease.id) != [host]


class TestRunning:
    def running(self, world: World, hosts: int = 1, hours: float = 10.0) -> Lease:
        lease = world.book(hosts, hours=hours)
        world.engine.settle()
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        return lease

    def test_failure_is_notified_at_once_and_the_host_replaced_later(self, world: World):
        lease = self.running(world)
        [host] = world.hosts_of(lease.id)
        fail(world, host)
        assert flags(world, lease) == (True, True, False)
        assert members(world, lease) == [host]
        world.clock.advance(5 * MINUTE)
        world.service.health_check.run()
        assert lease_of(world, lease.id).status is LeaseStatus.UPDATING
        world.engine.settle()
        after = lease_of(world, lease.id)
        assert (after.status, after.status_reason) == (LeaseStatus.ACTIVE, None)
        [other] = members(world, lease)
        assert other != host
        assert flags(world, lease) == (False, False, True)
        assert path_of(world, lease.id) == ["PENDING", "STARTING", "ACTIVE", "UPDATING", "ACTIVE"]
        assert topics(world, lease)[-3:] == ["lease.degraded", "lease.mended", "lease.resources_changed"]
        reasons = [entry.reason for entry in world.leases.history(ADMIN, lease.id) if entry.action == "replace"]
        assert reasons == [f"{host} is replaced by {other}"]
        assert all(event.event_type is not EventType.RECONCILE for event in after.events)
        world.pass_time(10 * HOUR)
        assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
        assert world.cloud.world.groups() == {}

    def test_host_that_returns_in_time_is_not_replaced(self, world: World):
        lease = self.running(world)
        [host] = world.hosts_of(lease.id)
        effects = world.cloud.world.journal()
        fail(world, host)
        world.clock.advance(5 * MINUTE - SECOND)
        world.service.health_check.run()
        come_back(world, host)
        world.clock.advance(HOUR)
        world.service.health_check.run()
        world.engine.settle()
        assert flags(world, lease) == (False, False, False)
        assert world.cloud.world.journal() == effects

    def test_a_host_that_is_closed_and_works_is_never_taken_away(self, world: World):
        lease = self.running(world)
        [host] = world.hosts_of(lease.id)
        fail(world, host, health=HostHealth.DISABLED)
        world.clock.advance(HOUR)
        world.service.health_check.run()
        world.engine.settle()
        assert members(world, lease) == [host]
        assert flags(world, lease) == (False, False, False)

    def test_incomplete_answer_replaces_no_host(self, world: World):
        """What the cloud does not list stays the lease's, with all that runs there, until it is replaced."""
        lease = self.running(world, 2)
        host = world.hosts_of(lease.id)[0]
        server = world.boot(lease, host=host)
        well = {cloud_host.id: Health(True) for cloud_host in world.cloud.world.hosts() if cloud_host.name != host}
        world.service.healing.observe(HOST, well)
        assert resource(world, host).health is ResourceHealth.GONE
        world.service.reconciler.run()
        world.engine.settle()
        assert servers(world) == {server}
        assert host in members(world, lease)

    @pytest.mark.slow
    def test_servers_that_do_not_vanish_do_not_undo_a_replacement(self, world: World):
        lease = self.running(world)
        [host] = world.hosts_of(lease.id)
        world.boot(lease, host=host)
        slow = world.clock.now() + HOUR
        world.cloud.inject(Fault(FaultKind.SLOW, reservation_id=lease.reservations[0].id, count=None, until=slow))
        fail(world, host)
        world.clock.advance(5 * MINUTE)
        world.service.health_check.run()
        world.engine.settle()
        assert (lease_of(world, lease.id).status, flags(world, lease)) == (LeaseStatus.ACTIVE, (False, False, True))
        [other] = set(members(world, lease)) - {host}
        server = world.boot(lease, host=other)
        for _ in range(20):  # until a change would have been given up
            world.pass_time(MINUTE)
            world.service.reconciler.run()
        assert server in servers(world)
        world.pass_time(HOUR)
        world.service.reconciler.run()
        world.engine.settle()
        assert (members(world, lease), servers(world)) == ([other], {server})

    def test_without_a_free_host_the_lease_keeps_its_host_and_retries(self, world: World):
        lease = self.running(world, 3)
        other = self.running(world, 1)
        host = world.hosts_of(lease.id)[0]
        fail(world, host)
        world.clock.advance(HOUR)
        world.service.health_check.run()
        world.engine.settle()
        assert host in members(world, lease)
        assert (lease_of(world, lease.id).status, flags(world, lease)) == (LeaseStatus.ACTIVE, (True, True, False))
        world.leases.delete(OWNER, other.id)
        world.service.health_check.run()
        world.engine.settle()
        assert host not in members(world, lease)
        assert (len(members(world, lease)), flags(world, lease)) == (3, (False, False, True))

    def test_a_replacement_that_the_cloud_refuses_is_undone(self, world: World):
        lease = self.running(world)
        [host] = world.hosts_of(lease.id)
        fail(world, host)
        world.clock.advance(HOUR)
        world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reason="not today"))
        world.service.health_check.run()
        world.engine.settle()
        assert (lease_of(world, lease.id).status, members(world, lease)) == (LeaseStatus.ACTIVE, [host])
        assert flags(world, lease) == (True, True, False)
        world.service.health_check.run()
        world.engine.settle()
        assert members(world, lease) != [host]
        assert flags(world, lease) == (False, False, True)

    @pytest.mark.parametrize("point", POINTS)
    def test_replacement_by_a_killed_manager_is_taken_over(self, world: World, checkpoints: Checkpoints, point: str):
        lease = self.running(world)
        [host] = world.hosts_of(lease.id)
        fail(world, host)
        world.clock.advance(HOUR)
        world.service.health_check.run()
        checkpoints.kill_at(f"update_lease:{point}")
        with pytest.raises(Killed):
            world.engine.settle()
        rebuild(world)
        world.clock.advance(2 * MINUTE)
        world.engine.settle()
        assert (flags(world, lease), len(members(world, lease))) == ((False, False, True), 1)
        assert members(world, lease) != [host]
        url = world.db.engine.url.render_as_string(hide_password=False)
        assert ledger.faults(url) == []

    def test_a_lease_deleted_during_a_replacement_gives_both_hosts_back(self, world: World):
        lease = self.running(world)
        fail(world, *world.hosts_of(lease.id))
        world.clock.advance(HOUR)
        world.service.health_check.run()
        assert lease_of(world, lease.id).status is LeaseStatus.UPDATING
        world.leases.delete(OWNER, lease.id)
        world.engine.settle()
        assert_all_in_pool(world)
        url = world.db.engine.url.render_as_string(hide_password=False)
        assert (ledger.faults(url), ledger.count_by_state(url)["held"]) == ([], 0)

    @pytest.mark.slow
    def test_an_end_takes_over_from_a_replacement(self, world: World):
        lease = self.running(world, hours=1)
        fail(world, *world.hosts_of(lease.id))
        world.clock.advance(30 * MINUTE)
        world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None))
        world.service.health_check.run()
        world.pass_time(HOUR)
        assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
        assert world.cloud.world.groups() == {}
        url = world.db.engine.url.render_as_string(hide_password=False)
        assert ledger.faults(url) == []

    def test_returned_host_is_handed_over_again(self, world: World):
        lease = self.running(world, 4)
        healths = world.cloud.check(HOST)
        world.service.healing.observe(HOST, {host: health for host, health in healths.items() if host != "3"})
        world.service.healing.heal()
        assert flags(world, lease) == (True, True, False)
        world.cloud.world.take_out("sim-host-003")
        world.service.health_check.run()
        world.engine.settle()
        assert flags(world, lease) == (False, False, False)
        assert "sim-host-003" in members(world, lease)

    def test_ended_leases_are_not_healed(self, world: World):
        lease = self.running(world, 4, hours=1)
        fail(world, "sim-host-001")
        world.pass_time(HOUR)
        ended = lease_of(world, lease.id)
        assert (ended.status, ended.degraded) == (LeaseStatus.TERMINATED, True)
        with world.db.read() as tx:
            assert tx.leases.degraded_ids() == []

    def test_replacement_can_be_disabled(self, tmp_path):
        with open_world(f"sqlite:///{tmp_path}/tenure.db", rules=Rules(replace_after=None)) as world:
            lease = self.running(world)
            [host] = world.hosts_of(lease.id)
            fail(world, host)
            world.clock.advance(HOUR)
            world.service.health_check.run()
            world.engine.settle()
            assert (members(world, lease), flags(world, lease)) == ([host], (True, True, False))

    def test_many_managers_replace_once(self, world: World):
        lease = self.running(world)
        fail(world, *world.hosts_of(lease.id))
        world.clock.advance(HOUR)
        others = [another(world) for _ in range(3)]
        for manager in [world.service, *others]:
            manager.health_check.run()
        world.engine.settle()
        for manager in others:
            manager.health_check.run()
            manager.engine.settle()
        assert len(effects_of(world, EffectKind.HOST_TAKEN)) == 2
        assert flags(world, lease) == (False, False, True)


def test_host_that_no_longer_matches_is_replanned_or_flagged(world: World):
    """The cloud says that a host is smaller than it was."""
    asked = '[">=", "$vcpus", "64"]'
    running = world.book(1, hours=5, hypervisor_properties=asked)
    world.engine.settle()
    planned = world.book(1, start=1, hours=1, hypervisor_properties=asked)

    def shrink(host: str) -> None:
        world.cloud.world.change_host(host, facts={"vcpus": 2})
        found, registered = world.cloud.look_up(HOST, host), resource(world, host)
        world.db.write(lambda tx: tx.resources.describe(registered, found, now=tx.now()))
        world.service.healing.review(HOST, [found.external_id])

    [host] = world.hosts_of(running.id)
    [other] = world.hosts_of(planned.id)
    shrink(host)
    assert (flags(world, running), members(world, running)) == ((True, True, False), [host])
    assert lease_of(world, running.id).status_reason == f"{host} no longer meets what was requested"
    assert world.hosts_of(planned.id) == [other]
    world.leases.delete(OWNER, running.id)
    shrink(other)
    assert flags(world, planned) == (True, True, False)  # of four hosts two were large enough
    world.cloud.world.change_host(other, facts={"vcpus": 128})
    found, registered = world.cloud.look_up(HOST, other), resource(world, other)
    world.db.write(lambda tx: tx.resources.describe(registered, found, now=tx.now()))
    world.service.health_check.run()
    assert flags(world, planned) == (False, False, False)
