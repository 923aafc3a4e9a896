"""The small OpenStack's Neutron."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, ClassVar, Final

from tests.support.openstack.answers import Refused, Route, Seen, expect, only_admins, page_of

_POSTED: Final = {
    "floating_network_id",
    "subnet_id",
    "floating_ip_address",
    "project_id",
    "tenant_id",
    "port_id",
    "fixed_ip_address",
    "description",
}


@dataclass
class Subnet:
    network_id: str
    cidr: str
    pools: list[tuple[str, str]]
    gateway: str | None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def network(self) -> IPv4Network | IPv6Network:
        return ip_network(self.cidr)


@dataclass
class FloatingIP:
    network_id: str
    address: str
    project_id: str
    description: str = ""
    port_id: str | None = None
    tags: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class FakeNeutron:
    """External networks, their subnets, and floating IPs with tags."""

    page: int

    def __init__(self) -> None:
        #: Networks, and whether they are external.
        self.networks: dict[str, bool] = {}
        self.subnets: dict[str, Subnet] = {}
        self.floating_ips: dict[str, FloatingIP] = {}
        #: The addresses that ports have which belong to no floating IP, with their networks.
        self.ports: list[tuple[str, str, str]] = []
        #: How many floating IPs a project may have.
        self.address_quota = 50

    def add_network(self, *subnets: tuple[str, list[tuple[str, str]], str | None], external: bool = True) -> str:
        """A network with these subnets: ranges, pools and gateways."""
        network_id = str(uuid.uuid4())
        self.networks[network_id] = external
        for cidr, pools, gateway in subnets:
            made = Subnet(network_id, cidr, pools, gateway)
            self.subnets[made.id] = made
        return network_id

    def add_floating_ip(self, network_id: str, address: str, project_id: str, **more: Any) -> FloatingIP:
        made = FloatingIP(network_id, address, project_id, **more)
        self.floating_ips[made.id] = made
        return made

    def floating_ip(self, address: str) -> FloatingIP | None:
        return next((one for one in self.floating_ips.values() if one.address == address), None)

    # Answering

    def _show_network(self, seen: Seen, token: dict[str, Any], network_id: str) -> tuple[int, Any]:
        if network_id not in self.networks:
            raise Refused(404, f"Network {network_id} could not be found.")
        return 200, {"network": {"id": network_id, "router:external": self.networks[network_id]}}

    def _list_subnets(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        expect(set(seen.params), {"network_id"})
        found = [one for one in self.subnets.values() if one.network_id == seen.params["network_id"]]
        return 200, {
            "subnets": [
                {
                    "id": one.id,
                    "network_id": one.network_id,
                    "cidr": one.cidr,
                    "gateway_ip": one.gateway,
                    "ip_version": one.network.version,
                    "allocation_pools": [{"start": first, "end": last} for first, last in one.pools],
                }
                for one in found
            ]
        }

    def _list_ports(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        expect(set(seen.params), {"fixed_ips", "fields"})
        name, _, address = seen.params["fixed_ips"].partition("=")
        expect(name, "ip_address")
        ports = [*self.ports, *((one.network_id, one.address, "network:floatingip") for one in self._all())]
        return 200, {
            "ports": [
                {"network_id": network_id, "device_owner": owner} for network_id, had, owner in ports if had == address
            ]
        }

    def _list_floating_ips(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        known = {"tags", "floating_ip_address", "floating_network_id", "fields", "limit", "marker"}
        expect(set(seen.params) - known, set())
        addresses, tags = seen.all_of("floating_ip_address"), set(filter(None, seen.params.get("tags", "").split(",")))
        found = [
            one
            for one in self._all()
            if (not addresses or one.address in addresses)
            and tags <= set(one.tags)
            and seen.params.get("floating_network_id") in (None, one.network_id)
        ]
        page, more = page_of(found, seen, lambda one: str(one.id), self.page)
        links = {"floatingips_links": [{"rel": "next", "href": "next"}]} if more else {}
        fields = set(seen.all_of("fields"))
        shown = [{key: value for key, value in _shown(one).items() if not fields or key in fields} for one in page]
        return 200, {"floatingips": shown, **links}

    def _make_floating_ip(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        expect(set(seen.body), {"floatingip"})
        body = seen.body["floatingip"]
        if not {"floating_network_id"} <= body.keys() <= _POSTED:
            raise Refused(400, f"Unrecognized attribute(s) '{sorted(body.keys() - _POSTED)}'")
        if "floating_ip_address" in body or body.get("project_id") not in (None, token["project"]):
            only_admins(token)
        network_id, address = body["floating_network_id"], body["floating_ip_address"]
        if network_id not in self.networks:
            raise Refused(404, f"Network {network_id} could not be found.")
        if not self.networks[network_id]:
            raise Refused(400, f"Bad floatingip request: Network {network_id} is not a valid external network.")
        fitting = [one.id for one in self.subnets.values() if one.network_id == network_id and _has(one, address)]
        if not fitting or body.get("subnet_id", fitting[0]) not in fitting:
            raise Refused(400, f"IP address {address} is not a valid IP for the specified subnet.")
        taken = {(one.network_id, one.address) for one in self._all()} | {(one[0], one[1]) for one in self.ports}
        if (network_id, address) in taken:
            raise Refused(409, f"IP address {address} already allocated in subnet {fitting[0]}")
        if ip_address(address).version != 4:
            raise Refused(409, f"No more IP addresses available on network {network_id}.")
        if sum(one.project_id == body["project_id"] for one in self._all()) >= self.address_quota:
            raise Refused(409, "Quota exceeded for resources: ['floatingip'].")
        made = self.add_floating_ip(network_id, address, body["project_id"], description=body.get("description", ""))
        return 201, {"floatingip": _shown(made)}

    def _change_floating_ip(self, seen: Seen, token: dict[str, Any], key: str) -> tuple[int, Any]:
        expect(set(seen.body), {"floatingip"})
        expect(set(seen.body["floatingip"]) - {"port_id", "description"}, set())
        found = self._floating_ip(key)
        found.port_id = seen.body["floatingip"].get("port_id", found.port_id)
        found.description = seen.body["floatingip"].get("description", found.description)
        return 200, {"floatingip": _shown(found)}

    def _tag_floating_ip(self, seen: Seen, token: dict[str, Any], key: str) -> tuple[int, Any]:
        expect(set(seen.body), {"tags"})
        tags = seen.body["tags"]
        if len(set(tags)) != len(tags) or len(tags) > 50 or any(len(tag) > 255 for tag in tags):
            raise Refused(400, f"Invalid input for tags: {tags}")
        self._floating_ip(key).tags = list(tags)
        return 200, {"tags": tags}

    def _delete_floating_ip(self, seen: Seen, token: dict[str, Any], key: str) -> tuple[int, Any]:
        del self.floating_ips[self._floating_ip(key).id]
        return 204, None

    def _all(self) -> list[FloatingIP]:
        return list(self.floating_ips.values())

    def _floating_ip(self, key: str) -> FloatingIP:
        if key not in self.floating_ips:
            raise Refused(404, f"Floating IP {key} could not be found")
        return self.floating_ips[key]

    NETWORK: ClassVar[tuple[Route, ...]] = (
        ("network", "GET", "/v2.0/networks/([^/]+)", _show_network),
        ("network", "GET", "/v2.0/subnets", _list_subnets),
        ("network", "GET", "/v2.0/ports", _list_ports),
        ("network", "GET", "/v2.0/floatingips", _list_floating_ips),
        ("network", "POST", "/v2.0/floatingips", _make_floating_ip),
        ("network", "PUT", "/v2.0/floatingips/([^/]+)", _change_floating_ip),
        ("network", "PUT", "/v2.0/floatingips/([^/]+)/tags", _tag_floating_ip),
        ("network", "DELETE", "/v2.0/floatingips/([^/]+)", _delete_floating_ip),
    )


def _has(subnet: Subnet, address: str) -> bool:
    asked, network = ip_address(address), subnet.network
    ends = {network.network_address, network.broadcast_address} if network.version == 4 else set()
    return asked in network and asked not in ends


def _shown(one: FloatingIP) -> dict[str, Any]:
    return {
        "id": one.id,
        "floating_network_id": one.network_id,
        "floating_ip_address": one.address,
        "project_id": one.project_id,
        "tenant_id": one.project_id,
        "port_id": one.port_id,
        "description": one.description,
        "tags": list(one.tags),
        "status": "ACTIVE" if one.port_id else "DOWN",
    }
