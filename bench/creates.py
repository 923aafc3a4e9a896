"""Creates: leases made a second by several APIs and managers on PostgreSQL, and by bare SQL in as many processes.

Bare SQL writes the rows of a lease that Tenure has made, with new ids, in one transaction; it decides nothing.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Composed, Identifier, Placeholder
from psycopg.types.json import Json
from sqlalchemy import make_url

from bench.fairness import ANOTHER, deployed, token_of
from bench.http import Caller, Throughput, bodies, send_for
from tests.support.databases import POSTGRESQL, DatabaseServers

#: How many times as many leases bare SQL may write as Tenure makes.
MOST_TIMES = 4.0
#: For how many seconds creates are sent before those that count.
WARM_UP_SECONDS = 3.0
#: How much later than the leases of Tenure those of bare SQL begin.
LATER = timedelta(days=3650)

#: The tables with rows of a new lease, in the sequence in which they are written, and the condition that finds them.
_TABLES: Mapping[str, str] = {
    "leases": "id = %(id)s",
    "reservations": "lease_id = %(id)s",
    "events": "lease_id = %(id)s",
    "allocations": "reservation_id IN (SELECT id FROM reservations WHERE lease_id = %(id)s)",
    "history": "lease_id = %(id)s",
    "outbox": "lease_id = %(id)s",
    "ledger_feed": "id = (SELECT min(id) FROM ledger_feed)",
}
#: The tables whose ids the database generates.
_GENERATED = frozenset({"allocations", "history", "outbox", "ledger_feed"})


@dataclass(frozen=True, slots=True)
class Creates:
    """Leases made over HTTP, and written by bare SQL."""

    managers: int
    apis: int
    tenure: Throughput
    bare_per_second: float
    #: How many rows a lease has.
    rows: int

    @property
    def times(self) -> float:
        """How many times as many leases bare SQL wrote."""
        return self.bare_per_second / self.tenure.per_second

    def complaints(self) -> Iterator[str]:
        """Yield the broken promise."""
        if self.times > MOST_TIMES:
            yield (
                f"bare SQL writes {self.times:.1f} times as many leases a second as {self.managers} managers make, "
                f"{MOST_TIMES:g} are allowed"
            )


@dataclass(frozen=True, slots=True)
class Written:
    """The rows of a lease, by table, and the ids of the resources whose versions a transaction raises."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    resource_ids: Sequence[int]

    def copy(self, writer: int, number: int) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
        """Yield the rows of a writer's next lease, table by table: on hosts of its own, after those before."""
        ids = {row["id"]: str(uuid4()) for table in ("leases", "reservations", "events") for row in self.rows[table]}
        for table, rows in self.rows.items():
            copies = [_copied(row, ids) for row in rows]
            if table == "allocations":
                copies = [
                    _moved(row, resource_id, number)
                    for row, resource_id in zip(copies, self.hosts_of(writer), strict=True)
                ]
            yield table, copies

    def hosts_of(self, writer: int) -> Sequence[int]:
        """Return the ids of the hosts on which a writer puts its leases."""
        count = len(self.rows["allocations"])
        return self.resource_ids[writer * count : (writer + 1) * count]


def _copied(row: Mapping[str, Any], ids: Mapping[str, str]) -> Mapping[str, Any]:
    copy = {name: ids.get(value, value) if isinstance(value, str) else value for name, value in row.items()}
    return copy | {"key": str(uuid4())} if "key" in copy else copy


def _moved(allocation: Mapping[str, Any], resource_id: int, number: int) -> Mapping[str, Any]:
    start, end = allocation["starts_at"], allocation["ends_at"]
    later = LATER + number * (end - start)
    return {**allocation, "resource_id": resource_id, "starts_at": start + later, "ends_at": end + later}


def measure_creates(
    servers: DatabaseServers,
    say: Callable[[str], None],
    *,
    seconds: float,
    managers: int = 2,
    connections: int = 16,
    hosts: int = 100,
    bus: str,
) -> Creates:
    """Send creates to as many APIs as managers for some seconds, then write the same rows by bare SQL for as long.

    Bare SQL uses as many processes as there are managers and APIs, and as many connections as the clients did.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder,
        deployed(Path(folder), servers, POSTGRESQL, hosts, managers, bus) as (url, deployment),
    ):
        endpoints = [f"http://127.0.0.1:{port}/v1" for port in deployment.ports]
        leases = (("POST", "/leases", body) for body in bodies())

        def send(period: float) -> Throughput:
            say(f"creates: {connections} connections to {managers} APIs and managers for {period:.0f} s")
            callers = [Caller(endpoints[number % len(endpoints)], token_of(ANOTHER)) for number in range(connections)]
            return send_for("create a lease", callers, leases, period)

        send(min(WARM_UP_SECONDS, seconds))
        made = send(seconds)
        for program in (*deployment.apis, *deployment.managers):
            program.stop()
        written = _read(url)
        say(f"creates: bare SQL over {connections} connections of {2 * managers} processes for {seconds:.0f} s")
        bare = _write_for(url, written, 2 * managers, connections // (2 * managers), seconds)
    return Creates(managers, managers, made, bare, sum(map(len, written.rows.values())))


def _read(url: str) -> Written:
    """Return the rows of a lease that a service has made, and the ids of all resources."""
    with closing(_connect(url)) as connection, connection.cursor(row_factory=dict_row) as cursor:
        [lease] = cursor.execute("SELECT id FROM leases ORDER BY created_at DESC LIMIT 1")
        rows = {}
        for table, condition in _TABLES.items():
            cursor.execute(SQL(f"SELECT * FROM {table} WHERE {condition}"), lease)
            rows[table] = [
                {name: value for name, value in row.items() if name != "id" or table not in _GENERATED}
                for row in cursor.fetchall()
            ]
        resource_ids = [row["id"] for row in cursor.execute("SELECT id FROM resources ORDER BY id")]
    return Written(rows, resource_ids)


def _write_for(url: str, written: Written, processes: int, threads: int, seconds: float) -> float:
    """Write leases from so many processes for some seconds; return how many a second."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    counts = context.Queue()
    workers = [
        context.Process(
            target=_write_in_process,
            args=(url, written, range(process * threads, (process + 1) * threads), seconds, start, counts),
            daemon=True,
        )
        for process in range(processes)
    ]
    for worker in workers:
        worker.start()
    total = sum(counts.get(timeout=seconds + 120) for _ in workers)
    for worker in workers:
        worker.join(60)
    return float(total / seconds)


def _write_in_process(
    url: str, written: Written, writers: Sequence[int], seconds: float, start: Any, counts: Any
) -> None:
    numbers = dict.fromkeys(writers, 0)
    start.wait(60)
    until = time.perf_counter() + seconds

    def write(writer: int) -> None:
        with closing(_connect(url)) as connection:
            while time.perf_counter() < until:
                _write(connection, written, writer, numbers[writer])
                numbers[writer] += 1

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts.put(sum(numbers.values()))


def _write(connection: psycopg.Connection[Any], written: Written, writer: int, number: int) -> None:
    """Write a copy of a lease in one transaction, which raises the versions of its resources first."""
    with connection.transaction():
        ids = list(written.hosts_of(writer))
        connection.execute("UPDATE resources SET version = version + 1 WHERE id = ANY(%s)", [ids])
        for table, rows in written.copy(writer, number):
            values = [_adapted(value) for row in rows for value in row.values()]
            connection.execute(_insertion(table, rows), values)


def _insertion(table: str, rows: Sequence[Mapping[str, Any]]) -> Composed:
    names = SQL(", ").join(map(Identifier, rows[0]))
    row = SQL("({})").format(SQL(", ").join(Placeholder() * len(rows[0])))
    return SQL("INSERT INTO {} ({}) VALUES {}").format(Identifier(table), names, SQL(", ").join([row] * len(rows)))


def _adapted(value: object) -> object:
    return Json(value) if isinstance(value, dict | list) else value


def _connect(url: str) -> psycopg.Connection[Any]:
    parsed = make_url(url)
    return psycopg.connect(parsed.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True)


def creates_table(found: Creates) -> Iterator[str]:
    """Yield how many leases a second were made, and written by bare SQL."""
    made = found.tenure
    yield f"### Creates on PostgreSQL, {found.apis} APIs, {found.managers} managers, {made.connections} connections"
    yield ""
    yield "| made by | leases a second | median ms | 99 of 100 within ms |"
    yield "|---|---:|---:|---:|"
    yield f"| Tenure | {made.per_second:.0f} | {made.median * 1000:.1f} | {made.p99 * 1000:.1f} |"
    yield f"| bare SQL, the same {found.rows} rows | {found.bare_per_second:.0f} | | |"
    yield ""
    yield f"Bare SQL writes {found.times:.1f} times as many."
    yield ""
