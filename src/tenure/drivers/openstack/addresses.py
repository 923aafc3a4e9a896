"""Floating IPs: as resources, and in reservations.

A reserved address becomes a floating IP in its owner's project at the start, and is deleted at the end. It is
recognized by its tag, or by its description if the tag could not be written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from tenure.domain.address import address_id
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudError,
    CloudNotFound,
    CloudRefused,
    Command,
    Drift,
    Health,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.openstack.compute import Server
from tenure.drivers.openstack.network import FloatingIP, Network, Subnet
from tenure.drivers.openstack.requests import Conflict
from tenure.drivers.openstack.type_driver import DriverCall, OpenStackTypeDriver

#: The resource type of addresses.
ADDRESS: Final = "virtual:floatingip"
#: The tag of all floating IPs of reservations, and the prefix of the tag with the reservation id.
TAG: Final = "blazar"
PREFIX: Final = "reservation:"
#: The format of network ids; other texts could change the path of the request.
_NETWORK_ID: Final = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_FLOATING: Final = "network:floatingip"


class Addresses(OpenStackTypeDriver):
    """The addresses of external networks, for one driver call."""

    services = ("network",)

    def __init__(self, call: DriverCall) -> None:
        super().__init__(call)
        self._network = Network(call.calls)

    # What there is

    def look_up(self, reference: str) -> DiscoveredResource:
        """Return the address that is named as ``<network id>/<address>``, if Neutron does not hand it out itself."""
        network_id, _, text = reference.partition("/")
        try:
            address = str(ip_address(text))
        except ValueError:
            raise CloudNotFound(Reason(f"{text[:80]} is no address.")) from None
        try:
            is_external = bool(_NETWORK_ID.fullmatch(network_id)) and self._network.is_external(network_id)
        except CloudNotFound:
            is_external = False
        if not is_external:
            raise CloudRefused(Reason(f"Failed to find network {network_id[:80]}"), about="floating_network_id")
        subnet = _subnet_of(self._network.subnets(network_id), address)
        if subnet is None:
            raise CloudNotFound(Reason(f"Valid subnet for the floating IP {address} is not found."))
        if subnet.hands_out(address):
            raise CloudRefused(
                f"The floating IP {address} is used in allocation_pools or gateway_ip in subnet {subnet.id} ."
            )
        if ip_address(address).version != 4:
            raise CloudRefused(Reason(f"Neutron makes no floating IP of {address}: it has them of version 4 only."))
        return DiscoveredResource(
            resource_type=ADDRESS,
            external_id=address_id(network_id, address),
            name=address,
            capacity=Capacity({WHOLE: 1}),
            facts={"floating_network_id": network_id, "subnet_id": subnet.id, "floating_ip_address": address},
        )

    def ensure_registered(self, resource: ResourceRef) -> None:
        """Check that the address is not in use. Nothing has to be changed: Neutron does not hand it out by itself."""
        self._refuse_ports([resource])
        for floating_ip in self._network.at([resource.name]):
            if _matches(resource, floating_ip.network_id, floating_ip.address) and not _reservations(floating_ip):
                raise ResourceOccupied({resource.external_id: _owner_text(floating_ip)})

    def ensure_unregistered(self, resource: ResourceRef) -> None:
        for floating_ip in self._network.at([resource.name]):
            if _matches(resource, floating_ip.network_id, floating_ip.address):
                for holder in _reservations(floating_ip):
                    raise CloudBusy(f"{resource.name} is still held by reservation {holder}.")

    def held(self) -> list[str]:
        return sorted({name for floating_ip in self._network.floating_ips() for name in _reservations(floating_ip)})

    def check(self, registered: Iterable[ResourceRef] = ()) -> dict[str, Health]:
        """Return the health: all addresses are well, except those in use outside of reservations."""
        healths = {resource.external_id: Health(True) for resource in registered}
        if healths:
            for floating_ip in self._network.floating_ips():
                number = address_id(floating_ip.network_id, floating_ip.address)
                if number in healths and not _reservations(floating_ip):
                    healths[number] = Health(False, f"{_owner_text(floating_ip)}.")
        return healths

    def drift(self, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> list[Drift]:
        return list(self._drift(commands, pooled))

    def _drift(self, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> Iterator[Drift]:
        found = self._network.floating_ips()
        at = {address_id(floating_ip.network_id, floating_ip.address): floating_ip for floating_ip in found}
        by_reservation: dict[str, list[FloatingIP]] = defaultdict(list)
        for floating_ip in found:
            for name in _reservations(floating_ip):
                by_reservation[name].append(floating_ip)
        for command in commands:
            expected = {resource.external_id for resource in command.resources}
            for resource in command.resources:
                text = _difference(command, resource, at.get(resource.external_id))
                if text is not None:
                    yield Drift(command.reservation_id, resource, text)
            for floating_ip in by_reservation[command.reservation_id]:
                strange = ResourceRef(address_id(floating_ip.network_id, floating_ip.address), floating_ip.address)
                if strange.external_id not in expected:
                    text = (
                        f"{floating_ip.address} has the tag of reservation {command.reservation_id}, which lacks it now"
                    )
                    yield Drift(command.reservation_id, strange, text)
        for resource in pooled:
            taken = at.get(resource.external_id)
            if taken is not None and not _reservations(taken):
                yield Drift(None, resource, _owner_text(taken))

    # Reservations

    def ensure_started(self, command: Command) -> Progress:
        """Create the command's floating IPs in the owner's project, and delete its others."""
        network_id = str(command.parameters.get("network_id") or "")
        if command.resources and not _NETWORK_ID.fullmatch(network_id):
            raise CloudRefused(f"Reservation {command.reservation_id} does not say of which network its addresses are.")
        expected = {str(ip_address(resource.name)): resource for resource in command.resources}
        seen = self._at_addresses_of(command)
        found = [
            floating_ip
            for floating_ip in seen
            if floating_ip.network_id == network_id and floating_ip.address in expected
        ]
        _refuse_others(command, expected, found)
        ours = _merged(self._network.tagged(_tag_of(command)), _of_reservation(command, seen))
        kept = {
            floating_ip.address: floating_ip for floating_ip in found if floating_ip.project_id == command.project_id
        }
        # Neutron cannot move a floating IP to another project: it is deleted and created again.
        self._network.delete_all(
            [floating_ip for floating_ip in ours if floating_ip.id not in {keeper.id for keeper in kept.values()}]
        )
        missing = [expected[address] for address in sorted(expected.keys() - kept.keys())]
        self._tag(command, kept.values())
        self._create(command, network_id, missing)
        return DONE

    def servers_of(self, command: Command) -> list[Server]:
        raise CloudRefused(Reason("Nothing can be saved of a floating IP."))

    def ensure_ended(self, command: Command) -> Progress:
        """Delete the reservation's floating IPs, even if they are associated, and no others.

        These are the tagged ones, and those without a tag that the owner's project has at the reservation's addresses.
        """
        tagged = self._network.tagged(_tag_of(command))
        seen = self._at_addresses_of(command)
        expected = {resource.external_id for resource in command.resources}
        hidden = [
            floating_ip
            for floating_ip in seen
            if floating_ip.project_id == command.project_id
            and not _reservations(floating_ip)
            and address_id(floating_ip.network_id, floating_ip.address) in expected
        ]
        self._network.delete_all(_merged(tagged, _of_reservation(command, seen), hidden))
        return DONE

    def _at_addresses_of(self, command: Command) -> list[FloatingIP]:
        """Return the floating IPs at the current and former addresses of the reservation, in any network."""
        addresses = {str(ip_address(resource.name)) for resource in (*command.resources, *command.returning)}
        return self._network.at(sorted(addresses))

    def _create(self, command: Command, network_id: str, resources: Sequence[ResourceRef]) -> None:
        if not resources:
            return
        subnets = self._network.subnets(network_id)
        bodies: dict[str, dict[str, Any]] = {}
        missing: dict[str, str] = {}
        for resource in resources:
            subnet = _subnet_of(subnets, resource.name)
            if subnet is None:
                missing[resource.external_id] = f"Neutron has no subnet for {resource.name} in {network_id} any more."
                continue
            bodies[resource.external_id] = {
                "floating_network_id": network_id,
                "subnet_id": subnet.id,
                "floating_ip_address": resource.name,
                "project_id": command.project_id,
                "description": _tag_of(command),
            }
        answers = dict(zip(bodies, self._network.make_all(list(bodies.values())), strict=True))
        self._tag(command, [answer for answer in answers.values() if isinstance(answer, FloatingIP)])
        refused = {key: answer for key, answer in answers.items() if isinstance(answer, CloudError)}
        if refused:
            self._raise_reason(
                command, network_id, [resource for resource in resources if resource.external_id in refused], refused
            )
        if missing:
            raise ResourceMissing(missing)

    def _raise_reason(
        self, command: Command, network_id: str, resources: Sequence[ResourceRef], errors: Mapping[str, CloudError]
    ) -> None:
        """Raise the reason why these could not be created, unless a concurrent call has created them."""
        found = {
            floating_ip.address: floating_ip
            for floating_ip in self._network.at([resource.name for resource in resources], network_id)
        }
        _refuse_others(command, {resource.name: resource for resource in resources}, found.values())
        self._tag(command, found.values())
        lacking = [resource for resource in resources if resource.name not in found]
        self._refuse_ports([resource for resource in lacking if isinstance(errors[resource.external_id], Conflict)])
        for resource in lacking:
            raise errors[resource.external_id]

    def _refuse_ports(self, resources: Iterable[ResourceRef]) -> None:
        """Refuse addresses that are used by a port other than a floating IP, such as a router."""
        taken = {
            resource.external_id: f"{resource.name} is in use by a port"
            for resource in resources
            for network_id, purpose in self._network.users_of(resource.name)
            if purpose != _FLOATING and _matches(resource, network_id, resource.name)
        }
        if taken:
            raise ResourceOccupied(taken)

    def _tag(self, command: Command, floating_ips: Iterable[FloatingIP]) -> None:
        tagged = [(floating_ip, floating_ip.tags | {TAG, _tag_of(command)}) for floating_ip in floating_ips]
        self._network.set_tags([(floating_ip, tags) for floating_ip, tags in tagged if tags != floating_ip.tags])


def _refuse_others(command: Command, expected: Mapping[str, ResourceRef], found: Iterable[FloatingIP]) -> None:
    """Refuse addresses that others use; retry if these are other reservations, whose end may be in progress.

    A floating IP without a tag in the owner's project belongs to the reservation: the owner can remove the tag.
    """
    others = {
        floating_ip.address: floating_ip
        for floating_ip in found
        if command.reservation_id not in _reservations(floating_ip)
        and (_reservations(floating_ip) or floating_ip.project_id != command.project_id)
    }
    foreign = {
        expected[address].external_id: _owner_text(floating_ip)
        for address, floating_ip in others.items()
        if not _reservations(floating_ip)
    }
    if foreign:
        raise ResourceOccupied(foreign)
    for address, floating_ip in sorted(others.items()):
        raise CloudBusy(f"{address} is not released yet by reservation {min(_reservations(floating_ip))}.")


def _tag_of(command: Command) -> str:
    return f"{PREFIX}{command.reservation_id}"


def _of_reservation(command: Command, found: Iterable[FloatingIP]) -> list[FloatingIP]:
    return [floating_ip for floating_ip in found if command.reservation_id in _reservations(floating_ip)]


def _subnet_of(subnets: Iterable[Subnet], address: str) -> Subnet | None:
    return next((subnet for subnet in subnets if subnet.has(address)), None)


def _matches(resource: ResourceRef, network_id: str, address: str) -> bool:
    return address_id(network_id, address) == resource.external_id


def _reservations(floating_ip: FloatingIP) -> frozenset[str]:
    """Return the reservations for which the floating IP was created."""
    tagged = {tag.removeprefix(PREFIX) for tag in floating_ip.tags if tag.startswith(PREFIX)}
    if not tagged and floating_ip.description.startswith(PREFIX):
        tagged = {floating_ip.description.removeprefix(PREFIX)}
    return frozenset(tagged)


def _owner_text(floating_ip: FloatingIP) -> str:
    owner = f"of project {floating_ip.project_id}" if floating_ip.project_id else "without a project"
    return f"{floating_ip.address} is a floating IP {owner}"


def _difference(command: Command, resource: ResourceRef, floating_ip: FloatingIP | None) -> str | None:
    """Return what differs from the command at this address, or None."""
    if floating_ip is None:
        return f"{resource.name} is no floating IP"
    if command.reservation_id not in _reservations(floating_ip):
        return _owner_text(floating_ip)
    if floating_ip.project_id != command.project_id:
        return f"{resource.name} is in another project than its owner's"
    if not {TAG, _tag_of(command)} <= floating_ip.tags:
        return f"{resource.name} has other tags"
    return None


def _merged(*lists: Iterable[FloatingIP]) -> list[FloatingIP]:
    return list({floating_ip.id: floating_ip for floating_ips in lists for floating_ip in floating_ips}.values())
