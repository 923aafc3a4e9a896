"""The contract of drivers for resources that are reserved as a whole, as tests.

A driver's test module has a class that inherits ``ResourceContract``, and a fixture ``rig`` of type ``ResourceRig``: a
new cloud without any users.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import pytest

from tenure.drivers.contract import (
    CloudBusy,
    CloudRefused,
    Command,
    Drift,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.testing.rig import BareRig, command_of, finished

#: The maximum number of changes in a start, and in an end, of two resources: calls are interrupted after each.
LONGEST = 8
#: The duration of the engine's claims: a call must take less.
CLAIM = timedelta(seconds=60)


class ResourceRig(BareRig, Protocol):
    """A driver and its cloud, with methods to look at the cloud and to change it."""

    resource_type: str

    def resources(self) -> Sequence[ResourceRef]:
        """Return at least four resources that can be registered, ordered by external id."""

    def references(self, resource: ResourceRef) -> Sequence[str]:
        """Return what an operator may write to name the resource: its id, its name."""

    def parameters(self, resources: Sequence[ResourceRef]) -> Mapping[str, object]:
        """Return the parameters of a reservation of these resources."""

    def holders(self) -> Mapping[str, str]:
        """Return the project that uses each resource in use, by external id."""

    # Changes of the cloud from outside

    def take(self, resource: ResourceRef, project_id: str) -> None:
        """Give the resource to that project, without Tenure."""

    def release(self, resource: ResourceRef) -> None:
        """Take the resource from its current project."""

    def spoil(self, resource: ResourceRef) -> None:
        """Make the resource unable to serve."""

    def absent(self) -> ResourceRef:
        """Return a resource that the cloud does not have."""


class ResourceContract:
    """The tests for every driver."""

    #: Whether ``discover`` lists all resources. If not, ``check`` uses the registered ones.
    is_listed = True
    #: Whether ``ensure_registered`` refuses resources in use.
    refuses_what_is_taken = True

    @pytest.fixture
    def things(self, rig: ResourceRig) -> list[ResourceRef]:
        """Four registered resources."""
        chosen = list(rig.resources())[:4]
        for resource in chosen:
            rig.driver.ensure_registered(rig.resource_type, resource)
        return chosen

    # Reading

    def test_calls_take_less_than_a_claim(self, rig: ResourceRig):
        assert timedelta(0) < rig.driver.longest_call < CLAIM

    def test_discover_lists_resources_in_order_whether_reserved_or_not(
        self, rig: ResourceRig, things: list[ResourceRef]
    ):
        found = rig.driver.discover(rig.resource_type)
        if not self.is_listed:
            assert found == []
            return
        assert [resource.external_id for resource in found] == [resource.external_id for resource in rig.resources()]
        rig.driver.ensure_started(command_for(rig, things[0]))
        assert rig.driver.discover(rig.resource_type) == found

    def test_look_up_accepts_every_reference(self, rig: ResourceRig):
        listed = {resource.external_id: resource for resource in rig.driver.discover(rig.resource_type)}
        for resource in rig.resources():
            for reference in rig.references(resource):
                found = rig.driver.look_up(rig.resource_type, reference)
                assert found.resource_type == rig.resource_type
                assert (found.external_id, found.name) == (resource.external_id, resource.name)
                assert found.capacity
                assert json.loads(json.dumps(dict(found.facts))) == dict(found.facts)
                assert found == listed.get(found.external_id, found)

    @pytest.mark.parametrize("reference", ["", " ", "no-such-thing", "999999", "²", "x" * 300, "a/b", "'"])
    def test_look_up_refuses_unknown_references(self, rig: ResourceRig, reference: str):
        with pytest.raises(CloudRefused):
            rig.driver.look_up(rig.resource_type, reference)

    def test_check_reports_each_resource(self, rig: ResourceRig, things: list[ResourceRef]):
        rig.spoil(things[0])
        health = rig.driver.check(rig.resource_type, iter(things))
        assert {thing.external_id: health[thing.external_id].well for thing in things} == {
            thing.external_id: thing != things[0] for thing in things
        }
        assert health[things[0].external_id].reason

    def test_missing_resource_is_not_well(self, rig: ResourceRig, things: list[ResourceRef]):
        absent = rig.absent()
        health = rig.driver.check(rig.resource_type, iter([*things, absent]))
        assert not self.is_listed or absent.external_id not in health or not health[absent.external_id].well
        assert all(health[thing.external_id].well for thing in things)

    def test_reading_methods_change_nothing(self, rig: ResourceRig, things: list[ResourceRef]):
        command = command_for(rig, *things[:2])
        rig.driver.ensure_started(command)
        rig.release(things[0])
        before, holders = rig.effects(), rig.holders()
        rig.driver.discover(rig.resource_type)
        for reference in rig.references(things[0]):
            rig.driver.look_up(rig.resource_type, reference)
        rig.driver.check(rig.resource_type, iter(things))
        list(rig.driver.held(rig.resource_type))
        drift_of(rig, [command], things[2:])
        rig.driver.make_way(command, deadline=command.ends_at)
        assert (rig.effects(), rig.holders()) == (before, holders)

    # Registering

    def test_registering_and_unregistering_can_be_repeated(self, rig: ResourceRig):
        resource = rig.resources()[0]
        for verb in (rig.driver.ensure_registered, rig.driver.ensure_unregistered):
            verb(rig.resource_type, resource)
            before = rig.effects()
            verb(rig.resource_type, resource)
            assert rig.effects() == before
        assert rig.holders() == {}

    def test_resource_in_use_is_not_registered(self, rig: ResourceRig):
        if not self.refuses_what_is_taken:
            return
        resource = rig.resources()[0]
        rig.take(resource, rig.neighbour)
        before = rig.effects()
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_registered(rig.resource_type, resource)
        assert set(caught.value.resources) == {resource.external_id}
        assert rig.effects() == before
        assert rig.holders() == {resource.external_id: rig.neighbour}

    def test_reserved_resource_is_not_unregistered(self, rig: ResourceRig, things: list[ResourceRef]):
        rig.driver.ensure_started(command_for(rig, things[0]))
        before = rig.effects()
        rig.driver.ensure_registered(rig.resource_type, things[0])
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_unregistered(rig.resource_type, things[0])
        assert not isinstance(caught.value, ResourceOccupied)
        assert rig.effects() == before
        assert rig.holders() == {things[0].external_id: rig.owner}

    def test_missing_resource_counts_as_unregistered(self, rig: ResourceRig):
        rig.driver.ensure_unregistered(rig.resource_type, rig.absent())

    # Starting

    def test_preparing_can_be_repeated_and_undone(self, rig: ResourceRig, things: list[ResourceRef]):
        command = command_for(rig, things[0])
        assert finished(rig, lambda: rig.driver.ensure_prepared(command)).done
        before = rig.effects()
        assert rig.driver.ensure_prepared(command).done
        assert rig.effects() == before
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.holders() == {}

    def test_start_gives_the_owner_exactly_the_resources_of_the_command(
        self, rig: ResourceRig, things: list[ResourceRef]
    ):
        assert started(rig, command_for(rig, *things[:2])).done
        assert rig.holders() == had(rig.owner, *things[:2])

    def test_repeated_start_changes_nothing(self, rig: ResourceRig, things: list[ResourceRef]):
        command = command_for(rig, *things)
        started(rig, command)
        before = rig.effects()
        assert rig.driver.ensure_started(command).done
        rig.reopen()
        assert rig.driver.ensure_started(command).done
        assert rig.effects() == before

    def test_start_without_resources_gives_nothing(self, rig: ResourceRig, things: list[ResourceRef]):
        assert started(rig, command_for(rig)).done
        assert rig.holders() == {}

    def test_start_with_more_resources_adds_them(self, rig: ResourceRig, things: list[ResourceRef]):
        started(rig, command_for(rig, things[0]))
        assert started(rig, command_for(rig, *things[:3])).done
        assert rig.holders() == had(rig.owner, *things[:3])

    def test_start_gives_up_resources_that_left_the_command(self, rig: ResourceRig, things: list[ResourceRef]):
        started(rig, command_for(rig, *things[:2]))
        assert started(rig, command_for(rig, *things[1:3], returning=things[:1])).done
        assert rig.holders() == had(rig.owner, *things[1:3])

    def test_two_reservations_can_swap_resources(self, rig: ResourceRig, things: list[ResourceRef]):
        """A resource that another reservation of ours still has is waited for, and not reported as occupied."""
        first, second = things[:2]
        started(rig, command_for(rig, first))
        started(rig, command_for(rig, second, reservation_id="r-2", project_id=rig.neighbour))
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_started(command_for(rig, second, returning=[first]))
        assert not isinstance(caught.value, ResourceOccupied)
        ended(rig, command_for(rig, second, reservation_id="r-2", project_id=rig.neighbour))
        started(rig, command_for(rig, second, returning=[first]))
        started(rig, command_for(rig, first, reservation_id="r-2", project_id=rig.neighbour))
        assert rig.holders() == {**had(rig.owner, second), **had(rig.neighbour, first)}

    def test_resource_in_use_stops_a_start(self, rig: ResourceRig, things: list[ResourceRef]):
        rig.take(things[1], rig.neighbour)
        command = command_for(rig, *things[:3])
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_started(command)
        assert set(caught.value.resources) == {things[1].external_id}
        assert rig.holders() == had(rig.neighbour, things[1])
        rig.release(things[1])
        assert started(rig, command).done

    def test_start_gives_all_but_missing_resources(self, rig: ResourceRig, things: list[ResourceRef]):
        absent = rig.absent()
        with pytest.raises(ResourceMissing) as caught:
            rig.driver.ensure_started(command_for(rig, absent, things[0]))
        assert set(caught.value.resources) == {absent.external_id}
        assert rig.holders() == had(rig.owner, things[0])

    def test_concurrent_starts_and_ends(self, rig: ResourceRig, things: list[ResourceRef]):
        commands = [command_for(rig, thing, reservation_id=f"r-{number}") for number, thing in enumerate(things)]
        with ThreadPoolExecutor(8) as threads:
            progress = list(threads.map(rig.driver.ensure_started, [*commands, *commands]))
        assert len(progress) == 8
        assert rig.holders() == had(rig.owner, *things)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(rig.driver.ensure_ended, [*commands, *commands]))
        assert rig.holders() == {}

    # Ending

    def test_end_frees_only_its_own_resources(self, rig: ResourceRig, things: list[ResourceRef]):
        command = command_for(rig, *things[:2])
        started(rig, command)
        started(rig, command_for(rig, things[2], reservation_id="r-2"))
        rig.take(things[3], rig.owner)
        assert ended(rig, command).done
        assert rig.holders() == had(rig.owner, *things[2:])
        before = rig.effects()
        assert rig.driver.ensure_ended(command).done
        assert rig.effects() == before

    def test_end_leaves_resources_that_others_have_now(self, rig: ResourceRig, things: list[ResourceRef]):
        command = command_for(rig, things[0])
        started(rig, command)
        rig.release(things[0])
        rig.take(things[0], rig.neighbour)
        assert ended(rig, command).done
        assert rig.holders() == had(rig.neighbour, things[0])

    def test_end_without_a_start_changes_nothing(self, rig: ResourceRig, things: list[ResourceRef]):
        before = rig.effects()
        assert ended(rig, command_for(rig, *things)).done
        assert rig.effects() == before

    def test_end_needs_only_the_reservation_id(self, rig: ResourceRig, things: list[ResourceRef]):
        """The ledger may have no allocation of the reservation any more."""
        command = command_for(rig, *things[:2])
        started(rig, command)
        rig.reopen()
        assert ended(rig, replace(command, resources=(), returning=(), units={})).done
        assert rig.holders() == {}

    # What the cloud has, and what it should have

    def test_held_lists_started_reservations(self, rig: ResourceRig, things: list[ResourceRef]):
        assert list(rig.driver.held(rig.resource_type)) == []
        commands = [command_for(rig, thing, reservation_id=f"r-{number}") for number, thing in enumerate(things[:2])]
        for command in commands:
            started(rig, command)
        rig.take(things[2], rig.neighbour)
        rig.reopen()
        assert sorted(rig.driver.held(rig.resource_type)) == ["r-0", "r-1"]
        for command in commands:
            ended(rig, command)
        assert list(rig.driver.held(rig.resource_type)) == []

    def test_no_drift_after_a_start(self, rig: ResourceRig, things: list[ResourceRef]):
        commands = [command_for(rig, *things[:2]), command_for(rig, things[2], reservation_id="r-2")]
        for command in commands:
            started(rig, command)
        assert drift_of(rig, commands, things[3:]) == []

    def test_drift_reports_a_lost_resource_and_a_start_repairs_it(self, rig: ResourceRig, things: list[ResourceRef]):
        command = command_for(rig, *things[:2])
        started(rig, command)
        rig.release(things[1])
        (drift,) = drift_of(rig, [command], things[2:])
        assert drift.reservation_id == "r-1"
        assert things[1].name in drift.text
        assert started(rig, command).done
        assert drift_of(rig, [command], things[2:]) == []
        assert rig.holders() == had(rig.owner, *things[:2])

    def test_drift_reports_a_surplus_resource_and_a_start_repairs_it(self, rig: ResourceRig, things: list[ResourceRef]):
        started(rig, command_for(rig, *things[:2]))
        command = command_for(rig, things[0])
        assert [drift.reservation_id for drift in drift_of(rig, [command], things[2:])] == ["r-1"]
        assert started(rig, command).done
        assert drift_of(rig, [command], things[2:]) == []
        assert rig.holders() == had(rig.owner, things[0])

    # Failures in the middle

    def test_every_change_can_be_interrupted(self, rig: ResourceRig, things: list[ResourceRef]):
        """The following tests interrupt a call after each of its changes."""
        command = command_for(rig, *things[:2])
        for verb in (rig.driver.ensure_started, rig.driver.ensure_ended):
            before = rig.effects()
            verb(command)
            assert 1 < rig.effects() - before <= LONGEST

    @pytest.mark.parametrize("effects", range(LONGEST + 1))
    def test_interrupted_start_is_completed(self, rig: ResourceRig, things: list[ResourceRef], effects: int):
        command = command_for(rig, *things[:2])
        broken(rig, "ensure_started", command, effects)
        assert started(rig, command).done
        assert rig.holders() == had(rig.owner, *things[:2])

    @pytest.mark.parametrize("effects", range(LONGEST + 1))
    def test_interrupted_start_is_undone_by_an_end(self, rig: ResourceRig, things: list[ResourceRef], effects: int):
        command = command_for(rig, *things[:2])
        broken(rig, "ensure_started", command, effects)
        if rig.holders():
            assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        assert ended(rig, command).done
        assert rig.holders() == {}

    @pytest.mark.parametrize("effects", range(LONGEST + 1))
    def test_interrupted_end_is_completed(self, rig: ResourceRig, things: list[ResourceRef], effects: int):
        command = command_for(rig, *things[:2])
        started(rig, command)
        broken(rig, "ensure_ended", command, effects)
        if rig.holders():
            assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        assert ended(rig, command).done
        assert rig.holders() == {}

    @pytest.mark.parametrize("verb", ["ensure_started", "ensure_ended"])
    def test_call_after_a_lost_reply_changes_nothing(self, rig: ResourceRig, things: list[ResourceRef], verb: str):
        command = command_for(rig, *things[:2])
        if verb == "ensure_ended":
            started(rig, command)
        rig.lose_reply(verb)
        with pytest.raises(CloudBusy):
            call_of(rig, verb, command)()
        before = rig.effects()
        assert call_of(rig, verb, command)().done
        assert rig.effects() == before


def command_for(
    rig: ResourceRig,
    *resources: ResourceRef,
    reservation_id: str = "r-1",
    project_id: str | None = None,
    returning: Sequence[ResourceRef] = (),
) -> Command:
    """Return a command for these resources, by default of the owner."""
    command = command_of(
        *resources,
        reservation_id=reservation_id,
        project_id=rig.owner if project_id is None else project_id,
        resource_type=rig.resource_type,
    )
    return replace(
        command,
        parameters=rig.parameters(resources),
        units={resource.external_id: 1 for resource in resources},
        returning=tuple(returning),
    )


def had(project_id: str, *resources: ResourceRef) -> dict[str, str]:
    return {resource.external_id: project_id for resource in resources}


def started(rig: ResourceRig, command: Command) -> Progress:
    return finished(rig, lambda: rig.driver.ensure_started(command))


def ended(rig: ResourceRig, command: Command) -> Progress:
    return finished(rig, lambda: rig.driver.ensure_ended(command))


def drift_of(rig: ResourceRig, commands: Sequence[Command], pooled: Sequence[ResourceRef]) -> Sequence[Drift]:
    return list(rig.driver.drift(rig.resource_type, commands, pooled))


def call_of(rig: ResourceRig, verb: str, command: Command) -> Callable[[], Progress]:
    """Return the call, using the driver at the time it is made."""
    return lambda: getattr(rig.driver, verb)(command)


def broken(rig: ResourceRig, verb: str, command: Command, effects: int) -> None:
    """Interrupt the call after so many changes, and replace the driver by one that remembers nothing."""
    rig.fail(verb, after_effects=effects)
    try:
        call_of(rig, verb, command)()
    except CloudBusy:
        rig.reopen()
