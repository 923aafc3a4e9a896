"""The payloads of events are compatible with earlier releases in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.domain.lease import Event, EventStatus, EventType
from tenure.services.events.payloads import (
    ActionsBefore,
    BeforeEndPayload,
    EndPayload,
    LeaseBefore,
    NoticeBefore,
    NotifyPayload,
    Payload,
    PreparePayload,
    ReconcilePayload,
    StartPayload,
    UpdatePayload,
    UserEventBefore,
    UserEventsBefore,
    payload_of,
)
from tenure.store.events import StoredEvent

NINE = datetime(2030, 1, 1, 9, tzinfo=UTC)
TEN = datetime(2030, 1, 1, 10, 0, 0, 250000, tzinfo=UTC)

#: Payloads as the releases before the dataclasses have written them, and what they mean.
STORED: list[tuple[EventType, Mapping[str, Any] | None, Payload]] = [
    (EventType.BEFORE_END, None, BeforeEndPayload()),
    (EventType.BEFORE_END, {"distance": "PT1H"}, BeforeEndPayload(distance=timedelta(hours=1))),
    (EventType.HOLD, {"occupied": [3, 5]}, Payload(occupied=(3, 5))),
    (EventType.START, {"not_before": NINE.isoformat()}, StartPayload(not_before=NINE)),
    (
        EventType.END,
        {"settled": {"r": "notify"}, "failed": ["r"], "awaiting_since": TEN.isoformat()},
        EndPayload(finished={"r": "notify"}, failed=("r",), awaiting_since=TEN),
    ),
    (EventType.PREPARE, {"promised": True}, PreparePayload(promised=True)),
    (EventType.RECONCILE, {"drifted": []}, ReconcilePayload()),
    (EventType.RECONCILE, {"drifted": ["r"]}, ReconcilePayload(drifted=("r",))),
    (EventType.NOTIFY, {"message": "ä"}, NotifyPayload(message="ä")),
    (EventType.UPDATE, {"dropped": ["r"]}, UpdatePayload(dropped=("r",))),
    (
        EventType.UPDATE,
        {"added": {"r": [1, 2]}, "replaced": {"r": [7]}},
        UpdatePayload(added={"r": (1, 2)}, replaced={"r": (7,)}),
    ),
    (
        EventType.UPDATE,
        {
            "added": {"r": [1]},
            "parameters": {"r": {"min": 1, "properties": None}},
            "before": {"name": "lease", "starts_at": NINE.isoformat(), "ends_at": TEN.isoformat()},
            "due": {"end": TEN.isoformat()},
            "bound": ["r"],
            "ending": [3],
            "lasting": [4],
            "events": {
                "before": [
                    {
                        "id": "e",
                        "due_at": TEN.isoformat(),
                        "message": "soon",
                        "status": "UNDONE",
                        "created_at": NINE.isoformat(),
                    }
                ],
                "added": ["f"],
            },
            "undoing": True,
            "refused": {"r": {}},
        },
        UpdatePayload(
            added={"r": (1,)},
            parameters={"r": {"min": 1, "properties": None}},
            before=LeaseBefore(name="lease", starts_at=NINE, ends_at=TEN),
            due={"end": TEN},
            bound=("r",),
            ending=(3,),
            lasting=(4,),
            events=UserEventsBefore(
                before=(
                    UserEventBefore(id="e", due_at=TEN, message="soon", status=EventStatus.UNDONE, created_at=NINE),
                ),
                added=("f",),
            ),
            undoing=True,
            refused={"r": {}},
        ),
    ),
    # A release before the actions of an update has no notice: it restores the time that is in ``due``.
    (
        EventType.UPDATE,
        {
            "due": {"notice": NINE.isoformat()},
            "notice": {
                "event_id": "notice",
                "due_at": NINE.isoformat(),
                "status": "DONE",
                "distance": "PT1H",
                "actions": {
                    "finished": {"r": "notify"},
                    "failed": ["s"],
                    "outcome": "No image was made.",
                    "outcome_detail": "The quota is full.",
                    "repetition": 2,
                },
            },
        },
        UpdatePayload(
            due={"notice": NINE},
            notice=NoticeBefore(
                event_id="notice",
                due_at=NINE,
                status=EventStatus.DONE,
                distance=timedelta(hours=1),
                actions=ActionsBefore(
                    finished={"r": "notify"},
                    failed=("s",),
                    outcome="No image was made.",
                    outcome_detail="The quota is full.",
                    repetition=2,
                ),
            ),
        ),
    ),
    (
        EventType.UPDATE,
        {
            "notice": {
                "event_id": "added",
                "due_at": None,
                "status": "UNDONE",
                "distance": None,
                "actions": None,
            }
        },
        UpdatePayload(notice=NoticeBefore(event_id="added")),
    ),
]


def _stored(event_type: EventType, payload: Mapping[str, Any] | None) -> StoredEvent:
    return StoredEvent(Event("e", "l", event_type, NINE, EventStatus.UNDONE, 0, NINE), NINE, None, payload)


@pytest.mark.parametrize(("event_type", "stored", "payload"), STORED)
def test_payload_of_an_earlier_release_is_read(
    event_type: EventType, stored: Mapping[str, Any] | None, payload: Payload
):
    assert payload_of(_stored(event_type, stored)) == payload


@pytest.mark.parametrize(("event_type", "stored", "payload"), STORED)
def test_payload_is_stored_as_earlier_releases_have_stored_it(
    event_type: EventType, stored: Mapping[str, Any] | None, payload: Payload
):
    written = payload.to_json()
    assert _normal(written) == _normal({name: value for name, value in (stored or {}).items() if value})
    assert payload_of(_stored(event_type, written)) == payload


def _normal(value: object) -> object:
    """Return a JSON value with its dates as such: they can be written in several ways."""
    if isinstance(value, dict):
        return {name: _normal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_normal(inner) for inner in value]
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
