"""Neutron: external networks and floating IPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from tenure.domain.address import lies_in
from tenure.drivers.contract import CloudError, CloudNotFound
from tenure.drivers.openstack.requests import Calls, Request

_PAGE: Final = "1000"
#: How many addresses are in one request: they are part of its URL.
_ADDRESSES: Final = 50
#: The requested fields of floating IPs.
_FIELDS: Final = (
    "id",
    "floating_network_id",
    "floating_ip_address",
    "project_id",
    "port_id",
    "description",
    "tags",
)


@dataclass(frozen=True, slots=True)
class Subnet:
    id: str
    cidr: str
    gateway: str | None
    pools: tuple[tuple[str, str], ...]

    def has(self, address: str) -> bool:
        return lies_in(address, self.cidr)

    def hands_out(self, address: str) -> bool:
        """Whether the address is in an allocation pool or the gateway's."""
        ip = ip_address(address)
        if self.gateway is not None and ip == ip_address(self.gateway):
            return True
        bounds = ((ip_address(first), ip_address(last)) for first, last in self.pools)
        return any(
            first.version == ip.version == last.version and int(first) <= int(ip) <= int(last) for first, last in bounds
        )


@dataclass(frozen=True, slots=True)
class FloatingIP:
    id: str
    network_id: str
    address: str
    project_id: str
    port_id: str | None
    description: str
    tags: frozenset[str]


class Network:
    """Neutron's API, for one driver call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def is_external(self, network_id: str) -> bool:
        """Whether the network is external. Raises ``CloudNotFound``."""
        return bool(self._send("GET", f"/networks/{network_id}")["network"].get("router:external"))

    def subnets(self, network_id: str) -> list[Subnet]:
        found = self._send("GET", "/subnets", params={"network_id": network_id})["subnets"]
        return [
            Subnet(
                subnet["id"],
                subnet["cidr"],
                subnet.get("gateway_ip"),
                tuple((pool["start"], pool["end"]) for pool in subnet.get("allocation_pools") or ()),
            )
            for subnet in found
        ]

    def floating_ips(self) -> list[FloatingIP]:
        """Return the floating IPs of all projects."""
        return self._list({})

    def tagged(self, tag: str) -> list[FloatingIP]:
        return self._list({"tags": tag})

    def at(self, addresses: Sequence[str], network_id: str | None = None) -> list[FloatingIP]:
        """Return the floating IPs with these addresses, in that network or in any."""
        found: list[FloatingIP] = []
        for first in range(0, len(addresses), _ADDRESSES):
            params: dict[str, str | Sequence[str]] = {
                "floating_ip_address": list(addresses[first : first + _ADDRESSES])
            }
            if network_id is not None:
                params["floating_network_id"] = network_id
            found += self._list(params)
        return found

    def users_of(self, address: str) -> list[tuple[str, str]]:
        """Return the networks in which a port has the address, with the owner of each port."""
        params = {"fixed_ips": f"ip_address={address}", "fields": ["network_id", "device_owner"]}
        ports = self._send("GET", "/ports", params=params)["ports"]
        return [(port["network_id"], port.get("device_owner") or "") for port in ports]

    def make_all(self, bodies: Sequence[Mapping[str, Any]]) -> list[FloatingIP | CloudError]:
        """Create these concurrently; return each floating IP or its error."""
        requests = [Request("network", "POST", "/floatingips", {"floatingip": dict(body)}) for body in bodies]
        return [
            answer if isinstance(answer, CloudError) else _floating_ip(answer["floatingip"])
            for answer in self._calls.send_all(requests)
        ]

    def set_tags(self, tagged: Sequence[tuple[FloatingIP, frozenset[str]]]) -> None:
        """Set exactly these tags on each. Missing floating IPs are ignored."""
        self._each(
            [
                Request("network", "PUT", f"/floatingips/{floating_ip.id}/tags", {"tags": sorted(tags)})
                for floating_ip, tags in tagged
            ]
        )

    def delete_all(self, floating_ips: Sequence[FloatingIP]) -> None:
        """Disassociate and delete these. Missing ones are ignored."""
        used = [floating_ip for floating_ip in floating_ips if floating_ip.port_id is not None]
        free = {"floatingip": {"port_id": None}}
        self._each([Request("network", "PUT", f"/floatingips/{floating_ip.id}", free) for floating_ip in used])
        self._each([Request("network", "DELETE", f"/floatingips/{floating_ip.id}") for floating_ip in floating_ips])

    def _each(self, requests: Sequence[Request]) -> None:
        for answer in self._calls.send_all(requests):
            if isinstance(answer, CloudError) and not isinstance(answer, CloudNotFound):
                raise answer

    def _list(self, filters: Mapping[str, str | Sequence[str]]) -> list[FloatingIP]:
        found: list[FloatingIP] = []
        params: dict[str, str | Sequence[str]] = {**filters, "fields": _FIELDS, "limit": _PAGE}
        while True:
            page = self._send("GET", "/floatingips", params=params)
            found += map(_floating_ip, page["floatingips"])
            links = page.get("floatingips_links") or ()
            if not page["floatingips"] or not any(link.get("rel") == "next" for link in links):
                return found
            params["marker"] = page["floatingips"][-1]["id"]

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str | Sequence[str]] | None = None,
    ) -> Any:
        return self._calls.send(Request("network", method, path, body, params=params or {}))


def _floating_ip(found: Mapping[str, Any]) -> FloatingIP:
    return FloatingIP(
        id=found["id"],
        network_id=found["floating_network_id"],
        address=str(ip_address(found["floating_ip_address"])),
        project_id=found.get("project_id") or found.get("tenant_id") or "",
        port_id=found.get("port_id"),
        description=found.get("description") or "",
        tags=frozenset(found.get("tags") or ()),
    )
