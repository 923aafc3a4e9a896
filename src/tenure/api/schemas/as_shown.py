"""Changes in which clients send back what they were shown: what is as before is no change."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from tenure.api.schemas.answers import Document
from tenure.api.versions import Version
from tenure.domain.errors import InvalidParameter
from tenure.domain.lease import EventType

#: Facts that change by themselves between a look at a lease and its change: their values are ignored.
_OF_THE_MOMENT = frozenset({"updated_at", "may_end_at"})
#: What an owner sets of an event.
_OF_EVENTS = frozenset({"id", "event_type", "time", "message"})
#: What every reservation has, and no client sets.
_OF_RESERVATIONS = frozenset({"lease_id", "status", "missing_resources", "resources_changed", "created_at"})


def accepts_as_shown(version: Version) -> bool:
    """Whether a change may have fields that only the service sets, as they are shown."""
    return version >= Version.V1_3


def has_shown(body: Mapping[str, object], of_service: Collection[str]) -> bool:
    """Whether a body has fields that only the service sets, of leases ``of_service``, of reservations, or of events."""
    reservations, events = _items(body.get("reservations")), _items(body.get("events"))
    return (
        not body.keys().isdisjoint(of_service)
        or any(not _OF_RESERVATIONS.isdisjoint(reservation) for reservation in reservations)
        or any(not _OF_EVENTS.issuperset(event) for event in events)
    )


def only_changes(body: Mapping[str, object], shown: Document, of_service: Collection[str]) -> Document:
    """Return what a body has that differs from the lease as it is shown.

    Raises ``InvalidParameter`` for another value of what only the service sets.
    """
    changed: Document = {}
    for name, value in body.items():
        if name in _OF_THE_MOMENT or (name in shown and _is_same(value, shown[name])):
            continue
        if name == "reservations":
            found = _changed_reservations(value, shown)
            if found is not None:
                changed[name] = found
        elif name == "events":
            changed[name] = _events_of_owner(value, shown)
        elif name in of_service:
            raise _set_by_service(name)
        else:
            changed[name] = value
    return changed


def only_changes_of_resource(
    body: Mapping[str, object], shown: Document, of_service: Collection[str], *, is_strict: bool
) -> Document:
    """Return what a body has that a change of a resource may have, and that differs from the resource as it is shown.

    Raises ``InvalidParameter`` for another value of what only the service sets, if ``is_strict``; otherwise it stays.
    """
    changed: Document = {}
    for name, value in body.items():
        if name in of_service:
            if name in _OF_THE_MOMENT or _is_same(value, shown.get(name)):
                continue
            if is_strict:
                raise _set_by_service(name)
        changed[name] = value
    return changed


def _changed_reservations(given: object, shown: Document) -> object:
    """Return the reservations with what is changed of them; None if nothing is."""
    if not isinstance(given, list):
        return given
    known = {reservation["id"]: reservation for reservation in shown["reservations"]}
    found = [_changed_reservation(item, known, f"reservations[{position}]") for position, item in enumerate(given)]
    is_changed = any(not isinstance(item, dict) or item.keys() - {"id", "resource_type"} for item in found)
    return found if is_changed else None


def _changed_reservation(item: Any, known: Mapping[str, Document], where: str) -> object:
    if not isinstance(item, dict) or not isinstance(item.get("id"), str) or item["id"] not in known:
        return item
    before = known[item["id"]]
    changed = {"id": item["id"], "resource_type": item.get("resource_type")}
    for name, value in item.items():
        if name in _OF_THE_MOMENT or (name in before and _is_same(value, before[name])):
            continue
        if name in _OF_RESERVATIONS:
            raise _set_by_service(f"{where}.{name}")
        changed[name] = value
    return changed


def _events_of_owner(given: object, shown: Document) -> object:
    """Return the events without those of the service, which must be as they are, and without what only it sets."""
    if not isinstance(given, list):
        return given
    known = {event["id"]: event for event in shown["events"]}
    found: list[object] = []
    for position, item in enumerate(given):
        before = known.get(str(item.get("id"))) if isinstance(item, dict) else None
        if before is None:
            found.append(item)
            continue
        is_of_owner = before["event_type"] == EventType.NOTIFY
        set_by_service = (before.keys() - _OF_THE_MOMENT) - (_OF_EVENTS if is_of_owner else frozenset())
        for name in item:
            if name in set_by_service and not _is_same(item[name], before[name]):
                raise _set_by_service(f"events[{position}].{name}")
        if is_of_owner:
            found.append({name: value for name, value in item.items() if name in _OF_EVENTS or name not in before})
    return found


def _items(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_same(given: object, shown: object) -> bool:
    """Whether two values are the same in JSON, in which ``true`` is not 1."""
    return json.dumps(given, sort_keys=True) == json.dumps(shown, sort_keys=True)


def _set_by_service(field: str) -> InvalidParameter:
    return InvalidParameter("The service sets it: leave it out, or send it as it is shown.", field=field)
