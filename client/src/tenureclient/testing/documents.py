"""The fake server's documents: reading and writing them in the form of each API version."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from tenureclient.testing.stock import (
    FakeEvent,
    FakeFlavor,
    FakeFloatingIP,
    FakeHost,
    FakeLease,
    FakeReservation,
    FakeVolumePool,
    Refusal,
)
from tenureclient.wire import JsonObject, JsonValue, Version, rfc3339

_LEASE_FIELDS = frozenset(["name", "start_date", "end_date", "before_end_date", "reservations"])
_TYPES = frozenset(
    [
        "physical:host",
        "virtual:instance",
        "flavor:instance",
        "virtual:server",
        "virtual:floatingip",
        "virtual:volume",
    ]
)
#: Parameters that restrict the place or the kind of hosts.
_SINCE_1_2 = frozenset(["region", "availability_zone", "extra_specs"])


def check_fields(body: JsonObject, known: frozenset[str], version: Version) -> None:
    """Refuse unknown fields; API 1.0 accepts them."""
    for name in body:
        if version is not Version.V1_0 and name not in known:
            raise Refusal(400, "InvalidParameter", f"Unknown field {name}", field=name)


def check_lease_fields(body: JsonObject, version: Version, *, new: frozenset[str] = frozenset()) -> None:
    """Refuse fields that a lease does not have; ``new`` are fields that only API 1.2 accepts."""
    check_fields(
        body, _LEASE_FIELDS | {"events"} | new if version is Version.V1_2 else _LEASE_FIELDS, version
    )


def read_hold(body: JsonObject, version: Version) -> timedelta | None:
    """Read how long to hold the lease; None for a lease that needs no confirmation."""
    seconds = body.get("hold_for")
    if version is not Version.V1_2 or seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= 3600:
        raise Refusal(400, "InvalidParameter", "hold_for: 1 to 3600 seconds", field="hold_for")
    return timedelta(seconds=seconds)


def read_events(body: JsonObject, version: Version) -> list[FakeEvent] | None:
    """Read the owner's own events; None if the request does not mention them."""
    wanted = body.get("events")
    if version is not Version.V1_2 or not isinstance(wanted, list):
        return None
    read = []
    for index, document in enumerate(wanted):
        place = f"events[{index}]"
        fields = document if isinstance(document, Mapping) else {}
        time = read_date(fields, "time", version, datetime.now(UTC))
        message = fields.get("message")
        if time is None or not isinstance(message, str) or not message:
            missing = "time" if time is None else "message"
            raise Refusal(400, "MissingParameter", f"Missing parameter {missing}", field=f"{place}.{missing}")
        read.append(FakeEvent(str(fields.get("id") or uuid.uuid4()), time, message))
    return read


def read_date(body: JsonObject, name: str, version: Version, now: datetime) -> datetime | None:
    """Return a date of a request; None if it is absent."""
    text = body.get(name)
    if text is None:
        return None
    if text == "now":
        return now.replace(second=0, microsecond=0) if version is Version.V1_0 else now
    try:
        if version is Version.V1_0:
            return datetime.strptime(str(text), "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        wanted = "%Y-%m-%d %H:%M" if version is Version.V1_0 else "RFC 3339 with a zone"
        raise Refusal(
            400, "InvalidParameter", f"{text} is an invalid date. Required format: {wanted}", field=name
        )
    return moment.astimezone(UTC)


def read_reservation(document: JsonValue, place: str, version: Version) -> FakeReservation:
    """Read a reservation to create."""
    if not isinstance(document, Mapping):
        raise Refusal(400, "InvalidParameter", f"{place} is not an object", field=place)
    parameters = dict(document)
    resource_type = parameters.pop("resource_type", None)
    if resource_type is None:
        raise Refusal(
            400, "MissingParameter", "Missing parameter resource_type", field=f"{place}.resource_type"
        )
    if resource_type not in _TYPES:
        raise Refusal(
            400,
            "InvalidParameter",
            f"The {resource_type} resource type is not supported",
            field=f"{place}.resource_type",
        )
    if version is Version.V1_1:
        for name in sorted(_SINCE_1_2 & parameters.keys()):
            raise Refusal(400, "InvalidParameter", f"Unknown field {name}", field=f"{place}.{name}")
    if resource_type == "physical:host":
        for name, default in (
            ("hypervisor_properties", ""),
            ("resource_properties", ""),
            ("before_end", "default"),
        ):
            parameters.setdefault(name, default)
    return FakeReservation(id=str(uuid.uuid4()), resource_type=str(resource_type), parameters=parameters)


def date(moment: datetime | None, version: Version) -> str | None:
    """Write a date of a lease, an event or an allocation."""
    if moment is None:
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") if version is Version.V1_0 else rfc3339(moment)


def stamp(moment: datetime, version: Version) -> str:
    """Write a creation date."""
    return moment.strftime("%Y-%m-%d %H:%M:%S") if version is Version.V1_0 else rfc3339(moment)


def lease_document(lease: FakeLease, version: Version, flavors: Mapping[str, FakeFlavor]) -> JsonObject:
    document: dict[str, JsonValue] = {
        "id": lease.id,
        "name": lease.name,
        "project_id": "fake-project",
        "user_id": "fake-user",
        "start_date": date(lease.start, version),
        "end_date": date(lease.end, version),
        "status": lease.status,
        "degraded": lease.degraded,
        "created_at": stamp(lease.created_at, version),
        "updated_at": None,
        "reservations": [
            _reservation_document(lease, reservation, version, flavors) for reservation in lease.reservations
        ],
        "events": _events(lease, version),
    }
    if version is not Version.V1_0:
        document["before_end_date"] = date(lease.before_end, version)
        document["status_reason"] = lease.status_reason
    if version is Version.V1_2:
        document["detail"] = None
        document["hold_until"] = None if lease.hold_until is None else rfc3339(lease.hold_until)
    return document


def _reservation_document(
    lease: FakeLease, reservation: FakeReservation, version: Version, flavors: Mapping[str, FakeFlavor]
) -> JsonObject:
    statuses = {"ACTIVE": "active", "CREATING": "pending", "PENDING": "pending", "ERROR": "error"}
    return {
        "id": reservation.id,
        "lease_id": lease.id,
        "resource_type": reservation.resource_type,
        "status": "deleted" if reservation.dropped else statuses.get(lease.status, "deleted"),
        "missing_resources": False,
        "resources_changed": False,
        "created_at": stamp(lease.created_at, version),
        "updated_at": None,
        **reservation.parameters,
        **_created_resources(lease, reservation, flavors),
    }


def _created_resources(
    lease: FakeLease, reservation: FakeReservation, flavors: Mapping[str, FakeFlavor]
) -> dict[str, JsonValue]:
    """Return the cloud resources of a reservation of instances or volumes."""
    if reservation.resource_type == "virtual:volume":
        amount = reservation.parameters.get("amount")
        numbers = range(amount if isinstance(amount, int) and lease.status == "ACTIVE" else 0)
        own = uuid.UUID(reservation.id)
        return {"volume_ids": [str(uuid.uuid5(own, f"volume {number}")) for number in numbers]}
    if reservation.resource_type not in ("virtual:instance", "flavor:instance"):
        return {}
    of_rule = reservation.parameters.get("affinity") is not None
    group_id = str(uuid.uuid5(uuid.UUID(reservation.id), "group")) if of_rule else None
    made: dict[str, JsonValue] = {
        "flavor_id": reservation.id,
        "aggregate_id": 1 if lease.status == "ACTIVE" else None,
        "server_group_id": group_id,
    }
    flavor = flavors.get(str(reservation.parameters.get("flavor_id")))
    if flavor is not None:
        sizes = {"vcpus": flavor.vcpus, "memory_mb": flavor.memory_mb, "disk_gb": flavor.disk_gb}
        described = {"id": flavor.id, "name": flavor.name, "vcpus": flavor.vcpus, "ram": flavor.memory_mb}
        made |= {**sizes, "resource_properties": json.dumps({**described, "disk": flavor.disk_gb})}
    return made


def _events(lease: FakeLease, version: Version) -> list[JsonValue]:
    times = {"start_lease": lease.start, "before_end_lease": lease.before_end, "end_lease": lease.end}
    done = {
        "start_lease": lease.status in ("ACTIVE", "TERMINATED"),
        "before_end_lease": lease.status == "TERMINATED",
        "end_lease": lease.status == "TERMINATED",
    }
    own: list[JsonValue] = [
        {
            "id": event.id,
            "lease_id": lease.id,
            "event_type": "notify_lease",
            "time": date(event.time, version),
            "status": "UNDONE",
            "created_at": stamp(lease.created_at, version),
            "updated_at": None,
            **({"message": event.message} if version is Version.V1_2 else {}),
        }
        for event in lease.own_events
    ]
    return own + [
        {
            "id": str(uuid.uuid5(uuid.UUID(lease.id), event_type)),
            "lease_id": lease.id,
            "event_type": event_type,
            "time": date(time, version),
            "status": "DONE" if done[event_type] else "UNDONE",
            "created_at": stamp(lease.created_at, version),
            "updated_at": None,
        }
        for event_type, time in times.items()
        if time is not None
    ]


def host_document(host: FakeHost, version: Version) -> JsonObject:
    document: dict[str, JsonValue] = {
        "id": host.id,
        "hypervisor_hostname": host.hypervisor_hostname,
        "service_name": host.hypervisor_hostname,
        "hypervisor_type": "fake",
        "hypervisor_version": 1,
        "vcpus": host.vcpus,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
        "cpu_info": "{}",
        "availability_zone": host.availability_zone,
        "reservable": host.reservable,
        "created_at": stamp(host.created_at, version),
        "updated_at": None,
    }
    if version is Version.V1_0:
        return {**document, "status": None, "trust_id": "", **host.properties}
    document |= {"traits": [], "properties": host.properties}
    if version is Version.V1_1:
        return document
    return {**document, **_status_fields(host)}


def floatingip_document(floatingip: FakeFloatingIP, version: Version) -> JsonObject:
    document: dict[str, JsonValue] = {
        "id": floatingip.id,
        "floating_network_id": floatingip.floating_network_id,
        "subnet_id": floatingip.subnet_id,
        "floating_ip_address": floatingip.floating_ip_address,
        "reservable": floatingip.reservable,
        "created_at": stamp(floatingip.created_at, version),
        "updated_at": None,
    }
    return {**document, **_status_fields(floatingip)} if version is Version.V1_2 else document


def volume_pool_document(pool: FakeVolumePool, version: Version) -> JsonObject:
    return {
        "id": pool.id,
        "name": pool.name,
        "capacity_gb": pool.capacity_gb,
        "reservable": pool.reservable,
        "created_at": stamp(pool.created_at, version),
        "updated_at": None,
        **_status_fields(pool),
    }


def _status_fields(resource: FakeHost | FakeFloatingIP | FakeVolumePool) -> JsonObject:
    return {
        "region": resource.region,
        "enabled": resource.disabled_reason is None,
        "disabled_reason": resource.disabled_reason,
        "health": resource.health,
        "health_reason": resource.health_reason,
        "health_since": None,
    }


def affected_document(
    lease: FakeLease, reservation: FakeReservation, moves_to: str | None, reason: str | None
) -> JsonObject:
    return {
        "id": reservation.id,
        "lease_id": lease.id,
        "start_date": date(lease.start, Version.V1_2),
        "end_date": date(lease.end, Version.V1_2),
        "status": "held" if lease.status == "ACTIVE" else "planned",
        "moves_to": moves_to,
        "reason": reason,
    }


def lease_host_document(lease: FakeLease, reservation: FakeReservation, host: FakeHost) -> JsonObject:
    return {
        "id": host.id,
        "hypervisor_hostname": host.hypervisor_hostname,
        "availability_zone": host.availability_zone,
        "vcpus": host.vcpus,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
        "properties": host.properties,
        **_part(lease, reservation),
    }


def lease_floatingip_document(
    lease: FakeLease, reservation: FakeReservation, floatingip: FakeFloatingIP
) -> JsonObject:
    return {
        "id": floatingip.id,
        "floating_network_id": floatingip.floating_network_id,
        "subnet_id": floatingip.subnet_id,
        "floating_ip_address": floatingip.floating_ip_address,
        **_part(lease, reservation),
    }


def lease_volume_pool_document(
    lease: FakeLease, reservation: FakeReservation, pool: FakeVolumePool
) -> JsonObject:
    return {"id": pool.id, "name": pool.name, **_part(lease, reservation)}


def _part(lease: FakeLease, reservation: FakeReservation) -> JsonObject:
    """Return the dates of a lease's resource, and its status."""
    held = {"PENDING": "planned", "ACTIVE": "held"}
    return {
        "reservation_id": reservation.id,
        "start_date": date(lease.start, Version.V1_1),
        "end_date": date(lease.end, Version.V1_1),
        "status": "released" if reservation.dropped else held.get(lease.status, "released"),
    }


def allocation_document(
    resource_id: str,
    parts: list[tuple[FakeLease, FakeReservation]],
    version: Version,
) -> JsonObject:
    return {
        "resource_id": resource_id,
        "reservations": [
            {
                "id": reservation.id,
                "lease_id": lease.id,
                "start_date": date(lease.start, version),
                "end_date": date(lease.end, version),
            }
            for lease, reservation in parts
        ],
    }


def error_document(refusal: Refusal, version: Version) -> tuple[int, JsonObject]:
    """Return the status and the body of an error; API 1.0 has fewer statuses, and no details."""
    if version is Version.V1_0:
        code = 400 if refusal.name == "NotEnoughResources" else refusal.code
        return code, {"error_code": code, "error_name": code, "error_message": refusal.message}
    document: dict[str, JsonValue] = {
        "error_code": refusal.code,
        "error_name": refusal.name,
        "error_message": refusal.message,
    }
    if refusal.field is not None:
        document["field"] = refusal.field
    if refusal.details is not None:
        document["details"] = refusal.details
    return refusal.code, document
