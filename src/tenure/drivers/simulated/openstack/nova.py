"""Nova: its version, hypervisors, zones and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tenure.drivers.contract import CloudNotFound
from tenure.drivers.openstack.compute import nodes_in
from tenure.drivers.simulated.openstack.effects import EffectKind
from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    expect,
    next_link,
    page_of,
    version_is,
)
from tenure.drivers.simulated.openstack.state import Aggregate, Host, State

_HYPERVISORS: Final = "2.33"
#: The aggregate of the free hosts that are set aside for reservations.
POOL: Final = "freepool"
#: The metadata key for the owner of a reservation's aggregate.
OWNER: Final = "blazar:owner"
#: The prefix of the zones of reservations.
_ZONE_PREFIX: Final = "blazar_"
#: Nova's name for the zone of hosts whose aggregates have no zone.
_DEFAULT_ZONE: Final = "nova"


class Nova:
    def __init__(self, state: State) -> None:
        self._state = state

    def show_version(self, request: ApiRequest, caller: Caller) -> Answer:
        version = {"id": "v2.1", "version": self._state.nova, "min_version": "2.1", "status": "CURRENT"}
        return 200, {"version": version}

    # Hypervisors

    def list_hypervisors(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _HYPERVISORS)
        hosts = sorted(self._state.hosts.values(), key=lambda host: host.number)
        page, has_more = page_of(hosts, request, lambda host: host.id, self._state.page)
        return 200, {"hypervisors": [_shown_host(host) for host in page], **next_link("hypervisors", has_more)}

    def show_hypervisor(self, request: ApiRequest, caller: Caller, hypervisor_id: str) -> Answer:
        version_is(request, _HYPERVISORS)
        try:
            return 200, {"hypervisor": _shown_host(self._state.host(hypervisor_id))}
        except CloudNotFound as error:
            raise Refused(404, str(error)) from None

    def search_hypervisors(self, request: ApiRequest, caller: Caller, part: str) -> Answer:
        version_is(request, _HYPERVISORS)
        found = [host for host in self._state.hosts.values() if part.lower() in host.name.lower()]
        if not found:
            raise Refused(404, f"No hypervisor matching '{part}' could be found.")
        return 200, {"hypervisors": [{"id": host.number, "hypervisor_hostname": host.name} for host in found]}

    # Aggregates

    def list_zones(self, request: ApiRequest, caller: Caller) -> Answer:
        zone_of: dict[str, str] = {}
        for aggregate in self._state.aggregates.values():
            for service_host in aggregate.hosts if aggregate.zone else ():
                zone_of.setdefault(service_host, aggregate.zone or _DEFAULT_ZONE)
        zones: dict[str, dict[str, Any]] = {}
        for service_host in {host.service_host: None for host in self._state.hosts.values()}:
            zone = zone_of.get(service_host, _DEFAULT_ZONE)
            zones.setdefault(zone, {})[service_host] = {"nova-compute": {"active": True}}
        zones["internal"] = {"controller": {"nova-conductor": {"active": True}}}
        return 200, {"availabilityZoneInfo": [{"zoneName": name, "hosts": hosts} for name, hosts in zones.items()]}

    def list_aggregates(self, request: ApiRequest, caller: Caller) -> Answer:
        return 200, {"aggregates": [_shown(aggregate) for aggregate in self._state.aggregates.values()]}

    def make_aggregate(self, request: ApiRequest, caller: Caller) -> Answer:
        body = request.body["aggregate"]
        expect(set(body), {"name", "availability_zone"})
        if self._state.aggregate(body["name"]) is not None:
            raise Refused(409, f"Aggregate {body['name']} already exists.")
        made = self._state.add_aggregate(body["name"], body["availability_zone"])
        if made.name != POOL:
            self._record(made, EffectKind.GROUP_MADE, EffectKind.AGGREGATE_MADE)
        shown = _shown(made)
        del shown["hosts"], shown["metadata"]
        return 200, {"aggregate": shown}

    def delete_aggregate(self, request: ApiRequest, caller: Caller, aggregate_id: str) -> Answer:
        aggregate = self._aggregate(aggregate_id)
        if aggregate.hosts:
            raise Refused(
                400, f"Cannot remove host from aggregate {aggregate_id}. Reason: Host aggregate is not empty."
            )
        del self._state.aggregates[aggregate.number]
        self._record(aggregate, EffectKind.GROUP_REMOVED, EffectKind.AGGREGATE_REMOVED)
        return 200, None

    def act_on_aggregate(self, request: ApiRequest, caller: Caller, aggregate_id: str) -> Answer:
        ((action, values),) = request.body.items()
        actions: dict[str, Callable[..., None]] = {
            "add_host": self._add_host,
            "remove_host": self._remove_host,
            "set_metadata": self._set_metadata,
        }
        aggregate = self._aggregate(aggregate_id)
        actions[action](aggregate, **values)
        self._state.aggregates.save(aggregate.number)
        return 200, {"aggregate": _shown(aggregate)}

    def _add_host(self, aggregate: Aggregate, host: str) -> None:
        if not self._is_service(host):
            raise Refused(404, f"Compute host {host} could not be found.")
        others = [other for other in self._state.aggregates_of(host) if other is not aggregate]
        zones = {other.zone for other in others if other.zone is not None}
        if aggregate.zone is not None and zones - {aggregate.zone}:
            raise Refused(409, f"Cannot add host to aggregate. Reason: already in availability zone(s) {zones}.")
        if self._keeps_zones and aggregate.zone is not None and not zones and self._has_servers(host):
            raise Refused(409, "Cannot add host to aggregate. Reason: the availability zone would change.")
        if host in aggregate.hosts:
            raise Refused(409, f"Aggregate {aggregate.number} already has host {host}.")
        aggregate.hosts.append(host)
        self._record_joined(aggregate, host)

    def _remove_host(self, aggregate: Aggregate, host: str) -> None:
        if not self._is_service(host) or host not in aggregate.hosts:
            raise Refused(404, f"Cannot remove host {host} in aggregate {aggregate.number}")
        others = [other for other in self._state.aggregates_of(host) if other is not aggregate]
        stays = any(other.zone == aggregate.zone for other in others)
        if self._keeps_zones and aggregate.zone is not None and not stays and self._has_servers(host):
            raise Refused(409, "Cannot remove host from aggregate. Reason: the availability zone would change.")
        aggregate.hosts.remove(host)
        self._record_left(aggregate, host)

    def _set_metadata(self, aggregate: Aggregate, metadata: dict[str, str | None]) -> None:
        zone = metadata.get("availability_zone", aggregate.zone)
        if not zone and "availability_zone" in metadata:
            raise Refused(400, "Aggregate does not support empty named availability zone")
        if self._keeps_zones and zone != aggregate.zone and any(map(self._has_servers, aggregate.hosts)):
            raise Refused(400, "One or more hosts contain instances in this zone")
        before = nodes_in(aggregate.metadata)
        for key, value in metadata.items():
            if value is None:
                aggregate.metadata.pop(key, None)
            else:
                aggregate.metadata[key] = value
        after = nodes_in(aggregate.metadata)
        for node in sorted(after - before):
            self._record_joined(aggregate, node)
        for node in sorted(before - after):
            self._record_left(aggregate, node)
        if metadata and not nodes_in(metadata) and aggregate.name != POOL:
            self._record(aggregate, EffectKind.GROUP_CHANGED, EffectKind.AGGREGATE_CHANGED)

    def _record_joined(self, aggregate: Aggregate, host: str) -> None:
        if aggregate.name != POOL:
            self._record(aggregate, EffectKind.HOST_TAKEN, EffectKind.HOST_ADDED, host)
        elif not self._is_set_aside(host, aggregate):
            self._state.record(EffectKind.HOST_POOLED, host=host)

    def _record_left(self, aggregate: Aggregate, host: str) -> None:
        if aggregate.name != POOL:
            self._record(aggregate, EffectKind.HOST_RETURNED, EffectKind.HOST_DROPPED, host)
        elif not self._is_set_aside(host, aggregate):
            self._state.record(EffectKind.HOST_UNPOOLED, host=host)

    def _is_set_aside(self, host: str, but: Aggregate) -> bool:
        """Whether another aggregate closes the host to servers that do not name it."""
        return any(is_set_aside(other) for other in self._state.aggregates_of(host) if other is not but)

    def _record(
        self, aggregate: Aggregate, of_hosts: EffectKind, of_parts: EffectKind, host: str | None = None
    ) -> None:
        """Record a change of the aggregate of a reservation, of hosts or of instances, or of an operator."""
        if is_set_aside(aggregate):
            self._state.record(of_hosts, aggregate.name, host=host)
        else:
            self._state.record(of_parts, aggregate.name if aggregate.zone is None else None, host=host)

    @property
    def _keeps_zones(self) -> bool:
        """Whether hosts with servers must keep their zone, as in the Nova versions that show hints."""
        return self._state.tells_hints

    def _is_service(self, service_host: str) -> bool:
        """Whether it is a compute service, of a hypervisor or of nodes of Ironic."""
        known = self._state.hosts.get(service_host)
        if known is not None:
            return known.service_host == service_host
        return any(host.service_host == service_host for host in self._state.hosts.values())

    def _has_servers(self, service_host: str) -> bool:
        keys = {host.key for host in self._state.hosts.values() if host.service_host == service_host}
        return any(server.host in keys for server in self._state.servers.values())

    def _aggregate(self, aggregate_id: str) -> Aggregate:
        if int(aggregate_id) not in self._state.aggregates:
            raise Refused(404, f"Aggregate {aggregate_id} could not be found.")
        return self._state.aggregates[int(aggregate_id)]

    @property
    def routes(self) -> Sequence[Route]:
        aggregate = "/os-aggregates/([0-9]+)"
        return (
            ("compute", "GET", "/", self.show_version),
            ("compute", "GET", "/os-hypervisors/detail", self.list_hypervisors),
            ("compute", "GET", "/os-hypervisors/([0-9]+)", self.show_hypervisor),
            ("compute", "GET", "/os-hypervisors/([^/]+)/search", self.search_hypervisors),
            ("compute", "GET", "/os-availability-zone/detail", self.list_zones),
            ("compute", "GET", "/os-aggregates", self.list_aggregates),
            ("compute", "POST", "/os-aggregates", self.make_aggregate),
            ("compute", "DELETE", aggregate, self.delete_aggregate),
            ("compute", "POST", f"{aggregate}/action", self.act_on_aggregate),
        )


def is_set_aside(aggregate: Aggregate) -> bool:
    """Whether the hosts of the aggregate are closed to servers that do not name it."""
    return aggregate.name == POOL or (aggregate.zone or "").startswith(_ZONE_PREFIX)


def _shown_host(host: Host) -> dict[str, Any]:
    return {
        "id": host.number,
        "hypervisor_hostname": host.name,
        "state": host.state,
        "status": host.status,
        "service": {"id": host.number, "host": host.service_host, "disabled_reason": host.reason},
        "vcpus": host.vcpus,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
        "cpu_info": dict(host.cpu_info),
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": host.hypervisor_version,
        "host_ip": "10.0.0.1",
    }


def _shown(aggregate: Aggregate) -> dict[str, Any]:
    return {
        "id": aggregate.number,
        "name": aggregate.name,
        "availability_zone": aggregate.zone,
        "hosts": list(aggregate.hosts),
        "metadata": dict(aggregate.metadata),
        "deleted": False,
    }
