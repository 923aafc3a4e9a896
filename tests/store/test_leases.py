"""Leases as they are kept: compare and swap, pages in every order, filters, history."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event as sqlalchemy_event

from tenure.domain.errors import InvalidParameter
from tenure.domain.lease import HistoryEntry, Lease, LeaseStatus, ReservationStatus
from tenure.domain.request import LeaseOrder, LeaseQuery
from tenure.store.conflict import Overtaken
from tenure.store.database import Database, Transaction
from tests.store.rows import HOUR, add_lease, new_lease
from tests.support.world import NOW


def get(db: Database, lease_id: str, *, deleted: bool = False) -> Lease | None:
    with db.read() as tx:
        return tx.leases.get(lease_id, deleted=deleted)


def page(db: Database, **query) -> list[str]:
    query.setdefault("limit", 100)
    with db.read() as tx:
        return [lease.id for lease in tx.leases.page(LeaseQuery(**query))]


class TestOne:
    def test_lease_is_stored_as_given(self, db: Database):
        parameters = {"min": 1, "max": 2, "resource_properties": '["==", "$gpu", "ä😀"]', "deep": [None, {"a": 1.5}]}
        lease = replace(
            new_lease(reservations=3, name="ä😀 \\ ' \" %", parameters=parameters),
            status_reason="because " * 500,
            degraded=True,
            created_at=NOW + timedelta(microseconds=1),
        )

        def add(tx: Transaction) -> None:
            tx.leases.add(lease)
            tx.events.add(lease.events)

        db.write(add)
        assert get(db, lease.id) == lease
        with db.read() as tx:
            assert tx.leases.reservations_by_ids([lease.reservations[1].id]) == {
                lease.reservations[1].id: lease.reservations[1]
            }

    def test_deleted_lease_is_returned_on_request_only(self, db: Database):
        lease = add_lease(db)
        db.write(lambda tx: tx.leases.change(lease, now=NOW, deleted_at=NOW, status="DELETED"))
        assert get(db, lease.id) is None
        assert page(db) == []
        found = get(db, lease.id, deleted=True)
        assert found is not None
        assert found.status is LeaseStatus.DELETED

    def test_change_needs_the_version_that_was_read(self, db: Database):
        lease, other = add_lease(db), add_lease(db)
        db.write(lambda tx: tx.leases.change(lease, now=NOW + HOUR, name="new", ends_at=NOW + 9 * HOUR))
        changed = get(db, lease.id)
        assert changed == replace(lease, name="new", ends_at=NOW + 9 * HOUR, version=2, updated_at=NOW + HOUR)
        assert get(db, other.id) == other

        def change_again(tx: Transaction) -> None:
            with pytest.raises(Overtaken):
                tx.leases.change(lease, now=NOW, name="late")

        db.write(change_again)
        assert get(db, lease.id) == changed

    def test_the_same_values_again_are_a_change(self, db: Database):
        """The version goes up, so the row is counted on every database."""
        lease = add_lease(db)
        db.write(lambda tx: tx.leases.change(lease, now=NOW))
        again = get(db, lease.id)
        assert again is not None
        db.write(lambda tx: tx.leases.change(again, now=NOW))
        assert get(db, lease.id) == replace(again, version=3)

    def test_reservations_are_changed_one_by_one(self, db: Database):
        lease = add_lease(db, reservations=3)
        first, second, third = (reservation.id for reservation in lease.reservations)
        db.write(lambda tx: tx.leases.change_reservations([second], now=NOW, status="active", parameters={"min": 7}))
        db.write(lambda tx: tx.leases.change_reservations([], now=NOW, status="error"))
        found = get(db, lease.id)
        assert found is not None
        assert [(reservation.id, reservation.status, reservation.parameters) for reservation in found.reservations] == [
            (first, ReservationStatus.PENDING, {"min": 1}),
            (second, ReservationStatus.ACTIVE, {"min": 7}),
            (third, ReservationStatus.PENDING, {"min": 1}),
        ]

    def test_history_is_in_order(self, db: Database):
        lease, other = add_lease(db), add_lease(db)
        entries = [
            HistoryEntry(lease.id, NOW, "someone", "create", None, "PENDING", None, None),
            HistoryEntry(lease.id, NOW, "someone", "update", "PENDING", "PENDING", "ä" * 3000, "req-1"),
            HistoryEntry(lease.id, NOW - HOUR, "engine", "start", "PENDING", "STARTING", None, None),
        ]
        for entry in [*entries, replace(entries[0], lease_id=other.id)]:
            db.write(lambda tx, entry=entry: tx.leases.remember(entry))  # type: ignore[misc]
        with db.read() as tx:
            history = tx.leases.history(lease.id)
        assert [replace(entry, id="") for entry in history] == entries
        assert len({entry.id for entry in history}) == len(entries)


ORDERS = {
    LeaseOrder.CREATED_AT: lambda lease: lease.created_at,
    LeaseOrder.NAME: lambda lease: lease.name,
    LeaseOrder.STARTS_AT: lambda lease: lease.starts_at,
    LeaseOrder.ENDS_AT: lambda lease: lease.ends_at,
}


class TestPages:
    @pytest.fixture
    def leases(self, db: Database) -> list[Lease]:
        """Many leases with equal values in the fields by which they are sorted."""
        made = [
            new_lease(
                start=number % 3,
                end=3 + number % 4,
                name="bAaBä"[number % 5],
                created_at=NOW + (number % 3) * timedelta(microseconds=1),
                project=("one", "two")[number % 2],
                user=("eve", "adam")[number % 3 == 0],
                status=(LeaseStatus.PENDING, LeaseStatus.ACTIVE)[number % 5 == 0],
            )
            for number in range(17)
        ]

        def add(tx: Transaction) -> None:
            for lease in made:
                tx.leases.add(lease)

        db.write(add)
        return made

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("order", list(LeaseOrder))
    def test_pages_have_no_gaps_and_no_repetitions(
        self, db: Database, leases: list[Lease], order: LeaseOrder, descending: bool
    ):
        expected = [
            lease.id for lease in sorted(leases, key=lambda lease: (ORDERS[order](lease), lease.id), reverse=descending)
        ]
        assert page(db, order=order, descending=descending) == expected
        for limit in (1, 3):
            walked: list[str] = []
            marker = None
            while True:
                found = page(db, limit=limit, marker=marker, order=order, descending=descending)
                assert len(found) <= limit + 1
                walked += found[:limit]
                if len(found) <= limit:
                    break
                marker = walked[-1]
            assert walked == expected

    def test_filters(self, db: Database, leases: list[Lease]):
        for query, passes in (
            ({"project_id": "one"}, lambda lease: lease.project_id == "one"),
            ({"user_id": "adam"}, lambda lease: lease.user_id == "adam"),
            ({"name": "a"}, lambda lease: lease.name == "a"),
            ({"statuses": ("ACTIVE",)}, lambda lease: lease.status is LeaseStatus.ACTIVE),
            ({"starts_before": NOW + HOUR}, lambda lease: lease.starts_at < NOW + HOUR),
            ({"ends_after": NOW + 4 * HOUR}, lambda lease: lease.ends_at > NOW + 4 * HOUR),
            (
                {"project_id": "two", "user_id": "eve", "starts_before": NOW + 2 * HOUR},
                lambda lease: (lease.project_id, lease.user_id) == ("two", "eve") and lease.starts_at < NOW + 2 * HOUR,
            ),
            ({"name": "nobody's"}, lambda _lease: False),
        ):
            expected = {lease.id for lease in leases if passes(lease)}
            assert set(page(db, **query)) == expected, query
            assert len(expected) < len(leases), query

    def test_filters_hold_behind_a_marker(self, db: Database, leases: list[Lease]):
        every = page(db, project_id="one", order=LeaseOrder.NAME)
        assert page(db, project_id="one", order=LeaseOrder.NAME, marker=every[2]) == every[3:]

    def test_a_marker_may_be_deleted_and_must_be_known(self, db: Database, leases: list[Lease]):
        every = page(db)
        marker = next(lease for lease in leases if lease.id == every[4])
        db.write(lambda tx: tx.leases.change(marker, now=NOW, deleted_at=NOW))
        assert page(db, marker=marker.id) == every[5:]
        with pytest.raises(InvalidParameter) as refused:
            page(db, marker="unknown")
        assert (refused.value.field, refused.value.message) == (
            "marker",
            "marker: there is no lease unknown that a list could go on after.",
        )

    @pytest.mark.parametrize("deleted", [False, True])
    def test_marker_must_belong_to_the_project(self, db: Database, leases: list[Lease], deleted: bool):
        """The refusal does not reveal whether another project has it."""
        every = page(db)
        foreign = next(lease for lease in leases if lease.project_id == "two" and lease.id in every[6:12])
        if deleted:
            db.write(lambda tx: tx.leases.change(foreign, now=NOW, deleted_at=NOW))
        with pytest.raises(InvalidParameter) as refused:
            page(db, project_id="one", marker=foreign.id)
        assert refused.value.message == f"marker: there is no lease {foreign.id} that a list could go on after."
        assert page(db, marker=foreign.id) == every[every.index(foreign.id) + 1 :]

    def test_a_marker_need_not_match_the_filters(self, db: Database, leases: list[Lease]):
        every = page(db, order=LeaseOrder.NAME)
        active = page(db, order=LeaseOrder.NAME, statuses=("ACTIVE",))
        marker = next(name for name in every if name not in active)
        behind = every[every.index(marker) + 1 :]
        assert page(db, order=LeaseOrder.NAME, statuses=("ACTIVE",), marker=marker) == [
            name for name in active if name in behind
        ]

    def test_number_of_statements_does_not_depend_on_page_size(self, db: Database, leases: list[Lease]):
        statements: list[str] = []
        sqlalchemy_event.listen(
            db.engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: statements.append(statement)
        )
        for limit in (1, 10):
            page(db, limit=limit)
        assert len([statement for statement in statements if statement.startswith("SELECT")]) == 2 * 3
