"""The contract of ``tenure.drivers.contract`` for preemptible servers: drivers of clouds with such servers pass it.

A driver's own test module has a class that inherits ``PreemptionContract``, and a fixture ``rig`` that fits
``PreemptionRig``: a fresh cloud with at least four hosts of four processors or more, empty and in general use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

import pytest

from tenure.clock import SimulatedClock
from tenure.drivers.contract import CloudBusy, Command, Preempted, Progress, ResourceOccupied, ResourceRef
from tenure.testing.rig import command_of, finished
from tests.drivers.contracts.hosts import drift_of
from tests.drivers.contracts.instances import InstanceRig, instances

NOTICE = timedelta(seconds=60)


class PreemptionRig(InstanceRig, Protocol):
    """A driver whose clock can be moved, and the cloud behind it."""

    clock: SimulatedClock

    def boot_preemptible(self, resource: ResourceRef, project_id: str, vcpus: int = 1) -> str | None:
        """Boot a preemptible server of that many processors there, as a user does; its id, or None."""

    def deadline_of(self, server: str) -> datetime | None:
        """The deadline in the server's metadata; None without one."""

    def is_stopped(self, server: str) -> bool: ...


def quarter(rig: PreemptionRig, resource: ResourceRef) -> int:
    """A quarter of the processors that a host offers."""
    return rig.driver.look_up(rig.resource_type, resource.external_id).capacity["VCPU"] // 4


def whole(rig: PreemptionRig, *hosts: ResourceRef) -> Command:
    return command_of(*hosts, project_id=rig.owner, resource_type=rig.resource_type)


def parts(rig: PreemptionRig, host: ResourceRef, units: int, reservation_id: str = "r-1") -> Command:
    """A command of instances, each of a quarter of the host."""
    command = instances(rig, host, units=units, reservation_id=reservation_id)
    return replace(command, parameters={**command.parameters, "vcpus": quarter(rig, host)})


def of_preemptible_flavor(rig: PreemptionRig, host: ResourceRef, units: int) -> Command:
    """The same command, of a flavor whose servers are preemptible when they are not reserved."""
    sizes = {"vcpus": quarter(rig, host), "ram": 256, "disk": 1, "ephemeral": 0, "swap": 0}
    flavor = {"id": "spot", "name": "spot", **sizes, "extra_specs": {"blazar:preemptible": "true"}}
    command = replace(parts(rig, host, units), resource_type="flavor:instance")
    return replace(command, parameters={"affinity": None, "resource_properties": json.dumps(flavor)})


def ids(preempted: Sequence[Preempted]) -> set[str]:
    return {server.server_id for server in preempted}


class PreemptionContract:
    """What a driver does where preemptible servers may use reserved hosts before the start."""

    @pytest.fixture
    def hosts(self, rig: PreemptionRig) -> list[ResourceRef]:
        """Three hosts that are set aside for reservations."""
        chosen = rig.resources()[:3]
        for resource in chosen:
            rig.driver.ensure_registered(rig.resource_type, resource)
        return chosen

    @pytest.fixture
    def deadline(self, rig: PreemptionRig) -> datetime:
        return rig.clock.now() + NOTICE

    def test_preemptible_servers_run_on_unstarted_hosts(self, rig: PreemptionRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(whole(rig, hosts[0]))
        assert [rig.boot_preemptible(host, rig.neighbour) is not None for host in hosts] == [False, True, True]

    def test_each_server_in_the_way_is_notified_once(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        mine = [rig.boot_preemptible(hosts[0], project) for project in (rig.neighbour, rig.owner)]
        elsewhere = rig.boot_preemptible(hosts[2], rig.neighbour)
        command = whole(rig, *hosts[:2])
        preempted = rig.driver.make_way(command, deadline=deadline)
        assert {(server.server_id, server.project_id, server.resource) for server in preempted} == {
            (mine[0], rig.neighbour, hosts[0]),
            (mine[1], rig.owner, hosts[0]),
        }
        assert elsewhere is not None
        assert rig.deadline_of(elsewhere) is None
        before = rig.effects()
        rig.reopen()
        rig.clock.advance(timedelta(seconds=5))
        assert ids(rig.driver.make_way(command, deadline=deadline)) == set(mine)
        assert rig.effects() == before
        for server in mine:
            assert server is not None
            assert rig.deadline_of(server) == deadline
            assert not rig.is_stopped(server)

    def test_servers_in_the_way_are_stopped_then_deleted_in_time(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        server, elsewhere = (rig.boot_preemptible(host, rig.neighbour) for host in (hosts[0], hosts[2]))
        assert server is not None
        assert elsewhere is not None
        command = whole(rig, hosts[0])
        rig.driver.make_way(command, deadline=deadline)
        rig.clock.set(deadline - NOTICE / 2)
        assert ids(rig.driver.make_way(command, deadline=deadline)) == {server}
        assert rig.is_stopped(server)
        assert rig.servers() == {server, elsewhere}
        rig.clock.set(deadline - timedelta(seconds=2))
        rig.driver.make_way(command, deadline=deadline)
        assert finished(rig, lambda: Progress(rig.servers() == {elsewhere})).done
        assert list(rig.driver.make_way(command, deadline=deadline)) == []
        assert rig.driver.ensure_started(command).done
        assert rig.boot(hosts[0], rig.owner, "r-1")
        assert not rig.is_stopped(elsewhere)

    @pytest.mark.parametrize("seconds", range(12, 25))
    def test_servers_are_stopped_before_deletion_even_at_short_notice(
        self, rig: PreemptionRig, hosts: list[ResourceRef], seconds: int
    ):
        server = rig.boot_preemptible(hosts[0], rig.neighbour)
        assert server is not None
        command, deadline = whole(rig, hosts[0]), rig.clock.now() + timedelta(seconds=seconds)
        was_stopped = False
        while server in rig.servers() and rig.clock.now() < deadline:
            rig.driver.make_way(command, deadline=deadline)
            was_stopped = was_stopped or (server in rig.servers() and rig.is_stopped(server))
            rig.clock.advance(timedelta(seconds=5))
        assert was_stopped
        assert server not in rig.servers()

    def test_a_start_deletes_remaining_preemptible_servers(self, rig: PreemptionRig, hosts: list[ResourceRef]):
        for host in hosts[:2]:
            assert rig.boot_preemptible(host, rig.neighbour)
        elsewhere = rig.boot_preemptible(hosts[2], rig.neighbour)
        command = whole(rig, *hosts[:2])
        self.started(rig, command)
        assert rig.servers() == {elsewhere}
        assert all(rig.boot(host, rig.owner, "r-1") for host in hosts[:2])

    def test_a_host_is_not_handed_over_while_servers_vanish(self, rig: PreemptionRig, hosts: list[ResourceRef]):
        assert rig.boot_preemptible(hosts[0], rig.neighbour)
        rig.hold()
        command = whole(rig, hosts[0])
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_started(command)
        assert not isinstance(caught.value, ResourceOccupied)
        assert rig.boot(hosts[0], rig.owner, "r-1") is None
        rig.let_go()
        self.started(rig, command)
        assert rig.boot(hosts[0], rig.owner, "r-1")

    def test_ordinary_servers_are_not_preempted(self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime):
        preemptible = rig.boot_preemptible(hosts[0], rig.neighbour)
        foreign = rig.force(hosts[0], rig.neighbour)
        command = whole(rig, hosts[0])
        assert ids(rig.driver.make_way(command, deadline=deadline)) == {preemptible}
        assert rig.deadline_of(foreign) is None
        with pytest.raises(ResourceOccupied):
            rig.driver.ensure_started(command)
        assert rig.servers() == {preemptible, foreign}

    def test_a_host_with_preemptible_servers_returns_to_the_pool(self, rig: PreemptionRig, hosts: list[ResourceRef]):
        """A host outside the pool takes servers of all projects until it returns."""
        server = rig.boot_preemptible(hosts[0], rig.neighbour)
        rig.take_out(hosts[0])
        (drift,) = drift_of(rig, [], hosts)
        assert drift.resource == hosts[0]
        rig.driver.ensure_registered(rig.resource_type, hosts[0])
        assert drift_of(rig, [], hosts) == []
        assert rig.servers() == {server}
        with pytest.raises(ResourceOccupied):
            rig.driver.ensure_unregistered(rig.resource_type, hosts[0])

    # Parts of hosts

    def test_only_as_many_servers_are_preempted_as_needed(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        share = quarter(rig, hosts[0])
        servers = [rig.boot_preemptible(hosts[0], rig.neighbour, share) for _ in range(4)]
        assert all(servers)
        command = parts(rig, hosts[0], 2)
        preempted = ids(rig.driver.make_way(command, deadline=deadline))
        assert len(preempted) == 2
        assert preempted < set(servers)
        rig.clock.set(deadline - NOTICE / 2)
        assert ids(rig.driver.make_way(command, deadline=deadline)) == preempted
        rig.clock.set(deadline - timedelta(seconds=2))
        rig.driver.make_way(command, deadline=deadline)
        self.started(rig, command)
        assert rig.servers() == set(servers) - preempted
        assert all(rig.boot_reserved(hosts[0], rig.owner) for _ in range(2))

    def test_no_server_is_preempted_where_there_is_room(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        server = rig.boot_preemptible(hosts[0], rig.neighbour, quarter(rig, hosts[0]))
        command = parts(rig, hosts[0], 3)
        before = rig.effects()
        assert list(rig.driver.make_way(command, deadline=deadline)) == []
        assert rig.effects() == before
        self.started(rig, command)
        assert rig.servers() == {server}

    def test_unused_units_of_other_reservations_are_no_room(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        """The other reservation runs, and has booted one of its two."""
        other = parts(rig, hosts[0], 2, "r-2")
        self.started(rig, other)
        assert rig.boot_reserved(hosts[0], rig.owner, "r-2")
        server = rig.boot_preemptible(hosts[0], rig.neighbour, quarter(rig, hosts[0]))
        assert list(rig.driver.make_way(parts(rig, hosts[0], 1), deadline=deadline)) == []
        assert ids(rig.driver.make_way(parts(rig, hosts[0], 2), deadline=deadline)) == {server}

    def test_room_is_made_for_reservations_ahead_as_well(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        """Two reservations of a lease, each alone, would preempt the same servers, and too few."""
        share = quarter(rig, hosts[0])
        servers = {rig.boot_preemptible(hosts[0], rig.neighbour, share) for _ in range(4)}
        first, second = parts(rig, hosts[0], 1), parts(rig, hosts[0], 2, "r-2")
        elsewhere = replace(parts(rig, hosts[1], 1, "r-3"))
        alone = ids(rig.driver.make_way(first, deadline=deadline))
        assert len(alone) == 1
        together = ids(rig.driver.make_way(second, deadline=deadline, ahead=[elsewhere, whole(rig, hosts[2]), first]))
        assert len(together) == 3
        assert alone < together < servers
        rig.clock.set(deadline - timedelta(seconds=2))
        rig.driver.make_way(second, deadline=deadline, ahead=[first])
        assert finished(rig, lambda: Progress(rig.servers() == servers - together)).done
        for command in (first, second):
            assert rig.driver.ensure_started(command).done
        assert rig.servers() == servers - together

    def test_a_start_of_parts_deletes_only_as_many_servers_as_needed(
        self, rig: PreemptionRig, hosts: list[ResourceRef]
    ):
        share = quarter(rig, hosts[0])
        servers = {rig.boot_preemptible(hosts[0], rig.neighbour, share) for _ in range(3)}
        self.started(rig, parts(rig, hosts[0], 3))
        assert len(rig.servers() & servers) == 1
        assert len(rig.servers()) == 1

    def test_reserved_servers_of_a_preemptible_flavor_stay(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        spot = rig.boot_preemptible(hosts[0], rig.neighbour, quarter(rig, hosts[0]))
        reserved = of_preemptible_flavor(rig, hosts[0], 2)
        self.started(rig, reserved)
        mine = {rig.boot_reserved(hosts[0], rig.owner) for _ in range(2)}
        assert None not in mine
        other = parts(rig, hosts[0], 2, "r-2")
        assert ids(rig.driver.make_way(whole(rig, hosts[0]), deadline=deadline)) == {spot}
        assert ids(rig.driver.make_way(other, deadline=deadline)) == {spot}
        self.started(rig, other)
        assert rig.servers() == mine
        assert drift_of(rig, [reserved, other], hosts[1:]) == []

    def test_parts_are_not_handed_over_while_servers_vanish(self, rig: PreemptionRig, hosts: list[ResourceRef]):
        share = quarter(rig, hosts[0])
        assert all(rig.boot_preemptible(hosts[0], rig.neighbour, share) for _ in range(3))
        command = parts(rig, hosts[0], 2)
        rig.hold()
        for _ in range(2):
            assert not rig.driver.ensure_started(command).done
        rig.let_go()
        self.started(rig, command)
        assert len(rig.servers()) == 2
        assert all(rig.boot_reserved(hosts[0], rig.owner) for _ in range(2))

    # Deadlines, failures and other requests

    def test_a_server_keeps_its_earliest_deadline(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        server = rig.boot_preemptible(hosts[0], rig.neighbour)
        assert server is not None
        first, later = whole(rig, hosts[0]), replace(whole(rig, hosts[0]), reservation_id="r-2")
        rig.driver.make_way(first, deadline=deadline)
        rig.driver.make_way(later, deadline=deadline + NOTICE)
        assert rig.deadline_of(server) == deadline
        sooner = deadline - NOTICE / 4
        rig.driver.make_way(first, deadline=sooner)
        assert rig.deadline_of(server) == sooner

    @pytest.mark.parametrize("effects", range(3))
    def test_an_interrupted_notification_is_completed(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime, effects: int
    ):
        servers = [rig.boot_preemptible(host, rig.neighbour) for host in hosts[:2]]
        command = whole(rig, *hosts[:2])
        before = rig.effects()
        rig.fail("make_way", after_effects=effects)
        with pytest.raises(CloudBusy):
            rig.driver.make_way(command, deadline=deadline)
        rig.reopen()
        assert ids(rig.driver.make_way(command, deadline=deadline)) == set(servers)
        assert rig.effects() - before == 2

    def test_a_missing_host_is_ignored(self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime):
        server = rig.boot_preemptible(hosts[1], rig.neighbour)
        rig.remove(hosts[0])
        assert ids(rig.driver.make_way(whole(rig, *hosts[:2]), deadline=deadline)) == {server}

    def test_an_address_reservation_preempts_no_server(self, rig: PreemptionRig, deadline: datetime):
        command = command_of(project_id=rig.owner, resource_type="virtual:floatingip")
        assert list(rig.driver.make_way(command, deadline=deadline)) == []

    def test_a_late_server_is_deleted_without_notice(
        self, rig: PreemptionRig, hosts: list[ResourceRef], deadline: datetime
    ):
        """A server that boots in the last moment, or loses its metadata, delays no start."""
        rig.clock.set(deadline - timedelta(seconds=6))
        server = rig.boot_preemptible(hosts[0], rig.neighbour)
        assert ids(rig.driver.make_way(whole(rig, hosts[0]), deadline=deadline)) == {server}
        assert rig.servers() == set()

    def started(self, rig: PreemptionRig, command: Command) -> None:
        """Start the command, and wait until preempted servers are gone."""

        def call() -> Progress:
            try:
                return rig.driver.ensure_started(command)
            except ResourceOccupied:
                raise
            except CloudBusy as error:
                return Progress(False, reason=str(error))

        progress = finished(rig, call)
        assert progress.done, progress.reason

    def test_sees_servers_in_reserved_room_and_a_start_mends_it(self, rig: PreemptionRig, hosts: list[ResourceRef]):
        """The hosts of instances stay in the pool, where preemptible servers may come at any time."""
        command = parts(rig, hosts[0], 3)
        self.started(rig, command)
        share = quarter(rig, hosts[0])
        tolerated, in_the_way = (rig.boot_preemptible(hosts[0], rig.neighbour, share) for _ in range(2))
        assert in_the_way is not None
        (drift,) = drift_of(rig, [command], hosts[1:])
        assert (drift.reservation_id, drift.resource) == ("r-1", hosts[0])
        assert in_the_way in drift.text
        self.started(rig, command)
        assert drift_of(rig, [command], hosts[1:]) == []
        assert rig.servers() == {tolerated}
        assert sum(rig.boot_reserved(hosts[0], rig.owner) is not None for _ in range(4)) == 3
