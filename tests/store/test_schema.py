"""The schema: the migrations agree with the models, and constraints refuse invalid data."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from tenure.clock import SimulatedClock
from tenure.domain.lease import Lease
from tenure.store import schema
from tenure.store.database import Database, Transaction
from tenure.store.tables import Base
from tests.store.rows import add_hosts, add_lease, execute, new_lease
from tests.support.world import NOW


@pytest.fixture
def empty(database_url: str, clock: SimulatedClock):
    database = Database(database_url, clock=clock)
    yield database
    database.close()


def test_empty_database_is_upgraded_to_the_newest_schema(empty: Database):
    assert schema.current(empty) is None
    schema.upgrade(empty)
    assert schema.current(empty) == schema.head()
    assert schema.drift(empty) == []
    assert set(inspect(empty.engine).get_table_names()) == {*Base.metadata.tables, "alembic_version"}


def test_a_second_upgrade_changes_nothing(db: Database):
    add_hosts(db, 2)
    schema.upgrade(db)
    assert schema.current(db) == schema.head()
    with db.read() as tx:
        assert tx.resources.known_external_ids("physical:host") == {"1", "2"}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE leases ADD COLUMN surplus INTEGER",
        "DROP TABLE outbox",
        "CREATE INDEX ix_surplus ON allocations (state)",
    ],
)
def test_drift_is_found(db: Database, change: str):
    with db.engine.begin() as connection:
        connection.execute(text(change))
    assert schema.drift(db) != []


def test_every_index_has_the_columns_that_the_models_name(db: Database):
    """Alembic compares the names of indexes; this compares their columns and the order of the columns."""
    found = inspect(db.engine)
    for table in Base.metadata.sorted_tables:
        indexes = {index["name"]: index["column_names"] for index in found.get_indexes(table.name)}
        for index in table.indexes:
            assert indexes[index.name] == [column.name for column in index.columns], index.name


def test_text_is_compared_letter_by_letter(db: Database):
    """Names that differ in case, accent or trailing blanks are different names, and ``Z`` comes before ``a``."""
    names = ["a", "A", "a ", "á", "Z", "ab", "a\t", "😀", "ß", "ss"]
    ids = {name: new_lease(name=name) for name in names}
    for lease in ids.values():
        db.write(partial(_add, lease))
    with db.engine.connect() as connection:
        ordered = list(connection.execute(text("SELECT name FROM leases ORDER BY name")).scalars())
        assert ordered == sorted(names)
        for name in names:
            found = connection.execute(text("SELECT id FROM leases WHERE name = :name"), {"name": name}).scalars()
            assert list(found) == [ids[name].id]


def _add(lease: Lease, tx: Transaction) -> None:
    tx.leases.add(lease)


@pytest.mark.parametrize("end", ["start", "before the start"])
def test_an_allocation_ends_after_it_starts(db: Database, end: str):
    [host] = add_hosts(db, 1)
    add_lease(db, host)
    value = "starts_at" if end == "start" else "'2029-12-31 00:00:00'"
    with pytest.raises((IntegrityError, OperationalError)):
        execute(db, f"UPDATE allocations SET ends_at = {value}")


def test_a_lease_may_end_as_it_starts_and_not_before(db: Database):
    lease = add_lease(db)
    assert execute(db, "UPDATE leases SET ends_at = starts_at WHERE id = :id", id=lease.id) == 1
    with pytest.raises((IntegrityError, OperationalError)):
        execute(db, "UPDATE leases SET ends_at = '2029-12-31 00:00:00' WHERE id = :id", id=lease.id)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE allocations SET reservation_id = 'nobody'",
        "UPDATE allocations SET resource_id = 4711",
        "UPDATE reservations SET lease_id = 'nothing'",
        "UPDATE events SET lease_id = 'nothing'",
        "DELETE FROM reservations",
        "DELETE FROM resources",
        "DELETE FROM leases",
    ],
)
def test_foreign_keys_are_enforced(db: Database, change: str):
    [host] = add_hosts(db, 1)
    add_lease(db, host)
    with pytest.raises(IntegrityError):
        execute(db, change)


def test_external_id_is_unique(db: Database):
    add_hosts(db, 1)
    with pytest.raises(IntegrityError):
        add_hosts(db, 1)
    add_hosts(db, 1, resource_type="something:else")


@pytest.mark.postgresql
class TestExclusionConstraint:
    """PostgreSQL itself refuses two holders, whatever program writes them."""

    @pytest.fixture
    def database_url(self, fresh_database):
        with fresh_database("postgresql") as url:
            yield url

    WRITE = (
        "INSERT INTO allocations (resource_id, reservation_id, starts_at, ends_at, state, exclusive, amounts) "
        "VALUES (:host, :reservation, :start, :end, :state, :exclusive, '{}')"
    )

    DEFER = "SET CONSTRAINTS ALL DEFERRED"

    def write(self, db: Database, host: int, reservation: str, start: str, end: str, *, exclusive=True, state="held"):
        day = f"{NOW:%Y-%m-%d}"
        values = {"start": f"{day} {start}+00", "end": f"{day} {end}+00", "exclusive": exclusive, "state": state}
        execute(db, self.WRITE, host=host, reservation=reservation, **values)

    @pytest.mark.parametrize("state", ["planned", "held", "released"])
    @pytest.mark.parametrize(
        ("start", "end"),
        [
            ("11:00", "12:00"),
            ("10:00", "11:00:00.000001"),
            ("11:59:59.999999", "13:00"),
            ("11:10", "11:20"),
            ("10:00", "13:00"),
        ],
    )
    def test_overlapping_exclusive_allocations_are_refused(self, db: Database, start: str, end: str, state: str):
        host, other = add_hosts(db, 2)
        reservation = add_lease(db, host).reservations[0].id  # from 11 to 12
        with pytest.raises(DBAPIError, match="ex_allocations_no_overlap") as refused:
            self.write(db, host, reservation, start, end, state=state)
        assert refused.value.orig.sqlstate == "23P01"  # type: ignore[union-attr]
        self.write(db, other, reservation, start, end, state=state)

    @pytest.mark.parametrize(("start", "end"), [("10:00", "11:00"), ("12:00", "13:00")])
    def test_adjacent_periods_are_accepted(self, db: Database, start: str, end: str):
        [host] = add_hosts(db, 1)
        self.write(db, host, add_lease(db, host).reservations[0].id, start, end)

    def test_shared_allocations_may_overlap(self, db: Database):
        [host] = add_hosts(db, 1)
        reservation = add_lease(db).reservations[0].id
        for _ in range(3):
            self.write(db, host, reservation, "10:00", "12:00", exclusive=False)

    def test_a_transaction_may_swap_resources(self, db: Database):
        first, second = add_hosts(db, 2)
        leases = add_lease(db, first), add_lease(db, second)
        swap = "UPDATE allocations SET resource_id = :host WHERE reservation_id = :reservation"
        places = [(leases[0].reservations[0].id, second), (leases[1].reservations[0].id, first)]

        def exchange(tx):
            for reservation, host in places:
                tx.session.execute(text(swap), {"host": host, "reservation": reservation})

        def exchange_deferred(tx):
            tx.session.execute(text(self.DEFER))
            exchange(tx)

        with pytest.raises(Exception, match="Too many others"):
            db.write(exchange)
        db.write(exchange_deferred)

    def test_deferred_constraint_is_checked_at_commit(self, db: Database):
        first, second = add_hosts(db, 2)
        lease, _ = add_lease(db, first), add_lease(db, second)

        def crowd(tx):
            tx.session.execute(text(self.DEFER))
            tx.session.execute(
                text("UPDATE allocations SET resource_id = :host WHERE reservation_id = :reservation"),
                {"host": second, "reservation": lease.reservations[0].id},
            )

        with pytest.raises(Exception, match="Too many others"):
            db.write(crowd)
