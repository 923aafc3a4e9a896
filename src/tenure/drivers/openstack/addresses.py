"""Floating IPs: as what can be reserved, and reserved.

A reserved address is made a floating IP of its owner's project at the start, and deleted at the end. It is ours by its
tag, or by its description where the tag was not written any more.
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
    Drift,
    Health,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.openstack.compute import Server
from tenure.drivers.openstack.network import FloatingIP, Network, Subnet
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.requests import Conflict

#: The resource type of addresses.
ADDRESS: Final = "virtual:floatingip"
#: What all floating IPs of reservations are tagged with, and what the tag of one reservation's begins with.
TAG: Final = "blazar"
PREFIX: Final = "reservation:"
#: What ids of networks look like; anything else would be another address.
_NETWORK_ID: Final = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_FLOATING: Final = "network:floatingip"


class Addresses:
    """Addresses of external networks, with the calls of one verb."""

    def __init__(self, network: Network, options: OpenStackOptions) -> None:
        self._network = network
        self._options = options

    # What there is

    def discover(self) -> list[DiscoveredResource]:
        """Nothing: which addresses are for reservations is for an administrator to say."""
        return []

    def look_up(self, reference: str) -> DiscoveredResource:
        """The address that is named as ``<network's id>/<address>``, if it is kept for nobody."""
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

    def register(self, resource: ResourceRef) -> None:
        """See that nobody has the address. Nothing is to be done: Neutron does not hand it out by itself."""
        self._refuse_ports([resource])
        for one in self._network.at([resource.name]):
            if _is(resource, one.network_id, one.address) and not _reservations(one):
                raise ResourceOccupied({resource.external_id: _owned(one)})

    def unregister(self, resource: ResourceRef) -> None:
        for one in self._network.at([resource.name]):
            if _is(resource, one.network_id, one.address):
                for holder in _reservations(one):
                    raise CloudBusy(f"{resource.name} is still held by reservation {holder}.")

    def held(self) -> list[str]:
        return sorted({name for one in self._network.floating_ips() for name in _reservations(one)})

    def check(self, registered: Iterable[ResourceRef]) -> dict[str, Health]:
        """All are well but those that somebody else has."""
        healths = {one.external_id: Health(True) for one in registered}
        if healths:
            for one in self._network.floating_ips():
                number = address_id(one.network_id, one.address)
                if number in healths and not _reservations(one):
                    healths[number] = Health(False, f"{_owned(one)}.")
        return healths

    def drift(self, orders: Sequence[Order], pooled: Sequence[ResourceRef]) -> Iterator[Drift]:
        found = self._network.floating_ips()
        at = {address_id(one.network_id, one.address): one for one in found}
        held: dict[str, list[FloatingIP]] = defaultdict(list)
        for one in found:
            for name in _reservations(one):
                held[name].append(one)
        for order in orders:
            wanted = {one.external_id for one in order.resources}
            for resource in order.resources:
                what = _wrong(order, resource, at.get(resource.external_id))
                if what is not None:
                    yield Drift(order.reservation_id, resource, what)
            for one in held[order.reservation_id]:
                strange = ResourceRef(address_id(one.network_id, one.address), one.address)
                if strange.external_id not in wanted:
                    what = f"{one.address} is tagged for reservation {order.reservation_id}, which has it no more"
                    yield Drift(order.reservation_id, strange, what)
        for resource in pooled:
            taken = at.get(resource.external_id)
            if taken is not None and not _reservations(taken):
                yield Drift(None, resource, _owned(taken))

    # Reservations

    def prepare(self, order: Order) -> Progress:
        """Nothing of an address is seen before its start."""
        return DONE

    def hand_over(self, order: Order) -> Progress:
        """Have the addresses of the order, and no others, in the owner's project; as ``ensure_started`` does."""
        network_id = str(order.parameters.get("network_id") or "")
        if order.resources and not _NETWORK_ID.fullmatch(network_id):
            raise CloudRefused(f"Reservation {order.reservation_id} does not say of which network its addresses are.")
        wanted = {str(ip_address(one.name)): one for one in order.resources}
        seen = self._at_all(order)
        found = [one for one in seen if one.network_id == network_id and one.address in wanted]
        _refuse_others(order, wanted, found)
        ours = _merged(self._network.tagged(_tag_of(order)), _own(order, seen))
        kept = {one.address: one for one in found if one.project_id == order.project_id}
        # Neutron does not give a floating IP to another project: such a one is made anew.
        self._network.delete_all([one for one in ours if one.id not in {it.id for it in kept.values()}])
        missing = [wanted[address] for address in sorted(wanted.keys() - kept.keys())]
        self._tag(order, kept.values())
        self._make(order, network_id, missing)
        return DONE

    def servers_of(self, order: Order) -> list[Server]:
        raise CloudRefused(Reason("Nothing can be saved of a floating IP."))

    def take_back(self, order: Order) -> Progress:
        """Delete the floating IPs of the reservation, whatever they lead to, and no others.

        They are those that say so, and those at its addresses that its owner has and that say nothing.
        """
        tagged = self._network.tagged(_tag_of(order))
        seen = self._at_all(order)
        wanted = {one.external_id for one in order.resources}
        hidden = [
            one
            for one in seen
            if one.project_id == order.project_id
            and not _reservations(one)
            and address_id(one.network_id, one.address) in wanted
        ]
        self._network.delete_all(_merged(tagged, _own(order, seen), hidden))
        return DONE

    def _at_all(self, order: Order) -> list[FloatingIP]:
        """The floating IPs, of whatever network, at the addresses that the reservation has or had."""
        addresses = {str(ip_address(one.name)) for one in (*order.resources, *order.returning)}
        return self._network.at(sorted(addresses))

    def _make(self, order: Order, network_id: str, resources: Sequence[ResourceRef]) -> None:
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
                "project_id": order.project_id,
                "description": _tag_of(order),
            }
        answers = dict(zip(bodies, self._network.make_all(list(bodies.values())), strict=True))
        self._tag(order, [one for one in answers.values() if isinstance(one, FloatingIP)])
        refused = {key: answer for key, answer in answers.items() if isinstance(answer, CloudError)}
        if refused:
            self._explain(order, network_id, [one for one in resources if one.external_id in refused], refused)
        if missing:
            raise ResourceMissing(missing)

    def _explain(
        self, order: Order, network_id: str, resources: Sequence[ResourceRef], errors: Mapping[str, CloudError]
    ) -> None:
        """Raise why these could not be made, unless somebody has made them for the reservation meanwhile."""
        found = {one.address: one for one in self._network.at([one.name for one in resources], network_id)}
        _refuse_others(order, {one.name: one for one in resources}, found.values())
        self._tag(order, found.values())
        lacking = [one for one in resources if one.name not in found]
        self._refuse_ports([one for one in lacking if isinstance(errors[one.external_id], Conflict)])
        for resource in lacking:
            raise errors[resource.external_id]

    def _refuse_ports(self, resources: Iterable[ResourceRef]) -> None:
        """Refuse addresses that something has which is no floating IP, such as a router."""
        taken = {
            one.external_id: f"{one.name} is in use by a port"
            for one in resources
            for network_id, purpose in self._network.users_of(one.name)
            if purpose != _FLOATING and _is(one, network_id, one.name)
        }
        if taken:
            raise ResourceOccupied(taken)

    def _tag(self, order: Order, floating_ips: Iterable[FloatingIP]) -> None:
        wanted = [(one, one.tags | {TAG, _tag_of(order)}) for one in floating_ips]
        self._network.set_tags([(one, tags) for one, tags in wanted if tags != one.tags])


def _refuse_others(order: Order, wanted: Mapping[str, ResourceRef], found: Iterable[FloatingIP]) -> None:
    """Refuse addresses that others have. Another reservation's end may be under way.

    What the owner's project has there, and nothing says for whom, is the reservation's: he may write to it himself.
    """
    others = {
        one.address: one
        for one in found
        if order.reservation_id not in _reservations(one) and (_reservations(one) or one.project_id != order.project_id)
    }
    foreign = {wanted[address].external_id: _owned(one) for address, one in others.items() if not _reservations(one)}
    if foreign:
        raise ResourceOccupied(foreign)
    for address, one in sorted(others.items()):
        raise CloudBusy(f"{address} is not released yet by reservation {min(_reservations(one))}.")


def _tag_of(order: Order) -> str:
    return f"{PREFIX}{order.reservation_id}"


def _own(order: Order, found: Iterable[FloatingIP]) -> list[FloatingIP]:
    return [one for one in found if order.reservation_id in _reservations(one)]


def _subnet_of(subnets: Iterable[Subnet], address: str) -> Subnet | None:
    return next((one for one in subnets if one.has(address)), None)


def _is(resource: ResourceRef, network_id: str, address: str) -> bool:
    return address_id(network_id, address) == resource.external_id


def _reservations(one: FloatingIP) -> frozenset[str]:
    """The reservations for which it was made."""
    tagged = {tag.removeprefix(PREFIX) for tag in one.tags if tag.startswith(PREFIX)}
    if not tagged and one.description.startswith(PREFIX):
        tagged = {one.description.removeprefix(PREFIX)}
    return frozenset(tagged)


def _owned(one: FloatingIP) -> str:
    return f"{one.address} is a floating IP of project {one.project_id or 'of nobody'}"


def _wrong(order: Order, resource: ResourceRef, one: FloatingIP | None) -> str | None:
    """What is not as it should be with an address of the order, None for nothing."""
    if one is None:
        return f"{resource.name} is no floating IP"
    if order.reservation_id not in _reservations(one):
        return _owned(one)
    if one.project_id != order.project_id:
        return f"{resource.name} is in another project than its owner's"
    if not {TAG, _tag_of(order)} <= one.tags:
        return f"{resource.name} has other tags"
    return None


def _merged(*lists: Iterable[FloatingIP]) -> list[FloatingIP]:
    return list({one.id: one for floating_ips in lists for one in floating_ips}.values())
