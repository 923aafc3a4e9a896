"""Neutron: external networks, their subnets, and floating IPs with tags."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final

from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    expect,
    next_link,
    only_admins,
    page_of,
)
from tenure.drivers.simulated.openstack.state import FloatingIP, State, Subnet

#: The accepted fields of a new floating IP.
_POSTED: Final = frozenset({
    "floating_network_id", "subnet_id", "floating_ip_address", "project_id", "tenant_id", "port_id",
    "fixed_ip_address", "description",
})  # fmt: skip
#: The filters of lists of floating IPs.
_LISTED: Final = frozenset({"tags", "floating_ip_address", "floating_network_id", "fields", "limit", "marker"})
_MOST_TAGS: Final = 50
#: The prefix of the tag of a reserved floating IP; the reservation's id follows.
_OF_RESERVATION: Final = "reservation:"


class AddressEffect(StrEnum):
    """The kinds of changes of floating IPs."""

    MADE = "address made"
    TAGGED = "address tagged"
    DISASSOCIATED = "address disassociated"
    REMOVED = "address removed"


class Neutron:
    def __init__(self, state: State) -> None:
        self._state = state

    def show_network(self, request: ApiRequest, caller: Caller, network_id: str) -> Answer:
        return 200, {"network": {"id": network_id, "router:external": self._is_external(network_id)}}

    def list_subnets(self, request: ApiRequest, caller: Caller) -> Answer:
        expect(set(request.params), {"network_id"})
        return 200, {"subnets": [_shown_subnet(subnet) for subnet in self._subnets_of(request.params["network_id"])]}

    def list_ports(self, request: ApiRequest, caller: Caller) -> Answer:
        expect(set(request.params), {"fixed_ips", "fields"})
        name, _, address = request.params["fixed_ips"].partition("=")
        expect(name, "ip_address")
        floating = ((ip.network_id, ip.address, "network:floatingip") for ip in self._state.floating_ips.values())
        return 200, {
            "ports": [
                {"network_id": network_id, "device_owner": owner}
                for network_id, port_address, owner in (*self._state.ports, *floating)
                if port_address == address
            ]
        }

    def list_floating_ips(self, request: ApiRequest, caller: Caller) -> Answer:
        expect(set(request.params) - _LISTED, set())
        addresses = request.all_of("floating_ip_address")
        tags = set(filter(None, request.params.get("tags", "").split(",")))
        found = [
            floating_ip
            for floating_ip in self._state.floating_ips.values()
            if (not addresses or floating_ip.address in addresses)
            and tags <= set(floating_ip.tags)
            and request.params.get("floating_network_id") in (None, floating_ip.network_id)
        ]
        page, has_more = page_of(found, request, lambda floating_ip: str(floating_ip.id), self._state.page)
        fields = set(request.all_of("fields"))
        shown = [
            {key: value for key, value in _shown(floating_ip).items() if not fields or key in fields}
            for floating_ip in page
        ]
        return 200, {"floatingips": shown, **next_link("floatingips", has_more)}

    def make_floating_ip(self, request: ApiRequest, caller: Caller) -> Answer:
        expect(set(request.body), {"floatingip"})
        body = request.body["floatingip"]
        if not {"floating_network_id"} <= body.keys() <= _POSTED:
            raise Refused(400, f"Unrecognized attribute(s) '{sorted(body.keys() - _POSTED)}'")
        if "floating_ip_address" in body or body.get("project_id") not in (None, caller.project_id):
            only_admins(caller)
        network_id, address = body["floating_network_id"], body["floating_ip_address"]
        if not self._is_external(network_id):
            raise Refused(400, f"Bad floatingip request: Network {network_id} is not a valid external network.")
        fitting = [subnet.id for subnet in self._subnets_of(network_id) if _has(subnet, address)]
        if not fitting or body.get("subnet_id", fitting[0]) not in fitting:
            raise Refused(400, f"IP address {address} is not a valid IP for the specified subnet.")
        floating_ips = self._state.floating_ips.values()
        taken = {(floating_ip.network_id, floating_ip.address) for floating_ip in floating_ips}
        if (network_id, address) in taken | {port[:2] for port in self._state.ports}:
            raise Refused(409, f"IP address {address} already allocated in subnet {fitting[0]}")
        if ip_address(address).version != 4:
            raise Refused(409, f"No more IP addresses available on network {network_id}.")
        had = [floating_ip for floating_ip in floating_ips if floating_ip.project_id == body["project_id"]]
        if len(had) >= self._state.address_quota:
            raise Refused(409, "Quota exceeded for resources: ['floatingip'].")
        made = FloatingIP(network_id, address, body["project_id"], body.get("description", ""))
        self._state.floating_ips[made.id] = made
        self._state.record(AddressEffect.MADE, made.description.removeprefix(_OF_RESERVATION), subject=address)
        return 201, {"floatingip": _shown(made)}

    def change_floating_ip(self, request: ApiRequest, caller: Caller, floating_ip_id: str) -> Answer:
        expect(set(request.body), {"floatingip"})
        changes = request.body["floatingip"]
        expect(set(changes) - {"port_id", "description"}, set())
        floating_ip = self._floating_ip(floating_ip_id)
        if "port_id" in changes and changes["port_id"] is None and floating_ip.port_id is not None:
            self._record(AddressEffect.DISASSOCIATED, floating_ip)
        floating_ip.port_id = changes.get("port_id", floating_ip.port_id)
        floating_ip.description = changes.get("description", floating_ip.description)
        self._state.floating_ips.save(floating_ip.id)
        return 200, {"floatingip": _shown(floating_ip)}

    def tag_floating_ip(self, request: ApiRequest, caller: Caller, floating_ip_id: str) -> Answer:
        expect(set(request.body), {"tags"})
        tags = request.body["tags"]
        if len(set(tags)) != len(tags) or len(tags) > _MOST_TAGS or any(len(tag) > 255 for tag in tags):
            raise Refused(400, f"Invalid input for tags: {tags}")
        floating_ip = self._floating_ip(floating_ip_id)
        floating_ip.tags = list(tags)
        self._state.floating_ips.save(floating_ip.id)
        self._record(AddressEffect.TAGGED, floating_ip)
        return 200, {"tags": list(tags)}

    def delete_floating_ip(self, request: ApiRequest, caller: Caller, floating_ip_id: str) -> Answer:
        floating_ip = self._floating_ip(floating_ip_id)
        del self._state.floating_ips[floating_ip_id]
        self._record(AddressEffect.REMOVED, floating_ip)
        return 204, None

    def _record(self, kind: AddressEffect, floating_ip: FloatingIP) -> None:
        reservations = [tag for tag in floating_ip.tags if tag.startswith(_OF_RESERVATION)]
        reservation_id = reservations[0].removeprefix(_OF_RESERVATION) if reservations else None
        self._state.record(kind, reservation_id, subject=floating_ip.address)

    def _is_external(self, network_id: str) -> bool:
        if network_id not in self._state.networks:
            raise Refused(404, f"Network {network_id} could not be found.")
        return self._state.networks[network_id]

    def _subnets_of(self, network_id: str) -> list[Subnet]:
        return [subnet for subnet in self._state.subnets.values() if subnet.network_id == network_id]

    def _floating_ip(self, floating_ip_id: str) -> FloatingIP:
        if floating_ip_id not in self._state.floating_ips:
            raise Refused(404, f"Floating IP {floating_ip_id} could not be found")
        return self._state.floating_ips[floating_ip_id]

    @property
    def routes(self) -> Sequence[Route]:
        floating_ip = "/floatingips/([^/]+)"
        return (
            ("network", "GET", "/networks/([^/]+)", self.show_network),
            ("network", "GET", "/subnets", self.list_subnets),
            ("network", "GET", "/ports", self.list_ports),
            ("network", "GET", "/floatingips", self.list_floating_ips),
            ("network", "POST", "/floatingips", self.make_floating_ip),
            ("network", "PUT", floating_ip, self.change_floating_ip),
            ("network", "PUT", f"{floating_ip}/tags", self.tag_floating_ip),
            ("network", "DELETE", floating_ip, self.delete_floating_ip),
        )


def _has(subnet: Subnet, address: str) -> bool:
    request, network = ip_address(address), subnet.network
    ends = {network.network_address, network.broadcast_address} if network.version == 4 else set()
    return request in network and request not in ends


def _shown_subnet(subnet: Subnet) -> dict[str, Any]:
    return {
        "id": subnet.id,
        "network_id": subnet.network_id,
        "cidr": subnet.cidr,
        "gateway_ip": subnet.gateway,
        "ip_version": subnet.network.version,
        "allocation_pools": [{"start": first, "end": last} for first, last in subnet.pools],
    }


def _shown(floating_ip: FloatingIP) -> dict[str, Any]:
    return {
        "id": floating_ip.id,
        "floating_network_id": floating_ip.network_id,
        "floating_ip_address": floating_ip.address,
        "project_id": floating_ip.project_id,
        "tenant_id": floating_ip.project_id,
        "port_id": floating_ip.port_id,
        "description": floating_ip.description,
        "tags": list(floating_ip.tags),
        "status": "ACTIVE" if floating_ip.port_id else "DOWN",
    }
