"""What the driver of OpenStack clouds does for reservations of floating IPs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from tenure.domain.address import address_id
from tenure.drivers.contract import CloudBusy, CloudRefused, Command, ResourceOccupied, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import connect
from tenure.testing.resources import ResourceContract, ResourceRig
from tenure.testing.rig import command_of
from tests.drivers.address_rigs import AddressResources
from tests.drivers.contracts.addresses import FLOATING_IP, AddressContract, AddressRig, Held
from tests.drivers.rigs import HTTP, FakeRig, options_of
from tests.support.openstack import NEIGHBOUR, OWNER, FakeOpenStack, FloatingIP, Seen

POOLS = [("203.0.113.100", "203.0.113.199")]


class FakeAddressRig(FakeRig):
    addresses = ("203.0.113.2", "203.0.113.99", "203.0.113.200", "203.0.113.254")
    gateway = "203.0.113.1"
    pooled = "203.0.113.150"
    elsewhere = "198.51.100.7"

    def __init__(self, cloud: FakeOpenStack, transport: str = HTTP) -> None:
        super().__init__(cloud, transport)
        self.network_id = cloud.add_network(("203.0.113.0/24", POOLS, self.gateway))
        self.private_network_id = cloud.add_network(("203.0.113.0/24", POOLS, self.gateway), external=False)

    def holders(self) -> Mapping[str, Held]:
        return {
            floating_ip.address: Held(
                floating_ip.project_id, frozenset(floating_ip.tags), floating_ip.port_id is not None
            )
            for floating_ip in self.cloud.floating_ips.values()
            if floating_ip.network_id == self.network_id
        }

    def take(self, address: str, project_id: str) -> None:
        self.cloud.add_floating_ip(self.network_id, address, project_id)

    def release(self, address: str) -> None:
        del self.cloud.floating_ips[self._at(address).id]

    def associate(self, address: str) -> None:
        self._at(address).port_id = "a-port"

    def change_tags(self, address: str, tags: Iterable[str]) -> None:
        self._at(address).tags = list(tags)

    def _at(self, address: str) -> FloatingIP:
        found = self.cloud.floating_ip(address)
        assert found is not None
        return found


class TestAddresses(AddressContract):
    @pytest.fixture
    def rig(self, transport: str) -> Iterator[AddressRig]:
        with FakeOpenStack() as cloud:
            rig = FakeAddressRig(cloud, transport)
            yield rig
            rig.close()


class TestAddressesAsResources(ResourceContract):
    is_listed = False

    @pytest.fixture
    def rig(self, transport: str) -> Iterator[ResourceRig]:
        with FakeOpenStack() as cloud:
            rig = FakeAddressRig(cloud, transport)
            yield cast(ResourceRig, AddressResources(rig))
            rig.close()


# Beyond the contract of drivers

NETWORK = ("203.0.113.0/24", POOLS, "203.0.113.1")
FIRST = "203.0.113.2"


def at(network_id: str, *addresses: str) -> tuple[ResourceRef, ...]:
    return tuple(ResourceRef(address_id(network_id, address), address) for address in addresses)


def command_for(network_id: str, *addresses: str, reservation_id: str = "r-1") -> Command:
    plain = command_of(*at(network_id, *addresses), reservation_id=reservation_id, resource_type=FLOATING_IP)
    return replace(plain, parameters={"network_id": network_id, "amount": len(addresses), "required_floatingips": []})


def writes(cloud: FakeOpenStack) -> list[tuple[str, Any]]:
    return [(seen.method, seen.body) for seen in cloud.seen if seen.service == "network" and seen.method != "GET"]


class TestLookingUp:
    @pytest.mark.parametrize(
        ("address", "text"),
        [
            ("203.0.113.1", "The floating IP 203.0.113.1 is used in allocation_pools or gateway_ip in subnet {} ."),
            ("203.0.113.100", "The floating IP 203.0.113.100 is used in allocation_pools or gateway_ip in subnet {} ."),
            ("203.0.113.199", "The floating IP 203.0.113.199 is used in allocation_pools or gateway_ip in subnet {} ."),
            ("198.51.100.1", "Valid subnet for the floating IP 198.51.100.1 is not found."),
        ],
    )
    def test_refusals_are_worded_as_by_blazar(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, address: str, text: str
    ):
        network_id = cloud.add_network(NETWORK)
        (subnet,) = cloud.subnets.values()
        with pytest.raises(CloudRefused) as caught:
            driver.look_up(FLOATING_IP, f"{network_id}/{address}")
        assert str(caught.value) == text.format(subnet.id)
        with pytest.raises(CloudRefused) as caught:
            driver.look_up(FLOATING_IP, f"no-such/{address}")
        assert str(caught.value) == "Failed to find network no-such"

    def test_the_borders_of_pools_are_exact(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(("203.0.113.0/24", [("203.0.113.10", "203.0.113.19")], None))
        for address in ("203.0.113.9", "203.0.113.20", "203.0.113.1"):  # no gateway has the last one
            assert driver.look_up(FLOATING_IP, f"{network_id}/{address}").name == address

    def test_addresses_of_version_6_are_refused(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """Neutron refuses to make a floating IP of one."""
        network_id = cloud.add_network(NETWORK, ("2001:db8::/64", [("2001:db8::100", "2001:db8::1ff")], "2001:db8::1"))
        with pytest.raises(CloudRefused, match="version 4 only"):
            driver.look_up(FLOATING_IP, f"{network_id}/2001:db8::2")
        with pytest.raises(CloudRefused, match="allocation_pools"):
            driver.look_up(FLOATING_IP, f"{network_id}/2001:db8::100")

    @pytest.mark.parametrize("network_id", ["..", "a?b", "../subnets", "a#", "ä", "x" * 65])
    def test_a_reference_is_no_way_to_another_address(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, network_id: str
    ):
        with pytest.raises(CloudRefused):
            driver.look_up(FLOATING_IP, f"{network_id}/{FIRST}")
        assert [seen for seen in cloud.seen if seen.service == "network"] == []


class TestRegistering:
    def test_an_address_of_a_router_is_occupied(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id, other = cloud.add_network(NETWORK), cloud.add_network(NETWORK)
        cloud.ports.append((network_id, FIRST, "network:router_gateway"))
        (resource,) = at(network_id, FIRST)
        with pytest.raises(ResourceOccupied, match="in use by a port"):
            driver.ensure_registered(FLOATING_IP, resource)
        driver.ensure_registered(FLOATING_IP, *at(other, FIRST))

    def test_an_address_of_another_network_is_another(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id, other = cloud.add_network(NETWORK), cloud.add_network(NETWORK)
        foreign = cloud.add_floating_ip(other, FIRST, NEIGHBOUR)
        driver.ensure_registered(FLOATING_IP, *at(network_id, FIRST))
        driver.ensure_started(command_for(network_id, FIRST))
        assert driver.drift(FLOATING_IP, [command_for(network_id, FIRST)], []) == []
        driver.ensure_ended(command_for(network_id, FIRST))
        assert list(cloud.floating_ips.values()) == [foreign]


class TestReserving:
    def test_requests_equal_blazars(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(("198.51.100.0/24", [], None), NETWORK)
        _, subnet = cloud.subnets.values()
        driver.ensure_started(command_for(network_id, FIRST))
        assert writes(cloud) == [
            (
                "POST",
                {
                    "floatingip": {
                        "floating_network_id": network_id,
                        "subnet_id": subnet.id,
                        "floating_ip_address": FIRST,
                        "project_id": OWNER,
                        "description": "reservation:r-1",
                    }
                },
            ),
            ("PUT", {"tags": ["blazar", "reservation:r-1"]}),
        ]
        cloud.seen.clear()
        for floating_ip in cloud.floating_ips.values():
            floating_ip.port_id = "a-port"
        driver.ensure_ended(command_for(network_id, FIRST))
        assert writes(cloud) == [("PUT", {"floatingip": {"port_id": None}}), ("DELETE", None)]

    def test_a_full_quota_is_named(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(NETWORK)
        cloud.address_quota = 0
        with pytest.raises(CloudBusy, match="Neutron: Quota exceeded") as caught:
            driver.ensure_started(command_for(network_id, FIRST))
        assert not isinstance(caught.value, ResourceOccupied)

    def test_an_address_taken_at_the_last_moment_is_occupied(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(NETWORK)

        def overtake(seen: Seen) -> None:
            if seen.method == "POST" and seen.path == "/v2.0/floatingips":
                cloud.add_floating_ip(network_id, FIRST, NEIGHBOUR)

        cloud.observe = overtake
        with pytest.raises(ResourceOccupied, match=NEIGHBOUR):
            driver.ensure_started(command_for(network_id, FIRST))
        assert [floating_ip.project_id for floating_ip in cloud.floating_ips.values()] == [NEIGHBOUR]

    def test_an_address_that_a_port_has_is_occupied(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """Such as a router's: no floating IP tells of it, and it does not go by itself."""
        network_id = cloud.add_network(NETWORK)
        second = "203.0.113.3"
        cloud.ports.append((network_id, second, "network:router_gateway"))
        command = command_for(network_id, FIRST, second)
        with pytest.raises(ResourceOccupied, match="is in use by a port") as caught:
            driver.ensure_started(command)
        assert set(caught.value.resources) == {address_id(network_id, second)}

    def test_a_floating_ip_made_at_the_same_time_is_taken(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(NETWORK)

        def overtake(seen: Seen) -> None:
            if seen.method == "POST" and seen.path == "/v2.0/floatingips":
                cloud.add_floating_ip(network_id, FIRST, OWNER, description="reservation:r-1")

        cloud.observe = overtake
        assert driver.ensure_started(command_for(network_id, FIRST)).done
        (made,) = cloud.floating_ips.values()
        assert made.tags == ["blazar", "reservation:r-1"]

    def test_a_floating_ip_in_another_project_is_made_again(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(NETWORK)
        command = command_for(network_id, FIRST)
        cloud.add_floating_ip(network_id, FIRST, NEIGHBOUR, tags=["blazar", "reservation:r-1"])
        (drift,) = driver.drift(FLOATING_IP, [command], [])
        assert drift.text == f"{FIRST} is in another project than its owner's"
        driver.ensure_started(command)
        assert [floating_ip.project_id for floating_ip in cloud.floating_ips.values()] == [OWNER]
        assert driver.drift(FLOATING_IP, [command], []) == []

    def test_a_description_changed_by_the_owner_is_no_drift(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(NETWORK)
        driver.ensure_started(command_for(network_id, FIRST))
        (made,) = cloud.floating_ips.values()
        made.description = "reservation:of my own"
        assert driver.drift(FLOATING_IP, [command_for(network_id, FIRST)], []) == []
        assert driver.held(FLOATING_IP) == ["r-1"]
        driver.ensure_ended(command_for(network_id, FIRST))
        assert cloud.floating_ips == {}

    def test_checking_many_addresses_takes_few_calls(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.page = 7
        network_id = cloud.add_network(("203.0.113.0/24", [], None))
        cloud.address_quota = 200
        addresses = [f"203.0.113.{number}" for number in range(1, 121)]
        command = command_for(network_id, *addresses)
        driver.ensure_started(command)
        assert {floating_ip.address for floating_ip in cloud.floating_ips.values()} == set(addresses)
        assert driver.drift(FLOATING_IP, [command], []) == []
        cloud.page = 1000
        cloud.seen.clear()
        driver.ensure_started(command)
        assert len(cloud.seen) == 4  # three for fifty addresses each, one for the tag
        assert driver.ensure_ended(command).done
        assert cloud.floating_ips == {}

    def test_drift_takes_one_call(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        network_id = cloud.add_network(NETWORK)
        commands = [
            command_for(network_id, f"203.0.113.{number}", reservation_id=f"r-{number}") for number in range(2, 12)
        ]
        for command in commands:
            driver.ensure_started(command)
        cloud.seen.clear()
        assert driver.drift(FLOATING_IP, commands, at(network_id, "203.0.113.50")) == []
        assert len(cloud.seen) == 1

    def test_a_pool_that_has_come_to_contain_an_address_changes_nothing(
        self, cloud: FakeOpenStack, driver: OpenStackCloud
    ):
        """Pools are asked for when an address is registered, and never again."""
        network_id = cloud.add_network(NETWORK)
        (resource,) = at(network_id, FIRST)
        driver.ensure_registered(FLOATING_IP, resource)
        (subnet,) = cloud.subnets.values()
        subnet.pools = [(FIRST, "203.0.113.199")]
        with pytest.raises(CloudRefused, match="allocation_pools"):
            driver.look_up(FLOATING_IP, f"{network_id}/{FIRST}")
        command = command_for(network_id, FIRST)
        assert driver.ensure_started(command).done
        assert driver.drift(FLOATING_IP, [command], []) == []
        assert driver.ensure_ended(command).done

    def test_a_reservation_without_a_network_is_refused(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        command = replace(command_for("x", FIRST), parameters={})
        with pytest.raises(CloudRefused, match="which network"):
            driver.ensure_started(command)


def test_catalogues_may_name_neutron_with_its_version(cloud: FakeOpenStack):
    network_id = cloud.add_network(NETWORK)
    cloud.network_url += "/v2.0"
    with connect(options_of(cloud)) as driver:
        assert driver.look_up(FLOATING_IP, f"{network_id}/{FIRST}").name == FIRST
