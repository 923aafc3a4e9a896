"""Tenure beside a real OpenStack: what requests cost through Keystone, RPC and MariaDB, and how late starts are.

The cloud is the testbed's (`make cloud`), with hosts that nothing runs on. What its own services take for their own
calls is measured in the same minutes, so that one can tell a slow service from a slow machine.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from keystoneauth1.session import Session
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from bench.ledger import Booked, Size, bookings, late_constraint, refresh_statistics, write_leases
from bench.measure import Series
from tenure.store.database import Database
from tests.support.cloud import Cloud
from tests.support.databases import MARIADB, fresh_database_on
from tests.support.deployment import Options, Program, free_port
from tests.support.interception import Proxy
from tests.support.seeded import empty, enrol, seeded_hosts
from tests.support.site import MARIADB_URL, Site, open_site
from tests.support.waiting import wait_for

#: 1,000 hosts, and some 10,000 leases, of which none runs: the cloud would be asked to have it so.
LARGE = Size("cloud", 1000, bookings_of_host=102, rush=False)
QUICK = Size("quick", 100, bookings_of_host=10, rush=False)
#: No lease of the ledger is under way in so long a time from now.
PAUSE = timedelta(days=1)

#: What a create and a delete may take at the median, in seconds.
TARGET = 0.070
STARTS = 50
STARTS_SECONDS = 300
#: How long before their start the leases that start together are booked.
HEADWAY = timedelta(seconds=30)
WARM_UP = 5
#: After how many seconds without a request a connection is made anew: servers close those that are not used.
IDLE_SECONDS = 2


@dataclass(slots=True)
class Timed(Series):
    """One kind of request, with what each took."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What requests took."""

    hosts: int
    leases: int
    tenure: Sequence[Timed]
    others: Sequence[Timed]
    #: Of all creates and deletes together: password logins at Keystone, and calls of the manager to the cloud.
    bookings: int
    logins: int
    calls: int
    #: By the part that spent it: the mean of a create, in seconds.
    shares: Mapping[str, float]
    #: Seconds of a processor that each process spent on a create with its delete.
    processor: Mapping[str, float]

    def complaints(self) -> Iterator[str]:
        """What is not as it must be, a line each."""
        for timed in self.tenure:
            if timed.name in {CREATE, DELETE} and timed.median > TARGET:
                yield f"{timed.name}: the median is {timed.median * 1000:.0f} ms, {TARGET * 1000:.0f} are allowed"
        if self.logins or self.calls:
            yield f"{self.bookings} bookings made {self.logins} logins and {self.calls} calls to the cloud"


@dataclass(frozen=True, slots=True)
class StartFigures:
    """How many seconds after their start the leases were ACTIVE, in order."""

    late: Sequence[float]

    def complaints(self) -> Iterator[str]:
        """No promise is made about them."""
        return iter(())


CREATE, DELETE = "create a lease", "delete a lease"


def measure_cloud(
    rounds: int, say: Callable[[str], None], *, size: Size = LARGE
) -> Iterator[RequestFigures | StartFigures]:
    """Yield the figures of every kind of request in turn, so many times; then of leases that start at one instant.

    Raises ``FileNotFoundError`` where no cloud is up.
    """
    cloud = Cloud.of_openrc()
    with ExitStack() as stack:
        keystone = Proxy("{0.scheme}://{0.netloc}".format(urlsplit(cloud.openrc["OS_AUTH_URL"])))
        stack.callback(keystone.refuse)
        say(f"cloud: {size.hosts} hosts for Nova")
        stack.enter_context(seeded_hosts(size.hosts, pooled=True))
        database = stack.enter_context(fresh_database_on(MARIADB, MARIADB_URL))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-bench-")))
        identity = f"{keystone.url}{urlsplit(cloud.openrc['OS_AUTH_URL']).path}"
        options: Options = {
            "service_auth": {"auth_url": identity},
            "keystone_authtoken": {"auth_url": identity},
            "metrics": {"port": free_port()},
        }
        site = stack.enter_context(open_site(folder, cloud, options=options, database=database))
        say("cloud: writing the ledger")
        enrol(database, cloud)
        count = _write_leases(database, size)
        say(f"cloud: {size.hosts} hosts, {count} leases; {rounds} rounds of requests")
        stack.callback(empty, database)
        bench = _Bench(site, keystone)
        stack.callback(bench.close)
        yield RequestFigures(size.hosts, count, *bench.ask(rounds))
        starts = min(STARTS, size.hosts // 2)
        say(f"cloud: {starts} leases that start together")
        yield StartFigures(bench.start_together(database, starts))


def _write_leases(database: str, size: Size) -> int:
    """Leases that are over, and leases that come later; how many."""
    now = datetime.now(UTC)

    def apart(booked: Booked) -> bool:
        return booked.end <= now or booked.start >= now + PAUSE

    db = Database(database)
    try:
        with db.engine.begin() as connection, late_constraint(connection):
            written = write_leases(connection, (booked for booked in bookings(size, now) if apart(booked)), now)
        refresh_statistics(db)
    finally:
        db.close()
    return len(written)


class _Bench:
    def __init__(self, site: Site, keystone: Proxy) -> None:
        self._site = site
        programs = (*site.deployment.managers, *site.deployment.apis)
        self._ports = [
            wait_for(f"the metrics of {program.name}", partial(_metrics_port, program)) for program in programs
        ]
        self._keystone = keystone
        self._rng = random.Random(1)
        demo, admin = site.cloud.session("demo"), site.nova.admin
        self._member = _Connection(site.deployment.url(), demo, "reservation 1.1")
        self._old = _Connection(site.deployment.url(), admin)
        self._admin = _Connection(site.deployment.url(), admin, "reservation 1.1")
        self._nova = _Connection(_endpoint(site.cloud, admin, "compute"), admin, "compute 2.87")
        self._token = _Connection(site.cloud.openrc["OS_AUTH_URL"], admin)
        self._subject = {"X-Subject-Token": str(demo.get_token())}

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._member, self._old, self._admin, self._nova, self._token):
            connection.close()

    def ask(self, rounds: int) -> tuple[list[Timed], list[Timed], int, int, int, dict[str, float], dict[str, float]]:
        tenure: dict[str, Callable[[], object]] = {
            "show a lease": lambda: self._member.ask("GET", f"/leases/{lease}"),
            "page of 100 leases": lambda: self._admin.ask("GET", "/leases?limit=100"),
            "page of 100 hosts": lambda: self._admin.ask("GET", "/os-hosts?limit=100"),
        }
        once: dict[str, Callable[[], object]] = {
            "all leases at 1.0": lambda: self._old.ask("GET", "/leases"),
            "all hosts at 1.0": lambda: self._old.ask("GET", "/os-hosts"),
        }
        others: dict[str, Callable[[], object]] = {
            "Nova: GET /servers": lambda: self._nova.ask("GET", "/servers"),
            "Nova: GET /os-aggregates": lambda: self._nova.ask("GET", "/os-aggregates"),
            "Keystone: GET /auth/tokens": lambda: self._token.ask("GET", "/auth/tokens", headers=self._subject),
        }
        found = {name: Timed(name=name) for name in (CREATE, DELETE, *tenure, *once, *others)}
        for _ in range(WARM_UP):
            self._book_and_delete(Timed(), Timed())
        lease = json.loads(self._book())["lease"]["id"]
        self._keystone.forget()
        before = [self._metrics(port) for port in self._ports]
        logins = calls = 0
        spent: Counter[str] = Counter()
        for number in range(rounds):
            began = self._calls()
            busy = self._processor_seconds()
            self._book_and_delete(found[CREATE], found[DELETE])
            spent.update({name: seconds - busy[name] for name, seconds in self._processor_seconds().items()})
            calls += self._calls() - began
            logins += sum(request.method == "POST" for request in self._keystone.seen())
            self._keystone.forget()
            for name, act in (tenure | others | (once if number < 3 else {})).items():
                _time(found[name], act)
        after = [self._metrics(port) for port in self._ports]
        shares = {
            "tenure-api, the whole request": _mean(before[0], after[0], before[1], after[1], _REQUEST),
            "tenure-manager, the operation": _mean(before[0], after[0], before[1], after[1], _OPERATION),
        }
        own = [found[name] for name in (CREATE, DELETE, *tenure, *once)]
        processor = {name: seconds / rounds for name, seconds in spent.items()}
        return own, [found[name] for name in others], 2 * rounds, logins, calls, shares, processor

    def _book_and_delete(self, create: Timed, delete: Timed) -> None:
        made = _time(create, self._book)
        _time(delete, lambda: self._member.ask("DELETE", f"/leases/{json.loads(made)['lease']['id']}"))

    def _book(self) -> str:
        start = datetime.now(UTC) + timedelta(hours=self._rng.randrange(30 * 24, 100 * 24))
        return self._member.ask("POST", "/leases", _body("bench", start, start + timedelta(hours=4)))

    def _processor_seconds(self) -> dict[str, float]:
        """What each process of ours has spent of a processor, in ticks of 10 ms as a rule."""
        found = {}
        for program in (*self._site.deployment.apis, *self._site.deployment.managers):
            if program.process is not None:
                fields = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()
                found[program.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def _calls(self) -> int:
        """Calls of the manager to the cloud, but for those that it makes at intervals."""
        told = {name: value for port in self._ports for name, value in self._metrics(port).items()}
        name = "tenure_driver_call_seconds_count"
        own = ('verb="held"', 'verb="drift"', 'verb="check"')
        return int(sum(v for k, v in told.items() if k.startswith(name) and not any(verb in k for verb in own)))

    def _metrics(self, port: int) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    def start_together(self, database: str, count: int) -> list[float]:
        """Book leases that start at one instant; how many seconds later each was ACTIVE, in order. Ends them again."""
        start = (datetime.now(UTC) + HEADWAY).replace(microsecond=0)
        ids = [
            json.loads(self._member.ask("POST", "/leases", _body(f"together-{number}", start, start + PAUSE / 2)))
            for number in range(count)
        ]
        if datetime.now(UTC) > start:
            raise RuntimeError("the leases were not booked before they were to start")
        late = self._active(database, start, count)
        for lease in ids:
            self._member.ask("DELETE", f"/leases/{lease['lease']['id']}")
        groups = {lease["lease"]["reservations"][0]["id"] for lease in ids}
        wait_for(
            "their ends", lambda: not groups & self._site.nova.aggregates().keys(), seconds=STARTS_SECONDS, pause=1
        )
        return late

    def _active(self, database: str, start: datetime, count: int) -> list[float]:
        statement = text(
            "SELECT h.at FROM history h JOIN leases l ON l.id = h.lease_id "
            "WHERE l.name LIKE 'together-%' AND h.to_status = 'ACTIVE'"
        )
        deadline = start + timedelta(seconds=STARTS_SECONDS)
        engine = create_engine(database, poolclass=NullPool)
        while True:
            with engine.connect() as connection:
                at = [moment.replace(tzinfo=UTC) for moment in connection.execute(statement).scalars()]
            if len(at) == count:
                return sorted((moment - start).total_seconds() for moment in at)
            if datetime.now(UTC) > deadline:
                raise RuntimeError(f"{len(at)} of {count} leases are ACTIVE after {STARTS_SECONDS} s")
            time.sleep(1)


#: What a program logs about its metrics. Not every one has the port that is configured, since they share that option.
_SHOWN = re.compile(r"metrics are shown on \S+:(\d+)")


def _metrics_port(program: Program) -> int | None:
    """Return the port on which a program shows its metrics, None if it does not yet."""
    found = _SHOWN.findall(program.log.read_text(errors="replace"))
    return int(found[-1]) if found else None


_REQUEST = 'tenure_request_seconds_{}{{method="POST"'
_OPERATION = 'tenure_operation_seconds_{}{{operation="leases.create"'


def _mean(
    first: Mapping[str, float],
    first_after: Mapping[str, float],
    second: Mapping[str, float],
    second_after: Mapping[str, float],
    name: str,
) -> float:
    """What one took on average between two looks at the metrics of two processes."""

    def grown(what: str) -> float:
        def total(metrics: Mapping[str, float]) -> float:
            return sum(value for key, value in metrics.items() if key.startswith(name.format(what)))

        return total(first_after) - total(first) + total(second_after) - total(second)

    return grown("sum") / max(1.0, grown("count"))


def _body(name: str, start: datetime, end: datetime) -> str:
    reservation = {
        "resource_type": "physical:host",
        "min": 1,
        "max": 1,
        "hypervisor_properties": '[">=", "$vcpus", "4"]',
        "resource_properties": "",
    }
    return json.dumps({"name": name, "start_date": _text(start), "end_date": _text(end), "reservations": [reservation]})


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _time(timed: Timed, act: Callable[[], object]) -> str:
    began = time.perf_counter()
    answer = act()
    timed.seconds.append(time.perf_counter() - began)
    return str(answer)


def _endpoint(cloud: Cloud, session: Session, service: str) -> str:
    region = cloud.openrc["OS_REGION_NAME"]
    url = session.get_endpoint(service_type=service, interface="public", region_name=region)
    if url is None:
        raise RuntimeError(f"the catalogue has no endpoint of {service}")
    return url


class _Connection:
    """A connection to a service that is kept open while it is used, and a token."""

    def __init__(self, url: str, session: Session, version: str | None = None) -> None:
        parts = urlsplit(url)
        self._prefix = parts.path.rstrip("/")
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self._used_at = time.monotonic()
        self._headers = {"X-Auth-Token": str(session.get_token()), "Content-Type": "application/json"}
        if version is not None:
            self._headers["OpenStack-API-Version"] = version

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None) -> str:
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            self._connection.close()  # before the server does, which cannot be seen when a request is sent
        self._connection.request(method, self._prefix + path, body, {**self._headers, **(headers or {})})
        answer = self._connection.getresponse()
        content = answer.read().decode()
        self._used_at = time.monotonic()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]}")
        return content
