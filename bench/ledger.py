"""A ledger of a given size, written at once: a year of bookings, half of it over and half of it to come."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Connection, text

from tenure.domain.capacity import WHOLE
from tenure.domain.lease import AllocationState, EventStatus, EventType, LeaseStatus, ReservationStatus
from tenure.domain.requirement import number_of
from tenure.domain.resource import DiscoveredResource, scarcity
from tenure.store.database import Database
from tenure.store.tables import (
    AllocationRow,
    AttributeRow,
    Base,
    EventRow,
    HistoryRow,
    LeaseRow,
    OutboxRow,
    PropertyRow,
    ReservationRow,
    ResourceRow,
    key_of,
)
from tests.support.simulated import SimulatedCloud

HOST = "physical:host"
Row = dict[str, Any]

#: Bookings begin and end at midnight and at noon, so that a period inside of half a day meets no edge of one.
GRAIN = timedelta(hours=12)
#: Each host has a booking in every stretch of so many grains, one day to three and a half: 64 % of the time is booked.
STRIDE = 7
LENGTHS = (2, 3, 4, 5, 6, 7)
#: The hosts that are booked together, over and over: as many as these in cycle.
BLOCKS = (4, 6, 10, 12, 18)
#: How many hosts share a rack, whatever the size of the cloud: a property that few hosts have.
RACK = 20
#: How many leases a project has, whatever the size of the cloud.
LEASES_OF_PROJECT = 200
#: How many rows go to the database at a time.
BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cloud is, and how much is booked.

    With ``rush`` there are days soon on which nine of ten hosts are booked, and then days on which all are.
    """

    name: str
    hosts: int
    bookings_of_host: int = 100
    rush: bool = True

    def __post_init__(self) -> None:
        if self.hosts % sum(BLOCKS):
            raise ValueError("every host has the same number of bookings only where the blocks divide the hosts evenly")
        if self.rush and self.bookings_of_host < 2 * LAST_OF_RUSH:
            raise ValueError("the busy days are further away than the last booking")

    @property
    def leases(self) -> int:
        return self.hosts // sum(BLOCKS) * len(BLOCKS) * self.bookings_of_host

    @property
    def allocations(self) -> int:
        return self.hosts * self.bookings_of_host

    @property
    def projects(self) -> int:
        return max(1, self.leases // LEASES_OF_PROJECT)


#: The stretches, counted from now, in which all hosts but those of the smallest blocks are booked; in which all are.
RUSH = (1, 2)
FULL = (3, 4)
LAST_OF_RUSH = 6


@dataclass(frozen=True, slots=True)
class Booked:
    """A lease as it is to be written: which hosts when, by their numbers."""

    name: str
    project: int
    hosts: range
    start: datetime
    end: datetime
    created_at: datetime


def write_ledger(db: Database, size: Size, now: datetime, *, seed: int = 1) -> None:
    """Fill an empty database; the same rows, but for their ids, for the same size, time and seed."""
    with db.engine.begin() as connection:
        write_hosts(connection, size.hosts, now)
        with late_constraint(connection):
            write_leases(connection, bookings(size, now, seed=seed), now)
    refresh_statistics(db)


def grain_of(now: datetime) -> datetime:
    """The midnight or noon before ``now``."""
    return now.replace(hour=now.hour // 12 * 12, minute=0, second=0, microsecond=0)


def bookings(size: Size, now: datetime, *, seed: int = 1) -> Iterator[Booked]:
    """Leases over a year whose middle is now; on no host do two overlap."""
    rng, projects = random.Random(seed), random.Random(seed)  # the first hosts are booked alike in clouds of any size
    half = size.bookings_of_host // 2
    begin = grain_of(now) - GRAIN * STRIDE * half
    for hosts in _blocks(size.hosts):
        # Hosts of the smallest blocks are free now, and in the rush.
        quiet = len(hosts) == min(BLOCKS)
        phase = 0 if quiet else rng.randrange(STRIDE)
        for cycle in range(size.bookings_of_host):
            first, length = _stretch(cycle - half, size, quiet, rng)
            start = begin + GRAIN * (STRIDE * cycle + phase + first)
            yield Booked(
                name=f"{rng.choice(_WORDS)}-{rng.choice(_WORDS)}-{rng.randrange(1000)}",
                project=projects.randrange(size.projects),
                hosts=hosts,
                start=start,
                end=start + GRAIN * length,
                # Booked up to a month ahead, and all that is still to come, before now.
                created_at=min(start, now) - timedelta(minutes=rng.randrange(1, 43_200)),
            )


def _blocks(hosts: int) -> Iterator[range]:
    first = 1
    while first <= hosts:
        for length in BLOCKS:
            yield range(first, first + length)
            first += length


def _stretch(cycle: int, size: Size, quiet: bool, rng: random.Random) -> tuple[int, int]:
    """Where in a stretch of time the booking is: how many grains it begins late, and how many it lasts."""
    if quiet and cycle == 0:
        return 3, 3
    if size.rush and cycle in FULL:
        return 0, STRIDE
    if size.rush and cycle in RUSH:
        return ((0, 4) if cycle == RUSH[0] else (4, 3)) if quiet else (0, STRIDE)
    length = rng.choice(LENGTHS)
    return rng.randrange(STRIDE - length + 1), length


def rush_times(now: datetime) -> list[datetime]:
    """The grains in which all hosts but those of the smallest blocks are booked."""
    return [grain_of(now) + GRAIN * (STRIDE * RUSH[0] + number) for number in range(STRIDE - 1, STRIDE + 4)]


def full_times(now: datetime) -> list[datetime]:
    """The grains in which all hosts are booked."""
    return [grain_of(now) + GRAIN * (STRIDE * FULL[0] + number) for number in range(STRIDE - 1, 2 * STRIDE)]


def usual_times(size: Size, now: datetime, enough: Callable[[Sequence[int]], bool], *, seed: int = 1) -> list[datetime]:
    """The grains to come, neither in the rush nor close to the last booking, in which enough hosts are free."""
    first = STRIDE * (LAST_OF_RUSH if size.rush else 1)
    last = min(300, STRIDE * (size.bookings_of_host // 2 - 1))
    times = [grain_of(now) + GRAIN * number for number in range(first, last)]
    free = {time: set(range(1, size.hosts + 1)) for time in times}
    for booked in bookings(size, now, seed=seed):
        time = booked.start
        while time < booked.end:
            if time in free:
                free[time].difference_update(booked.hosts)
            time += GRAIN
    return [time for time in times if enough(sorted(free[time]))]


_WORDS = ("amber", "basalt", "cedar", "delta", "ember", "flint", "grove", "heron", "iris", "jade", "kelp", "larch")


def project_name(number: int) -> str:
    return f"project-{number:05d}"


# --- rows


def write_hosts(connection: Connection, count: int, now: datetime) -> None:
    """Reservable hosts, numbered from 1, as the simulated cloud has them; a rack and a GPU are the operator's words."""
    with SimulatedCloud.create(hosts=count) as cloud:
        found = {int(host.external_id): host for host in cloud.discover(HOST)}
    own = {number: _own_properties(number, resource.traits) for number, resource in found.items()}
    _insert(
        connection,
        ResourceRow,
        (
            {
                "id": number,
                "resource_type": HOST,
                "region": resource.region,
                "external_id": resource.external_id,
                "name": resource.name,
                "capacity": dict(resource.capacity),
                "facts": dict(resource.facts),
                "properties": own[number],
                "traits": sorted(resource.traits),
                "reservable": True,
                "scarcity": scarcity(own[number], resource.traits, resource.capacity),
                "version": 1,
                "created_at": now,
            }
            for number, resource in found.items()
        ),
    )
    _insert(
        connection,
        AttributeRow,
        (
            {
                "resource_id": number,
                "name": name,
                "value": value,
                "number": number_of(value),
                "key": key_of(name, value),
                "scarcity": scarcity(own[number], resource.traits, resource.capacity),
                "own": owned,
            }
            for number, resource in found.items()
            for name, value, owned in _attributes(resource, own[number])
        ),
    )
    names = sorted({name for properties in own.values() for name in properties})
    _insert(
        connection,
        PropertyRow,
        ({"resource_type": HOST, "name": name, "private": False, "created_at": now} for name in names),
    )
    if connection.dialect.name == "postgresql":  # whose counter does not see ids that were given
        connection.execute(text("SELECT setval(pg_get_serial_sequence('resources', 'id'), max(id)) FROM resources"))


def _own_properties(number: int, traits: frozenset[str]) -> dict[str, str]:
    gpu = {"gpu": "a100"} if "CUSTOM_GPU_A100" in traits else {}
    return {"rack": f"r{number // RACK}", **gpu}


def _attributes(one: DiscoveredResource, own: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    yield "id", one.external_id, False
    yield from ((name, str(value), False) for name, value in one.facts.items())
    yield from ((name, value, True) for name, value in own.items())


def write_leases(connection: Connection, booked: Iterable[Booked], now: datetime) -> list[str]:
    """Leases with all that belongs to them, as they are at ``now``: over, running, or still to come; their ids."""
    written: list[str] = []
    for some in _batches(booked, BATCH // 10):
        rows = [_Rows(booking, now) for booking in some]
        _insert(connection, LeaseRow, (row.lease() for row in rows))
        _insert(connection, ReservationRow, (row.reservation() for row in rows))
        _insert(connection, EventRow, (event for row in rows for event in row.events()))
        _insert(connection, AllocationRow, (allocation for row in rows for allocation in row.allocations()))
        _insert(connection, HistoryRow, (entry for row in rows for entry in row.history()))
        _insert(connection, OutboxRow, (message for row in rows for message in row.messages()))
        written += [row.lease_id for row in rows]
    return written


class _Rows:
    """The rows of one lease."""

    def __init__(self, booked: Booked, now: datetime) -> None:
        self.lease_id = str(uuid.uuid4())
        self._reservation_id = str(uuid.uuid4())
        self._booked = booked
        self._now = now
        self._notice_at = max(booked.start, booked.end - timedelta(hours=1))
        self._started = booked.start <= now
        self._ended = booked.end <= now

    def lease(self) -> Row:
        status = LeaseStatus.ACTIVE if self._started else LeaseStatus.PENDING
        return {
            "id": self.lease_id,
            "name": self._booked.name,
            "project_id": project_name(self._booked.project),
            "user_id": f"user-{self._booked.project:05d}",
            "starts_at": self._booked.start,
            "ends_at": self._booked.end,
            "status": (LeaseStatus.TERMINATED if self._ended else status).value,
            "status_reason": None,
            "degraded": False,
            "version": 1 + 2 * self._started + 2 * self._ended,
            "created_at": self._booked.created_at,
        }

    def reservation(self) -> Row:
        status = ReservationStatus.ACTIVE if self._started else ReservationStatus.PENDING
        count = len(self._booked.hosts)
        return {
            "id": self._reservation_id,
            "lease_id": self.lease_id,
            "position": 0,
            "resource_type": HOST,
            "status": (ReservationStatus.DELETED if self._ended else status).value,
            "parameters": parameters(count),
            "missing_resources": False,
            "resources_changed": False,
            "created_at": self._booked.created_at,
        }

    def events(self) -> Iterator[Row]:
        for event_type, due_at in (
            (EventType.START, self._booked.start),
            (EventType.BEFORE_END, self._notice_at),
            (EventType.END, self._booked.end),
        ):
            done = due_at <= self._now
            yield {
                "id": str(uuid.uuid4()),
                "lease_id": self.lease_id,
                "event_type": event_type.value,
                "rank": event_type.rank,
                "due_at": due_at,
                "status": (EventStatus.DONE if done else EventStatus.UNDONE).value,
                "ready_at": None if done else due_at,
                "claim_token": None,
                "attempts": int(done),
                "payload": None,
                "created_at": self._booked.created_at,
            }

    def allocations(self) -> Iterator[Row]:
        state = AllocationState.HELD if self._started else AllocationState.PLANNED
        for host in self._booked.hosts:
            yield {
                "resource_id": host,
                "reservation_id": self._reservation_id,
                "starts_at": self._booked.start,
                "ends_at": self._booked.end,
                "state": (AllocationState.RELEASED if self._ended else state).value,
                "exclusive": True,
                "amounts": {WHOLE: 1},
            }

    def history(self) -> Iterator[Row]:
        steps = self._told()
        before: str | None = None
        for _, at, action, after in steps:
            yield {
                "lease_id": self.lease_id,
                "at": at,
                "actor": "bench",
                "action": action,
                "from_status": before,
                "to_status": after.value,
                "reason": None,
                "request_id": None,
            }
            before = after.value

    def messages(self) -> Iterator[Row]:
        """What was told, and has arrived; the payload is shorter than a real one."""
        for topic, at, _, _ in self._told():
            yield {
                "key": str(uuid.uuid4()),
                "lease_id": self.lease_id,
                "topic": topic,
                "payload": {"lease_id": self.lease_id, "name": self._booked.name},
                "created_at": at,
                "ready_at": None,
                "attempts": 1,
                "last_error": None,
                "delivered_at": at,
            }

    def _told(self) -> list[tuple[str, datetime, str, LeaseStatus]]:
        steps = [("lease.create", self._booked.created_at, "create", LeaseStatus.PENDING)]
        if self._started:
            steps.append(("lease.event.start_lease", self._booked.start, "started", LeaseStatus.ACTIVE))
        if self._ended:
            steps.append(("lease.event.end_lease", self._booked.end, "ended", LeaseStatus.TERMINATED))
        return steps


def parameters(minimum: int, maximum: int | None = None, *, hypervisor: str = "", resource: str = "") -> Row:
    """The parameters of a reservation of hosts."""
    return {
        "min": minimum,
        "max": minimum if maximum is None else maximum,
        "hypervisor_properties": hypervisor,
        "resource_properties": resource,
        "before_end": "default",
    }


# --- the database


@contextmanager
def late_constraint(connection: Connection) -> Iterator[None]:
    """Have PostgreSQL judge all allocations at once in the end, which takes half the time."""
    if connection.dialect.name != "postgresql":
        yield
        return
    statement = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'ex_allocations_no_overlap'"
    definition = connection.execute(text(statement)).scalar_one()
    connection.execute(text("ALTER TABLE allocations DROP CONSTRAINT ex_allocations_no_overlap"))
    yield
    connection.execute(text(f"ALTER TABLE allocations ADD CONSTRAINT ex_allocations_no_overlap {definition}"))


def _insert(connection: Connection, table: type[Base], rows: Iterable[Row]) -> None:
    for some in _batches(rows, BATCH):
        if connection.dialect.name == "postgresql":
            _copy(connection, table, some)
        else:
            connection.execute(table.__table__.insert(), some)  # type: ignore[attr-defined]  # a Table has it


def _copy(connection: Connection, table: type[Base], rows: Sequence[Row]) -> None:
    """Write rows by ``COPY``, in half the time."""
    names = list(rows[0])
    columns = ", ".join(f'"{name}"' for name in names)
    driver: Any = connection.connection
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {table.__tablename__} ({columns}) FROM STDIN") as copy,
    ):
        for row in rows:
            values = (row[name] for name in names)
            copy.write_row([json.dumps(value) if isinstance(value, dict | list) else value for value in values])


def _batches(rows: Iterable[Any], length: int) -> Iterator[list[Any]]:
    rows = iter(rows)
    while some := list(islice(rows, length)):
        yield some


def refresh_statistics(db: Database) -> None:
    """Have the server look at what it has, as every server does by itself after a while. SQLite never does."""
    if db.dialect == "postgresql":
        with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    elif db.dialect != "sqlite":
        with db.engine.connect() as connection:
            for table in Base.metadata.tables:
                connection.execute(text(f"ANALYZE TABLE {table}"))
