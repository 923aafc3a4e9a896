"""The contract of ``tenure.drivers.contract`` as tests that every driver passes.

A driver's own test module has a class that inherits ``DriverContract``, and a fixture ``rig`` that fits
``Rig``: a fresh cloud with at least four resources that are empty and in general use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import pytest

from tenure.drivers.contract import (
    CloudAmbiguous,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Command,
    Drift,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.testing.rig import BareRig, command_of, finished, until


class Rig(BareRig, Protocol):
    """A driver, and the cloud behind it: to look at, and to meddle with."""

    resource_type: str

    def resources(self) -> list[ResourceRef]:
        """The cloud's resources, ordered by external id."""

    def boot(self, resource: ResourceRef, project_id: str, reservation_id: str | None = None) -> str | None:
        """Boot a server there as a user does; its id, or None when the cloud refuses it."""

    def force(self, resource: ResourceRef, project_id: str) -> str:
        """Boot a server there as an administrator, whatever project the resource is reserved for; its id."""

    def servers(self) -> set[str]:
        """The ids of all servers that are there, or still vanishing."""

    def images(self) -> list[str]:
        """The names of all images."""

    def hold(self) -> None:
        """From now on servers do not vanish, and images do not get ready."""

    def let_go(self) -> None:
        """From now on they vanish and get ready again."""

    def delete(self, server: str) -> None:
        """The server's own user deletes it, and it is gone."""

    def mark_down(self, resource: ResourceRef) -> None: ...

    def remove(self, resource: ResourceRef) -> None:
        """The resource is gone for good."""

    def add_namesake(self, resource: ResourceRef) -> None:
        """Add another resource of the same name."""

    def take_out(self, resource: ResourceRef) -> None:
        """Another user takes the resource out of the aggregate where Tenure put it."""

    def drop_group(self, command: Command) -> None:
        """Another user deletes the aggregate of the reservation; its servers stay."""

    def put_in(self, resource: ResourceRef, command: Command) -> None:
        """Another user puts the resource, wherever it is, into the aggregate of the reservation."""

    def change_owner(self, command: Command, project_id: str) -> None:
        """Another user gives the aggregate of the reservation to another project."""


def command_for(
    rig: Rig,
    *resources: ResourceRef,
    reservation_id: str = "r-1",
    project_id: str | None = None,
    returning: tuple[ResourceRef, ...] = (),
) -> Command:
    command = command_of(
        *resources,
        reservation_id=reservation_id,
        project_id=project_id or rig.owner,
        resource_type=rig.resource_type,
    )
    return replace(command, returning=returning)


def trusting(rig: Rig, command: Command) -> Command:
    """The same command of an owner who trusts us."""
    return replace(command, trust_id=rig.driver.delegate(rig.caller(command.project_id)))


def drift_of(rig: Rig, commands: Sequence[Command], pooled: Sequence[ResourceRef]) -> Sequence[Drift]:
    return rig.driver.drift(rig.resource_type, commands, pooled)


class DriverContract:
    """What every driver does."""

    #: Whether ``held`` names a reservation whose servers run and whose group was deleted.
    sees_servers_without_group = True
    #: Whether hosts change hands while servers of others are on them. Newer Novas do not let a host with servers change
    #: its zone.
    moves_occupied_hosts = True
    #: Whether a server tells for which reservation it was booted, wherever it is.
    tells_servers_apart = True

    @pytest.fixture
    def hosts(self, rig: Rig) -> list[ResourceRef]:
        """Three resources that are set aside for reservations."""
        chosen = rig.resources()[:3]
        for resource in chosen:
            rig.driver.ensure_registered(rig.resource_type, resource)
        return chosen

    # Reading

    def test_discovers_everything_in_order(self, rig: Rig):
        found = rig.driver.discover(rig.resource_type)
        ids = [resource.external_id for resource in found]
        assert len(ids) >= 4
        assert ids == sorted(ids)
        assert len(set(ids)) == len(ids)
        for resource in found:
            assert resource.resource_type == rig.resource_type
            assert resource.capacity
            assert json.loads(json.dumps(dict(resource.facts))) == dict(resource.facts)

    def test_discovers_also_registered_and_reserved_resources(self, rig: Rig, hosts: list[ResourceRef]):
        before = rig.driver.discover(rig.resource_type)
        rig.driver.ensure_started(command_for(rig, hosts[0]))
        assert rig.driver.discover(rig.resource_type) == before

    def test_looks_up_by_id_and_by_name(self, rig: Rig):
        for resource in rig.driver.discover(rig.resource_type):
            assert rig.driver.look_up(rig.resource_type, resource.external_id) == resource
            assert rig.driver.look_up(rig.resource_type, resource.name) == resource

    @pytest.mark.parametrize("reference", ["", "no-such-thing", "999999", "0", "-1", "²", "1 ", "x" * 300])
    def test_does_not_find_an_unknown_reference(self, rig: Rig, reference: str):
        with pytest.raises(CloudNotFound):
            rig.driver.look_up(rig.resource_type, reference)

    def test_refuses_a_name_that_fits_several(self, rig: Rig):
        resource = rig.resources()[0]
        rig.add_namesake(resource)
        with pytest.raises(CloudAmbiguous):
            rig.driver.look_up(rig.resource_type, resource.name)
        assert rig.driver.look_up(rig.resource_type, resource.external_id).external_id == resource.external_id

    def test_checks_the_health_of_all_resources(self, rig: Rig):
        first, *others = rig.resources()
        rig.mark_down(first)
        health = rig.driver.check(rig.resource_type)
        assert set(health) == {resource.external_id for resource in (first, *others)}
        assert not health[first.external_id].well
        assert health[first.external_id].reason
        assert all(health[other.external_id].well for other in others)

    def test_reading_changes_nothing(self, rig: Rig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, hosts[0]))
        before = rig.effects()
        rig.driver.discover(rig.resource_type)
        rig.driver.look_up(rig.resource_type, hosts[0].external_id)
        rig.driver.check(rig.resource_type)
        list(rig.driver.held(rig.resource_type))
        assert rig.effects() == before
        rig.take_out(hosts[0])
        before = rig.effects()
        assert drift_of(rig, [command_for(rig, hosts[0])], hosts[1:])
        assert rig.effects() == before

    # Registering

    def test_a_registered_resource_is_closed_to_everybody(self, rig: Rig):
        resource = rig.resources()[0]
        assert rig.boot(rig.resources()[1], rig.neighbour)
        rig.driver.ensure_registered(rig.resource_type, resource)
        assert rig.boot(resource, rig.neighbour) is None
        assert rig.boot(resource, rig.owner, "r-1") is None

    def test_registering_again_changes_nothing(self, rig: Rig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, hosts[0]))
        before = rig.effects()
        for resource in hosts:
            rig.driver.ensure_registered(rig.resource_type, resource)
        assert rig.effects() == before

    def test_a_resource_with_servers_is_not_registered(self, rig: Rig):
        resource = rig.resources()[0]
        server = rig.boot(resource, rig.neighbour)
        before = rig.effects()
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_registered(rig.resource_type, resource)
        assert set(caught.value.resources) == {resource.external_id}
        assert rig.effects() == before
        assert server in rig.servers()
        assert rig.boot(resource, rig.neighbour)

    def test_an_unregistered_resource_is_open_again(self, rig: Rig, hosts: list[ResourceRef]):
        for _ in range(2):
            rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        assert rig.boot(hosts[0], rig.neighbour)
        before = rig.effects()
        rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        assert rig.effects() == before

    def test_a_reserved_resource_is_not_unregistered(self, rig: Rig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, hosts[0]))
        with pytest.raises(CloudBusy):
            rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        assert rig.boot(hosts[0], rig.neighbour) is None

    def test_a_resource_with_servers_is_not_unregistered(self, rig: Rig, hosts: list[ResourceRef]):
        server = rig.force(hosts[0], rig.neighbour)
        before = rig.effects()
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        assert set(caught.value.resources) == {hosts[0].external_id}
        assert rig.effects() == before
        assert rig.boot(hosts[0], rig.neighbour) is None
        rig.delete(server)
        rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        assert rig.boot(hosts[0], rig.neighbour)

    def test_a_resource_that_is_gone_counts_as_given_back(self, rig: Rig, hosts: list[ResourceRef]):
        rig.remove(hosts[0])
        rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        with pytest.raises(CloudNotFound):
            rig.driver.ensure_registered(rig.resource_type, hosts[0])

    # Starting

    def test_preparing_can_be_repeated_and_undone(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, hosts[0])
        rig.driver.ensure_prepared(command)
        before = rig.effects()
        rig.driver.ensure_prepared(command)
        assert rig.effects() == before
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert list(rig.driver.held(rig.resource_type)) == []

    def test_a_start_opens_exactly_its_resources_to_the_owner_alone(self, rig: Rig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, *hosts[:2]))
        for resource in hosts[:2]:
            assert rig.boot(resource, rig.owner, "r-1")
            assert rig.boot(resource, rig.owner) is None
            assert rig.boot(resource, rig.neighbour) is None
            assert rig.boot(resource, rig.neighbour, "r-1") is None
            assert rig.boot(resource, rig.owner, "r-2") is None
        assert rig.boot(hosts[2], rig.owner, "r-1") is None

    def test_starting_again_changes_nothing(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, *hosts)
        rig.driver.ensure_started(command)
        server = rig.boot(hosts[0], rig.owner, "r-1")
        before = rig.effects()
        rig.driver.ensure_started(command)
        rig.reopen()
        rig.driver.ensure_started(command)
        assert rig.effects() == before
        assert server in rig.servers()

    def test_a_start_without_resources_holds_nothing_usable(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig)
        rig.driver.ensure_started(command)
        assert rig.boot(hosts[0], rig.owner, "r-1") is None
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done

    def test_a_host_removed_from_the_command_returns_to_the_pool(self, rig: Rig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, *hosts[:2]))
        kept, dropped = rig.boot(hosts[1], rig.owner, "r-1"), rig.boot(hosts[0], rig.owner, "r-1")
        smaller = command_for(rig, *hosts[1:], returning=(hosts[0],))
        assert finished(rig, lambda: rig.driver.ensure_started(smaller)).done
        assert rig.boot(hosts[0], rig.owner, "r-1") is None
        assert rig.boot(hosts[0], rig.neighbour) is None
        assert rig.boot(hosts[2], rig.owner, "r-1")
        assert kept in rig.servers()
        assert dropped not in rig.servers()
        rig.driver.ensure_started(command_for(rig, hosts[0], reservation_id="r-2", project_id=rig.neighbour))
        assert rig.boot(hosts[0], rig.neighbour, "r-2")

    def test_a_host_is_not_given_up_while_its_servers_vanish(self, rig: Rig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, *hosts[:2]))
        assert rig.boot(hosts[0], rig.owner, "r-1")
        rig.hold()
        smaller = command_for(rig, *hosts[1:], returning=(hosts[0],))
        assert not rig.driver.ensure_started(smaller).done
        # The owner need not wait for the new one because the old one is slow.
        assert rig.boot(hosts[2], rig.owner, "r-1")
        with pytest.raises(CloudBusy):
            rig.driver.ensure_started(command_for(rig, hosts[0], reservation_id="r-2", project_id=rig.neighbour))
        rig.let_go()
        assert finished(rig, lambda: rig.driver.ensure_started(smaller)).done
        assert rig.boot(hosts[0], rig.owner, "r-1") is None

    def test_a_host_without_servers_is_given_up_while_servers_vanish_on_another(
        self, rig: Rig, hosts: list[ResourceRef]
    ):
        rig.driver.ensure_started(command_for(rig, *hosts[:2]))
        assert rig.boot(hosts[0], rig.owner, "r-1")
        rig.hold()
        assert not rig.driver.ensure_started(command_for(rig, hosts[2], returning=tuple(hosts[:2]))).done
        free = command_for(rig, hosts[1], reservation_id="r-2", project_id=rig.neighbour)
        assert rig.driver.ensure_started(free).done
        assert rig.boot(hosts[1], rig.neighbour, "r-2")

    def test_foreign_servers_stop_a_start_and_survive(self, rig: Rig, hosts: list[ResourceRef]):
        foreign = {rig.force(hosts[1], rig.neighbour), rig.force(hosts[1], rig.owner)}
        before = rig.effects()
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_started(command_for(rig, *hosts))
        assert set(caught.value.resources) == {hosts[1].external_id}
        assert hosts[1].name in str(caught.value)
        assert rig.effects() == before
        assert foreign <= rig.servers()
        assert all(rig.boot(resource, rig.owner, "r-1") is None for resource in hosts)

    def test_foreign_servers_on_its_hosts_do_not_disturb_a_running_reservation(
        self, rig: Rig, hosts: list[ResourceRef]
    ):
        command = command_for(rig, *hosts[:2])
        rig.driver.ensure_started(command)
        foreign = rig.force(hosts[0], rig.neighbour)
        rig.driver.ensure_started(command)
        own = rig.boot(hosts[0], rig.owner, "r-1")
        assert own
        if self.moves_occupied_hosts:
            assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
            assert rig.servers() == {foreign}
            return
        progress = until(
            rig, lambda: rig.driver.ensure_ended(command), lambda progress: foreign in str(progress.reason)
        )
        assert not progress.done
        assert foreign in str(progress.reason)
        assert rig.servers() == {foreign}
        assert rig.boot(hosts[0], rig.owner, "r-1") is None
        assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        rig.delete(foreign)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert list(rig.driver.held(rig.resource_type)) == []

    def test_a_start_waits_for_the_end_of_the_previous_reservation(self, rig: Rig, hosts: list[ResourceRef]):
        first = command_for(rig, *hosts[:2])
        second = command_for(rig, *hosts[1:], reservation_id="r-2", project_id=rig.neighbour)
        rig.driver.ensure_started(first)
        server = rig.boot(hosts[1], rig.owner, "r-1")
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_started(second)
        assert not isinstance(caught.value, ResourceOccupied)
        assert server in rig.servers()
        assert rig.boot(hosts[1], rig.owner, "r-1")
        assert rig.boot(hosts[2], rig.neighbour, "r-2") is None
        assert finished(rig, lambda: rig.driver.ensure_ended(first)).done
        rig.driver.ensure_started(second)
        assert rig.boot(hosts[1], rig.neighbour, "r-2")
        assert rig.boot(hosts[0], rig.owner, "r-1") is None

    def test_two_reservations_can_trade(self, rig: Rig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, hosts[0]))
        rig.driver.ensure_started(command_for(rig, hosts[1], reservation_id="r-2"))
        traded = (
            command_for(rig, hosts[1]),
            command_for(rig, hosts[0], reservation_id="r-2"),
        )
        with pytest.raises(CloudBusy):
            rig.driver.ensure_started(traded[0])
        rig.driver.ensure_started(traded[1])
        rig.driver.ensure_started(traded[0])
        assert rig.boot(hosts[1], rig.owner, "r-1")
        assert rig.boot(hosts[0], rig.owner, "r-2")

    def test_a_start_hands_over_all_hosts_except_missing_ones(self, rig: Rig, hosts: list[ResourceRef]):
        rig.remove(hosts[0])
        with pytest.raises(ResourceMissing) as caught:
            rig.driver.ensure_started(command_for(rig, *hosts))
        assert set(caught.value.resources) == {hosts[0].external_id}
        assert all(rig.boot(resource, rig.owner, "r-1") for resource in hosts[1:])
        assert finished(rig, lambda: rig.driver.ensure_ended(command_for(rig, *hosts))).done

    def test_a_host_listed_by_another_id_is_not_given_up(self, rig: Rig, hosts: list[ResourceRef]):
        """A cloud may list a host by another id for a while, or not at all: its servers stay."""
        rig.driver.ensure_started(command_for(rig, *hosts[:2]))
        server = rig.boot(hosts[0], rig.owner, "r-1")
        unlisted = replace(hosts[0], external_id="4711")
        command = command_for(rig, unlisted, hosts[1])
        assert drift_of(rig, [command], hosts[2:]) == []
        with pytest.raises(ResourceMissing):
            rig.driver.ensure_started(command)
        assert server in rig.servers()
        assert rig.boot(hosts[0], rig.owner, "r-1")

        # A host that the ledger gives up is given up all the same.
        def give_up() -> Progress:
            with pytest.raises(ResourceMissing):
                rig.driver.ensure_started(replace(command, returning=(hosts[0],)))
            return Progress(server not in rig.servers())

        assert finished(rig, give_up).done

    def test_a_start_repairs_changes_by_others(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, *hosts)
        rig.driver.ensure_started(command)
        server = rig.boot(hosts[2], rig.owner, "r-1")
        rig.take_out(hosts[0])
        rig.driver.ensure_started(command)
        assert rig.boot(hosts[0], rig.owner, "r-1")
        rig.drop_group(command)
        if not (self.moves_occupied_hosts and self.tells_servers_apart):
            with pytest.raises(CloudBusy):
                rig.driver.ensure_started(command)
            assert server in rig.servers()
            return
        rig.driver.ensure_started(command)
        assert all(rig.boot(resource, rig.owner, "r-1") for resource in hosts)
        assert all(rig.boot(resource, rig.neighbour) is None for resource in hosts)
        assert server in rig.servers()

    def test_refuses_a_type_that_it_does_not_have(self, rig: Rig, hosts: list[ResourceRef]):
        with pytest.raises(CloudRefused):
            rig.driver.ensure_started(replace(command_for(rig, hosts[0]), resource_type="no:such"))
        assert rig.driver.discover("no:such") == []
        assert list(rig.driver.held("no:such")) == []
        assert list(rig.driver.drift("no:such", [command_for(rig, hosts[0])], hosts)) == []
        assert dict(rig.driver.check("no:such")) == {}

    # Before the end

    def test_a_snapshot_makes_one_image_of_each_server(self, rig: Rig, hosts: list[ResourceRef]):
        command = trusting(rig, command_for(rig, *hosts[:2]))
        rig.driver.ensure_started(command)
        for resource in hosts[:2]:
            assert rig.boot(resource, rig.owner, "r-1")
        foreign = rig.force(hosts[0], rig.neighbour)
        assert finished(rig, lambda: rig.driver.before_end(command, "snapshot")).done
        assert len(rig.images()) == 2
        rig.reopen()
        assert finished(rig, lambda: rig.driver.before_end(command, "snapshot")).done
        assert len(rig.images()) == 2
        assert len(rig.servers()) == 3
        rig.delete(foreign)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert len(rig.images()) == 2

    def test_a_snapshot_is_waited_for(self, rig: Rig, hosts: list[ResourceRef]):
        command = trusting(rig, command_for(rig, hosts[0]))
        rig.driver.ensure_started(command)
        rig.boot(hosts[0], rig.owner, "r-1")
        rig.hold()
        progress = rig.driver.before_end(command, "snapshot")
        assert not progress.done
        assert progress.look_again_after > timedelta(0)
        rig.let_go()
        assert finished(rig, lambda: rig.driver.before_end(command, "snapshot")).done
        assert len(rig.images()) == 1

    def test_a_snapshot_of_nothing_is_done(self, rig: Rig, hosts: list[ResourceRef]):
        assert finished(rig, lambda: rig.driver.before_end(command_for(rig, hosts[0]), "snapshot")).done
        assert rig.images() == []

    def test_an_unknown_action_is_refused(self, rig: Rig, hosts: list[ResourceRef]):
        with pytest.raises(CloudRefused):
            rig.driver.before_end(command_for(rig, hosts[0]), "explode")

    # Trusts

    def test_a_broken_trust_is_refused(self, rig: Rig, hosts: list[ResourceRef]):
        command = trusting(rig, command_for(rig, hosts[0]))
        assert command.trust_id is not None
        rig.driver.ensure_started(command)
        server = rig.boot(hosts[0], rig.owner, "r-1")
        rig.driver.revoke(command.trust_id)
        with pytest.raises(CloudRefused, match="trust"):
            rig.driver.before_end(command, "snapshot")
        assert rig.images() == []
        assert server in rig.servers()
        # Without a trust, only actions as the owner are lost.
        rig.driver.ensure_started(command)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == set()

    def test_revoking_a_trust_again_changes_nothing(self, rig: Rig):
        caller = rig.caller(rig.owner)
        first, second = rig.driver.delegate(caller), rig.driver.delegate(caller)
        assert first != second
        before = rig.effects()
        rig.driver.revoke(first)
        assert rig.effects() == before + 1
        rig.reopen()
        rig.driver.revoke(first)
        rig.driver.revoke("0123456789abcdef0123456789abcdef")
        assert rig.effects() == before + 1
        rig.driver.revoke(second)
        assert rig.effects() == before + 2

    # Ending

    def test_an_end_deletes_the_servers_and_closes_the_resources(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, *hosts)
        rig.driver.ensure_started(command)
        for resource in hosts:
            assert rig.boot(resource, rig.owner, "r-1")
        elsewhere = rig.boot(rig.resources()[3], rig.owner)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == {elsewhere}
        for resource in hosts:
            assert rig.boot(resource, rig.owner, "r-1") is None
            assert rig.boot(resource, rig.neighbour) is None

    def test_ending_again_changes_nothing(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, *hosts)
        rig.driver.ensure_started(command)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        before = rig.effects()
        rig.reopen()
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.effects() == before

    def test_ending_an_unstarted_reservation_changes_nothing(self, rig: Rig, hosts: list[ResourceRef]):
        before = rig.effects()
        assert finished(rig, lambda: rig.driver.ensure_ended(command_for(rig, *hosts))).done
        assert rig.effects() == before

    def test_ending_an_old_command_spares_the_next_reservation(self, rig: Rig, hosts: list[ResourceRef]):
        first = command_for(rig, *hosts)
        second = command_for(rig, hosts[0], reservation_id="r-2", project_id=rig.neighbour)
        rig.driver.ensure_started(first)
        assert finished(rig, lambda: rig.driver.ensure_ended(first)).done
        rig.driver.ensure_started(second)
        server = rig.boot(hosts[0], rig.neighbour, "r-2")
        assert finished(rig, lambda: rig.driver.ensure_ended(first)).done
        assert server in rig.servers()
        assert rig.boot(hosts[0], rig.neighbour, "r-2")

    def test_an_end_is_not_done_while_servers_vanish(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, *hosts[:2])
        rig.driver.ensure_started(command)
        rig.boot(hosts[0], rig.owner, "r-1")
        rig.hold()
        for _ in range(2):
            progress = rig.driver.ensure_ended(command)
            assert not progress.done
            assert progress.reason
            assert progress.look_again_after > timedelta(0)
        before = rig.effects()
        rig.driver.ensure_ended(command)
        assert rig.effects() == before  # a deletion is requested once
        assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        with pytest.raises(CloudBusy):
            rig.driver.ensure_started(command_for(rig, hosts[0], reservation_id="r-2", project_id=rig.neighbour))
        rig.let_go()
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == set()
        assert list(rig.driver.held(rig.resource_type)) == []

    def test_an_end_gives_up_hosts_without_servers_while_servers_vanish_on_another(
        self, rig: Rig, hosts: list[ResourceRef]
    ):
        ending = command_for(rig, *hosts[:2])
        rig.driver.ensure_started(ending)
        assert rig.boot(hosts[0], rig.owner, "r-1")
        rig.hold()
        assert not rig.driver.ensure_ended(ending).done
        assert rig.driver.ensure_started(
            command_for(rig, hosts[1], reservation_id="r-2", project_id=rig.neighbour)
        ).done
        rig.let_go()
        assert finished(rig, lambda: rig.driver.ensure_ended(ending)).done
        assert list(rig.driver.held(rig.resource_type)) == ["r-2"]

    def test_an_end_succeeds_after_hosts_and_group_are_removed(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, *hosts)
        rig.driver.ensure_started(command)
        for resource in hosts:
            assert rig.boot(resource, rig.owner, "r-1")
        if self.tells_servers_apart:
            rig.take_out(hosts[0])
        rig.remove(hosts[1])
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == set()
        if not self.tells_servers_apart:
            return
        rig.driver.ensure_started(command_for(rig, hosts[2]))
        again = rig.boot(hosts[2], rig.owner, "r-1")
        rig.drop_group(command)
        assert again in rig.servers()
        if self.sees_servers_without_group:
            assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == set()

    # Held reservations

    def test_knows_which_reservations_have_effects(self, rig: Rig, hosts: list[ResourceRef]):
        first = command_for(rig, hosts[0])
        second = command_for(rig, hosts[1], reservation_id="r-2")
        assert set(rig.driver.held(rig.resource_type)) == set()
        rig.driver.ensure_started(first)
        rig.driver.ensure_started(second)
        assert set(rig.driver.held(rig.resource_type)) == {"r-1", "r-2"}
        rig.reopen()
        assert set(rig.driver.held(rig.resource_type)) == {"r-1", "r-2"}
        assert finished(rig, lambda: rig.driver.ensure_ended(first)).done
        assert set(rig.driver.held(rig.resource_type)) == {"r-2"}

    # Drift

    def test_sees_no_drift_in_a_correct_state(self, rig: Rig, hosts: list[ResourceRef]):
        assert drift_of(rig, [], hosts) == []
        first, second = (
            command_for(rig, hosts[0]),
            command_for(rig, hosts[1], reservation_id="r-2", project_id=rig.neighbour),
        )
        for command in (first, second):
            rig.driver.ensure_started(command)
        rig.boot(hosts[0], rig.owner, "r-1")
        assert drift_of(rig, [first, second], hosts[2:]) == []

    def test_sees_a_removed_host_and_a_start_mends_it(self, rig: Rig, hosts: list[ResourceRef]):
        command, other = command_for(rig, *hosts[:2]), command_for(rig, hosts[2], reservation_id="r-2")
        for reservation in (command, other):
            rig.driver.ensure_started(reservation)
        rig.take_out(hosts[0])
        (drift,) = drift_of(rig, [command, other], [])
        assert (drift.reservation_id, drift.resource) == ("r-1", hosts[0])
        assert hosts[0].name in drift.text
        rig.driver.ensure_started(command)
        assert drift_of(rig, [command, other], []) == []

    def test_sees_a_group_that_is_gone_and_a_start_mends_it(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, *hosts[:2])
        rig.driver.ensure_started(command)
        rig.drop_group(command)
        drifts = drift_of(rig, [command], hosts[2:])
        assert {drift.reservation_id for drift in drifts} == {"r-1"}
        assert any(drift.resource is None for drift in drifts)
        rig.driver.ensure_started(command)
        assert drift_of(rig, [command], hosts[2:]) == []
        assert rig.boot(hosts[0], rig.owner, "r-1")

    def test_sees_a_group_of_another_project_and_a_start_mends_it(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, hosts[0])
        rig.driver.ensure_started(command)
        rig.change_owner(command, rig.neighbour)
        (drift,) = drift_of(rig, [command], hosts[1:])
        assert (drift.reservation_id, drift.resource) == ("r-1", None)
        rig.driver.ensure_started(command)
        assert drift_of(rig, [command], hosts[1:]) == []
        assert rig.boot(hosts[0], rig.neighbour, "r-1") is None
        assert rig.boot(hosts[0], rig.owner, "r-1")

    def test_sees_a_foreign_resource_in_a_group_and_a_start_mends_it(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, hosts[0])
        rig.driver.ensure_started(command)
        rig.put_in(hosts[1], command)
        drifts = drift_of(rig, [command], hosts[2:])
        assert {(drift.reservation_id, drift.resource) for drift in drifts} == {("r-1", hosts[1])}
        rig.driver.ensure_started(command)
        assert drift_of(rig, [command], hosts[1:]) == []
        assert rig.boot(hosts[1], rig.owner, "r-1") is None

    def test_sees_a_resource_in_the_wrong_group(self, rig: Rig, hosts: list[ResourceRef]):
        first, second = command_for(rig, hosts[0]), command_for(rig, hosts[1], reservation_id="r-2")
        for command in (first, second):
            rig.driver.ensure_started(command)
        rig.take_out(hosts[1])
        rig.put_in(hosts[1], first)
        drifts = drift_of(rig, [first, second], hosts[2:])
        assert {(drift.reservation_id, drift.resource) for drift in drifts} == {("r-1", hosts[1]), ("r-2", hosts[1])}
        rig.driver.ensure_started(first)
        rig.driver.ensure_started(second)
        assert drift_of(rig, [first, second], hosts[2:]) == []

    def test_sees_a_free_resource_outside_the_pool_and_registering_mends_it(self, rig: Rig, hosts: list[ResourceRef]):
        command = command_for(rig, hosts[0])
        rig.driver.ensure_started(command)
        rig.take_out(hosts[1])
        (drift,) = drift_of(rig, [command], hosts[1:])
        assert (drift.reservation_id, drift.resource) == (None, hosts[1])
        rig.driver.ensure_registered(rig.resource_type, hosts[1])
        assert drift_of(rig, [command], hosts[1:]) == []
        assert rig.boot(hosts[1], rig.neighbour) is None

    def test_missing_hosts_and_leftovers_are_no_drift(self, rig: Rig, hosts: list[ResourceRef]):
        left_over = command_for(rig, hosts[0])
        command = command_for(rig, hosts[1], reservation_id="r-2")
        for reservation in (left_over, command):
            rig.driver.ensure_started(reservation)
        rig.remove(hosts[1])
        assert drift_of(rig, [command], [hosts[0], hosts[2]]) == []

    # Failures in the middle

    @pytest.mark.parametrize("effects", range(5))
    @pytest.mark.parametrize("reopened", [False, True], ids=["same driver", "new driver"])
    def test_a_start_that_broke_off_is_completed(
        self, rig: Rig, hosts: list[ResourceRef], effects: int, reopened: bool
    ):
        command = command_for(rig, *hosts)
        before = rig.effects()
        rig.fail("ensure_started", after_effects=effects)
        try:
            rig.driver.ensure_started(command)
        except CloudBusy:
            if reopened:
                rig.reopen()
            rig.driver.ensure_started(command)
        assert all(rig.boot(resource, rig.owner, "r-1") for resource in hosts)
        assert rig.effects() - before == self.effects_of_a_start(len(hosts))

    @pytest.mark.parametrize("effects", range(5))
    def test_a_start_that_broke_off_is_undone(self, rig: Rig, hosts: list[ResourceRef], effects: int):
        command = command_for(rig, *hosts)
        rig.fail("ensure_started", after_effects=effects)
        try:
            rig.driver.ensure_started(command)
        except CloudBusy:
            rig.reopen()
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert list(rig.driver.held(rig.resource_type)) == []
        assert all(rig.boot(resource, rig.owner, "r-1") is None for resource in hosts)
        assert all(rig.boot(resource, rig.neighbour) is None for resource in hosts)

    @pytest.mark.parametrize("effects", range(8))
    def test_an_end_that_broke_off_is_completed(self, rig: Rig, hosts: list[ResourceRef], effects: int):
        command = command_for(rig, *hosts)
        rig.driver.ensure_started(command)
        for resource in hosts:
            assert rig.boot(resource, rig.owner, "r-1")
        rig.fail("ensure_ended", after_effects=effects)
        try:
            progress = finished(rig, lambda: rig.driver.ensure_ended(command))
        except CloudBusy:
            rig.reopen()
            progress = finished(rig, lambda: rig.driver.ensure_ended(command))
        assert progress.done
        assert rig.servers() == set()
        assert list(rig.driver.held(rig.resource_type)) == []
        rig.driver.ensure_started(command_for(rig, *hosts, reservation_id="r-2", project_id=rig.neighbour))

    @pytest.mark.parametrize("verb", ["ensure_started", "before_end", "ensure_ended"])
    def test_a_lost_reply_is_no_second_effect(self, rig: Rig, hosts: list[ResourceRef], verb: str):
        command = trusting(rig, command_for(rig, *hosts[:2]))
        if verb != "ensure_started":
            rig.driver.ensure_started(command)
            rig.boot(hosts[0], rig.owner, "r-1")

        def call() -> None:
            match verb:
                case "ensure_started":
                    rig.driver.ensure_started(command)
                case "before_end":
                    assert finished(rig, lambda: rig.driver.before_end(command, "snapshot")).done
                case _:
                    assert finished(rig, lambda: rig.driver.ensure_ended(command)).done

        rig.lose_reply(verb)
        with pytest.raises(CloudBusy):
            call()
        before = rig.effects()
        call()
        assert rig.effects() == before

    def effects_of_a_start(self, resources: int) -> int:
        """How many things a start of so many resources changes: one for the reservation, one for each."""
        return 1 + resources
