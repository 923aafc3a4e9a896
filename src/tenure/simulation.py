"""A whole service on simulated clouds, in this process, with a clock that only its user moves.

It is for tests, also for those of programs that use the service: no part of the server imports it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event

from tenure.api.policies import Policies
from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.domain.lease import LeaseStatus
from tenure.drivers.router import Router
from tenure.drivers.simulated import SimulatedCloud
from tenure.factory import Components, Service, build
from tenure.resources.contract import ResourceTypes, load_types
from tenure.services.context import Rules
from tenure.services.notifications.records import columns_of, reason_of, write_history
from tenure.store import schema
from tenure.store.database import Database, Transaction


@dataclass
class Simulation:
    """A service with its clock, its database, and its clouds by region; without regions, the only one is named ""."""

    service: Service
    clock: SimulatedClock
    clouds: Mapping[str, SimulatedCloud]
    db: Database

    def pass_time(self, step: timedelta, *, leap: timedelta = timedelta(0)) -> None:
        """Let time pass: the engine carries out all events at their due time.

        :param leap: the shortest time between two rounds of the engine. With a long one, events are carried out late,
            and a wait of hours, in which the engine asks the cloud every two seconds, takes few rounds.
        """
        self.pass_until(self.clock.now() + step, leap=leap)

    def pass_until(self, end: datetime, *, leap: timedelta = timedelta(0)) -> None:
        """Let time pass until ``end``, as ``pass_time`` does."""
        engine = self.service.engine
        engine.settle()
        while (due := engine.next_due_at()) is not None and (due := max(due, self.clock.now() + leap)) <= end:
            self.clock.set(due)
            engine.settle()
        self.clock.set(end)
        engine.settle()

    def set_status(self, lease_id: str, status: str, reason: str | None = None, *, user_id: str) -> None:
        """Write a status, whatever the state machine says. Raises ``LookupError`` for an unknown lease."""
        now = self.clock.now()

        def change(tx: Transaction) -> None:
            lease = tx.leases.get(lease_id)
            if lease is None:
                raise LookupError(f"there is no lease {lease_id}")
            after = LeaseStatus(status)
            tx.leases.change(lease, now=now, status=after.value, **columns_of(reason_of(reason)))
            actor = Actor(user_id, lease.project_id, frozenset())
            write_history(tx, lease_id, "set status", lease.status, after, actor=actor, now=now, reason=reason)

        self.db.write(change)


@cache
def default_policies() -> Policies:
    """Return the default policies."""
    return Policies()


@cache
def installed_types() -> ResourceTypes:
    """Return the installed resource types, the same for every service: they have no state."""
    return load_types()


@contextmanager
def open_simulation(now: datetime, *, regions: Sequence[str] = ()) -> Iterator[Simulation]:
    """Open a service with empty clouds, one for each region, whose clock shows ``now``. It leaves nothing behind."""
    clock = SimulatedClock(now)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-"))
        # Nothing of it has to survive a crash of the machine.
        db = Database(f"sqlite:///{_new_database(Path(folder))}", clock=clock, durable=False)
        stack.callback(db.close)
        event.listen(db.engine, "engine_connect", share_statements)
        event.listen(db.engine, "connect", lambda connection, _record: connection.execute("PRAGMA synchronous=OFF"))
        clouds = {name: SimulatedCloud(clock=clock, sleep=lambda _seconds: None) for name in regions or ("",)}
        for cloud in clouds.values():
            stack.callback(cloud.close)
        components = Components(
            db=db,
            driver=Router(clouds, workers=0) if regions else clouds[""],
            types=installed_types(),
            authorize=default_policies().authorize,
            clock=clock,
            rules=Rules(
                regions=tuple(regions),
                planning_time=timedelta(minutes=1),
                search_time=timedelta(minutes=1),
                turn_time=timedelta(minutes=1),
            ),
        )
        yield Simulation(build(components), clock, clouds, db)


def _new_database(folder: Path) -> Path:
    """Return a new database with the newest schema."""
    path = folder / "tenure.db"
    path.write_bytes(_empty_database())
    return path


@cache
def _empty_database() -> bytes:
    """Return the content of a database without rows: the migrations are run only once in a process."""
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        path = Path(folder, "tenure.db")
        db = Database(f"sqlite:///{path}")
        schema.upgrade(db)
        db.close()
        return path.read_bytes()


class _SharedStatements(dict[tuple[Any, ...], Any]):
    """A cache of compiled statements, by the type of the dialect in place of the dialect, which each engine has."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), compiled)


_STATEMENTS = _SharedStatements()


def share_statements(connection: Connection) -> None:
    """Have the connection use statements that this process compiles once for each kind of database.

    SQLAlchemy compiles a statement once for each engine. A service has one engine, but each test makes its own, and
    would spend two fifths of its time on compiling the same statements.
    """
    connection.execution_options(compiled_cache=_STATEMENTS)
