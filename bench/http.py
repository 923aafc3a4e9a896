"""How many requests a second a standalone service answers, over HTTP, on this machine. Only for information."""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from bench.measure import percentile
from tests.support.standalone import standalone

#: How many connections send requests at a time.
CONNECTIONS = (1, 8)
LEASES = 200
HOSTS = 100

#: As much is limited as by default, but no limit is reached.
_LIMITS = """\
longest_lease_days: 366
limits: {leases: 1000000, hosts: 1000, instances: 10000, floating_ips: 1000, volumes: 10000, servers: 1000}
"""

Request = tuple[str, str, str | None]  # method, path, body


@dataclass(frozen=True, slots=True)
class Throughput:
    """The answers over a number of connections: for how long, and the seconds of each."""

    name: str
    connections: int
    seconds: float
    latencies: Sequence[float]

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def median(self) -> float:
        return statistics.median(self.latencies)

    @property
    def p99(self) -> float:
        return percentile(self.latencies, 99)


def measure_http(seconds: float, say: Callable[[str], None]) -> list[Throughput]:
    """Send requests of each kind for some seconds to a service with a hundred hosts and two hundred leases."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        say(f"http: starting tenure-standalone with {HOSTS} hosts")
        data_dir = Path(folder) / "data"
        data_dir.mkdir()
        (data_dir / "limits.yaml").write_text(_LIMITS)
        with standalone(data_dir, hosts=HOSTS) as service:
            leases = bodies()
            caller = Caller(service.url, service.token("demo"))
            ids = [str(caller.ask(("POST", "/leases", next(leases)))["lease"]["id"]) for _ in range(LEASES)]
            caller.close()
            requests_by_name: dict[str, Iterator[Request]] = {
                "show a lease": (("GET", f"/leases/{ids[number % LEASES]}", None) for number in count()),
                "list a page of 100 leases": (("GET", "/leases?limit=100", None) for _ in count()),
                "create a lease": (("POST", "/leases", body) for body in leases),
                "dry run of a create": (("POST", "/leases?dry_run=true", body) for body in leases),
                "offer of a period": (("POST", "/offers", _search(body)) for body in leases),
            }
            found = []
            for name, requests in requests_by_name.items():
                for connections in CONNECTIONS:
                    say(f"http: {name}, over {connections} connections for {seconds:.0f} s")
                    callers = [Caller(service.url, service.token("demo")) for _ in range(connections)]
                    found.append(send_for(name, callers, requests, seconds))
            return found


def bodies() -> Iterator[str]:
    """Yield leases of one to two hosts with at least 64 processors, for eight hours, ten at a time."""
    first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(days=1)
    for number in count():
        start = first + timedelta(hours=8) * (number // 10)
        yield json.dumps(
            {
                "name": f"bench-{number}",
                "start_date": start.isoformat(),
                "end_date": (start + timedelta(hours=8)).isoformat(),
                "reservations": [
                    {
                        "resource_type": "physical:host",
                        "min": 1,
                        "max": 2,
                        "hypervisor_properties": '[">=", "$vcpus", "64"]',
                        "resource_properties": "",
                    }
                ],
            }
        )


def _search(body: str) -> str:
    """Return the request for a first period for a lease, from the start that it names on."""
    lease = json.loads(body)
    return json.dumps(
        {"reservations": lease["reservations"], "earliest": lease["start_date"], "duration": 8 * 3600, "limit": 1}
    )


class Caller:
    """A connection that stays open, to the API with this endpoint."""

    def __init__(self, endpoint: str, token: str) -> None:
        url = urlsplit(endpoint)
        self._prefix = url.path
        self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
        self._headers = {
            "X-Auth-Token": token,
            "OpenStack-API-Version": "reservation 1.3",
            "Content-Type": "application/json",
        }

    def ask(self, request: Request) -> dict[str, dict[str, object]]:
        """Return the document of the answer. Raises ``RuntimeError`` for a status of 300 or more."""
        method, path, body = request
        self._connection.request(method, self._prefix + path, body, self._headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {text[:500]!r}")
        return dict(json.loads(text))

    def close(self) -> None:
        self._connection.close()


def send_for(name: str, callers: Sequence[Caller], requests: Iterator[Request], seconds: float) -> Throughput:
    """Send requests over all connections for some seconds, then close these."""
    lock = threading.Lock()
    latencies: list[float] = []
    failures: list[Exception] = []
    begin = time.perf_counter()

    def send(caller: Caller) -> None:
        try:
            while time.perf_counter() - begin < seconds:
                with lock:
                    request = next(requests)
                sent = time.perf_counter()
                caller.ask(request)
                latencies.append(time.perf_counter() - sent)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            failures.append(error)
        finally:
            caller.close()

    threads = [threading.Thread(target=send, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
    if failures:
        raise failures[0]
    return Throughput(name, len(callers), time.perf_counter() - begin, latencies)
