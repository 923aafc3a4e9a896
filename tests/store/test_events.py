"""Events: which are claimable, who has claimed them, and for how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from bench.plans import explained
from tenure.domain.lease import Event, EventStatus, EventType, Lease, LeaseStatus
from tenure.store.conflict import Overtaken
from tenure.store.database import Database, Transaction
from tenure.store.events import PATIENCE, StoredEvent
from tests.store.rows import HELD, HOUR, RELEASED, add_hosts, add_lease, new_id
from tests.support.world import NOW

SECOND = timedelta(seconds=1)
MINE, THEIRS = "mine", "theirs"


def stored(db: Database, lease: Lease, event_type: EventType = EventType.START) -> StoredEvent:
    with db.read() as tx:
        return next(
            stored_event for stored_event in tx.events.of_lease(lease.id) if stored_event.event.event_type is event_type
        )


def ready(db: Database, now: datetime, limit: int = 100) -> list[str]:
    """What is ready, starts behind all others."""
    with db.read() as tx:
        return tx.events.ready(now, limit, starts=False) + tx.events.ready(now, limit, starts=True)


def claim(
    db: Database, stored_event: StoredEvent, token: str = MINE, *, now: datetime = NOW, seconds: float = 60
) -> None:
    until = now + timedelta(seconds=seconds)
    db.write(lambda tx: tx.events.claim(stored_event, token=token, until=until, now=now))


def set_status(db: Database, lease: Lease, status: LeaseStatus) -> None:
    db.write(lambda tx: tx.leases.change(lease, now=NOW, status=status.value))


def add_event(
    db: Database, lease: Lease, event_type: EventType, due_at: datetime, *, message: str | None = None
) -> Event:
    event = Event(new_id(), lease.id, event_type, due_at, EventStatus.UNDONE, 0, NOW, message=message)
    db.write(lambda tx: tx.events.add([event]))
    return event


class TestQueryPlans:
    @pytest.fixture
    def database_url(self, fresh_database):
        with fresh_database("sqlite") as url:
            yield url

    def test_starts_are_read_in_their_order_and_not_sorted(self, db: Database):
        """To sort the starts of one instant, the database would have to read all of them, however few are claimed."""
        plan: list[str] = []
        with explained(db.engine, plan.append), db.read() as tx:
            tx.events.ready(NOW, 1, starts=True)
            tx.events.waiting(NOW, 1)
        reads = [line for line in plan if line.startswith("  | SEARCH events USING")]
        assert len(reads) == 2, plan
        assert not any("TEMP B-TREE" in line for line in plan), plan


class TestReadyEvents:
    def test_events_are_ready_when_due(self, db: Database):
        lease = add_lease(db, start=1, end=2)
        start = stored(db, lease).event.id
        assert ready(db, NOW + HOUR - SECOND) == []
        assert ready(db, NOW + HOUR) == [start]

    def test_longest_ready_first_with_starts_separate(self, db: Database):
        ending, ended = add_lease(db, start=0, end=1), add_lease(db, start=0, end=0.5)
        set_status(db, ending, LeaseStatus.ACTIVE)
        set_status(db, ended, LeaseStatus.ACTIVE)
        starting, earlier = add_lease(db, start=1, end=2), add_lease(db, start=0.5, end=3)
        starts = [stored(db, lease).event.id for lease in (earlier, starting)]
        ends = [stored(db, lease, EventType.END).event.id for lease in (ended, ending)]
        with db.read() as tx:
            assert tx.events.ready(NOW + HOUR, 10, starts=True) == starts
            assert tx.events.ready(NOW + HOUR, 1, starts=True) == starts[:1]
            assert tx.events.ready(NOW + HOUR, 10, starts=False) == ends
            assert tx.events.ready(NOW + HOUR, 1, starts=False) == ends[:1]

    def test_oldest_ready_at(self, db: Database):
        """Claimed events and starts that wait for another lease do not count."""
        host, other = add_hosts(db, 2)
        late = add_lease(db, host, start=0, end=1, state=HELD)
        set_status(db, late, LeaseStatus.ACTIVE)
        add_lease(db, host, start=1, end=4)
        with db.read() as tx:
            assert tx.events.oldest_ready_at(NOW) is None
            assert tx.events.oldest_ready_at(NOW + 3 * HOUR) == NOW + HOUR
        claim(db, stored(db, late, EventType.END), now=NOW + 3 * HOUR)
        with db.read() as tx:
            assert tx.events.oldest_ready_at(NOW + 3 * HOUR) is None
        add_lease(db, other, start=2, end=4)
        with db.read() as tx:
            assert tx.events.oldest_ready_at(NOW + 3 * HOUR) == NOW + 2 * HOUR

    @pytest.mark.parametrize("status", list(LeaseStatus))
    def test_lease_status_decides_which_events_are_claimable(self, db: Database, status: LeaseStatus):
        lease = add_lease(db, start=0, end=9)
        set_status(db, lease, status)
        update = add_event(db, lease, EventType.UPDATE, NOW)
        notice = add_event(db, lease, EventType.BEFORE_END, NOW)
        end = add_event(db, lease, EventType.END, NOW)
        word = add_event(db, lease, EventType.NOTIFY, NOW)
        runs_or_will = {LeaseStatus.PENDING, LeaseStatus.STARTING, LeaseStatus.ACTIVE, LeaseStatus.UPDATING}
        expected = {
            *([word.id] if status in runs_or_will else []),
            *([stored(db, lease).event.id] if status in {LeaseStatus.PENDING, LeaseStatus.STARTING} else []),
            *([update.id] if status is LeaseStatus.UPDATING else []),
            *([notice.id] if status is LeaseStatus.ACTIVE else []),
            # Of an active lease the notice comes first.
            *([end.id] if status not in {LeaseStatus.ACTIVE, LeaseStatus.DELETED} else []),
        }
        assert set(ready(db, NOW)) == expected

    def test_start_after_the_lease_end_is_not_ready(self, db: Database):
        lease = add_lease(db, start=1, end=2)
        assert ready(db, NOW + 2 * HOUR) == [stored(db, lease, EventType.END).event.id]

    def test_one_event_of_a_lease_at_a_time(self, db: Database):
        lease = add_lease(db, start=1, end=2)
        end = stored(db, lease, EventType.END).event.id
        claim(db, stored(db, lease), now=NOW + 2 * HOUR)
        assert ready(db, NOW + 2 * HOUR + 59 * SECOND) == []
        assert ready(db, NOW + 2 * HOUR + 60 * SECOND) == [end]

    def test_notify_event_neither_waits_nor_blocks(self, db: Database):
        lease = add_lease(db, start=1, end=2)
        word = add_event(db, lease, EventType.NOTIFY, NOW + HOUR)
        start = stored(db, lease)
        at = NOW + HOUR
        assert ready(db, at) == [word.id, start.event.id]
        claim(db, start, now=at)
        assert ready(db, at) == [word.id]
        other = add_lease(db, start=1, end=2)
        notification = add_event(db, other, EventType.NOTIFY, NOW + HOUR)
        claim(db, stored(db, other, EventType.NOTIFY), now=at)
        assert ready(db, at) == [word.id, stored(db, other).event.id]
        assert notification.id not in ready(db, at)

    def test_message_of_an_owners_event_is_stored(self, db: Database):
        lease = add_lease(db, start=1, end=2)
        word = add_event(db, lease, EventType.NOTIFY, NOW + HOUR, message="ü, 東京")
        assert stored(db, lease, EventType.NOTIFY).event == word
        with db.read() as tx:
            [found] = tx.leases.by_ids([lease.id])
        assert {event.event_type: event.message for event in found.events} == {
            EventType.START: None,
            EventType.END: None,
            EventType.NOTIFY: "ü, 東京",
        }
        db.write(lambda tx: tx.events.discard([word.id]))
        with db.read() as tx:
            assert tx.events.get(word.id) is None

    def test_only_starts_wait_for_the_previous_holder(self, db: Database):
        first, second = add_hosts(db, 2)
        late = add_lease(db, first, start=0, end=1, state=HELD)
        set_status(db, late, LeaseStatus.ACTIVE)
        add_lease(db, second, start=0, end=1, state=RELEASED, status=LeaseStatus.TERMINATED)
        waits, goes = add_lease(db, first, start=1, end=2), add_lease(db, second, start=1, end=2)
        at = NOW + HOUR
        found = ready(db, at)
        assert stored(db, goes).event.id in found
        assert stored(db, late, EventType.END).event.id in found
        assert stored(db, waits).event.id not in found
        with db.read() as tx:
            assert tx.events.waiting(at, 10) == []  # the holder's end is tried first
            assert tx.events.waiting(at + PATIENCE, 10) == [stored(db, waits).event.id]
            assert tx.events.is_claimable(stored(db, waits).event.id, at)
            assert not tx.events.is_claimable(stored(db, waits).event.id, at - SECOND)
        claim(db, stored(db, late, EventType.END), now=at + SECOND)
        with db.read() as tx:
            assert tx.events.waiting(at + PATIENCE, 10) == []  # the holder's end has just begun
            assert tx.events.waiting(at + SECOND + PATIENCE, 10) == [stored(db, waits).event.id]
        db.write(lambda tx: tx.allocations.release([late.reservations[0].id], until=at))
        assert stored(db, waits).event.id in ready(db, at)

    def test_next_ready_at(self, db: Database):
        with db.read() as tx:
            assert tx.events.next_ready_at(NOW) is None
        add_lease(db, start=1, end=2)
        with db.read() as tx:
            assert tx.events.next_ready_at(NOW) == NOW + HOUR
            assert tx.events.next_ready_at(NOW + HOUR) == NOW + 2 * HOUR
            assert tx.events.next_ready_at(NOW + 2 * HOUR) is None


class TestClaims:
    def test_a_claim_has_an_owner_and_an_end(self, db: Database):
        lease = add_lease(db, start=0, end=2)
        start = stored(db, lease)
        claim(db, start)
        claimed = stored(db, lease)
        assert (claimed.claim_token, claimed.ready_at) == (MINE, NOW + 60 * SECOND)
        assert (claimed.event.status, claimed.event.attempts) == (EventStatus.IN_PROGRESS, 1)
        assert claimed.event.due_at == start.event.due_at
        assert ready(db, NOW + 59 * SECOND) == []
        assert ready(db, NOW + 60 * SECOND) == [start.event.id]

    @pytest.mark.parametrize("meanwhile", ["claimed", "moved", "done", "claimed and given back"])
    def test_changed_event_is_not_claimed(self, db: Database, meanwhile: str):
        lease = add_lease(db, start=0, end=2)
        seen = stored(db, lease)
        if meanwhile.startswith("claimed"):
            claim(db, seen, THEIRS)
        if meanwhile == "moved":
            db.write(lambda tx: tx.events.change([seen.event.id], now=NOW, ready_at=NOW + HOUR, due_at=NOW + HOUR))
        elif meanwhile == "done":
            db.write(lambda tx: tx.events.change([seen.event.id], now=NOW, ready_at=None, status="DONE"))
        elif meanwhile.endswith("back"):
            later = {"status": "UNDONE", "ready_at": NOW + SECOND}
            db.write(lambda tx: tx.events.finish(seen.event.id, token=THEIRS, now=NOW, **later))
        before = stored(db, lease)

        def take(tx: Transaction) -> None:
            with pytest.raises(Overtaken):
                tx.events.claim(seen, token=MINE, until=NOW + HOUR, now=NOW)

        db.write(take)
        assert stored(db, lease) == before

    def test_expired_claim_is_taken_over_once(self, db: Database):
        lease = add_lease(db, start=0, end=2)
        claim(db, stored(db, lease), "dead worker")
        expired = stored(db, lease)
        claim(db, expired, MINE, now=NOW + HOUR)

        def take(tx: Transaction) -> None:
            with pytest.raises(Overtaken):
                tx.events.claim(expired, token=THEIRS, until=NOW + 2 * HOUR, now=NOW + HOUR)

        db.write(take)
        assert (stored(db, lease).claim_token, stored(db, lease).event.attempts) == (MINE, 1)

    def test_only_the_claim_owner_can_renew_and_finish(self, db: Database):
        lease = add_lease(db, start=0, end=2)
        event_id = stored(db, lease).event.id
        claim(db, stored(db, lease))
        until = NOW + 2 * HOUR
        assert not db.write(lambda tx: tx.events.renew(event_id, token=THEIRS, until=until))
        assert not db.write(lambda tx: tx.events.finish(event_id, token=THEIRS, now=NOW, status="DONE", ready_at=None))
        assert stored(db, lease).ready_at == NOW + 60 * SECOND
        assert db.write(lambda tx: tx.events.renew(event_id, token=MINE, until=until))
        assert stored(db, lease).ready_at == until
        assert db.write(lambda tx: tx.events.finish(event_id, token=MINE, now=NOW, status="DONE", ready_at=None))
        done = stored(db, lease)
        assert (done.event.status, done.claim_token, done.ready_at) == (EventStatus.DONE, None, None)
        assert not db.write(lambda tx: tx.events.finish(event_id, token=MINE, now=NOW, status="ERROR", ready_at=NOW))
        assert not db.write(lambda tx: tx.events.renew(event_id, token=MINE, until=until))
        assert stored(db, lease) == done

    def test_only_the_claim_owner_can_remove(self, db: Database):
        """A worker with an expired claim removes nothing that the next worker has claimed."""
        lease = add_lease(db, start=0, end=2)
        event = add_event(db, lease, EventType.RECONCILE, NOW)
        claim(db, stored(db, lease, EventType.RECONCILE), MINE)
        claim(db, stored(db, lease, EventType.RECONCILE), THEIRS, now=NOW + HOUR)
        assert not db.write(lambda tx: tx.events.remove(event.id, token=MINE))
        assert stored(db, lease, EventType.RECONCILE).claim_token == THEIRS
        assert db.write(lambda tx: tx.events.remove(event.id, token=THEIRS))
        with db.read() as tx:
            assert tx.events.get(event.id) is None
        assert not db.write(lambda tx: tx.events.remove(event.id, token=THEIRS))

    def test_renewing_to_the_same_moment_keeps_the_claim(self, db: Database):
        """MariaDB can count rows that changed, not rows that matched."""
        lease = add_lease(db, start=0, end=2)
        event_id = stored(db, lease).event.id
        claim(db, stored(db, lease))
        until = NOW + 60 * SECOND
        assert db.write(lambda tx: tx.events.renew(event_id, token=MINE, until=until))
        assert db.write(lambda tx: tx.events.renew(event_id, token=MINE, until=until))

    def test_an_event_can_be_claimed_as_it_is_written(self, db: Database):
        lease = add_lease(db, start=0, end=9)
        event = Event(new_id(), lease.id, EventType.UPDATE, NOW, EventStatus.IN_PROGRESS, 1, NOW)
        payload = {"added": {"r": [1, 2]}, "text": "ä"}
        db.write(lambda tx: tx.events.add([event], claim=(MINE, NOW + HOUR), payload=payload))
        found = stored(db, lease, EventType.UPDATE)
        assert found == StoredEvent(event, NOW + HOUR, MINE, payload)
        with db.read() as tx:
            assert tx.events.get(event.id) == found
            assert tx.events.get("another") is None

    def test_the_events_of_a_lease_come_in_their_order(self, db: Database):
        lease = add_lease(db, start=0, end=2)
        add_event(db, lease, EventType.BEFORE_END, NOW + HOUR)
        with db.read() as tx:
            event_types = [stored_event.event.event_type for stored_event in tx.events.of_lease(lease.id)]
            shown = tx.leases.get(lease.id)
        assert event_types == [EventType.START, EventType.BEFORE_END, EventType.END]
        assert shown is not None
        assert [event.event_type for event in shown.events] == event_types
        assert replace(shown.events[0], updated_at=None) == lease.events[0]
