"""The API calls for hosts, addresses and volume pools of the fake cloud."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from tenureclient.testing import documents
from tenureclient.testing.calls import Call, Outcome, one_page
from tenureclient.testing.cloud import FakeCloud
from tenureclient.testing.stock import FakeFloatingIP, FakeHost, FakeVolumePool, Refusal
from tenureclient.wire import JsonObject, JsonValue, Version

R = TypeVar("R", FakeHost, FakeFloatingIP, FakeVolumePool)
_CHANGES: Mapping[str, frozenset[str]] = {
    "disable": frozenset({"dry_run", "reason"}),
    "enable": frozenset({"dry_run"}),
    "reallocate": frozenset({"dry_run", "lease_id", "running"}),
}


def _where(call: Call) -> frozenset[str]:
    """Return the fields of a registration that restrict its place."""
    return frozenset({"region"}) if call.version is Version.V1_2 else frozenset()


def _region(call: Call) -> str | None:
    region = call.fields.get("region") if call.version is Version.V1_2 else None
    return region if isinstance(region, str) else None


def _shown(pool: FakeVolumePool, call: Call) -> JsonObject:
    return {"volume_pool": documents.volume_pool_document(pool, call.version)}


def _capacity(call: Call) -> int:
    """Return how much of a pool to lend, in GB."""
    capacity_gb = call.fields.get("capacity_gb")
    if isinstance(capacity_gb, bool) or not isinstance(capacity_gb, int) or capacity_gb < 1:
        raise Refusal(400, "InvalidParameter", "capacity_gb: at least 1", field="capacity_gb")
    return capacity_gb


class InventoryRoutes:
    """Answers the calls for hosts, addresses and volume pools."""

    def __init__(self, cloud: FakeCloud, page_size: int) -> None:
        self._cloud = cloud
        self._page_size = page_size
        self._hosts_made = 0

    def new_host(self, name: str, properties: dict[str, str]) -> FakeHost:
        self._hosts_made += 1
        host = FakeHost(
            id=str(self._hosts_made),
            hypervisor_hostname=name,
            vcpus=8,
            memory_mb=16384,
            local_gb=100,
            availability_zone="nova",
            reservable=True,
            properties=properties,
            created_at=self._cloud.now,
        )
        self._cloud.hosts[host.id] = host
        return host

    def hosts(self, call: Call) -> Outcome:
        """Return status and body of a call below ``os-hosts``."""
        match (call.method, *call.parts[2:]):
            case ("GET",):
                return 200, self._list_hosts(call)
            case ("POST",):
                return 201, self._create_host(call)
            case ("GET", "allocations"):
                return 200, self._list_allocations(self._cloud.hosts, call)
            case ("GET", "properties"):
                return 200, self._list_properties(call)
            case ("PATCH", "properties", name):
                return 200, self._set_property(name, call)
            case ("GET", host_id):
                return 200, {"host": documents.host_document(self._cloud.host(host_id), call.version)}
            case ("PUT", host_id):
                return 200, self._update_host(self._cloud.host(host_id), call)
            case ("DELETE", host_id):
                self._cloud.remove_host(host_id)
                return 204, None
            case ("GET", host_id, "allocation"):
                self._cloud.host(host_id)
                return 200, {"allocation": self._allocation(host_id, call)}
            case ("POST", host_id, "disable" | "enable" | "reallocate" as action) if (
                call.version is Version.V1_2
            ):
                host = self._cloud.host(host_id)
                return 200, self._change(host, "host", documents.host_document, action, call)
        raise Refusal(404, "NotFound", "The requested URL was not found on the server.")

    def floatingips(self, call: Call) -> Outcome:
        """Return status and body of a call below ``floatingips``."""
        newer = call.version is not Version.V1_0
        match (call.method, *call.parts[2:]):
            case ("GET",):
                return 200, self._list_floatingips(call)
            case ("POST",):
                return 201, self._create_floatingip(call)
            case ("GET", "allocations") if newer:
                return 200, self._list_allocations(self._cloud.floatingips, call)
            case ("GET", floatingip_id):
                floatingip = self._cloud.floatingip(floatingip_id)
                return 200, {"floatingip": documents.floatingip_document(floatingip, call.version)}
            case ("DELETE", floatingip_id):
                self._cloud.remove_floatingip(floatingip_id)
                return 204, None
            case ("GET", floatingip_id, "allocation") if newer:
                self._cloud.floatingip(floatingip_id)
                return 200, {"allocation": self._allocation(floatingip_id, call)}
            case ("POST", floatingip_id, "disable" | "enable" | "reallocate" as action) if (
                call.version is Version.V1_2
            ):
                floatingip = self._cloud.floatingip(floatingip_id)
                return 200, self._change(
                    floatingip, "floatingip", documents.floatingip_document, action, call
                )
        raise Refusal(404, "NotFound", "The requested URL was not found on the server.")

    def volume_pools(self, call: Call) -> Outcome:
        """Return status and body of a call below ``volume-pools``."""
        match (call.method, *call.parts[2:]):
            case ("GET",):
                return 200, self._list_volume_pools(call)
            case ("POST",):
                return 201, self._create_volume_pool(call)
            case ("GET", "allocations"):
                return 200, self._list_allocations(self._cloud.pools, call)
            case ("GET", pool_id):
                return 200, _shown(self._cloud.pool(pool_id), call)
            case ("PUT", pool_id):
                return 200, self._lend(self._cloud.pool(pool_id), call)
            case ("DELETE", pool_id):
                self._cloud.remove_pool(pool_id)
                return 204, None
            case ("GET", pool_id, "allocation"):
                self._cloud.pool(pool_id)
                return 200, {"allocation": self._allocation(pool_id, call)}
            case ("POST", pool_id, "disable" | "enable" | "reallocate" as action):
                pool = self._cloud.pool(pool_id)
                return 200, self._change(pool, "volume_pool", documents.volume_pool_document, action, call)
        raise Refusal(404, "NotFound", "The requested URL was not found on the server.")

    # Volume pools

    def new_volume_pool(self, name: str, capacity_gb: int, volume_type: str) -> FakeVolumePool:
        pool = FakeVolumePool(
            id=str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
            name=name,
            capacity_gb=capacity_gb,
            volume_type=volume_type,
            reservable=True,
            created_at=self._cloud.now,
        )
        self._cloud.pools[pool.id] = pool
        return pool

    def _list_volume_pools(self, call: Call) -> JsonObject:
        pools = [
            pool
            for pool in self._cloud.pools.values()
            if call.query.get("name") in (None, pool.name)
            and call.query.get("region") in (None, pool.region)
            and call.query.get("reservable") in (None, str(pool.reservable).lower())
        ]
        key = call.query.get("sort_key", "id")
        pools.sort(key=lambda pool: str(getattr(pool, key)), reverse=call.query.get("sort_dir") == "desc")
        return one_page(
            call,
            self._page_size,
            "volume_pools",
            pools,
            lambda pool: pool.id,
            lambda pool: documents.volume_pool_document(pool, call.version),
        )

    def _create_volume_pool(self, call: Call) -> JsonObject:
        documents.check_fields(call.fields, frozenset({"name", "capacity_gb"}) | _where(call), call.version)
        name = call.fields.get("name")
        if not isinstance(name, str):
            raise Refusal(400, "MissingParameter", "Missing parameter name", field="name")
        if name in [pool.name for pool in self._cloud.pools.values()]:
            raise Refusal(409, "Conflict", f"Volume pool {name} is registered already.", field="name")
        pool = self.new_volume_pool(name, _capacity(call), "")
        pool.region = _region(call)
        return _shown(pool, call)

    def _lend(self, pool: FakeVolumePool, call: Call) -> JsonObject:
        documents.check_fields(call.fields, frozenset({"capacity_gb"}), call.version)
        capacity_gb, promised = _capacity(call), self._cloud.promised(pool.id)
        if capacity_gb < promised:
            message = f"At some time {promised} DISK_GB of the volume pool {pool.name} are promised or kept"
            raise Refusal(409, "Conflict", f"{message}; no less can be lent.", field="capacity_gb")
        pool.capacity_gb = capacity_gb
        return _shown(pool, call)

    # Addresses

    def new_floatingip(self, network_id: str, address: str) -> FakeFloatingIP:
        floatingip = FakeFloatingIP(
            id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{network_id}/{address}")),
            floating_network_id=network_id,
            subnet_id=str(uuid.uuid5(uuid.NAMESPACE_URL, network_id)),
            floating_ip_address=address,
            reservable=True,
            created_at=self._cloud.now,
        )
        self._cloud.floatingips[floatingip.id] = floatingip
        return floatingip

    def _list_floatingips(self, call: Call) -> JsonObject:
        floatingips = list(self._cloud.floatingips.values())
        if call.version is Version.V1_0:
            return {
                "floatingips": [
                    documents.floatingip_document(address, call.version) for address in floatingips
                ]
            }
        floatingips = [
            floatingip
            for floatingip in floatingips
            if call.query.get("floating_ip_address") in (None, floatingip.floating_ip_address)
            and call.query.get("floating_network_id") in (None, floatingip.floating_network_id)
            and call.query.get("region") in (None, floatingip.region)
            and call.query.get("reservable") in (None, str(floatingip.reservable).lower())
        ]
        key = call.query.get("sort_key", "id")
        floatingips.sort(
            key=lambda floatingip: str(getattr(floatingip, key)), reverse=call.query.get("sort_dir") == "desc"
        )
        return one_page(
            call,
            self._page_size,
            "floatingips",
            floatingips,
            lambda floatingip: floatingip.id,
            lambda floatingip: documents.floatingip_document(floatingip, call.version),
        )

    def _create_floatingip(self, call: Call) -> JsonObject:
        known = frozenset({"floating_network_id", "floating_ip_address"})
        documents.check_fields(call.fields, known | _where(call), call.version)
        for name in sorted(known):
            if not isinstance(call.fields.get(name), str):
                raise Refusal(400, "MissingParameter", f"Missing parameter {name}", field=name)
        network_id, address = (
            str(call.fields[name]) for name in ("floating_network_id", "floating_ip_address")
        )
        made = [
            (floatingip.floating_network_id, floatingip.floating_ip_address)
            for floatingip in self._cloud.floatingips.values()
        ]
        if (network_id, address) in made:
            message = f"Floating IP {address} is registered already."
            raise Refusal(409, "Conflict", message, field="floating_ip_address")
        floatingip = self.new_floatingip(network_id, address)
        floatingip.region = _region(call)
        return {"floatingip": documents.floatingip_document(floatingip, call.version)}

    # Hosts

    def _list_hosts(self, call: Call) -> JsonObject:
        hosts = list(self._cloud.hosts.values())
        if call.version is Version.V1_0:
            return {"hosts": [documents.host_document(host, call.version) for host in hosts]}
        hosts = [
            host
            for host in hosts
            if call.query.get("hypervisor_hostname") in (None, host.hypervisor_hostname)
            and call.query.get("region") in (None, host.region)
            and call.query.get("reservable") in (None, str(host.reservable).lower())
        ]
        hosts.sort(
            key=lambda host: host.hypervisor_hostname,
            reverse=call.query.get("sort_dir") == "desc",
        )
        return one_page(
            call,
            self._page_size,
            "hosts",
            hosts,
            lambda host: host.id,
            lambda host: documents.host_document(host, call.version),
        )

    def _create_host(self, call: Call) -> JsonObject:
        name = call.fields.get("id") or call.fields.get("name")
        if not isinstance(name, str):
            raise Refusal(400, "MissingParameter", "Missing parameter name", field="name")
        if call.version is Version.V1_0:
            own: JsonValue = {key: value for key, value in call.fields.items() if key not in ("id", "name")}
        else:
            documents.check_fields(
                call.fields, frozenset({"id", "name", "properties"}) | _where(call), call.version
            )
            own = call.fields.get("properties", {})
        if name in [host.hypervisor_hostname for host in self._cloud.hosts.values()]:
            raise Refusal(409, "Conflict", f"Host '{name}' is already there", field="name")
        properties = {key: str(value) for key, value in own.items()} if isinstance(own, Mapping) else {}
        host = self.new_host(name, properties)
        host.region = _region(call)
        return {"host": documents.host_document(host, call.version)}

    def _update_host(self, host: FakeHost, call: Call) -> JsonObject:
        values = call.fields
        if call.version is not Version.V1_0:
            documents.check_fields(call.fields, frozenset({"properties"}), call.version)
            inner = call.fields.get("properties")
            values = inner if isinstance(inner, Mapping) else {}
        if not values:
            raise Refusal(400, "InvalidParameter", "No data to update", field="properties")
        for key, value in values.items():
            if value is None:
                host.properties.pop(key, None)
            else:
                host.properties[key] = str(value)
        return {"host": documents.host_document(host, call.version)}

    def _change(
        self,
        resource: R,
        document_key: str,
        document: Callable[[R, Version], JsonObject],
        action: str,
        call: Call,
    ) -> JsonObject:
        """Close, open or empty a host, an address or a pool."""
        documents.check_fields(call.fields, _CHANGES[action], call.version)
        dry_run = call.fields.get("dry_run") is True
        shown = replace(resource) if dry_run else resource
        if action != "reallocate":
            shown.reservable = action == "enable" and resource.health == "well"
            shown.disabled_reason = None if action == "enable" else str(call.fields.get("reason", ""))
        affected = []
        for lease, reservation in self._cloud.allocated_to(resource.id):
            if action == "enable" or lease.status not in ("PENDING", "ACTIVE"):
                continue
            if call.fields.get("lease_id") not in (None, lease.id):
                continue
            moves_to, reason = None, "It keeps what it has."
            if action == "reallocate" and lease.status == "ACTIVE" and not call.fields.get("running"):
                reason = "The lease is running; it loses nothing unless that is asked for."
            elif action == "reallocate":
                moves_to = self._cloud.move_off(resource.id, lease, reservation, dry_run=dry_run)
                reason = "No other is free for it."
            affected.append(
                documents.affected_document(lease, reservation, moves_to, None if moves_to else reason)
            )
        return {
            document_key: document(shown, call.version),
            "dry_run": dry_run,
            "reservations": list[JsonValue](affected),
        }

    # Allocations and properties

    def _list_allocations(self, resource_ids: Iterable[str], call: Call) -> JsonObject:
        allocations = [self._allocation(resource_id, call) for resource_id in resource_ids]
        if call.version is Version.V1_0:
            return {"allocations": list(allocations)}
        if call.query.get("lease_id") or call.query.get("reservation_id"):
            allocations = [allocation for allocation in allocations if allocation["reservations"]]
        return one_page(
            call,
            self._page_size,
            "allocations",
            allocations,
            lambda allocation: str(allocation["resource_id"]),
            lambda allocation: allocation,
        )

    def _allocation(self, resource_id: str, call: Call) -> JsonObject:
        parts = [
            (lease, reservation)
            for lease, reservation in self._cloud.allocated_to(resource_id)
            if call.query.get("lease_id") in (None, lease.id)
            and call.query.get("reservation_id") in (None, reservation.id)
        ]
        return documents.allocation_document(resource_id, parts, call.version)

    def _list_properties(self, call: Call) -> JsonObject:
        names = sorted({name for host in self._cloud.hosts.values() for name in host.properties})
        shown = [
            name for name in names if call.query.get("all") or name not in self._cloud.private_properties
        ]
        return {"resource_properties": [self._property(name, call) for name in shown]}

    def _property(self, name: str, call: Call) -> JsonObject:
        if not call.query.get("detail"):
            return {"property": name}
        values = {host.properties[name] for host in self._cloud.hosts.values() if name in host.properties}
        private = name in self._cloud.private_properties
        return {"property": name, "private": private, "values": list[JsonValue](sorted(values))}

    def _set_property(self, name: str, call: Call) -> JsonObject:
        if not any(name in host.properties for host in self._cloud.hosts.values()):
            raise Refusal(404, "NotFound", f"Object with {{'resource_property': '{name}'}} not found")
        private = bool(call.fields.get("private"))
        (self._cloud.private_properties.add if private else self._cloud.private_properties.discard)(name)
        return {
            "resource_property": {
                "id": name,
                "resource_type": "physical:host",
                "property_name": name,
                "private": private,
            }
        }
