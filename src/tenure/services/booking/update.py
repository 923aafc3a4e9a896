"""The change of a lease's details, dates, reservations and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.lease import Event, EventStatus, EventType, Lease, LeaseStatus, ReservationStatus
from tenure.domain.period import minute_of
from tenure.domain.request import LeaseChange, Moment
from tenure.planning.snapshot import Snapshot
from tenure.services.booking.changes import (
    Changed,
    ChangeProposal,
    ChangeRequest,
    added_allocations,
    again,
    refuse_busy,
)
from tenure.services.booking.reservation_changes import Dates
from tenure.services.context import new_id
from tenure.services.events.before_end import add_notice, may_move, move_notice, notice_after, notify_armed_again
from tenure.services.events.payloads import BeforeEndPayload, LeaseBefore, NoticeBefore, UpdatePayload
from tenure.services.events.user_events import EventReplacement, check_events
from tenure.services.leases.dates import check_longest, check_notice, check_shortest, resolve
from tenure.services.resources.healing import request_reconciliation
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(ChangeRequest):
    """The change of a lease's details, dates, reservations and events."""

    change: LeaseChange

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        change = self.change
        if change.is_empty:
            return self.nothing(lease)
        refuse_busy(lease)
        if change.only_details:
            proposal = replace(self.nothing(lease), is_empty=False)
            renamed = replace(lease, **change.details(), version=lease.version + 1, updated_at=self.now)
            return replace(proposal, lease=renamed)
        self._check_status(lease)
        dates = self._dates(lease)
        matched = self.matched(lease, change.reservations)
        events = tx.events.of_lease(lease.id)
        if dates.notice_at is not None:
            self._check_notice_open(dates.notice_at, events)
        moved = (dates.starts_at, dates.ends_at) != (lease.starts_at, lease.ends_at)
        positions = {
            reservation_change.reservation_id: position
            for position, reservation_change in enumerate(change.reservations)
        }
        drafts = [
            self.draft(tx, lease, reservation, positions.get(reservation.id, index), matched.get(reservation.id))
            for index, reservation in enumerate(lease.reservations)
            if (moved or reservation.id in matched) and reservation.status is not ReservationStatus.DELETED
        ]
        if change.events is not None:
            check_events(change.events, dates.starts_at, dates.ends_at)
        proposal = self.planned(tx, lease, drafts, dates, snapshot)
        after = replace(proposal.lease, **change.details(), events=self._events_after(lease, dates, events))
        if self._is_followed(proposal):
            after = replace(after, status=LeaseStatus.UPDATING, status_reason=None, status_detail=None)
        return replace(proposal, lease=after)

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease, dates, change = proposal.before, proposal.dates, self.change
        if change.only_details:
            tx.leases.change(lease, now=self.now, **change.details())
            self.note(tx, lease, "; ".join(_changed_details(lease, change)) or "nothing")
            return Changed(again(tx, lease))
        parameters_before = self.write_reservations(tx, proposal)
        events = tx.events.of_lease(lease.id)
        replaced = None
        if change.events is not None:
            replaced = EventReplacement.of(again(tx, lease), change.events, self.now).write(tx, self.now)
        due_before = self._move_events(tx, lease, dates, events)
        notice_before = self._move_notice(tx, lease, dates, events)
        values = {**change.details(), "starts_at": dates.starts_at, "ends_at": dates.ends_at}
        reason = self._describe(lease, dates)
        planned = proposal.planned
        if self._is_followed(proposal):
            payload = UpdatePayload(
                added=added_allocations(tx, proposal),
                parameters=parameters_before,
                before=LeaseBefore(**lease.details(), starts_at=lease.starts_at, ends_at=lease.ends_at),
                due=due_before,
                events=replaced,
                notice=notice_before,
                bound=planned.bound,
                ending=planned.ending,
                lasting=planned.lasting,
            )
            return Changed(lease, self.follow(tx, lease, payload=payload, reason=reason, **values))
        for end, allocation_ids in planned.shorter.items():
            tx.allocations.shorten(allocation_ids, end)
        changed = self.record(tx, lease, reason, **values)
        notify_armed_again(tx, changed, notice_before, now=self.now)
        if dates.ends_at != lease.ends_at and any(draft.demand.subject is not None for draft in proposal.drafts):
            request_reconciliation(tx, changed, now=self.now)  # writes the new end to the metadata of the server
        is_prepared_again = lease.status is LeaseStatus.PENDING and any(
            self.is_prepared(reservation) or self.is_prepared(reservation, parameters_before[reservation.id])
            for reservation in changed.reservations
            if reservation.id in parameters_before
        )
        return Changed(changed, self.claimed(tx, lease, EventType.PREPARE) if is_prepared_again else None)

    def _is_followed(self, proposal: ChangeProposal) -> bool:
        """Whether the cloud has to follow: a running lease gets something."""
        if proposal.before.status is not LeaseStatus.ACTIVE:
            return False
        own = {reservation.id for reservation in proposal.before.reservations}
        return bool(proposal.planned.bound) or any(
            allocation.reservation_id in own for allocation in proposal.changes.added
        )

    def _check_status(self, lease: Lease) -> None:
        if lease.status is LeaseStatus.WAITING:
            raise InvalidState("A lease on the waiting list can only be renamed or deleted")
        over = lease.status is LeaseStatus.TERMINATED or lease.ends_at < minute_of(self.now)
        if over and lease.status is not LeaseStatus.ERROR:
            raise InvalidState("Terminated leases can only be renamed")
        if lease.status is LeaseStatus.ERROR:
            raise InvalidState("A lease in ERROR can only be renamed or deleted")

    def _dates(self, lease: Lease) -> Dates:
        change, this_minute = self.change, minute_of(self.now)
        starts_at, ends_at = lease.starts_at, lease.ends_at
        if change.starts_at is not None:
            starts_at = resolve(change.starts_at, self.now)
            started = lease.starts_at < this_minute or lease.status is not LeaseStatus.PENDING
            if starts_at != lease.starts_at and started:
                raise InvalidParameter("Cannot modify the start date of already started leases", field="start_date")
            if starts_at != lease.starts_at and starts_at < this_minute:
                raise InvalidParameter("Start date must be later than current date", field="start_date")
        if change.ends_at is not None:
            ends_at = resolve(change.ends_at, self.now)
            if change.ends_at is Moment.THIS_MINUTE and starts_at <= self.now:
                ends_at = max(ends_at, starts_at)  # it began in this minute
        if ends_at < starts_at or (change.ends_at is not None and ends_at < this_minute):
            field = "end_date" if change.ends_at is not None else "start_date"
            raise InvalidParameter("End date must be later than current and start date", field=field)
        moves = (starts_at, ends_at) != (lease.starts_at, lease.ends_at)
        if moves and lease.status is LeaseStatus.PENDING and starts_at < ends_at:
            check_shortest(starts_at, ends_at)
        if ends_at - starts_at > lease.ends_at - lease.starts_at:
            check_longest(self.context.rules, starts_at, ends_at)
        notice_at = None
        if change.before_end_at is not None:
            notice_at = check_notice(resolve(change.before_end_at, self.now), starts_at, ends_at)
        return Dates(starts_at, ends_at, notice_at)

    def _check_notice_open(self, notice_at: datetime, events: Sequence[StoredEvent]) -> None:
        """Raise ``InvalidState`` if the action before the end has run, and should have run at another time."""
        for stored in events:
            event = stored.event
            has_run = event.event_type is EventType.BEFORE_END and event.status is not EventStatus.UNDONE
            if has_run and notice_at != event.due_at and notice_at <= self.now:
                raise InvalidState("The action before the end has run already; its new date must be in the future")

    # --- events

    def _events_after(self, lease: Lease, dates: Dates, events: Sequence[StoredEvent]) -> tuple[Event, ...]:
        """Return the events of the lease as they would be."""
        due = self._due_after(lease, dates, events)
        after: list[Event] = []
        for stored in events:
            event = stored.event
            if event.event_type is EventType.NOTIFY and self.change.events is not None:
                continue
            if event.event_type is EventType.BEFORE_END and self._moves_notice(lease, dates):
                due_at, _ = self._notice_after(stored, lease, dates)
                if may_move(stored, due_at):
                    event = replace(event, due_at=due_at, status=EventStatus.UNDONE)
            elif event.id in due:
                event = replace(event, due_at=due[event.id])
            after.append(event)
        if dates.notice_at is not None and lease.event(EventType.BEFORE_END) is None:
            after.append(
                Event(new_id(), lease.id, EventType.BEFORE_END, dates.notice_at, EventStatus.UNDONE, 0, self.now)
            )
        if self.change.events is not None:
            after += EventReplacement.of(lease, self.change.events, self.now).after
        return tuple(after)

    def _due_after(self, lease: Lease, dates: Dates, events: Sequence[StoredEvent]) -> dict[str, datetime]:
        """Return the new dates of events that have not begun, by id; the action before the end is not among them.

        They come along with the dates of the lease.
        """
        if (dates.starts_at, dates.ends_at) == (lease.starts_at, lease.ends_at):
            return {}
        due: dict[str, datetime] = {}
        for stored in events:
            event = stored.event
            if event.status is not EventStatus.UNDONE or stored.claim_token is not None:
                continue
            match event.event_type:
                case EventType.START:
                    due_at = dates.starts_at
                case EventType.END:
                    due_at = dates.ends_at
                case EventType.NOTIFY if self.change.events is None:
                    due_at = min(max(event.due_at, dates.starts_at), dates.ends_at)
                case _:
                    continue
            if due_at != event.due_at:
                due[event.id] = due_at
        return due

    def _move_events(
        self, tx: Transaction, lease: Lease, dates: Dates, events: Sequence[StoredEvent]
    ) -> dict[str, datetime]:
        """Move the events along with the dates; return their earlier due dates by id."""
        before = {stored.event.id: stored.event.due_at for stored in events}
        due = self._due_after(lease, dates, events)
        for event_id, due_at in due.items():
            tx.events.change([event_id], now=self.now, due_at=due_at, ready_at=due_at, attempts=0)
        return {event_id: before[event_id] for event_id in due}

    def _moves_notice(self, lease: Lease, dates: Dates) -> bool:
        moved = (dates.starts_at, dates.ends_at) != (lease.starts_at, lease.ends_at)
        return moved or dates.notice_at is not None

    def _move_notice(
        self, tx: Transaction, lease: Lease, dates: Dates, events: Sequence[StoredEvent]
    ) -> NoticeBefore | None:
        """Move the action before the end along with the dates, or add it; return what undoes that.

        If it has begun, it runs again if its time is later now.
        """
        if not self._moves_notice(lease, dates):
            return None
        stored = next(
            (stored_event for stored_event in events if stored_event.event.event_type is EventType.BEFORE_END), None
        )
        if stored is not None:
            due_at, payload = self._notice_after(stored, lease, dates)
            return move_notice(tx, stored, lease, due_at, payload, now=self.now)
        return None if dates.notice_at is None else add_notice(tx, lease, dates.notice_at, now=self.now)

    def _notice_after(self, stored: StoredEvent, lease: Lease, dates: Dates) -> tuple[datetime, BeforeEndPayload]:
        return notice_after(stored, lease, self.context.rules, dates.starts_at, dates.ends_at, dates.notice_at)

    def _describe(self, lease: Lease, dates: Dates) -> str:
        """Return the change in words, for the history."""
        change = self.change
        changes = _changed_details(lease, change)
        if dates.starts_at != lease.starts_at:
            changes.append(f"start_date: {lease.starts_at.isoformat()} → {dates.starts_at.isoformat()}")
        if dates.ends_at != lease.ends_at:
            changes.append(f"end_date: {lease.ends_at.isoformat()} → {dates.ends_at.isoformat()}")
        if dates.notice_at is not None:
            changes.append(f"before_end_date: {dates.notice_at.isoformat()}")
        if change.events is not None:
            changes.append(f"events: {len(change.events)} of the owner's")
        for reservation_change in change.reservations:
            given = sorted(name for name, value in reservation_change.parameters.items() if value is not None)
            changes.append(f"reservation {reservation_change.reservation_id}: {', '.join(given)}")
        return "; ".join(changes) or "nothing"


def _changed_details(lease: Lease, change: LeaseChange) -> list[str]:
    """Return the changed details in words."""
    before = lease.details()
    return [f"{name}: {before[name]} → {value}" for name, value in change.details().items() if value != before[name]]
