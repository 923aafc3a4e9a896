"""Values as columns: readable in tables, plain data in JSON, YAML, CSV and value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from functools import singledispatch
from typing import TypeAlias

from cliff import columns

from tenureclient.cli.printable import printable
from tenureclient.documents import Document
from tenureclient.inventory import AffectedReservation, Allocation
from tenureclient.models import Event, Lease, Reservation, Waiting
from tenureclient.moments import format_duration, format_moment
from tenureclient.offers import Offer
from tenureclient.resources.hosts import HostProperty
from tenureclient.wire import JsonObject, JsonValue, rfc3339

Row = Mapping[str, object]
#: What cliff prints: the names of the columns with the rows of a table, or with the values of a single document.
Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[object]]]
Shown: TypeAlias = tuple[Sequence[str], Sequence[object]]


class DataColumn(columns.FormattableColumn[JsonValue]):
    """A value that is lines of text in tables, and the data itself elsewhere."""

    def __init__(self, value: JsonValue, lines: Iterable[str]) -> None:
        super().__init__(value)
        self._shown = "\n".join(printable(line) for line in lines)

    def human_readable(self) -> str:
        return self._shown


@singledispatch
def row_of(document: Document, zone: tzinfo | None) -> Row:
    """Return the fields of a document, in the order of its model; what all resources have comes last."""
    return _row(document, zone)


def _row(document: Document, zone: tzinfo | None) -> dict[str, object]:
    own = [name for name in type(document).__annotations__ if name in document.readers]
    return {name: _cell(getattr(document, name), zone) for name in dict.fromkeys((*own, *document.readers))}


@row_of.register
def _lease_row(lease: Lease, zone: tzinfo | None) -> Row:
    """Return the fields of a lease, in the order of its model, without those that have their default."""
    composed = {
        "reservations": DataColumn(
            [_reservation(reservation) for reservation in lease.reservations],
            (line for reservation in lease.reservations for line in _reservation_lines(reservation)),
        ),
        "events": DataColumn(
            [
                {name: plain(getattr(event, name)) for name in ("id", "event_type", "time", "status", "message")}
                for event in lease.events
            ],
            (
                _event_line(event, zone)
                for event in sorted(lease.events, key=lambda event: rfc3339(event.time) if event.time else "")
            ),
        ),
    }
    if lease.waiting is not None:
        composed["waiting"] = DataColumn(plain(lease.waiting), _waiting_lines(lease.waiting, zone))
    shown = [
        field.name
        for field in dataclasses.fields(lease)
        if getattr(lease, field.name) != field.default and field.compare
    ]
    return {name: composed[name] if name in composed else _cell(getattr(lease, name), zone) for name in shown}


@row_of.register
def _reservation_row(reservation: Reservation, zone: tzinfo | None) -> Row:
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
        "created_at": _cell(reservation.created_at, zone),
        "updated_at": _cell(reservation.updated_at, zone),
    }


@row_of.register
def _offer_row(offer: Offer, zone: tzinfo | None) -> Row:
    return {**_row(offer, zone), "left_over": DataColumn(list(offer.left_over), [", ".join(map(str, offer.left_over))])}


@row_of.register
def _affected_row(affected: AffectedReservation, zone: tzinfo | None) -> Row:
    row = _row(affected, zone)
    return {"lease_id": row.pop("lease_id"), "reservation_id": row.pop("id"), **row}


@row_of.register
def _property_row(host_property: HostProperty, _zone: tzinfo | None) -> Row:
    values = list[JsonValue](host_property.values or ())
    return {
        "property": host_property.name,
        "private": host_property.private,
        "property_values": DataColumn(values, host_property.values or ()),
    }


@row_of.register
def _allocation_row(allocation: Allocation, zone: tzinfo | None) -> Row:
    lines = (
        f"{format_moment(reserved.start_date, zone)} to {format_moment(reserved.end_date, zone)}:"
        f" reservation {reserved.id} of lease {reserved.lease_id}"
        for reserved in allocation.reservations
    )
    return {"resource_id": allocation.resource_id, "reservations": DataColumn(plain(allocation.reservations), lines)}


def table(rows: Iterable[Row], shown: Sequence[str], selected: Sequence[str]) -> Table:
    """Return the table that cliff prints: the usual columns, or all of them if the user names columns."""
    listed = list(rows)
    names = list(listed[0]) if selected and listed else [*shown, *(name for name in selected if name not in shown)]
    return names, [tuple(cells[name] for name in names) for cells in listed]


def fields(row: Row) -> Shown:
    """Return the fields that cliff prints for one resource."""
    return list(row), list(row.values())


def _cell(value: object, zone: tzinfo | None) -> object:
    """Return the value of a field as a column."""
    match value:
        case datetime():
            return DataColumn(rfc3339(value), [format_moment(value, zone)])
        case Mapping():
            return DataColumn(dict(value), (f"{name}={item}" for name, item in sorted(value.items())))
        case tuple():
            return DataColumn(list(value), map(str, value))
    return value


def plain(value: object) -> JsonValue:
    """Return a value as JSON: a document as an object, a date as RFC 3339, a duration in seconds."""
    match value:
        case Document():
            return {name: plain(getattr(value, name)) for name in value.readers}
        case datetime():
            return rfc3339(value)
        case timedelta():
            return int(value.total_seconds())
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bool() | int() | float() | str() | None:
            return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _reservation(reservation: Reservation) -> JsonValue:
    common = {name: plain(getattr(reservation, name)) for name in reservation.readers if name != "parameters"}
    return {**common, **reservation.parameters}


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


def _waiting_lines(waiting: Waiting, zone: tzinfo | None) -> Iterator[str]:
    yield f"until {format_moment(waiting.latest, zone)}"
    if waiting.ahead:
        yield f"behind {waiting.ahead} {'other lease' if waiting.ahead == 1 else 'other leases'}"
    if waiting.confirm_within is not None:
        yield f"to be confirmed within {format_duration(waiting.confirm_within)}"
    for position, choice in enumerate(waiting.choices):
        yield "for" if position == 0 else "or"
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


def _event_line(event: Event, zone: tzinfo | None) -> str:
    time = "never" if event.time is None else format_moment(event.time, zone)
    message = "" if event.message is None else f": {event.message}"
    return f"{time} {event.event_type} {event.status}".rstrip() + message
