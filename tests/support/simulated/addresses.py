"""Networks and floating IP addresses of a simulated cloud, and what people do with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tenure.drivers.contract import CloudNotFound, CloudRefused
from tenure.drivers.simulated.catalogue import PRIVATE_NETWORK, PUBLIC_NETWORK
from tenure.drivers.simulated.openstack import state as objects
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.state import Subnet, new_id


@dataclass(frozen=True, slots=True)
class FloatingIP:
    """An address that a project has; ``port_id`` is what it is associated with."""

    network_id: str
    address: str
    project_id: str
    description: str
    tags: frozenset[str]
    port_id: str | None


class AddressWorld:
    """What there is of networks. An address is named by itself, in the public network where no other is named."""

    #: The ids of the networks that every simulated cloud has; the private one is not external.
    public = PUBLIC_NETWORK
    private = PRIVATE_NETWORK

    def __init__(self, cloud: OpenStack) -> None:
        self._cloud = cloud

    def floating_ips(self, network_id: str = PUBLIC_NETWORK) -> dict[str, FloatingIP]:
        """What projects have of a network, by address."""
        with self._cloud.objects.look():
            return {
                ip.address: FloatingIP(
                    ip.network_id, ip.address, ip.project_id, ip.description, frozenset(ip.tags), ip.port_id
                )
                for ip in self._cloud.floating_ips.values()
                if ip.network_id == network_id
            }

    def take(self, address: str, project_id: str, *, network_id: str = PUBLIC_NETWORK) -> None:
        """Let a user get that address. Raises ``CloudRefused`` if another project has it."""
        with self._cloud.objects.change():
            if self._find(address, network_id) is not None:
                raise CloudRefused(f"The address {address} is in use.")
            taken = objects.FloatingIP(network_id, address, project_id)
            self._cloud.floating_ips[taken.id] = taken

    def associate(self, address: str, *, network_id: str = PUBLIC_NETWORK) -> str:
        """Give the address of a user to a port. Returns the port's id."""
        with self._changed(address, network_id) as floating_ip:
            floating_ip.port_id = port = new_id()
        return port

    def change_tags(
        self, address: str, tags: Iterable[str], *, description: str | None = None, network_id: str = PUBLIC_NETWORK
    ) -> None:
        """Replace the tags of an address, and its description where one is given."""
        with self._changed(address, network_id) as floating_ip:
            floating_ip.tags = sorted(tags)
            if description is not None:
                floating_ip.description = description

    def release(self, address: str, *, network_id: str = PUBLIC_NETWORK) -> None:
        """Delete a floating IP; its address is free then."""
        with self._cloud.objects.change():
            if (floating_ip := self._find(address, network_id)) is not None:
                del self._cloud.floating_ips[floating_ip.id]

    def add_network(self, name: str, *, external: bool = True) -> str:
        """A network without subnets. Returns its id."""
        made = new_id()
        with self._cloud.objects.change():
            self._cloud.networks[made] = external
        return made

    def add_subnet(
        self,
        network_id: str,
        cidr: str,
        *,
        gateway: str | None = None,
        pools: Iterable[tuple[str, str]] = (),
    ) -> str:
        """A subnet whose ``pools`` are the first and last addresses of what it hands out itself. Returns its id."""
        made = Subnet(network_id, cidr, list(pools), gateway)
        with self._cloud.objects.change():
            self._cloud.subnets[made.id] = made
        return made.id

    def remove_network(self, network_id: str) -> None:
        """A network is gone, with its subnets and addresses."""
        with self._cloud.objects.change():
            for subnet in [subnet for subnet in self._cloud.subnets.values() if subnet.network_id == network_id]:
                del self._cloud.subnets[subnet.id]
            for floating_ip in [ip for ip in self._cloud.floating_ips.values() if ip.network_id == network_id]:
                del self._cloud.floating_ips[floating_ip.id]
            del self._cloud.networks[network_id]

    def _find(self, address: str, network_id: str) -> objects.FloatingIP | None:
        for floating_ip in self._cloud.floating_ips.values():
            if (floating_ip.network_id, floating_ip.address) == (network_id, address):
                return floating_ip
        return None

    @contextmanager
    def _changed(self, address: str, network_id: str) -> Iterator[objects.FloatingIP]:
        with self._cloud.objects.change():
            floating_ip = self._find(address, network_id)
            if floating_ip is None:
                raise CloudNotFound(f"There is no floating IP {address}.")
            yield floating_ip
            self._cloud.floating_ips.save(floating_ip.id)
