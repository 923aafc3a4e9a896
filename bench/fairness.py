"""Fairness: fifty requests of a project at a time, and how long another project's plain booking takes meanwhile.

The requests are over HTTP, to ``tenure-standalone`` on SQLite, and to APIs and managers of their own on a server.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from bench.measure import percentile
from tenure.api.auth import TokenUser, write_token_file
from tenure.domain.lanes import USUAL, Lane
from tenure.services.context import Rules
from tests.support.databases import SQLITE, DatabaseServers
from tests.support.deployment import Deployment, Options, deploy
from tests.support.races import lay_out
from tests.support.site import delete_queues
from tests.support.standalone import start

Say = Callable[[str], None]
Body = Mapping[str, object]

#: The project whose requests are measured, the one that floods the service, and the one that has filled it.
ANOTHER, FLOODING, FILLING = "another", "flooding", "filling"
DAY = timedelta(days=1)
#: How long 99 of 100 plain bookings of another project may take at most beside a flood, in seconds.
LONGEST_SECONDS = 1.0
#: How much longer than its budget an answer may take, in seconds.
MARGIN_SECONDS = 1.0
#: After how many seconds a client gives up.
PATIENCE_SECONDS = 200.0

#: The seconds within which the operations of a lane are to be answered.
BUDGETS: Mapping[Lane, float] = {
    Lane.SEARCHING: Rules().planning_time.total_seconds(),
    Lane.BOOKING: USUAL[Lane.BOOKING].wait_seconds,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the cloud is, and how much is asked for at a time."""

    hosts: int
    leases: int
    at_once: int
    #: How many reservations, or instances, a request asks for.
    many: int
    #: A flood that is over before is repeated.
    seconds: float


FULL = Scale(hosts=500, leases=400, at_once=50, many=100, seconds=5.0)
QUICK = Scale(hosts=12, leases=6, at_once=4, many=5, seconds=0.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request."""

    method: str
    path: str
    body: Body | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: how long it took, in seconds, and its status; 0 if there was none."""

    seconds: float
    status: int
    document: Mapping[str, Mapping[str, str]]


class Service:
    """A service with several APIs, as its clients see it."""

    def __init__(self, ports: Sequence[int], scale: Scale) -> None:
        self._ports = itertools.cycle(ports)
        self._guard = threading.Lock()
        self.scale = scale
        self.since = datetime.now(UTC).replace(microsecond=0)

    def ask(self, ask: Ask, project: str) -> Answer:
        """Return the answer to a request of a project."""
        with self._guard:
            port = next(self._ports)
        headers = {"X-Auth-Token": token_of(project), "OpenStack-API-Version": "reservation 1.3"}
        if ask.body is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        began = time.monotonic()
        status, text = 0, b""
        with suppress(OSError, http.client.HTTPException):
            connection.request(
                ask.method, f"/v1{ask.path}", None if ask.body is None else json.dumps(ask.body), headers
            )
            answer = connection.getresponse()
            text = answer.read()
            status = answer.status
        connection.close()
        return Answer(time.monotonic() - began, status, json.loads(text) if text else {})

    def book(self, reservations: Sequence[Body], start: float, end: float, project: str) -> Answer:
        """Ask for a lease from a day to another, counted from now."""
        return self.ask(self.lease(reservations, start, end), project)

    def lease(self, reservations: Sequence[Body], start: float, end: float) -> Ask:
        """Return the request for a lease from a day to another, counted from now."""
        dates = {"start_date": self.at(start), "end_date": self.at(end)}
        return Ask("POST", "/leases", {"name": "fairness", **dates, "reservations": reservations})

    def at(self, day: float) -> str:
        """Return a moment so many days from now."""
        return f"{self.since + day * DAY:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class Load:
    """A flood: makes its requests, and the lane that bounds how long they may take."""

    name: str
    asks: Callable[[Service], Sequence[Ask]]
    lane: Lane = Lane.SEARCHING


@dataclass(frozen=True, slots=True)
class Fairness:
    """The answers to a flood, and those to another project meanwhile."""

    deployment: str
    load: Load
    flood: Sequence[Answer]
    others: Sequence[Answer]

    @property
    def slowest(self) -> float:
        """The seconds of the slowest answer to the flood."""
        return max(answer.seconds for answer in self.flood)

    @property
    def statuses(self) -> Mapping[int, int]:
        """How many answers of each status the flood got."""
        return dict(sorted(Counter(answer.status for answer in self.flood).items()))

    def waited(self, percent: float) -> float:
        """Return the seconds that so many of 100 bookings of the other project took at most."""
        return percentile([answer.seconds for answer in self.others], percent)

    def complaints(self) -> Iterator[str]:
        """Yield what is not as promised."""
        where = f"{self.deployment}: beside {self.load.name}"
        if self.waited(99) > LONGEST_SECONDS:
            yield f"{where} 99 of 100 bookings of another project took up to {self.waited(99):.2f} s"
        if any(answer.status != HTTPStatus.CREATED for answer in self.others):
            yield f"{where} another project could not book: {Counter(answer.status for answer in self.others)}"
        allowed = BUDGETS[self.load.lane] + MARGIN_SECONDS
        if self.slowest > allowed:
            yield f"{self.deployment}: {self.load.name}: an answer took {self.slowest:.1f} s, {allowed:g} are allowed"
        if set(self.statuses) <= {0, HTTPStatus.SERVICE_UNAVAILABLE}:
            yield f"{self.deployment}: {self.load.name}: no request succeeded: {self.statuses}"
        if self.statuses.get(0) or self.statuses.get(HTTPStatus.INTERNAL_SERVER_ERROR):
            yield f"{self.deployment}: {self.load.name}: requests failed: {self.statuses}"


def measure_fairness(
    servers: DatabaseServers,
    kind: str,
    say: Say,
    *,
    scale: Scale = FULL,
    managers: int = 1,
    bus: str = "",
    only: str = "",
) -> list[Fairness]:
    """Measure each load, or those whose names contain a text, on a database.

    On SQLite it is ``tenure-standalone``; on a server, so many managers and APIs, with a message bus at the URL.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as name:
        folder = Path(name)
        with (
            _standalone(folder, scale) if kind == SQLITE else _deployment(folder, servers, kind, scale, managers, bus)
        ) as ports:
            deployment = f"{kind}, {'standalone' if kind == SQLITE else f'{managers} managers'}"
            service = Service(ports, scale)
            say(f"{deployment}: booking {scale.leases} leases of {scale.hosts} hosts")
            _fill(service)
            days = itertools.count(400)
            for load in LOADS:
                if only not in load.name:
                    continue
                measured = _beside(service, deployment, load, days)
                found.append(measured)
                say(
                    f"{deployment}: {load.name}: slowest {measured.slowest:.1f} s, {measured.statuses}; "
                    f"another's of {len(measured.others)}: p50 {measured.waited(50):.2f}, "
                    f"p99 {measured.waited(99):.2f}, slowest {measured.waited(100):.2f} s"
                )
    return found


def _beside(service: Service, deployment: str, load: Load, days: Iterator[int]) -> Fairness:
    """Ask for everything at once, again and again for some seconds, and book in another project meanwhile."""
    asks = load.asks(service)
    flood: list[Answer] = []
    others: list[Answer] = []
    over = threading.Event()

    def ask_all() -> None:
        until = time.monotonic() + service.scale.seconds
        try:
            with ThreadPoolExecutor(len(asks)) as threads:
                while not flood or (time.monotonic() < until and load.lane is Lane.SEARCHING):
                    flood.extend(threads.map(partial(service.ask, project=FLOODING), asks))
        finally:
            over.set()

    flooding = threading.Thread(target=ask_all)
    flooding.start()
    while not over.is_set() or not others:
        day = next(days)
        others.append(service.book([host()], day, day + 0.5, ANOTHER))
    flooding.join()
    return Fairness(deployment, load, flood, others)


def fairness_table(found: Sequence[Fairness]) -> Iterator[str]:
    """Yield how long the answers took to the floods, and those to another project."""
    yield "### Another project's booking beside a flood"
    yield ""
    yield "| on | flood | answers | of these 503 | slowest s | another's | median s | 99 % s | slowest s |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for each in found:
        refused = each.statuses.get(HTTPStatus.SERVICE_UNAVAILABLE, 0)
        yield (
            f"| {each.deployment} | {each.load.name} | {len(each.flood)} | {refused} | {each.slowest:.1f} | "
            f"{len(each.others)} | {each.waited(50):.2f} | {each.waited(99):.2f} | {each.waited(100):.2f} |"
        )
    yield ""


# --- the floods


def host(least: int = 1, most: int | None = None, **more: object) -> Body:
    """Return a reservation of hosts."""
    return {"resource_type": "physical:host", "min": least, "max": most or least, **more}


def _apart(service: Service) -> Body:
    """Return a reservation of many small instances on hosts of their own."""
    amount = min(service.scale.many, service.scale.hosts)
    size = {"vcpus": 1, "memory_mb": 1, "disk_gb": 0}
    return {"resource_type": "virtual:instance", "amount": amount, **size, "affinity": False}


def _same(ask: Callable[[Service], Ask]) -> Callable[[Service], Sequence[Ask]]:
    return lambda service: [ask(service)] * service.scale.at_once


#: A condition of many terms that holds for every host.
_TERMS = json.dumps(["or", *(["and", *(["!=", "$gpu", f"x{row}{column}"] for column in range(8))] for row in range(8))])


def _offers_with_conditions(service: Service) -> Ask:
    asked = [host(resource_properties=_TERMS)] * service.scale.many
    return Ask("POST", "/offers", {"reservations": asked, **_five_days(service, 300), "limit": 100})


def _offers_apart(service: Service) -> Ask:
    asked = [_apart(service)] * service.scale.many
    return Ask("POST", "/offers", {"reservations": asked, **_five_days(service, 300), "limit": 10})


def _choices(service: Service) -> Ask:
    choice = {"reservations": [host(1, service.scale.hosts, resource_properties=_TERMS)] * 10}
    body = {"name": "choices", **_five_days(service, 100), "any_of": [choice] * 10}
    return Ask("POST", "/leases?dry_run=true", body)


def _dry_run(service: Service) -> Ask:
    ask = service.lease([host()] * min(service.scale.many, service.scale.hosts // 2), 10, 12)
    return Ask(ask.method, f"{ask.path}?dry_run=true", ask.body)


def _refused(service: Service) -> Ask:
    return service.lease([host(service.scale.hosts)], 10, 12)


def _largest(service: Service) -> Ask:
    return Ask(
        "POST",
        "/offers/largest",
        {"reservation": _apart(service), "start_date": service.at(1), "end_date": service.at(6)},
    )


def _longest(service: Service) -> Ask:
    asked = [_apart(service)] * service.scale.many
    return Ask("POST", "/offers/longest", {"reservations": asked, "start_date": service.at(1)})


def _creates(service: Service) -> Sequence[Ask]:
    return [service.lease([host()], 220 + number / 48, 221 + number / 48) for number in range(service.scale.at_once)]


def _creates_of_many(service: Service) -> Sequence[Ask]:
    return [service.lease([host(service.scale.hosts)], day, day + 1) for day in range(250, 250 + service.scale.at_once)]


def _ends_before_waiting(service: Service) -> Sequence[Ask]:
    """Put leases on the waiting list, and return deletions each of which gives them a turn."""
    ids = [
        service.book([host()], 310, 311, FLOODING).document["lease"]["id"]
        for _ in range(min(service.scale.at_once, service.scale.hosts))
    ]
    choice = {"reservations": [host(service.scale.hosts, resource_properties=_TERMS)] * service.scale.many}
    for _ in range(2):
        body = {"name": "waits", **_five_days(service, 110), "if_full": "wait", "any_of": [choice] * 4}
        service.ask(Ask("POST", "/leases", body), FLOODING)
    return [Ask("DELETE", f"/leases/{lease_id}") for lease_id in ids]


def _five_days(service: Service, latest: float) -> Body:
    return {"duration": 5 * 86_400, "latest": service.at(latest)}


LOADS = (
    Load("offers of 100 reservations with conditions", _same(_offers_with_conditions)),
    Load("offers of 100 x 100 instances apart", _same(_offers_apart)),
    Load("choices of 10 x 10 reservations, dry", _same(_choices)),
    Load("dry runs of 100 reservations", _same(_dry_run)),
    Load("refusals with alternatives", _same(_refused), Lane.BOOKING),
    Load("largest amount of instances", _same(_largest)),
    Load("longest lease of 100 x 100 instances", _same(_longest)),
    Load("creates", _creates, Lane.BOOKING),
    Load("creates of all hosts", _creates_of_many, Lane.BOOKING),
    Load("ends that give the waiting list turns", _ends_before_waiting, Lane.BOOKING),
)


# --- the services


def token_of(project: str) -> str:
    """Return the token of a project's user."""
    return f"token-of-{project}-0123456789"


def _users() -> list[TokenUser]:
    return [
        TokenUser(name, name, f"{name}-project", name, ("member", "reader"), token_of(name))
        for name in (ANOTHER, FLOODING, *(f"{FILLING}-{number}" for number in range(3)))
    ]


@contextmanager
def _standalone(folder: Path, scale: Scale) -> Iterator[list[int]]:
    """Run a standalone service; yield its port."""
    data = folder / "data"
    data.mkdir(mode=0o700)
    admin = TokenUser("admin", "admin", "admin-project", "admin", ("admin",), token_of("admin"))
    write_token_file(data / "tokens.yaml", [*_users(), admin])
    service = start(data, hosts=scale.hosts)
    try:
        yield [urlsplit(service.url).port or 0]
    finally:
        service.stop()


@contextmanager
def deployed(
    folder: Path, servers: DatabaseServers, kind: str, hosts: int, managers: int, bus: str
) -> Iterator[tuple[str, Deployment]]:
    """Run managers and as many APIs on a database server; yield the URL of the database and the deployment."""
    topic = f"tenure_{uuid4().hex[:8]}"
    with servers.fresh_database(kind) as url:
        cloud, tokens = lay_out(url, folder, hosts)
        tokens.unlink()
        write_token_file(tokens, _users())
        settings: Options = {
            "DEFAULT": {"driver": "simulated", "auth_strategy": "token_file", "transport_url": bus},
            "api": {"token_file": tokens},
            "simulated": {"path": cloud},
            "manager": {"rpc_topic": topic},
        }
        try:
            with deploy(folder, url, settings, managers=managers, apis=managers) as deployment:
                yield url, deployment
        finally:
            delete_queues([topic, *(f"{topic}.{folder.name}-{number}" for number in range(managers))], bus)


@contextmanager
def _deployment(
    folder: Path, servers: DatabaseServers, kind: str, scale: Scale, managers: int, bus: str
) -> Iterator[list[int]]:
    """Run managers and as many APIs on a database server; yield the ports of the APIs."""
    with deployed(folder, servers, kind, scale.hosts, managers, bus) as (_url, deployment):
        yield deployment.ports


def _fill(service: Service) -> None:
    """Book leases of a few days over half a year, by three projects."""
    random_days = random.Random(3)
    bookings = [
        (random_days.choice([1, 2, 5]), day, day + random_days.randrange(1, 5), f"{FILLING}-{number % 3}")
        for number in range(service.scale.leases)
        for day in [random_days.randrange(1, 200)]
    ]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda each: service.book([host(each[0])], *each[1:]), bookings))
    refused = [answer for answer in answers if answer.status not in {HTTPStatus.CREATED, HTTPStatus.CONFLICT}]
    if refused:
        raise RuntimeError(f"a lease could not be booked: {refused[0]}")
