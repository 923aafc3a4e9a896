"""Events that owners define themselves: at their time a notification with the owner's text is sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.lease import MAX_USER_EVENTS, Event, EventStatus, EventType, Lease
from tenure.domain.period import minute_of
from tenure.domain.request import UserEvent
from tenure.services.context import new_id
from tenure.services.events.payloads import NotifyPayload, UserEventBefore, UserEventsBefore
from tenure.services.notifications.records import notify
from tenure.store.database import Transaction

#: The topic of the notification at the time of such an event.
TOPIC = f"lease.event.{EventType.NOTIFY.value}"
_TO_COME = frozenset({EventStatus.UNDONE, EventStatus.IN_PROGRESS})


def check_events(requests: Sequence[UserEvent], starts_at: datetime, ends_at: datetime) -> None:
    """Raise ``InvalidParameter`` if there are too many events, or if one lies outside the lease."""
    if len(requests) > MAX_USER_EVENTS:
        raise InvalidParameter(f"A lease has at most {MAX_USER_EVENTS} events of its owner's", field="events")
    for position, requested in enumerate(requests):
        if not starts_at <= requested.at <= ends_at:
            raise InvalidParameter(
                "The event must lie between the start and the end of the lease", field=f"events[{position}].time"
            )


def new_events(lease_id: str, requests: Sequence[UserEvent], now: datetime) -> tuple[Event, ...]:
    """Return the events of a new lease. Raises ``InvalidParameter`` if the time of an event has passed."""
    return tuple(_new_event(lease_id, requested, position, now) for position, requested in enumerate(requests))


@dataclass(frozen=True, slots=True)
class EventReplacement:
    """What replaces the owner's events of a lease: those that are new, that change, and that are deleted."""

    before: Sequence[Event]
    added: Sequence[Event]
    changed: Sequence[UserEvent]
    deleted: Collection[str]

    @classmethod
    def of(cls, lease: Lease, requests: Sequence[UserEvent], now: datetime) -> EventReplacement:
        """Return what replaces the events of a lease by these.

        An event with an id stays, perhaps with another time and message; those without an id are new; events that are
        not named are deleted. Raises ``InvalidParameter`` and ``InvalidState``.
        """
        before = {event.id: event for event in lease.events if event.event_type is EventType.NOTIFY}
        named = [requested.event_id for requested in requests if requested.event_id is not None]
        added: list[Event] = []
        changed: list[UserEvent] = []
        for position, requested in enumerate(requests):
            if requested.event_id is None:
                added.append(_new_event(lease.id, requested, position, now))
                continue
            known = before.get(requested.event_id)
            if known is None or named.count(requested.event_id) > 1:
                wrong = "is no event that the lease's owner has defined" if known is None else "is named twice"
                raise InvalidParameter(f"{requested.event_id[:64]} {wrong}", field=f"events[{position}].id")
            if (known.due_at, known.message) == (requested.at, requested.message):
                continue
            if known.status not in _TO_COME:
                raise InvalidState(f"The event {known.id} is over; it cannot be changed.")
            if known.due_at != requested.at:
                _check_in_future(requested, position, now)
            changed.append(requested)
        return cls(tuple(before.values()), tuple(added), tuple(changed), before.keys() - set(named))

    @property
    def after(self) -> list[Event]:
        """The owner's events after the replacement."""
        changed = {requested.event_id: requested for requested in self.changed}
        stay = [event for event in self.before if event.id not in self.deleted]
        return [
            replace(event, due_at=requested.at, message=requested.message, status=EventStatus.UNDONE)
            if requested
            else event
            for event in stay
            for requested in [changed.get(event.id)]
        ] + list(self.added)

    def write(self, tx: Transaction, now: datetime) -> UserEventsBefore:
        """Replace the events; return what ``restore_events`` needs to undo that."""
        tx.events.discard(self.deleted)
        for requested in self.changed:
            assert requested.event_id is not None
            _write(tx, requested.event_id, requested.at, requested.message, now)
        tx.events.add(self.added)
        return UserEventsBefore(
            before=tuple(_as_before(event) for event in self.before), added=tuple(event.id for event in self.added)
        )


def restore_events(tx: Transaction, lease_id: str, replaced: UserEventsBefore, now: datetime) -> None:
    """Restore the events that ``replace_events`` has replaced; notifications sent meanwhile are not repeated."""
    tx.events.discard(replaced.added)
    there = {stored.event.id: stored.event for stored in tx.events.of_lease(lease_id)}
    for known in replaced.before:
        event = there.get(known.id)
        if event is None:
            event = Event(
                id=known.id,
                lease_id=lease_id,
                event_type=EventType.NOTIFY,
                due_at=known.due_at,
                status=known.status,
                attempts=0,
                created_at=known.created_at,
                message=known.message,
            )
            tx.events.add([event])
            if event.status not in _TO_COME:
                tx.events.change([event.id], now=now, ready_at=None)
        elif event.status in _TO_COME and (event.due_at, event.message) != (known.due_at, known.message):
            _write(tx, event.id, known.due_at, known.message or "", now)


def notify_event(tx: Transaction, lease: Lease, event: Event, *, now: datetime) -> None:
    """Notify others of an event that has come."""
    words = {
        "id": event.id,
        "event_type": event.event_type.value,
        "time": f"{event.due_at:%Y-%m-%dT%H:%M:%S.%f}",
        "message": event.message,
    }
    notify(tx, TOPIC, lease, now=now, event=words)


def due_events(lease: Lease, now: datetime) -> list[Event]:
    """Return the due events that were not notified yet."""
    return [
        event
        for event in lease.events
        if event.event_type is EventType.NOTIFY and event.status in _TO_COME and event.due_at <= now
    ]


def _new_event(lease_id: str, requested: UserEvent, position: int, now: datetime) -> Event:
    _check_in_future(requested, position, now)
    return Event(
        new_id(), lease_id, EventType.NOTIFY, requested.at, EventStatus.UNDONE, 0, now, message=requested.message
    )


def _check_in_future(requested: UserEvent, position: int, now: datetime) -> None:
    if requested.at < minute_of(now):
        raise InvalidParameter("The time of the event has passed", field=f"events[{position}].time")


def _write(tx: Transaction, event_id: str, due_at: datetime, message: str, now: datetime) -> None:
    """Change a stored event; a worker that has claimed it loses the claim."""
    tx.events.change(
        [event_id],
        now=now,
        due_at=due_at,
        ready_at=due_at,
        payload=NotifyPayload(message=message).to_json(),
        status=EventStatus.UNDONE.value,
        claim_token=None,
        attempts=0,
    )


def _as_before(event: Event) -> UserEventBefore:
    status = EventStatus.UNDONE if event.status in _TO_COME else event.status
    return UserEventBefore(
        id=event.id, due_at=event.due_at, message=event.message, status=status, created_at=event.created_at
    )
