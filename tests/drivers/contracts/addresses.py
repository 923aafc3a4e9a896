"""The contract of ``tenure.drivers.contract`` for floating IP addresses, as tests that every driver passes.

A driver's own test module has a class that inherits ``AddressContract``, and a fixture ``rig`` that fits
``AddressRig``: a fresh cloud with an external network without floating IPs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Protocol

import pytest

from tenure.domain.address import address_id
from tenure.domain.capacity import WHOLE
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
from tenure.testing.rig import BareRig, command_of, finished

FLOATING_IP = "virtual:floatingip"
#: How many things a start, and an end, of these tests changes at most: it is broken off after each.
LONGEST_START = 6
LONGEST_END = 4


@dataclass(frozen=True, slots=True)
class Held:
    """A floating IP: its project, its tags, and whether a port uses it."""

    project_id: str
    tags: frozenset[str]
    in_use: bool = False


class AddressRig(BareRig, Protocol):
    """A driver, and the cloud behind it: to look at, and to meddle with. Addresses are of the external network."""

    #: An external network, and one that is not.
    network_id: str
    private_network_id: str
    #: Four addresses of a subnet of it outside of its allocation pools.
    addresses: tuple[str, str, str, str]
    #: What cannot be registered: its gateway, an address of a pool, one of no subnet.
    gateway: str
    pooled: str
    elsewhere: str

    def holders(self) -> Mapping[str, Held]:
        """The floating IPs of the network, by address."""

    # Changes by others

    def take(self, address: str, project_id: str) -> None:
        """Get the address, for that project."""

    def release(self, address: str) -> None:
        """Delete the floating IP of that address."""

    def associate(self, address: str) -> None:
        """Let a port use the address."""

    def change_tags(self, address: str, tags: Iterable[str]) -> None:
        """Replace the tags of the address."""


def ref(rig: AddressRig, address: str) -> ResourceRef:
    return ResourceRef(address_id(rig.network_id, address), address)


def addressed(
    rig: AddressRig,
    *addresses: str,
    reservation_id: str = "r-1",
    project_id: str | None = None,
    returning: tuple[str, ...] = (),
) -> Command:
    refs = [ref(rig, address) for address in addresses]
    command = command_of(
        *refs,
        reservation_id=reservation_id,
        project_id=rig.owner if project_id is None else project_id,
        resource_type=FLOATING_IP,
    )
    return replace(
        command,
        parameters={"network_id": rig.network_id, "amount": len(addresses), "required_floatingips": []},
        units={resource.external_id: 1 for resource in refs},
        returning=tuple(ref(rig, address) for address in returning),
    )


def given(project_id: str, reservation_id: str = "r-1", *, in_use: bool = False) -> Held:
    """The floating IP of a reservation."""
    return Held(project_id, frozenset({"blazar", f"reservation:{reservation_id}"}), in_use)


class AddressContract:
    """What every driver does for floating IP addresses."""

    # Looking up

    def test_finds_an_address(self, rig: AddressRig):
        address = rig.addresses[0]
        found = rig.driver.look_up(FLOATING_IP, f"{rig.network_id}/{address}")
        assert found.resource_type == FLOATING_IP
        assert (found.external_id, found.name) == (address_id(rig.network_id, address), address)
        assert dict(found.capacity) == {WHOLE: 1}
        assert found.facts["floating_network_id"] == rig.network_id
        assert found.facts["floating_ip_address"] == address
        assert found.facts["subnet_id"]
        assert set(found.facts) == {"floating_network_id", "floating_ip_address", "subnet_id"}
        assert json.loads(json.dumps(dict(found.facts))) == dict(found.facts)

    def test_finds_an_address_of_another_project(self, rig: AddressRig):
        reference = f"{rig.network_id}/{rig.addresses[0]}"
        before = rig.driver.look_up(FLOATING_IP, reference)
        rig.take(rig.addresses[0], rig.neighbour)
        assert rig.driver.look_up(FLOATING_IP, reference) == before

    def test_refuses_the_gateway_and_pooled_addresses(self, rig: AddressRig):
        for address in (rig.gateway, rig.pooled):
            with pytest.raises(CloudRefused, match=address) as caught:
                rig.driver.look_up(FLOATING_IP, f"{rig.network_id}/{address}")
            assert not isinstance(caught.value, CloudNotFound)

    def test_refuses_a_network_that_is_not_external_or_not_there(self, rig: AddressRig):
        for network_id in (rig.private_network_id, "8d5c6b1f-0000-4000-8000-000000000000"):
            with pytest.raises(CloudRefused, match=network_id) as caught:
                rig.driver.look_up(FLOATING_IP, f"{network_id}/{rig.addresses[0]}")
            assert not isinstance(caught.value, CloudNotFound)
            assert caught.value.about == "floating_network_id"

    def test_does_not_find_an_address_of_no_subnet(self, rig: AddressRig):
        with pytest.raises(CloudNotFound, match=rig.elsewhere):
            rig.driver.look_up(FLOATING_IP, f"{rig.network_id}/{rig.elsewhere}")

    def test_does_not_find_network_and_broadcast_addresses(self, rig: AddressRig):
        """The network address and the broadcast address of the subnet."""
        subnet = ip_network(f"{rig.gateway}/24", strict=False)
        for address in (subnet.network_address, subnet.broadcast_address):
            with pytest.raises(CloudNotFound, match=str(address)):
                rig.driver.look_up(FLOATING_IP, f"{rig.network_id}/{address}")

    @pytest.mark.parametrize("text", ["", "/", "no-such-thing", "{network}/", "{network}/no-address", "{network}/1"])
    def test_refuses_nonsense(self, rig: AddressRig, text: str):
        with pytest.raises(CloudRefused):
            rig.driver.look_up(FLOATING_IP, text.format(network=rig.network_id))

    def test_lists_no_addresses(self, rig: AddressRig):
        assert rig.driver.discover(FLOATING_IP) == []
        assert dict(rig.driver.check(FLOATING_IP)) == {}

    # Registering

    def test_registering_changes_nothing_in_the_cloud(self, rig: AddressRig):
        before = rig.effects()
        for _ in range(2):
            rig.driver.ensure_registered(FLOATING_IP, ref(rig, rig.addresses[0]))
        for _ in range(2):
            rig.driver.ensure_unregistered(FLOATING_IP, ref(rig, rig.addresses[0]))
        assert rig.effects() == before
        assert rig.holders() == {}

    def test_an_address_of_another_project_is_not_registered(self, rig: AddressRig):
        resource = ref(rig, rig.addresses[0])
        rig.take(resource.name, rig.neighbour)
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_registered(FLOATING_IP, resource)
        assert set(caught.value.resources) == {resource.external_id}
        rig.driver.ensure_unregistered(FLOATING_IP, resource)
        assert rig.holders() == {resource.name: Held(rig.neighbour, frozenset())}

    def test_a_reserved_address_stays_registered(self, rig: AddressRig):
        command = addressed(rig, rig.addresses[0])
        rig.driver.ensure_started(command)
        before = rig.effects()
        rig.driver.ensure_registered(FLOATING_IP, command.resources[0])
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_unregistered(FLOATING_IP, command.resources[0])
        assert not isinstance(caught.value, ResourceOccupied)
        assert rig.effects() == before

    # Starting

    def test_preparing_makes_nothing(self, rig: AddressRig):
        before = rig.effects()
        assert rig.driver.ensure_prepared(addressed(rig, rig.addresses[0])).done
        assert rig.effects() == before

    def test_a_start_gives_the_owner_exactly_its_addresses(self, rig: AddressRig):
        assert rig.driver.ensure_started(addressed(rig, *rig.addresses[:2])).done
        assert rig.holders() == dict.fromkeys(rig.addresses[:2], given(rig.owner))

    def test_starting_again_changes_nothing(self, rig: AddressRig):
        command = addressed(rig, *rig.addresses)
        rig.driver.ensure_started(command)
        rig.associate(rig.addresses[0])
        before = rig.effects()
        rig.driver.ensure_started(command)
        rig.reopen()
        assert rig.driver.ensure_started(command).done
        assert rig.effects() == before
        assert rig.holders()[rig.addresses[0]].in_use

    def test_a_reservation_grows(self, rig: AddressRig):
        rig.driver.ensure_started(addressed(rig, rig.addresses[0]))
        rig.associate(rig.addresses[0])
        rig.driver.ensure_started(addressed(rig, *rig.addresses[:3]))
        assert rig.holders() == {
            rig.addresses[0]: given(rig.owner, in_use=True),
            rig.addresses[1]: given(rig.owner),
            rig.addresses[2]: given(rig.owner),
        }

    def test_an_address_removed_from_the_command_is_given_up(self, rig: AddressRig):
        first, second, third, _ = rig.addresses
        rig.driver.ensure_started(addressed(rig, first, second))
        rig.associate(first)
        moved = addressed(rig, second, third, returning=(first,))
        assert finished(rig, lambda: rig.driver.ensure_started(moved)).done
        assert rig.holders() == dict.fromkeys((second, third), given(rig.owner))

    def test_two_reservations_can_trade(self, rig: AddressRig):
        first, second, _, _ = rig.addresses
        rig.driver.ensure_started(addressed(rig, first))
        rig.driver.ensure_started(addressed(rig, second, reservation_id="r-2"))
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_started(addressed(rig, second))
        assert not isinstance(caught.value, ResourceOccupied)
        rig.driver.ensure_ended(addressed(rig, second, reservation_id="r-2"))
        rig.driver.ensure_started(addressed(rig, second))
        rig.driver.ensure_started(addressed(rig, first, reservation_id="r-2"))
        assert rig.holders() == {second: given(rig.owner), first: given(rig.owner, "r-2")}

    def test_an_address_of_another_project_stops_a_start(self, rig: AddressRig):
        rig.take(rig.addresses[1], rig.neighbour)
        before = rig.effects()
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_started(addressed(rig, *rig.addresses[:3]))
        assert set(caught.value.resources) == {address_id(rig.network_id, rig.addresses[1])}
        assert rig.addresses[1] in str(caught.value)
        assert rig.effects() == before
        assert rig.holders() == {rig.addresses[1]: Held(rig.neighbour, frozenset())}
        rig.release(rig.addresses[1])
        assert rig.driver.ensure_started(addressed(rig, *rig.addresses[:3])).done

    def test_an_address_lost_to_another_project_costs_no_other_address(self, rig: AddressRig):
        command = addressed(rig, *rig.addresses[:2])
        rig.driver.ensure_started(command)
        rig.associate(rig.addresses[1])
        rig.release(rig.addresses[0])
        rig.take(rig.addresses[0], rig.neighbour)
        with pytest.raises(ResourceOccupied):
            rig.driver.ensure_started(command)
        other = addressed(rig, *rig.addresses[1:3], returning=(rig.addresses[0],))
        assert rig.driver.ensure_started(other).done
        assert rig.holders() == {
            rig.addresses[0]: Held(rig.neighbour, frozenset()),
            rig.addresses[1]: given(rig.owner, in_use=True),
            rig.addresses[2]: given(rig.owner),
        }

    def test_a_start_gives_all_addresses_except_missing_ones(self, rig: AddressRig):
        command = addressed(rig, rig.elsewhere, rig.addresses[0])
        with pytest.raises(ResourceMissing) as caught:
            rig.driver.ensure_started(command)
        assert set(caught.value.resources) == {address_id(rig.network_id, rig.elsewhere)}
        assert rig.holders() == {rig.addresses[0]: given(rig.owner)}

    def test_does_nothing_before_the_end(self, rig: AddressRig):
        with pytest.raises(CloudRefused):
            rig.driver.before_end(addressed(rig, rig.addresses[0]), "snapshot")

    # Ending

    def test_an_end_frees_its_addresses_and_no_others(self, rig: AddressRig):
        command = addressed(rig, *rig.addresses[:2])
        rig.driver.ensure_started(command)
        rig.driver.ensure_started(addressed(rig, rig.addresses[2], reservation_id="r-2"))
        rig.take(rig.addresses[3], rig.owner)
        rig.associate(rig.addresses[0])
        assert finished(rig, lambda: rig.driver.ensure_ended(command)).done
        assert rig.holders() == {
            rig.addresses[2]: given(rig.owner, "r-2"),
            rig.addresses[3]: Held(rig.owner, frozenset()),
        }
        before = rig.effects()
        assert rig.driver.ensure_ended(command).done
        assert rig.effects() == before

    def test_an_end_frees_an_address_without_its_tags(self, rig: AddressRig):
        """Before the end is recorded; afterwards the owner may have the address for himself."""
        command = addressed(rig, rig.addresses[0])
        rig.driver.ensure_started(command)
        rig.release(rig.addresses[0])
        rig.take(rig.addresses[0], rig.owner)
        assert rig.driver.ensure_ended(command).done
        assert rig.holders() == {}
        rig.take(rig.addresses[0], rig.owner)
        over = addressed(rig, returning=(rig.addresses[0],))
        assert rig.driver.ensure_ended(over).done
        assert rig.holders() == {rig.addresses[0]: Held(rig.owner, frozenset())}

    def test_an_end_spares_an_address_taken_by_another_project(self, rig: AddressRig):
        command = addressed(rig, rig.addresses[0])
        rig.driver.ensure_started(command)
        rig.release(rig.addresses[0])
        rig.take(rig.addresses[0], rig.neighbour)
        assert rig.driver.ensure_ended(command).done
        assert rig.holders() == {rig.addresses[0]: Held(rig.neighbour, frozenset())}

    def test_ending_an_unstarted_reservation_changes_nothing(self, rig: AddressRig):
        before = rig.effects()
        assert rig.driver.ensure_ended(addressed(rig, *rig.addresses)).done
        assert rig.effects() == before

    def test_an_end_needs_no_more_than_the_id(self, rig: AddressRig):
        command = addressed(rig, *rig.addresses[:2])
        rig.driver.ensure_started(command)
        bare = replace(command, resources=(), units={}, project_id="", parameters={})
        assert finished(rig, lambda: rig.driver.ensure_ended(bare)).done
        assert rig.holders() == {}

    # Held reservations

    def test_knows_which_reservations_have_addresses(self, rig: AddressRig):
        first, second = addressed(rig, rig.addresses[0]), addressed(rig, rig.addresses[1], reservation_id="r-2")
        rig.take(rig.addresses[2], rig.neighbour)
        assert list(rig.driver.held(FLOATING_IP)) == []
        for command in (first, second):
            rig.driver.ensure_started(command)
        rig.reopen()
        assert set(rig.driver.held(FLOATING_IP)) == {"r-1", "r-2"}
        rig.driver.ensure_ended(first)
        assert set(rig.driver.held(FLOATING_IP)) == {"r-2"}
        assert list(rig.driver.held("physical:host")) == []

    # Drift

    def drift(self, rig: AddressRig, commands: Iterable[Command], *pooled: str) -> list[tuple[str | None, str | None]]:
        """The drift by reservation and address; looking for it changes nothing."""
        before = rig.effects()
        drifts = rig.driver.drift(FLOATING_IP, list(commands), [ref(rig, address) for address in pooled])
        assert rig.effects() == before
        assert all(drift.resource is None or drift.resource.name in drift.text for drift in drifts)
        return [(drift.reservation_id, drift.resource.name if drift.resource else None) for drift in drifts]

    def test_sees_no_drift_in_a_correct_state(self, rig: AddressRig):
        first, second = addressed(rig, rig.addresses[0]), addressed(rig, *rig.addresses[1:3], reservation_id="r-2")
        for command in (first, second):
            rig.driver.ensure_started(command)
        rig.associate(rig.addresses[0])
        assert self.drift(rig, [first, second], rig.addresses[3]) == []

    @pytest.mark.parametrize("tags", [[], ["blazar"], ["reservation:r-1"], ["blazar", "mine"]])
    def test_sees_tags_that_are_gone_and_a_start_mends_them(self, rig: AddressRig, tags: list[str]):
        command = addressed(rig, *rig.addresses[:2])
        rig.driver.ensure_started(command)
        rig.associate(rig.addresses[0])
        rig.change_tags(rig.addresses[0], tags)
        assert self.drift(rig, [command]) == [("r-1", rig.addresses[0])]
        rig.driver.ensure_started(command)
        assert self.drift(rig, [command]) == []
        assert rig.holders()[rig.addresses[0]].tags == {"blazar", "reservation:r-1", *tags}
        assert rig.holders()[rig.addresses[0]].in_use

    def test_leaves_the_owner_his_own_tags(self, rig: AddressRig):
        command = addressed(rig, rig.addresses[0])
        rig.driver.ensure_started(command)
        rig.change_tags(rig.addresses[0], {"mine", *given(rig.owner).tags})
        before = rig.effects()
        assert self.drift(rig, [command]) == []
        rig.driver.ensure_started(command)
        assert rig.effects() == before
        assert "mine" in rig.holders()[rig.addresses[0]].tags

    def test_sees_an_address_that_is_gone_and_a_start_mends_it(self, rig: AddressRig):
        command = addressed(rig, *rig.addresses[:2])
        rig.driver.ensure_started(command)
        rig.release(rig.addresses[1])
        assert self.drift(rig, [command]) == [("r-1", rig.addresses[1])]
        rig.driver.ensure_started(command)
        assert self.drift(rig, [command]) == []
        assert set(rig.holders()) == set(rig.addresses[:2])

    def test_sees_an_address_taken_by_another_project(self, rig: AddressRig):
        command = addressed(rig, rig.addresses[0])
        rig.driver.ensure_started(command)
        rig.release(rig.addresses[0])
        for address in rig.addresses[:2]:
            rig.take(address, rig.neighbour)
        assert self.drift(rig, [command], *rig.addresses[1:]) == [("r-1", rig.addresses[0]), (None, rig.addresses[1])]

    def test_addresses_of_other_projects_are_unhealthy(self, rig: AddressRig):
        ours, free, lost, unknown = rig.addresses
        rig.driver.ensure_started(addressed(rig, ours))
        for address in (lost, unknown):
            rig.take(address, rig.neighbour)
        registered = {address: ref(rig, address) for address in (ours, free, lost)}
        health = rig.driver.check(FLOATING_IP, iter(registered.values()))
        assert {address: health[one.external_id].well for address, one in registered.items()} == {
            ours: True,
            free: True,
            lost: False,
        }
        assert rig.neighbour in str(health[registered[lost].external_id].reason)
        assert len(health) == len(registered)
        assert rig.driver.check(FLOATING_IP) == {}

    def test_a_start_takes_over_the_owners_own_address(self, rig: AddressRig):
        """The owner may change the tags of a floating IP, and so hide that it is his reservation's."""
        command = addressed(rig, rig.addresses[0])
        rig.take(rig.addresses[0], rig.owner)
        rig.associate(rig.addresses[0])
        rig.driver.ensure_started(command)
        assert rig.holders()[rig.addresses[0]] == given(rig.owner, in_use=True)
        assert rig.driver.ensure_ended(command).done
        assert rig.holders() == {}

    def test_sees_one_address_too_many_and_a_start_mends_it(self, rig: AddressRig):
        rig.driver.ensure_started(addressed(rig, *rig.addresses[:2]))
        command = addressed(rig, rig.addresses[0])
        assert self.drift(rig, [command]) == [("r-1", rig.addresses[1])]
        rig.driver.ensure_started(command)
        assert set(rig.holders()) == {rig.addresses[0]}

    def test_leftover_addresses_are_no_drift(self, rig: AddressRig):
        rig.driver.ensure_started(addressed(rig, rig.addresses[0]))
        assert self.drift(rig, [], *rig.addresses) == []

    # Failures in the middle

    def test_breaks_off_everywhere(self, rig: AddressRig):
        """The tests that follow leave no effect of a call out."""
        command = addressed(rig, *rig.addresses[:2])
        before = rig.effects()
        rig.driver.ensure_started(command)
        assert 1 < rig.effects() - before <= LONGEST_START
        for address in rig.addresses[:2]:
            rig.associate(address)
        before = rig.effects()
        rig.driver.ensure_ended(command)
        assert 1 < rig.effects() - before <= LONGEST_END

    @pytest.mark.parametrize("effects", range(LONGEST_START + 1))
    def test_a_start_that_broke_off_is_completed(self, rig: AddressRig, effects: int):
        command = addressed(rig, *rig.addresses[:2])
        rig.fail("ensure_started", after_effects=effects)
        try:
            rig.driver.ensure_started(command)
        except CloudBusy:
            rig.reopen()
            rig.driver.ensure_started(command)
        assert rig.holders() == dict.fromkeys(rig.addresses[:2], given(rig.owner))

    @pytest.mark.parametrize("effects", range(LONGEST_START + 1))
    def test_a_start_that_broke_off_is_undone(self, rig: AddressRig, effects: int):
        command = addressed(rig, *rig.addresses[:2])
        rig.fail("ensure_started", after_effects=effects)
        try:
            rig.driver.ensure_started(command)
        except CloudBusy:
            rig.reopen()
        if rig.holders():
            assert list(rig.driver.held(FLOATING_IP)) == ["r-1"]
        assert rig.driver.ensure_ended(command).done
        assert rig.holders() == {}

    @pytest.mark.parametrize("effects", range(LONGEST_END + 1))
    def test_an_end_that_broke_off_is_completed(self, rig: AddressRig, effects: int):
        command = addressed(rig, *rig.addresses[:2])
        rig.driver.ensure_started(command)
        for address in rig.addresses[:2]:
            rig.associate(address)
        rig.fail("ensure_ended", after_effects=effects)
        try:
            rig.driver.ensure_ended(command)
        except CloudBusy:
            rig.reopen()
            if rig.holders():
                assert list(rig.driver.held(FLOATING_IP)) == ["r-1"]
            assert rig.driver.ensure_ended(command).done
        assert rig.holders() == {}

    @pytest.mark.parametrize("verb", ["ensure_started", "ensure_ended"])
    def test_a_lost_reply_is_no_second_effect(self, rig: AddressRig, verb: str):
        command = addressed(rig, *rig.addresses[:2])
        calls: dict[str, Callable[[], Progress]] = {
            "ensure_started": lambda: rig.driver.ensure_started(command),
            "ensure_ended": lambda: rig.driver.ensure_ended(command),
        }
        if verb == "ensure_ended":
            rig.driver.ensure_started(command)
        rig.lose_reply(verb)
        with pytest.raises(CloudBusy):
            calls[verb]()
        before = rig.effects()
        calls[verb]()
        assert rig.effects() == before
