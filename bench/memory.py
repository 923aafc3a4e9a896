"""What the memory of ``tenure-standalone`` does under a mixed load that goes on, over HTTP."""

from __future__ import annotations

import http.client
import json
import random
import re
import secrets
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tenure.api.auth import TokenUser, write_token_file
from tests.support.standalone import BIN, rfc3339, start
from tests.support.waiting import patience

#: The projects that ask, and how many requests are under way at a time.
PROJECTS = 20
CALLERS = 4
#: Leases that exist at a time: from so many on, each new one takes the place of the oldest.
LIVE_LEASES = 300
LIVE_WAITING = 10
LIVE_SERVERS = 10
#: The share by which the second half may grow.
SHARE = 0.10
#: The flavor of servers that need no lease.
PREEMPTIBLE = "7"
SERVERS = "/cloud/RegionOne/compute/servers"
#: Answers that are to be expected: gone meanwhile, no room, too many at a time.
REFUSALS = (403, 404, 409, 503)
MEBIBYTE = 2**20
MINUTE = 60.0

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """How long requests are sent, how many a second, and to how many hosts."""

    minutes: float = 60.0
    per_second: float = 8.0
    hosts: int = 100
    #: Leases that are made at the end and stay, to see what the process has for each.
    held: int = 500

    @property
    def sample_seconds(self) -> float:
        """Each minute; ten times if all takes a few."""
        return min(MINUTE, self.minutes * MINUTE / 10)


@dataclass(frozen=True, slots=True)
class Project:
    """A project as it calls the service, each time over a connection of its own."""

    port: int
    token: str

    def call(self, method: str, path: str, body: Body | None = None) -> tuple[int, Any]:
        """Return the status and the document of an answer; raise ``OSError`` or ``HTTPException`` if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience())
        headers = {"X-Auth-Token": self.token, "OpenStack-API-Version": "reservation 1.3"}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()


QUICK = Load(minutes=0.15, per_second=20, hosts=10, held=10)


@dataclass(frozen=True, slots=True)
class Sample:
    """The process at one moment."""

    seconds: float
    resident: int
    requests: int
    leases_made: int
    leases_gone: int


@dataclass(slots=True)
class MemoryFigures:
    """What was measured: the samples of the load in the order of time, and the memory before and after more leases."""

    load: Load
    samples: Sequence[Sample]
    before_held: int
    after_held: int
    requests: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: Sequence[str] = ()

    @property
    def middle(self) -> Sample:
        return self.samples[len(self.samples) // 2]

    @property
    def first_half(self) -> int:
        """By how many bytes the first half grew."""
        return self.middle.resident - self.samples[0].resident

    @property
    def second_half(self) -> int:
        """By how many bytes the second half grew."""
        return self.samples[-1].resident - self.middle.resident

    @property
    def per_lease_gone(self) -> float:
        """The bytes by which the second half grew, for each lease that was deleted or ended in it."""
        return self.second_half / max(1, self.samples[-1].leases_gone - self.middle.leases_gone)

    @property
    def per_lease_held(self) -> float:
        """The bytes by which the process grew for each lease that was made at the end and kept."""
        return (self.after_held - self.before_held) / self.load.held

    def complaints(self) -> Iterator[str]:
        if self.second_half > SHARE * self.middle.resident:
            yield (
                f"memory: the second half grew by {self.second_half / MEBIBYTE:.1f} MiB from "
                f"{self.middle.resident / MEBIBYTE:.1f} MiB, {SHARE:.0%} are allowed"
            )
        yield from (f"memory: {failure}" for failure in self.failures)


def measure_memory(load: Load, say: Callable[[str], None]) -> MemoryFigures:
    """Send mixed requests to a new service for so long, then make leases that stay."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        say(f"memory: starting tenure-standalone with {load.hosts} hosts")
        data_dir = Path(folder) / "data"
        tokens = _write_users(data_dir)
        service = start(data_dir, hosts=load.hosts, command=[str(BIN / "tenure-standalone")])
        try:
            port = urlsplit(service.url).port or 0
            mix = _Mix(load, [Project(port, token) for token in tokens], random.Random(1))
            samples = _send(mix, service.process.pid, say)
            before = resident_bytes(service.process.pid)
            for _ in range(load.held):
                mix.hold()
            after = resident_bytes(service.process.pid)
        finally:
            service.kill()
    return MemoryFigures(load, samples, before, after, mix.sent, mix.refused, mix.failures)


def resident_bytes(pid: int) -> int:
    """Return how much of a process is in memory."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the process {pid} has ended")
    return int(found[1]) * 1024


def _write_users(data_dir: Path) -> list[str]:
    """Write the users of the projects for a service that starts later; return their tokens."""
    tokens = [secrets.token_hex(32) for _ in range(PROJECTS)]
    users = [
        TokenUser(f"user-{number}", f"user-{number}", f"project-{number}", f"project-{number}", ("member",), token)
        for number, token in enumerate(tokens)
    ]
    data_dir.mkdir(mode=0o700)
    write_token_file(data_dir / "tokens.yaml", users)
    return tokens


def _send(mix: _Mix, pid: int, say: Callable[[str], None]) -> list[Sample]:
    """Keep sending; return a sample of the beginning, and of each interval."""
    begin = time.monotonic()
    end = begin + mix.load.minutes * MINUTE
    threads = [threading.Thread(target=mix.keep_sending, args=(begin, end, number)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    samples = []
    while True:
        now = time.monotonic()
        sample = Sample(now - begin, resident_bytes(pid), mix.sent.total(), mix.made, mix.gone)
        samples.append(sample)
        say(
            f"memory: {sample.seconds / MINUTE:5.1f} min: {sample.resident / MEBIBYTE:6.1f} MiB, {sample.requests} "
            f"requests, {sample.leases_made} leases made, {sample.leases_gone} gone"
        )
        if now >= end:
            break
        time.sleep(max(0.0, min(begin + len(samples) * mix.load.sample_seconds, end) - now))
    for thread in threads:
        thread.join()
    return samples


class _Mix:
    """The requests, drawn one after the other, and the leases that they have made."""

    def __init__(self, load: Load, projects: Sequence[Project], rng: random.Random) -> None:
        self.load = load
        self.sent: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.failures: list[str] = []
        self.made = self.gone = 0
        self._projects = projects
        self._rng = rng
        self._guard = threading.Lock()
        self._first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(days=1)
        self._leases: deque[tuple[Project, str]] = deque()
        self._waiting: deque[tuple[Project, str]] = deque()
        self._servers: deque[tuple[Project, str]] = deque()
        #: What is drawn, and how often of a hundred times.
        self._choices: dict[Callable[[Project], None], int] = {
            self._create: 22,
            self._change: 10,
            self._run_now: 3,
            self._wait: 5,
            self._hold_for_a_moment: 2,
            self._show: 16,
            self._list: 10,
            self._dry_run: 10,
            self._search: 12,
            self._count: 6,
            self._boot: 2,
            self._log_in: 2,
        }

    def keep_sending(self, begin: float, end: float, number: int) -> None:
        """Send requests at an even pace until the end: every so manieth of all."""
        turn = number
        while (now := time.monotonic()) < end:
            due = begin + turn / self.load.per_second
            if due > now:
                time.sleep(min(due, end) - now)
            else:  # what could not be sent in time is left out
                turn += CALLERS * int((now - due) * self.load.per_second / CALLERS)
            turn += CALLERS
            with self._guard:
                action = self._rng.choices(list(self._choices), list(self._choices.values()))[0]
                project = self._rng.choice(self._projects)
            action(project)

    def hold(self) -> None:
        """Make a lease that stays."""
        self._ask(self._rng.choice(self._projects), "create", "POST", "/v1/leases", self._lease(hosts=1))

    def _create(self, project: Project) -> None:
        lease = self._ask(project, "create", "POST", "/v1/leases", self._lease())
        self._keep(self._leases, LIVE_LEASES, project, lease)

    def _run_now(self, project: Project) -> None:
        """A lease that begins now, and ends by itself."""
        seconds = self._rng.randint(5, 60)
        lease = {**self._lease(hosts=1), "start_date": "now", "end_date": _later(seconds)}
        if self._ask(project, "run now", "POST", "/v1/leases", lease) is not None:
            self._count_leases(made=1, gone=1)

    def _wait(self, project: Project) -> None:
        """A lease of all hosts, which waits for those of others."""
        lease = {**self._lease(hosts=self.load.hosts), "if_full": "wait"}
        self._keep(self._waiting, LIVE_WAITING, project, self._ask(project, "wait", "POST", "/v1/leases", lease))

    def _hold_for_a_moment(self, project: Project) -> None:
        if self._ask(project, "hold", "POST", "/v1/leases", {**self._lease(), "hold_for": 5}) is not None:
            self._count_leases(made=1, gone=1)

    def _change(self, project: Project) -> None:
        owner, lease_id = self._any_lease(project)
        start, end = self._period()
        self._ask(owner, "change", "PUT", f"/v1/leases/{lease_id}", {"start_date": start, "end_date": end})

    def _show(self, project: Project) -> None:
        owner, lease_id = self._any_lease(project)
        path = self._rng.choice(["", "", "/history", "/hosts"])
        self._ask(owner, "show", "GET", f"/v1/leases/{lease_id}{path}")

    def _list(self, project: Project) -> None:
        path = self._rng.choice(["/v1/leases?limit=100", "/v1/leases?status=PENDING", "/v1/limits", "/v1/floatingips"])
        self._ask(project, "list", "GET", path)

    def _dry_run(self, project: Project) -> None:
        self._ask(project, "dry run", "POST", "/v1/leases?dry_run=true", self._lease())

    def _search(self, project: Project) -> None:
        cores = str(self._rng.choice([16, 32, 64]))
        reservation = {**_hosts(self._rng.randint(1, 3)), "hypervisor_properties": f'[">=", "$vcpus", "{cores}"]'}
        searches: list[tuple[str, Body]] = [
            ("", {"reservations": [reservation], "duration": 3600 * self._rng.randint(1, 48)}),
            ("/longest", {"reservations": [reservation]}),
            ("/largest", {"reservation": reservation, "end_date": _later(86400 * self._rng.randint(2, 20))}),
        ]
        path, body = self._rng.choice(searches)
        self._ask(project, "search", "POST", f"/v1/offers{path}", body)

    def _count(self, project: Project) -> None:
        path = self._rng.choice(
            [
                f"/v1/usage?start_date={_later(-7 * 86400)}&end_date={_later(0)}",
                "/v1/availability?resource_type=physical:host",
            ]
        )
        self._ask(project, "usage and availability", "GET", path)

    def _boot(self, project: Project) -> None:
        """A server without a lease, which takes the slot of the oldest."""
        server = {"name": "bench", "flavorRef": PREEMPTIBLE, "networks": "none"}
        answer = self._ask(project, "boot", "POST", SERVERS, {"server": server})
        if answer is None:
            return
        with self._guard:
            self._servers.append((project, answer["server"]["id"]))
            oldest = self._servers.popleft() if len(self._servers) > LIVE_SERVERS else None
        if oldest is not None:
            owner, server_id = oldest
            self._ask(owner, "delete server", "DELETE", f"{SERVERS}/{server_id}")

    def _log_in(self, project: Project) -> None:
        identity = {"methods": ["token"], "token": {"id": project.token}}
        self._ask(project, "log in", "POST", "/identity/v3/auth/tokens", {"auth": {"identity": identity}})

    def _lease(self, hosts: int = 0) -> Body:
        start, end = self._period()
        return {
            "name": f"lease-{self._rng.getrandbits(40):x}",
            "start_date": start,
            "end_date": end,
            "reservations": [_hosts(hosts or self._rng.randint(1, 3))],
        }

    def _period(self) -> tuple[str, str]:
        start = self._first + timedelta(minutes=self._rng.randrange(60 * 24 * 60))
        return rfc3339(start), rfc3339(start + timedelta(minutes=self._rng.randint(30, 24 * 60)))

    def _any_lease(self, project: Project) -> tuple[Project, str]:
        with self._guard:
            return self._rng.choice(self._leases) if self._leases else (project, "none")

    def _keep(self, leases: deque[tuple[Project, str]], most: int, project: Project, answer: Any) -> None:
        """Note a new lease, and delete the oldest if there are too many."""
        if answer is None:
            return
        with self._guard:
            leases.append((project, answer["lease"]["id"]))
            oldest = leases.popleft() if len(leases) > most else None
        self._count_leases(made=1, gone=0)
        if oldest is not None:
            owner, lease_id = oldest
            self._ask(owner, "delete", "DELETE", f"/v1/leases/{lease_id}")
            self._count_leases(made=0, gone=1)

    def _count_leases(self, *, made: int, gone: int) -> None:
        with self._guard:
            self.made += made
            self.gone += gone

    def _ask(self, project: Project, name: str, method: str, path: str, body: Body | None = None) -> Any:
        """Return the document of an answer; None if it is a refusal. Anything else is noted as a failure."""
        try:
            status, document = project.call(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            status, document = 599, str(error)
        with self._guard:
            self.sent[name] += 1
            if status >= 300 and status not in REFUSALS:
                self.failures.append(f"{method} {path}: {status} {document}")
            elif status >= 300:
                self.refused[name] += 1
        return document if status < 300 else None


def _hosts(count: int) -> Body:
    asked = {"resource_type": "physical:host", "min": count, "max": count}
    return {**asked, "hypervisor_properties": "", "resource_properties": ""}


def _later(seconds: int) -> str:
    return rfc3339(datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds))
