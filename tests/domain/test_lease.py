"""The state machine of leases: a table, so these tests are loops over it."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from tenure.domain.errors import InvalidState
from tenure.domain.lease import (
    BUSY,
    NEXT,
    Action,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    next_status,
)

S, A = LeaseStatus, Action
#: The statuses of a new lease.
FIRST = (S.WAITING, S.CREATING, S.PENDING)


def drawing() -> str:
    """The state machine as a mermaid diagram, for people."""
    lines = ["stateDiagram-v2", *(f"    [*] --> {status}" for status in FIRST)]
    for (status, action), after in NEXT.items():
        lines.append(f"    {status} --> {after}: {action}")
    return "\n".join([*lines, f"    {S.DELETED} --> [*]"])


@pytest.mark.parametrize(("status", "action"), list(itertools.product(LeaseStatus, Action)))
def test_every_status_and_action_has_a_result_or_an_error_text(status: LeaseStatus, action: Action):
    if (status, action) in NEXT:
        assert next_status(status, action) is NEXT[status, action]
    else:
        with pytest.raises(InvalidState) as caught:
            next_status(status, action)
        assert status in str(caught.value)
        assert action in str(caught.value)


def test_all_statuses_are_busy_but_those_that_last():
    assert set(LeaseStatus) - BUSY == {S.WAITING, S.PENDING, S.ACTIVE, S.TERMINATED, S.ERROR, S.DELETED}


def test_every_status_can_be_reached():
    reached = set(FIRST)
    while more := {after for (status, _), after in NEXT.items() if status in reached} - reached:
        reached |= more
    assert reached == set(LeaseStatus)


def test_every_action_is_possible_in_some_status():
    assert {action for _, action in NEXT} == set(Action)


@pytest.mark.parametrize("status", sorted(set(LeaseStatus) - {S.DELETED}))
def test_a_lease_can_be_deleted_in_any_status_and_then_only_goes_away(status: LeaseStatus):
    assert next_status(status, A.DELETE) is S.DELETING
    onwards = {after for (before, _), after in NEXT.items() if before is S.DELETING}
    assert onwards == {S.DELETING, S.DELETED}


def test_deleted_lease_stays_deleted():
    assert {after for (status, _), after in NEXT.items() if status is S.DELETED} == {S.DELETED}


@pytest.mark.parametrize("status", sorted(set(LeaseStatus) - {S.WAITING, S.CREATING, S.TERMINATED, S.DELETED}))
def test_end_is_allowed_in_every_live_status(status: LeaseStatus):
    assert next_status(status, A.END) in {S.TERMINATING, S.DELETING, S.ERROR}


@pytest.mark.parametrize("status", sorted(BUSY))
def test_every_busy_status_can_be_left(status: LeaseStatus):
    """Each busy status has a way out, and its work can be repeated after a crash."""
    assert any(before is status and after is not status for (before, _), after in NEXT.items())
    if status is not S.CREATING:
        assert any(before is status and after is status for (before, _), after in NEXT.items())


@pytest.mark.parametrize("status", sorted(BUSY))
def test_a_busy_lease_is_not_changed(status: LeaseStatus):
    if status is not S.UPDATING:  # an update of an updating lease is another attempt
        with pytest.raises(InvalidState):
            next_status(status, A.UPDATE)


def test_only_pending_or_starting_lease_can_start():
    assert {status for status, action in NEXT if action is A.START} == {S.PENDING, S.STARTING}
    assert {status for status, action in NEXT if action is A.STARTED} == {S.STARTING}


def test_the_drawing_has_every_arrow():
    lines = drawing().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == len(NEXT) + len(FIRST) + 2
    assert "    PENDING --> STARTING: start" in lines
    assert all(any(f" {status} " in f"{line} " for line in lines) for status in LeaseStatus)


def test_simultaneous_events_have_an_order():
    ordered = sorted(EventType, key=lambda event_type: event_type.rank)
    assert ordered == [
        EventType.START,
        EventType.UPDATE,
        EventType.BEFORE_END,
        EventType.END,
        EventType.RECONCILE,
        EventType.PREPARE,
        EventType.NOTIFY,
        EventType.HOLD,
        EventType.WAIT,
    ]


def test_event_returns_the_latest_of_its_type():
    now = datetime(2030, 1, 1, tzinfo=UTC)
    events = tuple(
        Event(str(number), "lease", event_type, now, EventStatus.UNDONE, 0, now)
        for number, event_type in enumerate([EventType.START, EventType.UPDATE, EventType.UPDATE])
    )
    lease = Lease("lease", "", "", "", now, now, S.ACTIVE, None, False, 1, (), events, now)
    assert lease.event(EventType.UPDATE) is events[2]
    assert lease.event(EventType.START) is events[0]
    assert lease.event(EventType.END) is None
