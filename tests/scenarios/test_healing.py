"""Hosts fail, come back and drift while leases wait, run and end: the same on every kind of database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.domain.errors import Conflict
from tenure.domain.lease import LeaseStatus
from tenure.domain.resource import ResourceHealth
from tenure.drivers.contract import Health
from tests.support import ledger
from tests.support.engines import another
from tests.support.simulated import HostHealth
from tests.support.world import ADMIN, HOST, OWNER, World, open_world

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def check(world: World) -> None:
    """Do the periodic checks of every manager."""
    for service in (world.service, another(world)):
        service.health_check.run()
        service.reconciler.run()
    world.engine.settle()


def test_leases_survive_a_day_with_failures(database_url: str):
    with open_world(database_url, hosts=4) as world:
        running, waiting = world.book(2, hours=12), world.book(1, start=2, hours=6)
        world.engine.settle()
        [booked] = world.hosts_of(waiting.id)
        mine = world.hosts_of(running.id)

        world.cloud.world.mark_host(booked, HostHealth.DOWN)
        check(world)
        [moved] = world.hosts_of(waiting.id)
        assert moved not in {booked, *mine}

        world.cloud.world.mark_host(mine[0], HostHealth.DOWN)
        check(world)
        assert world.leases.get(OWNER, running.id).degraded
        world.clock.advance(10 * MINUTE)
        check(world)  # the only other host is booked from two hours on, and this lease lasts longer
        assert world.leases.get(OWNER, running.id).degraded
        world.cloud.world.mark_host(booked, HostHealth.UP)
        check(world)
        lease = world.leases.get(OWNER, running.id)
        assert (lease.status, lease.degraded) == (LeaseStatus.ACTIVE, False)
        assert lease.reservations[0].resources_changed
        [group] = world.cloud.world.groups().values()
        names = sorted(world.cloud.world.host(host).name for host in group.hosts)
        assert names == sorted([booked, mine[1]])

        world.cloud.world.drop_group(lease.reservations[0].id)
        world.cloud.world.take_out(moved)
        check(world)
        world.pass_time(MINUTE)
        [group] = world.cloud.world.groups().values()
        assert sorted(world.cloud.world.host(host).name for host in group.hosts) == names
        effects = world.cloud.world.journal()
        check(world)
        assert world.cloud.world.journal() == effects
        assert ledger.faults(database_url) == []

        world.pass_time(13 * HOUR)
        assert {lease.status for lease in ledger.leases(database_url).values()} == {"TERMINATED"}
        world.cloud.world.mark_host(mine[0], HostHealth.UP)
        check(world)
        assert world.cloud.world.pool() == {host.id for host in world.cloud.world.hosts()}
        world.book(4, start=1)


def test_host_is_disabled_emptied_and_unregistered(database_url: str):
    with open_world(database_url, hosts=3) as world:
        running, waiting = world.book(1, hours=5), world.book(1, start=5, hours=1)
        world.engine.settle()
        [host] = world.hosts_of(running.id)
        assert world.hosts_of(waiting.id) == [host]
        [external_id] = [known.id for known in world.cloud.world.hosts() if known.name == host]
        disabled = world.resources.disable(ADMIN, HOST, external_id, reason="to be sold")
        assert [allocation.lease_id for allocation in disabled.affected] == [running.id, waiting.id]
        with pytest.raises(Conflict):
            world.resources.unregister(ADMIN, HOST, external_id)
        previewed = world.resources.reallocate(ADMIN, HOST, external_id, running=True, dry_run=True)
        assert [allocation.moves_to is None for allocation in previewed.affected] == [False, False]
        assert world.hosts_of(running.id) == [host]
        world.resources.reallocate(ADMIN, HOST, external_id, running=True)
        world.engine.settle()
        assert host not in {*world.hosts_of(waiting.id)}
        group = next(iter(world.cloud.world.groups().values()))
        assert host not in {world.cloud.world.host(host_id).name for host_id in group.hosts}
        assert ledger.faults(database_url) == []
        world.resources.unregister(ADMIN, HOST, external_id)
        assert external_id not in world.cloud.world.pool()


def test_notification_and_check_of_health_agree(database_url: str):
    with open_world(database_url, hosts=2) as world:
        service = str(world.cloud.world.host("1").facts["service_name"])
        assert world.service.healing.report(HOST, service, Health(False, "forced down")) == 1
        found = world.resources.get(ADMIN, HOST, "1")
        assert (found.health, found.reservable) == (ResourceHealth.DOWN, False)
        check(world)
        assert world.resources.get(ADMIN, HOST, "1").health is ResourceHealth.WELL
