"""Overlap in SQL and in a snapshot is overlap in Python, and times are kept as they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import StatementError

from tenure.domain.period import TICK, Period
from tenure.store.conditions import overlaps
from tenure.store.database import Database, Transaction
from tenure.store.tables import AllocationRow, LeaseRow
from tests.store.rows import Undone, add_hosts, add_lease, demand
from tests.support import snapshots
from tests.support.world import NOW

#: Instants so near to each other that bounds touch, in zones that make equal instants look different.
steps = st.one_of(
    st.integers(-4, 4).map(lambda count: count * TICK),
    st.integers(-4, 4).map(lambda count: timedelta(seconds=count)),
    st.integers(-3, 3).map(lambda count: timedelta(days=count)),
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-11))])
instants = st.builds(lambda step, zone: (NOW + step).astimezone(zone), steps, zones)
periods = st.lists(instants, min_size=2, max_size=2, unique=True).map(lambda two: Period(*sorted(two)))


def test_overlap_in_sql_and_in_python_agree(db: Database):
    [host] = add_hosts(db, 1)
    reservation_id = add_lease(db).reservations[0].id

    @given(booked=st.lists(periods, min_size=1, max_size=8), asked=periods)
    @example(booked=[Period(NOW, NOW + TICK)], asked=Period(NOW + TICK, NOW + 2 * TICK))
    @example(booked=[Period(NOW, NOW + TICK)], asked=Period(NOW - TICK, NOW))
    @example(booked=[Period(NOW, NOW + 2 * TICK)], asked=Period(NOW + TICK, NOW + 3 * TICK))
    def agree(booked: list[Period], asked: Period):
        def ask(tx: Transaction) -> None:
            for period in booked:
                tx.allocations.add(reservation_id, {host: 1}, period, demand(exclusive=False))
            rows = tx.session.execute(select(AllocationRow).where(overlaps(asked))).scalars()
            found = sorted(Period(row.starts_at, row.ends_at) for row in rows)
            assert found == sorted(period for period in booked if period.overlaps(asked))
            # The ledger of a snapshot begins now, which is here before all periods.
            free = snapshots.find(tx, demand(), asked, now=NOW - timedelta(days=9))
            assert bool(free) is not any(period.overlaps(asked) for period in booked)
            raise Undone

        with pytest.raises(Undone):
            db.write(ask)

    agree()


def test_times_are_kept_to_the_microsecond_in_every_zone_of_the_server(db: Database):
    lease = add_lease(db)

    @given(
        moment=st.datetimes(
            min_value=datetime(1970, 1, 2),  # noqa: DTZ001 - Hypothesis adds the zone
            max_value=datetime(8999, 12, 31),  # noqa: DTZ001
            timezones=zones,
        )
    )
    @example(moment=datetime(2030, 3, 31, 2, 30, 0, 1, tzinfo=UTC))  # an hour that some zones do not have
    @example(moment=datetime(2030, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC))
    def kept(moment: datetime):
        def write(tx: Transaction) -> None:
            row = tx.session.get_one(LeaseRow, lease.id)
            row.starts_at = row.ends_at = moment

        db.write(write)
        with db.read() as tx:
            stored = tx.leases.get(lease.id)
            assert stored is not None
            assert stored.starts_at == moment
            assert stored.starts_at.tzinfo is UTC
            for step, found in ((-TICK, [lease.id]), (timedelta(0), []), (TICK, [])):
                later = select(LeaseRow.id).where(LeaseRow.starts_at > moment + step)
                assert list(tx.session.execute(later).scalars()) == found

    kept()


def test_a_time_without_a_zone_is_refused(db: Database):
    lease = add_lease(db)
    with pytest.raises(StatementError, match="timezone-aware"):
        db.write(lambda tx: tx.leases.change(lease, now=NOW, starts_at=NOW.replace(tzinfo=None)))


def test_database_time_is_utc(database_url: str):
    """Claims are timed by it; the servers of the tests have a local time far from UTC."""
    database = Database(database_url)
    try:
        before = datetime.now(UTC)
        with database.read() as tx:
            moments = [tx.now() for _ in range(3)]
        after = datetime.now(UTC)
    finally:
        database.close()
    assert before - TICK <= moments[0] <= moments[1] <= moments[2] <= after + TICK
    assert all(moment.utcoffset() == timedelta(0) for moment in moments)


def test_time_goes_on_inside_a_transaction(database_url: str):
    """PostgreSQL's ``now()`` stands still in a transaction; a claim must not be timed by that."""
    database = Database(database_url)
    try:
        with database.read() as tx:
            first = tx.now()
            while tx.now() == first:
                pass
    finally:
        database.close()
