"""Which call of the API does what in the fake cloud."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar
from urllib.parse import urlencode

from tenureclient.testing import documents
from tenureclient.testing.cloud import FakeCloud
from tenureclient.testing.stock import FakeFloatingIP, FakeHost, FakeLease, Refusal
from tenureclient.wire import JsonObject, JsonValue, Version, read_moment, rfc3339

T = TypeVar("T")
R = TypeVar("R", FakeHost, FakeFloatingIP)
_CHANGES: Mapping[str, frozenset[str]] = {
    "disable": frozenset({"dry_run", "reason"}),
    "enable": frozenset({"dry_run"}),
    "reallocate": frozenset({"dry_run", "lease_id", "running"}),
}
Outcome = tuple[int, JsonObject | None]


@dataclass(frozen=True, slots=True)
class Call:
    """One request, taken apart."""

    method: str
    parts: tuple[str, ...]
    query: Mapping[str, str]
    body: JsonValue
    version: Version
    base: str

    @property
    def fields(self) -> JsonObject:
        if not isinstance(self.body, Mapping):
            raise Refusal(400, "InvalidParameter", "The body is not a JSON object")
        return self.body


class Routes:
    """Answers calls from a cloud."""

    def __init__(self, cloud: FakeCloud, page_size: int) -> None:
        self._cloud = cloud
        self._page_size = page_size
        self._hosts_made = 0

    def answer(self, call: Call, *, readable: bool) -> Outcome:
        """Return status and body."""
        self._cloud.settle()
        try:
            if not readable:
                raise Refusal(400, "InvalidParameter", "The body is not JSON")
            return self._dispatch(call)
        except Refusal as refusal:
            return documents.error_document(refusal, call.version)

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

    def _dispatch(self, call: Call) -> Outcome:
        newer = call.version is not Version.V1_0
        match (call.method, *call.parts):
            case ("GET", "v1", "leases"):
                return 200, self._list_leases(call)
            case ("POST", "v1", "leases"):
                return 201, self._create_lease(call)
            case ("GET", "v1", "leases", lease_id):
                return 200, self._lease(self._cloud.lease(lease_id), call)
            case ("PUT", "v1", "leases", lease_id):
                return 200, self._update_lease(self._cloud.lease(lease_id), call)
            case ("DELETE", "v1", "leases", lease_id):
                if not (newer and lease_id in self._cloud.deleted):
                    self._cloud.delete(lease_id)
                return 204, None
            case ("GET", "v1", "leases", lease_id, "history") if newer:
                return 200, {"history": list(self._cloud.lease(lease_id).history)}
            case ("GET", "v1", "leases", lease_id, "hosts") if newer:
                return 200, self._lease_hosts(self._cloud.lease(lease_id))
            case ("GET", "v1", "leases", lease_id, "floatingips") if newer:
                return 200, self._lease_floatingips(self._cloud.lease(lease_id))
            case ("POST", "v1", "leases", lease_id, "reservations") if newer:
                return 201, self._add_reservation(self._cloud.lease(lease_id), call)
            case ("DELETE", "v1", "leases", lease_id, "reservations", reservation_id) if newer:
                self._cloud.drop(self._cloud.lease(lease_id), reservation_id)
                return 204, None
            case (_, "v1", "os-hosts", *_):
                return self._dispatch_hosts(call)
            case (_, "v1", "floatingips", *_):
                return self._dispatch_floatingips(call)
        raise Refusal(404, "NotFound", "The requested URL was not found on the server.")

    def _dispatch_hosts(self, call: Call) -> Outcome:
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

    def _dispatch_floatingips(self, call: Call) -> Outcome:
        newer = call.version is not Version.V1_0
        match (call.method, *call.parts[2:]):
            case ("GET",):
                return 200, self._list_floatingips(call)
            case ("POST",):
                return 201, self._create_floatingip(call)
            case ("GET", "allocations") if newer:
                return 200, self._list_allocations(self._cloud.floatingips, call)
            case ("GET", floatingip_id):
                found = self._cloud.floatingip(floatingip_id)
                return 200, {"floatingip": documents.floatingip_document(found, call.version)}
            case ("DELETE", floatingip_id):
                self._cloud.remove_floatingip(floatingip_id)
                return 204, None
            case ("GET", floatingip_id, "allocation") if newer:
                self._cloud.floatingip(floatingip_id)
                return 200, {"allocation": self._allocation(floatingip_id, call)}
            case ("POST", floatingip_id, "disable" | "enable" | "reallocate" as action) if (
                call.version is Version.V1_2
            ):
                found = self._cloud.floatingip(floatingip_id)
                return 200, self._change(found, "floatingip", documents.floatingip_document, action, call)
        raise Refusal(404, "NotFound", "The requested URL was not found on the server.")

    # Leases

    def _lease(self, lease: FakeLease, call: Call) -> JsonObject:
        return {"lease": self._document(lease, call)}

    def _document(self, lease: FakeLease, call: Call) -> JsonObject:
        return documents.lease_document(lease, call.version, self._cloud.flavors)

    def _list_leases(self, call: Call) -> JsonObject:
        leases = list(self._cloud.leases.values())
        if call.version is Version.V1_0:
            return {"leases": [self._document(lease, call) for lease in leases]}
        texts: Mapping[str, Callable[[FakeLease], str]] = {
            "name": lambda lease: lease.name,
            "status": lambda lease: lease.status,
            "user_id": lambda _: "fake-user",
            "project_id": lambda _: "fake-project",
        }
        for key, text in texts.items():
            leases = [lease for lease in leases if call.query.get(key) in (None, text(lease))]
        if before := call.query.get("starts_before"):
            leases = [lease for lease in leases if lease.start < read_moment(before)]
        if after := call.query.get("ends_after"):
            leases = [lease for lease in leases if lease.end > read_moment(after)]
        orders: Mapping[str, Callable[[FakeLease], str]] = {
            "created_at": lambda lease: rfc3339(lease.created_at),
            "name": lambda lease: lease.name,
            "start_date": lambda lease: rfc3339(lease.start),
            "end_date": lambda lease: rfc3339(lease.end),
        }
        leases.sort(key=orders[call.query.get("sort_key", "created_at")])
        if call.query.get("sort_dir") == "desc":
            leases.reverse()
        return self._page(
            call,
            "leases",
            leases,
            lambda lease: lease.id,
            lambda lease: self._document(lease, call),
        )

    def _create_lease(self, call: Call) -> JsonObject:
        documents.check_lease_fields(call.fields, call.version)
        for name in ("name", "start_date", "end_date"):
            if not isinstance(call.fields.get(name), str):
                raise Refusal(400, "MissingParameter", f"Missing parameter {name}", field=name)
        start, end, before_end = self._dates(call)
        wanted = call.fields.get("reservations")
        reservations = [
            documents.read_reservation(document, f"reservations[{number}]")
            for number, document in enumerate(wanted if isinstance(wanted, list) else [])
        ]
        lease = self._cloud.book(
            str(call.fields["name"]),
            start or self._cloud.now,
            end or self._cloud.now,
            before_end,
            reservations,
            documents.read_events(call.fields, call.version),
        )
        return self._lease(lease, call)

    def _update_lease(self, lease: FakeLease, call: Call) -> JsonObject:
        documents.check_lease_fields(call.fields, call.version)
        start, end, before_end = self._dates(call)
        name = call.fields.get("name")
        wanted = call.fields.get("reservations")
        parameters: dict[str, Mapping[str, JsonValue]] = {}
        for number, document in enumerate(wanted if isinstance(wanted, list) else []):
            change = dict(document) if isinstance(document, Mapping) else {}
            reservation_id = str(change.pop("id", ""))
            if reservation_id not in [reservation.id for reservation in lease.reservations]:
                raise Refusal(
                    400,
                    "InvalidParameter",
                    f"Please enter valid reservation IDs. Invalid reservation IDs are: {reservation_id}",
                    field=f"reservations[{number}].id",
                )
            parameters[reservation_id] = change
        self._cloud.change(
            lease,
            name=None if name is None else str(name),
            start=start,
            end=end,
            before_end=before_end,
            parameters=parameters,
            own_events=documents.read_events(call.fields, call.version),
        )
        return self._lease(lease, call)

    def _dates(self, call: Call) -> tuple[datetime | None, datetime | None, datetime | None]:
        start, end, before_end = (
            documents.read_date(call.fields, name, call.version, self._cloud.now)
            for name in ("start_date", "end_date", "before_end_date")
        )
        return start, end, before_end

    def _lease_hosts(self, lease: FakeLease) -> JsonObject:
        return {
            "hosts": [
                documents.lease_host_document(lease, reservation, self._cloud.host(host_id))
                for reservation in lease.reservations
                if reservation.resource_type == "physical:host"
                for host_id in reservation.host_ids
            ]
        }

    def _lease_floatingips(self, lease: FakeLease) -> JsonObject:
        return {
            "floatingips": [
                documents.lease_floatingip_document(lease, reservation, self._cloud.floatingip(floatingip_id))
                for reservation in lease.reservations
                for floatingip_id in reservation.floatingip_ids
            ]
        }

    def _add_reservation(self, lease: FakeLease, call: Call) -> JsonObject:
        try:
            self._cloud.add(lease, documents.read_reservation(call.body, "reservation"))
        except Refusal as refusal:
            # The body is the reservation: its fields are called by their own names.
            refusal.field = refusal.field and refusal.field.rpartition(".")[2]
            raise
        return self._lease(lease, call)

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
        found = list(self._cloud.floatingips.values())
        if call.version is Version.V1_0:
            return {"floatingips": [documents.floatingip_document(one, call.version) for one in found]}
        found = [
            one
            for one in found
            if call.query.get("floating_ip_address") in (None, one.floating_ip_address)
            and call.query.get("floating_network_id") in (None, one.floating_network_id)
            and call.query.get("reservable") in (None, str(one.reservable).lower())
        ]
        key = call.query.get("sort_key", "id")
        found.sort(key=lambda one: str(getattr(one, key)), reverse=call.query.get("sort_dir") == "desc")
        return self._page(
            call,
            "floatingips",
            found,
            lambda one: one.id,
            lambda one: documents.floatingip_document(one, call.version),
        )

    def _create_floatingip(self, call: Call) -> JsonObject:
        known = frozenset({"floating_network_id", "floating_ip_address"})
        documents.check_fields(call.fields, known, call.version)
        for name in sorted(known):
            if not isinstance(call.fields.get(name), str):
                raise Refusal(400, "MissingParameter", f"Missing parameter {name}", field=name)
        network_id, address = (
            str(call.fields[name]) for name in ("floating_network_id", "floating_ip_address")
        )
        made = [
            (one.floating_network_id, one.floating_ip_address) for one in self._cloud.floatingips.values()
        ]
        if (network_id, address) in made:
            message = f"Floating IP {address} is registered already."
            raise Refusal(409, "Conflict", message, field="floating_ip_address")
        floatingip = self.new_floatingip(network_id, address)
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
            and call.query.get("reservable") in (None, str(host.reservable).lower())
        ]
        hosts.sort(
            key=lambda host: host.hypervisor_hostname,
            reverse=call.query.get("sort_dir") == "desc",
        )
        return self._page(
            call,
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
            documents.check_fields(call.fields, frozenset({"id", "name", "properties"}), call.version)
            own = call.fields.get("properties", {})
        if name in [host.hypervisor_hostname for host in self._cloud.hosts.values()]:
            raise Refusal(409, "Conflict", f"Host '{name}' is already there", field="name")
        properties = {key: str(value) for key, value in own.items()} if isinstance(own, Mapping) else {}
        return {"host": documents.host_document(self.new_host(name, properties), call.version)}

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
        self, resource: R, one: str, document: Callable[[R, Version], JsonObject], action: str, call: Call
    ) -> JsonObject:
        """Close, open or empty a host or an address."""
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
            one: document(shown, call.version),
            "dry_run": dry_run,
            "reservations": list[JsonValue](affected),
        }

    # Allocations and properties

    def _list_allocations(self, resource_ids: Iterable[str], call: Call) -> JsonObject:
        found = [self._allocation(resource_id, call) for resource_id in resource_ids]
        if call.version is Version.V1_0:
            return {"allocations": list(found)}
        if call.query.get("lease_id") or call.query.get("reservation_id"):
            found = [allocation for allocation in found if allocation["reservations"]]
        return self._page(
            call,
            "allocations",
            found,
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

    def _page(
        self,
        call: Call,
        items: str,
        found: Sequence[T],
        mark: Callable[[T], str],
        document: Callable[[T], JsonObject],
    ) -> JsonObject:
        """Cut one page out of a list, with a link to the next one where there is one."""
        limit = min(int(call.query.get("limit") or self._page_size), self._page_size)
        marks = [mark(item) for item in found]
        marker = call.query.get("marker")
        if marker is not None and marker not in marks:
            raise Refusal(400, "InvalidParameter", f"Unknown marker {marker}", field="marker")
        begin = 0 if marker is None else marks.index(marker) + 1
        page = found[begin : begin + limit]
        answer: dict[str, JsonValue] = {items: [document(item) for item in page]}
        if begin + limit < len(found):
            query = {**call.query, "limit": str(limit), "marker": marks[begin + limit - 1]}
            path = "/".join(call.parts[1:])
            answer[f"{items}_links"] = [{"rel": "next", "href": f"{call.base}/{path}?{urlencode(query)}"}]
        return answer
