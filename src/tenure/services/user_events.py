"""Events that owners define themselves: at their time others are told, in the owner's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.lease import MAX_USER_EVENTS, Event, EventStatus, EventType, Lease
from tenure.domain.period import minute_of
from tenure.domain.request import UserEvent
from tenure.services.context import new_id, tell
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent

#: What is told at the time of such an event.
TOPIC = f"lease.event.{EventType.NOTIFY.value}"
_TO_COME = frozenset({EventStatus.UNDONE, EventStatus.IN_PROGRESS})


def check_events(asked: Sequence[UserEvent], starts_at: datetime, ends_at: datetime) -> None:
    """Raise ``InvalidParameter`` where there are too many, or one lies outside of the lease."""
    if len(asked) > MAX_USER_EVENTS:
        raise InvalidParameter(f"A lease has at most {MAX_USER_EVENTS} events of its owner's", field="events")
    for place, one in enumerate(asked):
        if not starts_at <= one.at <= ends_at:
            raise InvalidParameter(
                "The event must lie between the start and the end of the lease", field=f"events[{place}].time"
            )


def new_events(lease_id: str, asked: Sequence[UserEvent], now: datetime) -> tuple[Event, ...]:
    """The events of a new lease. Raises ``InvalidParameter`` where the time of one has passed."""
    return tuple(_new(lease_id, one, place, now) for place, one in enumerate(asked))


def replace_events(
    tx: Transaction, lease_id: str, asked: Sequence[UserEvent], stored: Iterable[StoredEvent], now: datetime
) -> dict[str, Any]:
    """Have exactly these events instead of those that were stored; what ``restore_events`` needs to undo that.

    One with an id stays, perhaps with another time and other words; those without are new, and those that are not named
    go. Raises ``InvalidParameter`` and ``InvalidState``, with nothing written.
    """
    before = {one.event.id: one.event for one in stored if one.event.event_type is EventType.NOTIFY}
    named = [one.event_id for one in asked if one.event_id is not None]
    added: list[Event] = []
    changed: list[UserEvent] = []
    for place, one in enumerate(asked):
        if one.event_id is None:
            added.append(_new(lease_id, one, place, now))
            continue
        known = before.get(one.event_id)
        if known is None or named.count(one.event_id) > 1:
            wrong = "is no event that the lease's owner has defined" if known is None else "is named twice"
            raise InvalidParameter(f"{one.event_id[:64]} {wrong}", field=f"events[{place}].id")
        if (known.due_at, known.message) == (one.at, one.message):
            continue
        if known.status not in _TO_COME:
            raise InvalidState(f"The event {known.id} is over; it cannot be changed.")
        if known.due_at != one.at:
            _check_to_come(one, place, now)
        changed.append(one)
    tx.events.discard(before.keys() - set(named))
    for one in changed:
        assert one.event_id is not None
        _write(tx, one.event_id, one.at, one.message, now)
    tx.events.add(added)
    return {"before": [_remembered(event) for event in before.values()], "added": [event.id for event in added]}


def restore_events(tx: Transaction, lease_id: str, payload: Mapping[str, Any], now: datetime) -> None:
    """Have the events again that ``replace_events`` has replaced; what was told meanwhile is not told again."""
    tx.events.discard(payload["added"])
    there = {one.event.id: one.event for one in tx.events.of_lease(lease_id)}
    for known in payload["before"]:
        due_at = datetime.fromisoformat(known["due_at"])
        event = there.get(known["id"])
        if event is None:
            event = Event(
                id=known["id"],
                lease_id=lease_id,
                event_type=EventType.NOTIFY,
                due_at=due_at,
                status=EventStatus(known["status"]),
                attempts=0,
                created_at=datetime.fromisoformat(known["created_at"]),
                message=known["message"],
            )
            tx.events.add([event])
            if event.status not in _TO_COME:
                tx.events.change([event.id], now=now, ready_at=None)
        elif event.status in _TO_COME and (event.due_at, event.message) != (due_at, known["message"]):
            _write(tx, event.id, due_at, known["message"], now)


def tell_event(tx: Transaction, lease: Lease, event: Event, *, now: datetime) -> None:
    """Have others told of an event that has come."""
    words = {
        "id": event.id,
        "event_type": event.event_type.value,
        "time": f"{event.due_at:%Y-%m-%dT%H:%M:%S.%f}",
        "message": event.message,
    }
    tell(tx, TOPIC, lease, now=now, event=words)


def due_events(lease: Lease, now: datetime) -> list[Event]:
    """The events that have come and of which nobody was told."""
    return [
        event
        for event in lease.events
        if event.event_type is EventType.NOTIFY and event.status in _TO_COME and event.due_at <= now
    ]


def _new(lease_id: str, asked: UserEvent, place: int, now: datetime) -> Event:
    _check_to_come(asked, place, now)
    return Event(new_id(), lease_id, EventType.NOTIFY, asked.at, EventStatus.UNDONE, 0, now, message=asked.message)


def _check_to_come(asked: UserEvent, place: int, now: datetime) -> None:
    if asked.at < minute_of(now):
        raise InvalidParameter("The time of the event has passed", field=f"events[{place}].time")


def _write(tx: Transaction, event_id: str, due_at: datetime, message: str, now: datetime) -> None:
    """Whoever has claimed the event as it was loses it."""
    tx.events.change(
        [event_id],
        now=now,
        due_at=due_at,
        ready_at=due_at,
        payload={"message": message},
        status=EventStatus.UNDONE.value,
        claim_token=None,
        attempts=0,
    )


def _remembered(event: Event) -> dict[str, object]:
    status = EventStatus.UNDONE if event.status in _TO_COME else event.status
    return {
        "id": event.id,
        "due_at": event.due_at.isoformat(),
        "message": event.message,
        "status": status.value,
        "created_at": event.created_at.isoformat(),
    }
