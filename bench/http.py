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
from tests.support.standalone import Standalone, standalone

#: How many connections ask at a time.
CLIENTS = 4
LEASES = 200
HOSTS = 100

Request = tuple[str, str, str | None]  # method, path, body


@dataclass(frozen=True, slots=True)
class Throughput:
    """What so many connections got done."""

    name: str
    clients: int
    seconds: float
    latencies: Sequence[float]

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def median(self) -> float:
        return statistics.median(self.latencies)

    @property
    def p95(self) -> float:
        return percentile(self.latencies, 95)


def measure_http(seconds: float, say: Callable[[str], None]) -> list[Throughput]:
    """Requests of each kind for so long, against a service with a hundred hosts and two hundred leases."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        say(f"http: starting tenure-standalone with {HOSTS} hosts")
        with standalone(Path(folder) / "data", hosts=HOSTS) as service:
            bodies = _bodies()
            caller = _Caller(service)
            ids = [str(caller.ask(("POST", "/leases", next(bodies)))["lease"]["id"]) for _ in range(LEASES)]
            caller.close()
            kinds: dict[str, Iterator[Request]] = {
                "show a lease": (("GET", f"/leases/{ids[number % LEASES]}", None) for number in count()),
                "list a page of 100 leases": (("GET", "/leases?limit=100", None) for _ in count()),
                "create a lease": (("POST", "/leases", body) for body in bodies),
            }
            found = []
            for name, requests in kinds.items():
                say(f"http: {name}, for {seconds:.0f} s each with 1 and {CLIENTS} connections")
                found += [_ask_for(service, name, requests, clients, seconds) for clients in (1, CLIENTS)]
            return found


def _bodies() -> Iterator[str]:
    """Leases of one to two hosts with at least 64 processors, for eight hours, on day after day."""
    first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(days=1)
    for number in count():
        # Ten of a hundred hosts at a time.
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


class _Caller:
    """One connection that is kept open."""

    def __init__(self, service: Standalone) -> None:
        url = urlsplit(service.url)
        self._prefix = url.path
        self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
        self._headers = {
            "X-Auth-Token": service.token("demo"),
            "OpenStack-API-Version": "reservation 1.1",
            "Content-Type": "application/json",
        }

    def ask(self, request: Request) -> dict[str, dict[str, object]]:
        method, path, body = request
        self._connection.request(method, self._prefix + path, body, self._headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {text[:500]!r}")
        return dict(json.loads(text))

    def close(self) -> None:
        self._connection.close()


def _ask_for(service: Standalone, name: str, requests: Iterator[Request], clients: int, seconds: float) -> Throughput:
    guard = threading.Lock()
    latencies: list[float] = []
    failures: list[Exception] = []
    begin = time.perf_counter()

    def run() -> None:
        caller = _Caller(service)
        try:
            while time.perf_counter() - begin < seconds:
                with guard:
                    request = next(requests)
                asked = time.perf_counter()
                caller.ask(request)
                latencies.append(time.perf_counter() - asked)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            failures.append(error)
        finally:
            caller.close()

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
    if failures:
        raise failures[0]
    return Throughput(name, clients, time.perf_counter() - begin, latencies)
