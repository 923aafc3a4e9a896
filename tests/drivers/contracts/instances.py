"""The contract of ``tenure.drivers.contract`` for instances, as tests that every driver passes.

A driver's own test module has a class that inherits ``InstanceContract``, and a fixture ``rig`` that fits
``InstanceRig``: a fresh cloud with at least four hosts that are empty and in general use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

import pytest

from tenure.drivers.contract import (
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Command,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.testing.rig import command_of, finished
from tests.drivers.contracts.hosts import Rig, drift_of, trusting

INSTANCE = "virtual:instance"
FLAVOR = "flavor:instance"
SIZES = {"vcpus": 1, "memory_mb": 256, "disk_gb": 1}
#: More than any test lets a host have.
MANY = 6
#: How many things a start, and an end, of these tests changes at most: it is broken off after each.
LONGEST_START = 13
LONGEST_END = 17


class InstanceRig(Rig, Protocol):
    """A driver, and the cloud behind it. Its ``resource_type`` is that of hosts; a reservation is named by its id."""

    #: A public flavor with extra specs, and a private flavor of ``neighbour``. Servers of the public flavor fit on
    #: every host.
    flavor_id: str
    private_flavor_id: str

    def boot_reserved(
        self, resource: ResourceRef, project_id: str, reservation_id: str = "r-1", *, group_id: str | None = None
    ) -> str | None:
        """Boot a server there with the reservation's flavor, as a user does; its id, or None when that cannot be."""

    # To look

    def flavor(self, reservation_id: str) -> Mapping[str, Any] | None:
        """The reservation's flavor as ``fetch`` tells it, with its ``access`` (a set of projects); None for none."""

    def aggregate(self, reservation_id: str) -> Mapping[str, Any] | None:
        """Its aggregate: ``id``, ``zone`` (None for none), ``metadata``, ``hosts`` (external ids); None for none."""

    def units(self, reservation_id: str) -> Mapping[str, int]:
        """How much each host has of its resource class, by external id."""

    def groups(self) -> Mapping[str, tuple[str, str, str]]:
        """All server groups by id: name, project and policy."""

    def traces(self, reservation_id: str) -> set[str]:
        """Its remaining objects: flavor, aggregate, resource class, inventory, server group."""

    # Changes by others

    def delete_flavor(self, reservation_id: str) -> None: ...

    def change_flavor(self, reservation_id: str, name: str, value: str | None) -> None:
        """Set an extra spec, or remove it."""

    def give_access(self, reservation_id: str, project_id: str) -> None: ...

    def take_access(self, reservation_id: str, project_id: str) -> None: ...

    def delete_aggregate(self, reservation_id: str) -> None: ...

    def change_aggregate(self, reservation_id: str, name: str, value: str | None) -> None:
        """Set a key of the metadata, or remove it."""

    def add_to_aggregate(self, reservation_id: str, resource: ResourceRef) -> None: ...

    def take_from_aggregate(self, reservation_id: str, resource: ResourceRef) -> None: ...

    def set_units(self, reservation_id: str, resource: ResourceRef, units: int | None) -> None:
        """Let the host have so much of its resource class, or nothing."""

    def delete_group(self, group_id: str) -> None: ...


def instances(
    rig: InstanceRig,
    *resources: ResourceRef,
    units: int | tuple[int, ...] = 1,
    reservation_id: str = "r-1",
    project_id: str | None = None,
    affinity: bool | None = None,
    returning: tuple[ResourceRef, ...] = (),
) -> Command:
    """A command of so many instances on each of these hosts."""
    counts = units if isinstance(units, tuple) else (units,) * len(resources)
    command = command_of(
        *resources,
        reservation_id=reservation_id,
        project_id=rig.owner if project_id is None else project_id,
        resource_type=INSTANCE,
    )
    return replace(
        command,
        parameters={**SIZES, "amount": sum(counts), "affinity": affinity, "resource_properties": ""},
        units={resource.external_id: count for resource, count in zip(resources, counts, strict=True)},
        returning=returning,
    )


def of_flavor(rig: InstanceRig, command: Command) -> Command:
    """The same command, of instances of a flavor of the cloud."""
    fact = rig.driver.fetch("flavor", rig.flavor_id, rig.caller(command.project_id))
    parameters = {
        "flavor_id": rig.flavor_id,
        "amount": command.parameters["amount"],
        "affinity": command.parameters["affinity"],
        "resource_properties": json.dumps(dict(fact), sort_keys=True),
    }
    return replace(command, resource_type=FLAVOR, parameters=parameters)


def boots(rig: InstanceRig, resource: ResourceRef, reservation_id: str = "r-1", project_id: str | None = None) -> int:
    """How many servers can be booted there for the reservation, until there is no room."""
    project_id = rig.owner if project_id is None else project_id
    count = 0
    while count < MANY and rig.boot_reserved(resource, project_id, reservation_id) is not None:
        count += 1
    return count


def class_of(reservation_id: str) -> str:
    return "CUSTOM_RESERVATION_" + reservation_id.upper().replace("-", "_")


def progress_of(call: Callable[[], Progress]) -> Progress:
    """The progress of the call; done, if a resource is missing."""
    try:
        return call()
    except ResourceMissing:
        return Progress(True)


#: What others may do to a reservation of instances on the first host, which has two units, and the second.
MEDDLING: dict[str, Callable[[InstanceRig, list[ResourceRef]], None]] = {
    "the flavor is deleted": lambda rig, _: rig.delete_flavor("r-1"),
    "an extra spec is changed": lambda rig, _: rig.change_flavor("r-1", f"resources:{class_of('r-1')}", "2"),
    "an extra spec is added": lambda rig, _: rig.change_flavor("r-1", "trait:CUSTOM_STRANGE", "forbidden"),
    "an extra spec is removed": lambda rig, _: rig.change_flavor("r-1", f"resources:{class_of('r-1')}", None),
    "others are let in": lambda rig, _: rig.give_access("r-1", rig.neighbour),
    "the owner is locked out": lambda rig, _: rig.take_access("r-1", rig.owner),
    "the aggregate is deleted": lambda rig, _: rig.delete_aggregate("r-1"),
    "the aggregate is another's": lambda rig, _: rig.change_aggregate("r-1", "filter_tenant_id", rig.neighbour),
    "the aggregate has no owner": lambda rig, _: rig.change_aggregate("r-1", "blazar:owner", None),
    "a host is taken out": lambda rig, hosts: rig.take_from_aggregate("r-1", hosts[0]),
    "a strange host is added": lambda rig, hosts: rig.add_to_aggregate("r-1", hosts[2]),
    "a host has less": lambda rig, hosts: rig.set_units("r-1", hosts[0], 1),
    "a host has more": lambda rig, hosts: rig.set_units("r-1", hosts[0], 5),
    "a host has nothing": lambda rig, hosts: rig.set_units("r-1", hosts[1], None),
    "a strange host has some": lambda rig, hosts: rig.set_units("r-1", hosts[2], 1),
}


class InstanceContract:
    """What every driver does for instances."""

    #: Whether servers of a reservation are found after its flavor was deleted.
    finds_servers_without_flavor = True

    @pytest.fixture
    def hosts(self, rig: InstanceRig) -> list[ResourceRef]:
        """Three hosts that are set aside for reservations."""
        chosen = rig.resources()[:3]
        for resource in chosen:
            rig.driver.ensure_registered(rig.resource_type, resource)
        return chosen

    # Flavors of the cloud

    def test_fetches_a_flavor_visible_to_the_caller(self, rig: InstanceRig):
        fact = rig.driver.fetch("flavor", rig.flavor_id, rig.caller(rig.owner))
        assert fact["id"] == rig.flavor_id
        assert fact["name"]
        assert all(isinstance(fact[name], int) for name in ("vcpus", "ram", "swap", "disk", "ephemeral"))
        assert fact["extra_specs"]
        assert json.loads(json.dumps(dict(fact))) == dict(fact)

    def test_does_not_fetch_a_flavor_invisible_to_the_caller(self, rig: InstanceRig):
        seen = rig.driver.fetch("flavor", rig.private_flavor_id, rig.caller(rig.neighbour))
        assert seen["id"] == rig.private_flavor_id
        for unseen in (rig.private_flavor_id, "no-such-flavor", ""):
            with pytest.raises(CloudNotFound):
                rig.driver.fetch("flavor", unseen, rig.caller(rig.owner))

    def test_fetching_an_unknown_kind_finds_nothing(self, rig: InstanceRig):
        with pytest.raises(CloudNotFound):
            rig.driver.fetch("spell", rig.flavor_id, rig.caller(rig.owner))

    # Preparing

    @pytest.mark.parametrize("resource_type", [INSTANCE, FLAVOR])
    def test_nothing_is_made_early_without_affinity(
        self, rig: InstanceRig, hosts: list[ResourceRef], resource_type: str
    ):
        command = instances(rig, *hosts)
        command = trusting(rig, of_flavor(rig, command) if resource_type == FLAVOR else command)
        before = rig.effects()
        assert rig.driver.ensure_prepared(command).done
        assert rig.effects() == before
        assert rig.traces("r-1") == set()

    @pytest.mark.parametrize(("affinity", "policy"), [(True, "affinity"), (False, "anti-affinity")])
    def test_a_server_group_is_made_early_as_the_owner(
        self, rig: InstanceRig, hosts: list[ResourceRef], affinity: bool, policy: str
    ):
        command = trusting(rig, instances(rig, hosts[0], affinity=affinity))
        progress = rig.driver.ensure_prepared(command)
        assert progress.done
        assert rig.groups() == {progress.effects["server_group_id"]: ("reservation:r-1", rig.owner, policy)}
        assert rig.traces("r-1") == {"server group"}
        assert set(rig.driver.held(rig.resource_type)) == {"r-1"}
        before = rig.effects()
        rig.reopen()
        assert rig.driver.ensure_prepared(command).effects == progress.effects
        assert rig.effects() == before
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.groups() == {}
        assert list(rig.driver.held(rig.resource_type)) == []

    def test_a_server_group_takes_the_owners_trust(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig, hosts[0], affinity=True)
        with pytest.raises(CloudRefused, match="trust"):
            rig.driver.ensure_prepared(command)
        broken = trusting(rig, command)
        assert broken.trust_id is not None
        rig.driver.revoke(broken.trust_id)
        with pytest.raises(CloudRefused, match="trust"):
            rig.driver.ensure_prepared(broken)
        assert rig.groups() == {}

    def test_a_server_group_follows_a_change_of_affinity(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, hosts[0], affinity=True))
        first = rig.driver.ensure_prepared(command).effects["server_group_id"]
        apart = replace(command, parameters={**command.parameters, "affinity": False})
        second = rig.driver.ensure_prepared(apart).effects["server_group_id"]
        assert second != first
        assert rig.groups() == {second: ("reservation:r-1", rig.owner, "anti-affinity")}
        anyhow = replace(command, parameters={**command.parameters, "affinity": None})
        assert rig.driver.ensure_prepared(anyhow).effects == {"server_group_id": None}
        assert rig.groups() == {}

    @pytest.mark.parametrize("lost", [False, True], ids=["broken off", "lost reply"])
    def test_an_interrupted_preparation_makes_no_second_group(
        self, rig: InstanceRig, hosts: list[ResourceRef], lost: bool
    ):
        command = trusting(rig, instances(rig, hosts[0], affinity=True))
        if lost:
            rig.lose_reply("ensure_prepared")
        else:
            rig.fail("ensure_prepared", after_effects=1)
        with pytest.raises(CloudBusy):
            rig.driver.ensure_prepared(command)
        rig.reopen()
        group = rig.driver.ensure_prepared(command).effects["server_group_id"]
        assert list(rig.groups()) == [group]

    # Starting

    def test_a_start_opens_exactly_its_units_to_the_owner_alone(self, rig: InstanceRig, hosts: list[ResourceRef]):
        assert rig.driver.ensure_started(instances(rig, *hosts[:2], units=(2, 1))).done
        assert rig.boot_reserved(hosts[0], rig.neighbour) is None
        assert [boots(rig, resource) for resource in hosts] == [2, 1, 0]
        assert rig.boot_reserved(hosts[0], rig.neighbour) is None

    def test_the_hosts_stay_closed_to_everybody_else(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(instances(rig, *hosts[:2]))
        for resource in hosts:
            assert rig.boot(resource, rig.neighbour) is None
            assert rig.boot(resource, rig.owner) is None
            assert rig.boot(resource, rig.owner, "r-1") is None

    def test_a_host_serves_several_reservations(self, rig: InstanceRig, hosts: list[ResourceRef]):
        first = instances(rig, hosts[0], units=2)
        second = instances(rig, *hosts[:2], reservation_id="r-2", project_id=rig.neighbour)
        rig.driver.ensure_started(first)
        rig.driver.ensure_started(second)
        assert boots(rig, hosts[0]) == 2
        assert boots(rig, hosts[0], "r-2", rig.neighbour) == 1
        assert rig.boot_reserved(hosts[1], rig.owner, "r-2") is None
        assert finished(rig, lambda: rig.driver.ensure_ended(first)).done
        assert boots(rig, hosts[1], "r-2", rig.neighbour) == 1
        assert len(rig.servers()) == 2

    def test_a_start_makes_the_flavor_and_aggregate_of_blazar(self, rig: InstanceRig, hosts: list[ResourceRef]):
        progress = rig.driver.ensure_started(instances(rig, *hosts[:2], units=(2, 1)))
        flavor, aggregate = rig.flavor("r-1"), rig.aggregate("r-1")
        assert flavor is not None
        assert aggregate is not None
        assert progress.effects == {"flavor_id": "r-1", "aggregate_id": aggregate["id"], "server_group_id": None}
        assert dict(flavor) == {
            "id": "r-1",
            "name": "reservation:r-1",
            "vcpus": 1,
            "ram": 256,
            "disk": 1,
            "ephemeral": 0,
            "swap": 0,
            "extra_specs": {
                "aggregate_instance_extra_specs:reservation": "r-1",
                "resources:CUSTOM_RESERVATION_R_1": "1",
            },
            "access": {rig.owner},
        }
        assert aggregate["zone"] is None
        assert dict(aggregate["metadata"]) == {
            "reservation": "r-1",
            "filter_tenant_id": rig.owner,
            "blazar:owner": rig.owner,
        }
        assert set(aggregate["hosts"]) == {resource.external_id for resource in hosts[:2]}
        assert dict(rig.units("r-1")) == {hosts[0].external_id: 2, hosts[1].external_id: 1}

    def test_a_flavor_of_the_cloud_is_copied(self, rig: InstanceRig, hosts: list[ResourceRef]):
        source = rig.driver.fetch("flavor", rig.flavor_id, rig.caller(rig.owner))
        rig.driver.ensure_started(of_flavor(rig, instances(rig, hosts[0])))
        flavor, specs = rig.flavor("r-1"), source["extra_specs"]
        assert flavor is not None
        assert isinstance(specs, dict)
        for name in ("vcpus", "ram", "disk", "ephemeral", "swap"):
            assert flavor[name] == source[name]
        assert flavor["extra_specs"] == {
            **specs,
            "aggregate_instance_extra_specs:reservation": "r-1",
            "resources:CUSTOM_RESERVATION_R_1": "1",
        }
        assert boots(rig, hosts[0]) == 1

    def test_starting_again_changes_nothing(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, *hosts, affinity=False))
        first = rig.driver.ensure_started(command)
        server = rig.boot_reserved(hosts[0], rig.owner)
        before = rig.effects()
        assert rig.driver.ensure_started(command) == first
        rig.reopen()
        assert rig.driver.ensure_started(command) == first
        assert rig.effects() == before
        assert server in rig.servers()

    def test_a_start_without_resources_holds_nothing_usable(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig)
        rig.driver.ensure_started(command)
        assert all(rig.boot_reserved(resource, rig.owner) is None for resource in hosts)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.traces("r-1") == set()

    def test_a_reservation_grows_on_a_host_and_by_a_host(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(instances(rig, hosts[0]))
        server = rig.boot_reserved(hosts[0], rig.owner)
        assert rig.driver.ensure_started(instances(rig, *hosts[:2], units=(3, 1))).done
        assert [boots(rig, resource) for resource in hosts] == [2, 1, 0]
        assert server in rig.servers()

    def test_a_host_removed_from_the_command_is_given_up(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(instances(rig, *hosts[:2]))
        dropped, kept = (rig.boot_reserved(resource, rig.owner) for resource in hosts[:2])
        moved = instances(rig, *hosts[1:], returning=(hosts[0],))
        assert finished(rig, lambda: rig.driver.ensure_started(moved)).done
        assert kept in rig.servers()
        assert dropped not in rig.servers()
        assert [boots(rig, resource) for resource in hosts] == [0, 0, 1]
        assert hosts[0].external_id not in rig.units("r-1")
        aggregate = rig.aggregate("r-1")
        assert aggregate is not None
        assert set(aggregate["hosts"]) == {resource.external_id for resource in hosts[1:]}

    def test_fewer_units_cost_the_newest_servers(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(instances(rig, *hosts[:2], units=(3, 1)))
        oldest = rig.boot_reserved(hosts[0], rig.owner)
        elsewhere = rig.boot_reserved(hosts[1], rig.owner)
        assert boots(rig, hosts[0]) == 2
        fewer = instances(rig, *hosts[:2])
        assert finished(rig, lambda: rig.driver.ensure_started(fewer)).done
        assert rig.servers() == {oldest, elsewhere}
        assert [boots(rig, resource) for resource in hosts] == [0, 0, 0]

    def test_fewer_units_cost_no_server_where_there_is_room(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(instances(rig, hosts[0], units=3))
        server = rig.boot_reserved(hosts[0], rig.owner)
        assert rig.driver.ensure_started(instances(rig, hosts[0], units=2)).done
        assert rig.servers() == {server}
        assert boots(rig, hosts[0]) == 1

    def test_a_host_is_not_given_up_while_its_servers_vanish(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(instances(rig, *hosts[:2], units=2))
        assert rig.boot_reserved(hosts[0], rig.owner)
        rig.hold()
        moved = instances(rig, *hosts[1:], units=2, returning=(hosts[0],))
        progress = rig.driver.ensure_started(moved)
        assert not progress.done
        assert progress.look_again_after > timedelta(0)
        # The owner need not wait for the new one because the old one is slow, and gets nothing back there.
        assert boots(rig, hosts[2]) == 2
        assert rig.boot_reserved(hosts[0], rig.owner) is None
        rig.let_go()
        assert finished(rig, lambda: rig.driver.ensure_started(moved)).done
        assert hosts[0].external_id not in rig.units("r-1")

    def test_servers_of_others_survive(self, rig: InstanceRig, hosts: list[ResourceRef]):
        foreign = {rig.force(hosts[0], rig.neighbour), rig.force(hosts[1], rig.owner)}
        command = instances(rig, *hosts[:2])
        rig.driver.ensure_started(command)
        assert rig.boot_reserved(hosts[0], rig.owner)
        moved = instances(rig, hosts[1], returning=(hosts[0],))
        assert finished(rig, lambda: rig.driver.ensure_started(moved)).done
        assert rig.servers() == foreign
        assert finished(rig, lambda: rig.driver.ensure_ended(moved)).done
        assert rig.servers() == foreign

    # Beside reservations of whole hosts

    def test_a_start_waits_for_the_end_of_a_host_reservation(self, rig: InstanceRig, hosts: list[ResourceRef]):
        whole = command_of(hosts[0], reservation_id="r-2", project_id=rig.neighbour, resource_type=rig.resource_type)
        rig.driver.ensure_started(whole)
        command = instances(rig, *hosts[:2])
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_started(command)
        assert not isinstance(caught.value, ResourceOccupied)
        assert all(rig.boot_reserved(resource, rig.owner) is None for resource in hosts)
        assert rig.boot(hosts[0], rig.neighbour, "r-2")
        assert finished(rig, lambda: rig.driver.ensure_ended(whole)).done
        rig.driver.ensure_started(command)
        assert boots(rig, hosts[0]) == 1

    def test_a_host_reservation_waits_for_the_end_of_instances(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig, hosts[0])
        rig.driver.ensure_started(command)
        server = rig.boot_reserved(hosts[0], rig.owner)
        whole = command_of(hosts[0], reservation_id="r-2", project_id=rig.neighbour, resource_type=rig.resource_type)
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_started(whole)
        assert not isinstance(caught.value, ResourceOccupied)
        assert server in rig.servers()
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        rig.driver.ensure_started(whole)
        assert rig.boot(hosts[0], rig.neighbour, "r-2")

    def test_a_host_that_has_instances_is_not_unregistered(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig, hosts[0])
        rig.driver.ensure_started(command)
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        assert not isinstance(caught.value, ResourceOccupied)
        assert boots(rig, hosts[0]) == 1
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        rig.driver.ensure_unregistered(rig.resource_type, hosts[0])
        assert rig.boot(hosts[0], rig.neighbour)

    # Missing hosts

    def test_a_start_hands_over_all_hosts_except_missing_ones(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.remove(hosts[0])
        command = instances(rig, *hosts)
        with pytest.raises(ResourceMissing) as caught:
            rig.driver.ensure_started(command)
        assert set(caught.value.resources) == {hosts[0].external_id}
        assert all(boots(rig, resource) == 1 for resource in hosts[1:])
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.traces("r-1") == set()

    def test_a_host_listed_by_another_id_is_not_given_up(self, rig: InstanceRig, hosts: list[ResourceRef]):
        rig.driver.ensure_started(instances(rig, *hosts[:2]))
        server = rig.boot_reserved(hosts[0], rig.owner)
        command = instances(rig, replace(hosts[0], external_id="4711"), hosts[1])
        assert drift_of(rig, [command], hosts[2:]) == []
        with pytest.raises(ResourceMissing):
            rig.driver.ensure_started(command)
        assert server in rig.servers()
        assert boots(rig, hosts[1]) == 1

        # A host that the ledger gives up is given up all the same.
        def give_up() -> Progress:
            progress_of(lambda: rig.driver.ensure_started(replace(command, returning=(hosts[0],))))
            return Progress(hosts[0].external_id not in rig.units("r-1"))

        assert finished(rig, give_up).done
        assert server not in rig.servers()

    # Groups

    def test_servers_are_placed_by_the_policy_of_their_group(self, rig: InstanceRig, hosts: list[ResourceRef]):
        for reservation_id, affinity in (("r-1", True), ("r-2", False)):
            command = instances(rig, *hosts[:2], units=2, reservation_id=reservation_id, affinity=affinity)
            group = rig.driver.ensure_started(trusting(rig, command)).effects["server_group_id"]
            assert isinstance(group, str)
            assert rig.boot_reserved(hosts[0], rig.owner, reservation_id, group_id=group)
            there = rig.boot_reserved(hosts[0], rig.owner, reservation_id, group_id=group)
            elsewhere = rig.boot_reserved(hosts[1], rig.owner, reservation_id, group_id=group)
            assert (there is not None, elsewhere is not None) == (affinity, not affinity)

    def test_the_group_is_named_where_clients_look_for_it(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, hosts[0], affinity=True))
        group = rig.driver.ensure_prepared(command).effects["server_group_id"]
        assert rig.driver.ensure_started(command).effects["server_group_id"] == group
        flavor, aggregate = rig.flavor("r-1"), rig.aggregate("r-1")
        assert flavor is not None
        assert aggregate is not None
        assert flavor["extra_specs"]["affinity_id"] == group
        assert aggregate["metadata"]["affinity_id"] == group

    def test_a_deleted_group_is_made_again(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, hosts[0], affinity=True))
        first = rig.driver.ensure_started(command).effects["server_group_id"]
        assert drift_of(rig, [command], hosts[1:]) == []
        assert isinstance(first, str)
        rig.delete_group(first)
        drifts = drift_of(rig, [command], hosts[1:])
        assert {(drift.reservation_id, drift.resource) for drift in drifts} == {("r-1", None)}
        second = rig.driver.ensure_started(command).effects["server_group_id"]
        assert second != first
        assert list(rig.groups()) == [second]
        assert isinstance(second, str)
        assert rig.boot_reserved(hosts[0], rig.owner, group_id=second)
        assert drift_of(rig, [command], hosts[1:]) == []

    @pytest.mark.parametrize("trust", ["none", "broken"])
    def test_a_missing_group_stops_no_start(self, rig: InstanceRig, hosts: list[ResourceRef], trust: str):
        command = instances(rig, hosts[0], affinity=True)
        if trust == "broken":
            command = trusting(rig, command)
            assert command.trust_id is not None
            rig.driver.revoke(command.trust_id)
        progress = rig.driver.ensure_started(command)
        assert progress.done
        assert progress.effects["server_group_id"] is None
        assert boots(rig, hosts[0]) == 1
        if trust == "none":
            assert drift_of(rig, [command], hosts[1:]) == []  # it could not be reconciled
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.traces("r-1") == set()

    # Before the end

    def test_a_snapshot_makes_one_image_of_each_server(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, *hosts[:2]))
        other = instances(rig, hosts[0], reservation_id="r-2")
        for reservation in (command, other):
            rig.driver.ensure_started(reservation)
        for resource in hosts[:2]:
            assert rig.boot_reserved(resource, rig.owner)
        assert rig.boot_reserved(hosts[0], rig.owner, "r-2")
        for _ in range(2):
            assert finished(rig, lambda: rig.driver.before_end(command, "snapshot")).done
            assert len(rig.images()) == 2
            rig.reopen()
        assert len(rig.servers()) == 3

    def test_a_snapshot_is_waited_for(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, hosts[0]))
        rig.driver.ensure_started(command)
        assert rig.boot_reserved(hosts[0], rig.owner)
        rig.hold()
        assert not rig.driver.before_end(command, "snapshot").done
        rig.let_go()
        assert finished(rig, lambda: rig.driver.before_end(command, "snapshot")).done
        assert len(rig.images()) == 1

    # Ending

    def test_an_end_deletes_its_servers_and_no_others(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, *hosts[:2], units=2, affinity=True))
        other = instances(rig, hosts[0], reservation_id="r-2")
        for reservation in (command, other):
            rig.driver.ensure_started(reservation)
        assert [boots(rig, resource) for resource in hosts[:2]] == [2, 2]
        others = {rig.boot_reserved(hosts[0], rig.owner, "r-2"), rig.force(hosts[1], rig.owner)}
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == others
        assert rig.traces("r-1") == set()
        assert set(rig.driver.held(rig.resource_type)) == {"r-2"}
        assert all(rig.boot_reserved(resource, rig.owner) is None for resource in hosts)
        assert all(rig.boot(resource, rig.neighbour) is None for resource in hosts)

    def test_ending_again_changes_nothing(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig, *hosts)
        rig.driver.ensure_started(command)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        before = rig.effects()
        rig.reopen()
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.effects() == before

    def test_ending_an_unstarted_reservation_changes_nothing(self, rig: InstanceRig, hosts: list[ResourceRef]):
        before = rig.effects()
        assert finished(rig, lambda: rig.driver.ensure_ended(instances(rig, *hosts))).done
        assert rig.effects() == before

    def test_an_end_needs_no_more_than_the_id(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = trusting(rig, instances(rig, *hosts[:2], affinity=False))
        rig.driver.ensure_started(command)
        assert rig.boot_reserved(hosts[0], rig.owner)
        bare = replace(command, resources=(), units={}, project_id="", trust_id=None)
        assert finished(rig, lambda: rig.driver.ensure_ended(bare)).done
        assert rig.servers() == set()
        assert rig.traces("r-1") == set()

    def test_an_end_is_not_done_while_servers_vanish(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig, *hosts[:2], units=2)
        rig.driver.ensure_started(command)
        assert rig.boot_reserved(hosts[0], rig.owner)
        rig.hold()
        for _ in range(2):
            progress = rig.driver.ensure_ended(command)
            assert not progress.done
            assert progress.reason
            assert progress.look_again_after > timedelta(0)
        before = rig.effects()
        rig.driver.ensure_ended(command)
        assert rig.effects() == before  # a deletion is requested once
        assert all(rig.boot_reserved(resource, rig.owner) is None for resource in hosts)
        assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        rig.let_go()
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == set()
        assert list(rig.driver.held(rig.resource_type)) == []

    @pytest.mark.parametrize("meddling", MEDDLING)
    def test_an_end_succeeds_after_changes_by_others(self, rig: InstanceRig, hosts: list[ResourceRef], meddling: str):
        command = instances(rig, *hosts[:2], units=(2, 1))
        rig.driver.ensure_started(command)
        server = rig.boot_reserved(hosts[0], rig.owner)
        MEDDLING[meddling](rig, hosts)
        assert "r-1" in rig.driver.held(rig.resource_type)
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.traces("r-1") == set()
        if meddling != "the flavor is deleted" or self.finds_servers_without_flavor:
            assert server not in rig.servers()

    def test_an_end_succeeds_after_a_host_is_removed(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig, *hosts[:2])
        rig.driver.ensure_started(command)
        assert boots(rig, hosts[1]) == 1
        rig.remove(hosts[0])
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == set()
        assert rig.traces("r-1") == set()

    # Held reservations

    def test_knows_which_reservations_have_effects(self, rig: InstanceRig, hosts: list[ResourceRef]):
        first, second = instances(rig, hosts[0]), instances(rig, hosts[0], reservation_id="r-2")
        whole = command_of(hosts[1], reservation_id="r-3", project_id=rig.owner, resource_type=rig.resource_type)
        for command in (first, second, whole):
            rig.driver.ensure_started(command)
        assert set(rig.driver.held(rig.resource_type)) == {"r-1", "r-2", "r-3"}
        rig.reopen()
        assert finished(rig, lambda: rig.driver.ensure_ended(first)).done
        assert set(rig.driver.held(rig.resource_type)) == {"r-2", "r-3"}

    # Drift

    def test_sees_no_drift_in_a_correct_state(self, rig: InstanceRig, hosts: list[ResourceRef]):
        first = trusting(rig, instances(rig, *hosts[:2], units=2, affinity=False))
        second = of_flavor(rig, instances(rig, hosts[0], reservation_id="r-2", project_id=rig.neighbour))
        whole = command_of(hosts[2], reservation_id="r-3", project_id=rig.owner, resource_type=rig.resource_type)
        for command in (first, second, whole):
            rig.driver.ensure_started(command)
        assert rig.boot_reserved(hosts[0], rig.owner)
        assert drift_of(rig, [first, second, whole], []) == []

    @pytest.mark.parametrize("meddling", MEDDLING)
    def test_sees_changes_by_others_and_a_start_mends_them(
        self, rig: InstanceRig, hosts: list[ResourceRef], meddling: str
    ):
        command = instances(rig, *hosts[:2], units=(2, 1))
        other = instances(rig, *hosts, reservation_id="r-2", project_id=rig.neighbour)
        for reservation in (command, other):
            rig.driver.ensure_started(reservation)
        server = rig.boot_reserved(hosts[0], rig.owner)
        MEDDLING[meddling](rig, hosts)
        before = rig.effects()
        drifts = drift_of(rig, [command, other], [])
        assert rig.effects() == before
        assert {drift.reservation_id for drift in drifts} == {"r-1"}
        assert all("r-1" in drift.text for drift in drifts)
        about = {drift.resource for drift in drifts}
        assert about <= {None, *hosts}
        if "host" in meddling:
            assert about & set(hosts)
        assert finished(rig, lambda: rig.driver.ensure_started(command)).done
        assert drift_of(rig, [command, other], []) == []
        if meddling != "the flavor is deleted" or self.finds_servers_without_flavor:
            assert server in rig.servers()
        assert rig.boot_reserved(hosts[0], rig.neighbour) is None
        assert [boots(rig, resource) for resource in hosts] == [1, 1, 0]

    def test_sees_a_host_outside_the_pool_and_registering_mends_it(self, rig: InstanceRig, hosts: list[ResourceRef]):
        command = instances(rig, hosts[0], units=2)
        rig.driver.ensure_started(command)
        server = rig.boot_reserved(hosts[0], rig.owner)
        rig.take_out(hosts[0])
        assert [(drift.reservation_id, drift.resource) for drift in drift_of(rig, [command], hosts[1:])] == [
            (None, hosts[0])
        ]
        rig.driver.ensure_registered(rig.resource_type, hosts[0])
        assert drift_of(rig, [command], hosts[1:]) == []
        assert server in rig.servers()
        assert rig.boot(hosts[0], rig.neighbour) is None
        assert boots(rig, hosts[0]) == 1

    def test_missing_hosts_and_leftovers_are_no_drift(self, rig: InstanceRig, hosts: list[ResourceRef]):
        left_over, command = instances(rig, hosts[0]), instances(rig, hosts[1], reservation_id="r-2")
        for reservation in (left_over, command):
            rig.driver.ensure_started(reservation)
        rig.remove(hosts[1])
        assert drift_of(rig, [command], [hosts[0], hosts[2]]) == []

    # Failures in the middle

    def broken_off(self, rig: InstanceRig, verb: str, effects: int, call: Callable[[], Progress]) -> bool:
        """Whether the call broke off after so many effects, rather than having fewer."""
        rig.fail(verb, after_effects=effects)
        try:
            assert finished(rig, call).done
        except CloudBusy:
            rig.reopen()
            return True
        return False

    def test_breaks_off_everywhere(self, rig: InstanceRig, hosts: list[ResourceRef]):
        """The tests that follow leave no effect of a call out."""
        command = trusting(rig, instances(rig, *hosts[:2], affinity=True))
        before = rig.effects()
        rig.driver.ensure_started(command)
        assert 1 < rig.effects() - before <= LONGEST_START
        assert boots(rig, hosts[0]) == boots(rig, hosts[1]) == 1
        before = rig.effects()
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert 1 < rig.effects() - before <= LONGEST_END

    @pytest.mark.parametrize("effects", range(LONGEST_START + 1))
    def test_a_start_that_broke_off_is_completed(self, rig: InstanceRig, hosts: list[ResourceRef], effects: int):
        command = trusting(rig, instances(rig, *hosts[:2], affinity=True))
        before = rig.effects()
        rig.driver.ensure_started(replace(command, reservation_id="r-2"))
        usual = rig.effects() - before
        before = rig.effects()
        if self.broken_off(rig, "ensure_started", effects, lambda: rig.driver.ensure_started(command)):
            assert [rig.boot_reserved(resource, rig.neighbour) for resource in hosts] == [None] * 3
            assert rig.driver.ensure_started(command).done
        assert rig.effects() - before == usual
        assert [boots(rig, resource) for resource in hosts] == [1, 1, 0]
        assert drift_of(rig, [command], hosts[2:]) == []

    @pytest.mark.parametrize("effects", range(LONGEST_START + 1))
    def test_a_start_that_broke_off_is_undone(self, rig: InstanceRig, hosts: list[ResourceRef], effects: int):
        command = trusting(rig, instances(rig, *hosts[:2], affinity=False))
        self.broken_off(rig, "ensure_started", effects, lambda: rig.driver.ensure_started(command))
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert list(rig.driver.held(rig.resource_type)) == []
        assert rig.traces("r-1") == set()

    @pytest.mark.parametrize("effects", range(LONGEST_END + 1))
    def test_an_end_that_broke_off_is_completed(self, rig: InstanceRig, hosts: list[ResourceRef], effects: int):
        command = trusting(rig, instances(rig, *hosts[:2], affinity=True))
        rig.driver.ensure_started(command)
        for resource in hosts[:2]:
            assert rig.boot_reserved(resource, rig.owner)
        if self.broken_off(rig, "ensure_ended", effects, lambda: rig.driver.ensure_ended(command)):
            # The reservation is listed as held until all of it is gone.
            assert not rig.traces("r-1") or "r-1" in rig.driver.held(rig.resource_type)
            assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.servers() == set()
        assert rig.traces("r-1") == set()
        assert list(rig.driver.held(rig.resource_type)) == []

    @pytest.mark.parametrize("effects", range(6))
    def test_a_change_that_broke_off_is_completed(self, rig: InstanceRig, hosts: list[ResourceRef], effects: int):
        rig.driver.ensure_started(instances(rig, *hosts[:2]))
        dropped, kept = (rig.boot_reserved(resource, rig.owner) for resource in hosts[:2])
        changed = instances(rig, *hosts[1:], units=(2, 1), returning=(hosts[0],))
        if self.broken_off(rig, "ensure_started", effects, lambda: rig.driver.ensure_started(changed)):
            assert finished(rig, lambda: rig.driver.ensure_started(changed)).done
        assert rig.servers() == {kept}
        assert dropped != kept
        assert [boots(rig, resource) for resource in hosts] == [0, 1, 1]
        assert drift_of(rig, [changed], hosts[:1]) == []

    @pytest.mark.parametrize("verb", ["ensure_started", "before_end", "ensure_ended"])
    def test_a_lost_reply_is_no_second_effect(self, rig: InstanceRig, hosts: list[ResourceRef], verb: str):
        command = trusting(rig, instances(rig, *hosts[:2], affinity=True))
        if verb != "ensure_started":
            rig.driver.ensure_started(command)
            assert rig.boot_reserved(hosts[0], rig.owner)
        calls: dict[str, Callable[[], Progress]] = {
            "ensure_started": lambda: rig.driver.ensure_started(command),
            "before_end": lambda: rig.driver.before_end(command, "snapshot"),
            "ensure_ended": lambda: rig.driver.ensure_ended(command),
        }
        rig.lose_reply(verb)
        with pytest.raises(CloudBusy):
            finished(rig, calls[verb])
        before = rig.effects()
        assert finished(rig, calls[verb]).done
        assert rig.effects() == before
