"""Values as columns: readable in tables, plain data in JSON, YAML, CSV and value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import TypeVar

from cliff import columns

from tenureclient.addresses import FloatingIP, LeaseFloatingIP
from tenureclient.cli.printable import printable
from tenureclient.models import (
    AffectedReservation,
    Allocation,
    Event,
    HistoryEntry,
    Host,
    HostProperty,
    Lease,
    LeaseHost,
    Reservation,
    Waiting,
)
from tenureclient.moments import format_duration, format_moment
from tenureclient.volumepools import LeaseVolumePool, VolumePool
from tenureclient.wire import JsonObject, JsonValue, rfc3339

Row = Mapping[str, object]
T = TypeVar("T")


class MomentColumn(columns.FormattableColumn[str]):
    """A date: local time with its zone in tables, RFC 3339 in UTC elsewhere."""

    def __init__(self, moment: datetime, zone: tzinfo | None) -> None:
        super().__init__(rfc3339(moment))
        self._shown = format_moment(moment, zone)

    def human_readable(self) -> str:
        return self._shown


class DataColumn(columns.FormattableColumn[JsonValue]):
    """A list or an object: lines of text in tables, the data itself elsewhere."""

    def __init__(self, value: JsonValue, lines: Iterable[str]) -> None:
        super().__init__(value)
        self._shown = "\n".join(printable(line) for line in lines)

    def human_readable(self) -> str:
        return self._shown


def lease_row(lease: Lease, zone: tzinfo | None) -> Row:
    """Return the fields of a lease, in the order of its model, without those that have their default."""
    composed = {
        "reservations": DataColumn(
            [_reservation(reservation) for reservation in lease.reservations],
            (line for reservation in lease.reservations for line in _reservation_lines(reservation)),
        ),
        "events": DataColumn(
            [_event(event) for event in lease.events],
            (_event_line(event, zone) for event in sorted(lease.events, key=_event_order)),
        ),
    }
    if lease.waiting is not None:
        composed["waiting"] = DataColumn(_waiting(lease.waiting), _waiting_lines(lease.waiting, zone))
    row: dict[str, object] = {}
    for field in dataclasses.fields(lease):
        value = getattr(lease, field.name)
        if value != field.default and field.compare:
            shown = _moment(value, zone) if isinstance(value, datetime) else value
            row[field.name] = composed.get(field.name, shown)
    return row


def history_row(entry: HistoryEntry, zone: tzinfo | None) -> Row:
    return {
        "at": MomentColumn(entry.at, zone),
        "actor": entry.actor,
        "action": entry.action,
        "from_status": entry.from_status,
        "to_status": entry.to_status,
        "reason": entry.reason,
        "detail": entry.detail,
        "request_id": entry.request_id,
    }


def lease_host_row(host: LeaseHost, zone: tzinfo | None) -> Row:
    return {
        "id": host.id,
        "hypervisor_hostname": host.hypervisor_hostname,
        "status": host.status,
        "availability_zone": host.availability_zone,
        "vcpus": host.vcpus,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
        "properties": pairs_column(host.properties),
        "reservation_id": host.reservation_id,
        "start_date": MomentColumn(host.start_date, zone),
        "end_date": MomentColumn(host.end_date, zone),
    }


def host_row(host: Host, zone: tzinfo | None) -> Row:
    """Return every field of a host, in display order."""
    return {
        "id": host.id,
        "hypervisor_hostname": host.hypervisor_hostname,
        "vcpus": host.vcpus,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
        "availability_zone": host.availability_zone,
        "reservable": host.reservable,
        "properties": pairs_column(host.properties),
        "traits": DataColumn(list(host.traits), host.traits),
        "service_name": host.service_name,
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": host.hypervisor_version,
        "cpu_info": host.cpu_info,
        **_status_fields(host, zone),
    }


def lease_floatingip_row(floatingip: LeaseFloatingIP, zone: tzinfo | None) -> Row:
    return {
        "id": floatingip.id,
        "floating_ip_address": floatingip.floating_ip_address,
        "status": floatingip.status,
        "floating_network_id": floatingip.floating_network_id,
        "subnet_id": floatingip.subnet_id,
        "reservation_id": floatingip.reservation_id,
        "start_date": MomentColumn(floatingip.start_date, zone),
        "end_date": MomentColumn(floatingip.end_date, zone),
    }


def floatingip_row(floatingip: FloatingIP, zone: tzinfo | None) -> Row:
    """Return every field of a floating IP, in display order."""
    return {
        "id": floatingip.id,
        "floating_ip_address": floatingip.floating_ip_address,
        "floating_network_id": floatingip.floating_network_id,
        "subnet_id": floatingip.subnet_id,
        "reservable": floatingip.reservable,
        **_status_fields(floatingip, zone),
    }


def lease_volumepool_row(pool: LeaseVolumePool, zone: tzinfo | None) -> Row:
    return {
        "id": pool.id,
        "name": pool.name,
        "status": pool.status,
        "reservation_id": pool.reservation_id,
        "start_date": MomentColumn(pool.start_date, zone),
        "end_date": MomentColumn(pool.end_date, zone),
    }


def volumepool_row(pool: VolumePool, zone: tzinfo | None) -> Row:
    """Return every field of a volume pool, in display order."""
    return {
        "id": pool.id,
        "name": pool.name,
        "capacity_gb": pool.capacity_gb,
        "reservable": pool.reservable,
        **_status_fields(pool, zone),
    }


def reservation_row(reservation: Reservation, zone: tzinfo | None) -> Row:
    """Return the fields that reservations of all types have; ``parameters`` holds those of the type."""
    return {
        "id": reservation.id,
        "resource_type": reservation.resource_type,
        "status": reservation.status,
        "flavor_id": reservation.flavor_id,
        "server_group_id": reservation.server_group_id,
        "aggregate_id": reservation.parameters.get("aggregate_id"),
        "parameters": DataColumn(
            reservation.parameters, _parameter_lines(reservation.resource_type, reservation.parameters)
        ),
        "missing_resources": reservation.missing_resources,
        "resources_changed": reservation.resources_changed,
        "created_at": _moment(reservation.created_at, zone),
        "updated_at": _moment(reservation.updated_at, zone),
    }


def affected_row(affected: AffectedReservation, zone: tzinfo | None) -> Row:
    return {
        "lease_id": affected.lease_id,
        "reservation_id": affected.id,
        "status": affected.status,
        "start_date": MomentColumn(affected.start_date, zone),
        "end_date": MomentColumn(affected.end_date, zone),
        "moves_to": affected.moves_to,
        "reason": affected.reason,
    }


def property_row(host_property: HostProperty) -> Row:
    values = list[JsonValue](host_property.values or ())
    return {
        "property": host_property.name,
        "private": host_property.private,
        "property_values": DataColumn(values, host_property.values or ()),
    }


def allocation_row(allocation: Allocation, zone: tzinfo | None) -> Row:
    data: list[JsonValue] = [
        {
            "id": reserved.id,
            "lease_id": reserved.lease_id,
            "start_date": rfc3339(reserved.start_date),
            "end_date": rfc3339(reserved.end_date),
        }
        for reserved in allocation.reservations
    ]
    lines = (
        f"{format_moment(reserved.start_date, zone)} to {format_moment(reserved.end_date, zone)}:"
        f" reservation {reserved.id} of lease {reserved.lease_id}"
        for reserved in allocation.reservations
    )
    return {"resource_id": allocation.resource_id, "reservations": DataColumn(data, lines)}


def table(
    things: Iterable[T],
    row: Callable[[T], Row],
    shown: Sequence[str],
    asked: Sequence[str],
) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    """Return the table that cliff prints: the usual columns, or all of them if the user names columns."""
    rows = [row(thing) for thing in things]
    names: Sequence[str] = list(rows[0]) if asked and rows else [*shown, *(c for c in asked if c not in shown)]
    return names, [tuple(cells[name] for name in names) for cells in rows]


def fields(row: Row) -> tuple[Sequence[str], Sequence[object]]:
    """Return the fields that cliff prints for one resource."""
    return list(row), list(row.values())


def _moment(moment: datetime | None, zone: tzinfo | None) -> MomentColumn | None:
    return None if moment is None else MomentColumn(moment, zone)


def _status_fields(resource: Host | FloatingIP | VolumePool, zone: tzinfo | None) -> Row:
    """Return what the operator and the cloud say about a resource, and its dates."""
    return {
        "region": resource.region,
        "enabled": resource.enabled,
        "disabled_reason": resource.disabled_reason,
        "health": resource.health,
        "health_reason": resource.health_reason,
        "health_since": _moment(resource.health_since, zone),
        "created_at": _moment(resource.created_at, zone),
        "updated_at": _moment(resource.updated_at, zone),
    }


def pairs_column(properties: Mapping[str, str | int]) -> DataColumn:
    """Return an object as a column, with a line for each of its names."""
    return DataColumn(dict(properties), (f"{name}={value}" for name, value in sorted(properties.items())))


def _reservation(reservation: Reservation) -> JsonObject:
    return {
        "id": reservation.id,
        "lease_id": reservation.lease_id,
        "resource_type": reservation.resource_type,
        "status": reservation.status,
        "missing_resources": reservation.missing_resources,
        "resources_changed": reservation.resources_changed,
        "created_at": None if reservation.created_at is None else rfc3339(reservation.created_at),
        "updated_at": None if reservation.updated_at is None else rfc3339(reservation.updated_at),
        **reservation.parameters,
    }


def _reservation_lines(reservation: Reservation) -> list[str]:
    marks = [
        mark
        for mark, is_set in (
            ("missing resources", reservation.missing_resources),
            ("resources changed", reservation.resources_changed),
        )
        if is_set
    ]
    head = f"{reservation.id} {reservation.resource_type} {reservation.status} {', '.join(marks)}".rstrip()
    lines = _parameter_lines(reservation.resource_type, reservation.parameters)
    return [head, *(f"  {line}" for line in lines)]


def _waiting(waiting: Waiting) -> JsonObject:
    within = waiting.confirm_within
    return {
        "latest": rfc3339(waiting.latest),
        "confirm_within": None if within is None else int(within.total_seconds()),
        "ahead": waiting.ahead,
        "choices": [list(choice) for choice in waiting.choices],
    }


def _waiting_lines(waiting: Waiting, zone: tzinfo | None) -> Iterator[str]:
    yield f"until {MomentColumn(waiting.latest, zone).human_readable()}"
    if waiting.ahead:
        yield f"behind {waiting.ahead} {'other lease' if waiting.ahead == 1 else 'other leases'}"
    if waiting.confirm_within is not None:
        yield f"to be confirmed within {format_duration(waiting.confirm_within)}"
    for place, choice in enumerate(waiting.choices):
        yield "for" if place == 0 else "or"
        for reservation in choice:
            resource_type = str(reservation.get("resource_type", ""))
            yield f"  {resource_type}"
            own = {name: value for name, value in reservation.items() if name != "resource_type"}
            yield from (f"    {line}" for line in _parameter_lines(resource_type, own))


def _parameter_lines(resource_type: str, parameters: JsonObject) -> list[str]:
    """Return the parameters of a reservation as lines; empty ones are left out."""
    shown = dict(parameters)
    if resource_type == "flavor:instance":
        shown = {"flavor": _flavor(shown.pop("resource_properties", None)), **shown}
    return [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in shown.items()
        if value not in (None, "", [], {})
    ]


def _flavor(described: JsonValue) -> JsonValue:
    """Return only the name and the id of the requested flavor."""
    try:
        flavor = json.loads(str(described))
        return f"{flavor['name']} ({flavor['id']})"
    except (ValueError, TypeError, KeyError):
        return described


def _event(event: Event) -> JsonObject:
    return {
        "id": event.id,
        "event_type": event.event_type,
        "time": None if event.time is None else rfc3339(event.time),
        "status": event.status,
        "message": event.message,
    }


def _event_line(event: Event, zone: tzinfo | None) -> str:
    time = "never" if event.time is None else format_moment(event.time, zone)
    message = "" if event.message is None else f": {event.message}"
    return f"{time} {event.event_type} {event.status}".rstrip() + message


def _event_order(event: Event) -> str:
    return "" if event.time is None else rfc3339(event.time)
