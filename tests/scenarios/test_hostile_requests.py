"""The cost of hostile requests to the service: processor time and memory, request by request.

Some requests are about two existing leases, a waiting and a running one. The service runs as a separate process, and
each request goes over HTTP. The use of the process is read from the kernel before and after the request, so that
neither the client nor other programs count.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.lengths import times
from tests.support.standalone import Caller, Standalone, rfc3339, standalone
from tests.support.waiting import patience, wait_for

#: The limits for any request, on a cloud of 50 hosts and a machine of the speed below.
PROCESSOR_SECONDS = 0.3
MEMORY_BYTES = 64 * 1024 * 1024
#: The time to parse ``YARDSTICK`` on that machine. On a slower one, or beside other work, every request takes longer.
YARDSTICK_SECONDS = 0.01
YARDSTICK = json.dumps([{"id": number, "tags": ["a", "b", str(number)], "x": number / 3} for number in range(16000)])
#: A process is idle if it has done almost nothing for this time.
IDLE_SECONDS = 0.1
#: The attempts for a request beyond the limits: the service also has its own work, which is counted as well.
ATTEMPTS = 3
#: The number of requests.
REQUESTS = times(960, 2400)
#: The largest accepted body, in bytes.
LARGEST = 1024 * 1024
#: One in this number of bodies has the largest size: small bodies show most faults in less time.
ONE_IN = 12

#: A valid reservation of hosts, and one of instances.
WHOLE: Mapping[str, object] = {"resource_type": "physical:host", "min": 1, "max": 1}
SHARED: Mapping[str, object] = {
    "resource_type": "virtual:instance", "amount": 1, "vcpus": 1, "memory_mb": 1, "disk_gb": 0
}  # fmt: skip

Random = random.Random


@dataclass(frozen=True)
class LiveLease:
    """An existing lease, and the ids of its reservations."""

    name: str
    id: str
    whole: str
    shared: str

    @property
    def path(self) -> str:
        return f"/v1/leases/{self.id}"


class LiveLeases:
    """Two existing leases that requests are about: one that waits for its start, and one that runs."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.waiting, self.running = self._make("waiting"), self._make("running")

    def renew(self) -> None:
        """Replace the leases by new ones, and wait until the old ones are gone."""
        for lease in (self.waiting, self.running):
            self._caller.call("DELETE", f"/leases/{lease.id}")
            wait_for("a lease to be gone", partial(self._is_gone, lease))
        self.waiting, self.running = self._make("waiting"), self._make("running")

    def _is_gone(self, lease: LiveLease) -> bool:
        status: int = self._caller.call("GET", f"/leases/{lease.id}")[0]
        return status == 404

    def _make(self, name: str) -> LiveLease:
        delay = 240 * 3600 if name == "waiting" else 0
        status, lease = self._caller.book(1, seconds=100 * 3600, delay=delay, others=[SHARED])
        assert status == 201, lease
        lease = self._caller.wait_for_status(lease["id"], "ACTIVE" if name == "running" else "PENDING")
        of_type = {reservation["resource_type"]: reservation["id"] for reservation in lease["reservations"]}
        return LiveLease(name, lease["id"], of_type["physical:host"], of_type["virtual:instance"])


@dataclass(frozen=True)
class Sent:
    """A request on the wire."""

    kind: str
    method: str
    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Cost:
    """The use of processor and memory for a request."""

    seconds: float
    bytes: int

    def is_bounded(self) -> bool:
        """Whether the cost is within the limits; a long time is compared with the present speed of the machine."""
        if self.bytes > MEMORY_BYTES:
            return False
        return self.seconds <= PROCESSOR_SECONDS or self.seconds <= PROCESSOR_SECONDS * slowness()


def slowness() -> float:
    """Return the present slowness relative to the machine of ``YARDSTICK_SECONDS``, at least 1."""
    began = time.thread_time()
    json.loads(YARDSTICK)
    return max(1.0, (time.thread_time() - began) / YARDSTICK_SECONDS)


class Meter:
    """The use of processor and memory of a process, as the kernel counts it."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        # The processor clock of another process, as clock_getcpuclockid(3) returns it on Linux; Python lacks the call.
        self._clock = ~pid << 3 | 2

    def begin(self) -> None:
        """Start the measurement."""
        (self._folder / "clear_refs").write_text("5")  # the highest use of memory becomes the present one
        self._memory = self._status("VmRSS")
        self._nanoseconds = self._used()

    def end(self) -> Cost:
        return Cost((self._used() - self._nanoseconds) / 1e9, self._status("VmHWM") - self._memory)

    def settle(self) -> None:
        """Wait until the process is idle."""

        def is_idle() -> bool:
            before = self._used()
            time.sleep(IDLE_SECONDS)
            return self._used() - before < IDLE_SECONDS * 1e9 / 20

        wait_for("the service to be idle", is_idle)

    def _used(self) -> int:
        """Return the processor time of all threads, including ended ones, in nanoseconds."""
        return time.clock_gettime_ns(self._clock)

    def _status(self, name: str) -> int:
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


# --- the requests


def _size(draw: Random) -> int:
    return LARGEST - 4096 if draw.randrange(ONE_IN) == 0 else 2 ** draw.randrange(4, 15)


def _text(draw: Random, size: int) -> str:
    letters = draw.choice(["x", "\\", '"', "é", "😀", "\t", "a b", "%", "[", "$x ", "\u202e"])
    return letters * max(1, size // len(json.dumps(letters)))


def _fill(draw: Random, size: int, make: Callable[[int], str], ends: str = "[]") -> str:
    """Return a list or an object of about this size."""
    members: list[str] = []
    length = 2
    while length < size:
        members.append(make(len(members)))
        length += len(members[-1]) + 1
    return f"{ends[0]}{','.join(members)}{ends[1]}"


def _value(draw: Random, size: int) -> str:
    """Return JSON of about this size, of a form that is expensive for some parser."""
    match draw.randrange(17):
        case 0:
            return "[" * (size // 2) + "]" * (size // 2)
        case 1:
            return '{"a":' * (size // 6) + "1" + "}" * (size // 6)
        case 2:
            return _fill(draw, size, lambda number: f'"{number}":0', "{}")
        case 3:
            return _fill(draw, size, lambda _: '"same":0', "{}")
        case 4:
            return _fill(draw, size, lambda _: draw.choice(["0", "{}", "[]", '""', "null"]))
        case 5:
            return "9" * size
        case 6:
            return f"1e{'9' * min(size, 4000)}"
        case 7:
            return f"0.{'1' * size}"
        case 8:
            return '"' + "\\u0041" * (size // 6) + '"'
        case 9:
            return '"' + "\\ud800" * (size // 6) + '"'
        case 10:
            return _fill(draw, size, lambda number: json.dumps("y" * (number % 200)))
        case 11:
            return '"' + "\\" * size
        case 12:
            return " " * size + "1"
        case 13:  # a long path to many values
            return '{"' + "n" * (size // 2) + '":' + _fill(draw, size // 2, lambda _: "0") + "}"
        case 14:  # a repeated name at the end
            return _fill(draw, size, lambda number: f'"{number}":0', "{}")[:-1] + ',"1":0}'
        case 15:
            last = size // 12
            return "{" + ",".join(f'"{number}":0' for number in (*range(last), last - 1)) + "}"
        case _:
            return json.dumps(_text(draw, size))


def _expression(draw: Random, size: int) -> str:
    """Return an expression of properties of about this size, as a text."""
    comparison = json.dumps([draw.choice(["==", "!=", ">=", "<"]), "$vcpus", str(draw.randrange(100))])
    match draw.randrange(5):
        case 0:
            return _fill(draw, size, lambda _: comparison).replace("[", '["or",', 1)
        case 1:
            return '["and",' + '["not",' * (size // 8) + comparison + "]" * (size // 8 + 1)
        case 2:
            return json.dumps(["in", "$vcpus", *(str(number) for number in range(size // 8))])
        case 3:
            return '["or",' * (size // 8) + comparison
        case _:
            return _fill(draw, size, lambda number: f'["==", "$property{number}", "x"]').replace("[", '["and",', 1)


def _lease(draw: Random) -> str:
    """Return a lease that is valid except for a part."""
    size = _size(draw)
    later = datetime.now(UTC) + timedelta(hours=draw.randrange(1, 1000))
    whole, shared = dict(WHOLE), dict(SHARED)
    lease: dict[str, object] = {
        "name": "lease",
        "start_date": rfc3339(later),
        "end_date": rfc3339(later + timedelta(hours=1)),
        "reservations": [whole],
    }
    mark = "@"
    match draw.randrange(10):
        case 0:
            lease["reservations"] = [whole] * min(size // 60, 2000)
        case 1:
            lease["reservations"] = [dict(shared, amount=2 ** draw.randrange(64), affinity=False)] * draw.randrange(120)
        case 2:
            whole[draw.choice(["hypervisor_properties", "resource_properties"])] = _expression(draw, size)
        case 3:
            lease["reservations"] = [dict(whole, resource_properties=_expression(draw, 600))] * draw.randrange(100)
        case 4:
            lease["events"] = [{"event_type": "before_end_lease", "time": rfc3339(later)}] * (size // 80)
        case 5:
            whole[draw.choice(["min", "max", "before_end", "resource_type", "region", "extra"])] = mark
        case 6:
            lease[draw.choice([*lease, "before_end_date", "hold_for", "extra"])] = mark
        case 7:
            lease["reservations"] = [
                dict(shared, resource_traits={f"T{number}": "required" for number in range(size // 24)})
            ]
        case 8:
            lease["reservations"] = [dict(shared, **{draw.choice([*shared, "affinity", "extra_specs"]): mark})]
        case _:
            lease["reservations"] = [
                {"resource_type": "virtual:floatingip", "network_id": mark, "amount": 1, "required_floatingips": [mark]}
            ]
    return json.dumps(lease).replace(json.dumps(mark), _value(draw, size))


def _added(draw: Random) -> str:
    """Return a reservation that is valid except for a part."""
    size = _size(draw)
    requested: dict[str, object] = dict(draw.choice([WHOLE, SHARED]))
    mark = "@"
    match draw.randrange(5):
        case 0:
            requested[draw.choice(["hypervisor_properties", "resource_properties"])] = _expression(draw, size)
        case 1:
            requested[draw.choice(["amount", "max", "vcpus", "memory_mb"])] = 2 ** draw.randrange(64)
        case 2:
            requested["resource_traits"] = {f"T{number}": "required" for number in range(size // 24)}
        case 3:
            requested = {"reservations": [requested] * (size // len(json.dumps(requested)))}
        case _:
            requested[draw.choice([*requested, "affinity", "extra_specs", "region", "before_end", "extra"])] = mark
    return json.dumps(requested).replace(json.dumps(mark), _value(draw, size))


def _change(draw: Random, lease: LiveLease) -> str:
    """Return a change of the lease that is valid except for a part."""
    size = _size(draw)
    later = datetime.now(UTC) + timedelta(hours=2 ** draw.randrange(1, 14))
    change: dict[str, object] = {}
    mark = "@"
    match draw.randrange(9):
        case 0:
            change["reservations"] = [{"id": lease.whole, "min": 1, "max": 2}] * min(size // 60, 2000)
        case 1:
            amount = 2 ** draw.randrange(64)
            change["reservations"] = [{"id": lease.shared, "amount": amount}, {"id": lease.whole, "max": amount}]
        case 2:
            name = draw.choice(["hypervisor_properties", "resource_properties"])
            change["reservations"] = [{"id": lease.whole, name: _expression(draw, size)}]
        case 3:
            name = draw.choice(["min", "max", "before_end", "resource_type", "resource_properties", "extra"])
            change["reservations"] = [{"id": lease.whole, name: mark}]
        case 4:
            change["reservations"] = [{"id": lease.shared, draw.choice([*SHARED, "resource_traits", "extra"]): mark}]
        case 5:
            change["events"] = [{"event_type": "notify_lease", "time": rfc3339(later), "message": "m"}] * (size // 100)
        case 6:
            change[draw.choice(["name", "start_date", "end_date", "before_end_date", "extra"])] = mark
        case 7:
            change[draw.choice(["start_date", "end_date", "before_end_date"])] = rfc3339(later)
        case _:
            change["reservations"] = [{"id": mark, "amount": 2}] * draw.randrange(1, 3)
    return json.dumps(change).replace(json.dumps(mark), _value(draw, size))


def _request(draw: Random, live: LiveLeases) -> Sent:
    anything = "00000000-0000-4000-8000-000000000000"
    known = draw.choice([live.waiting, live.running])
    match draw.randrange(16):
        case 0 | 1 | 2 | 3:
            return Sent("lease", "POST", "/v1/leases", _lease(draw).encode("utf-8", "surrogatepass"))
        case 4 | 5:
            value = _value(draw, _size(draw))
            method, path = draw.choice(
                [
                    ("POST", "/v1/leases"),
                    ("PUT", f"/v1/leases/{anything}"),
                    ("POST", f"/v1/leases/{anything}/reservations"),
                    ("PUT", known.path),
                    ("POST", f"{known.path}/reservations"),
                    ("POST", "/v1/os-hosts"),
                    ("PUT", "/v1/os-hosts/1"),
                    ("PATCH", "/v1/os-hosts/properties/gpu"),
                    ("POST", "/v1/floatingips"),
                    ("POST", "/v1/nosuch"),
                ]
            )
            body = value if draw.randrange(2) else f'{{"name": {value}}}'
            return Sent("value", method, path, body.encode("utf-8", "surrogatepass"))
        case 6:
            return Sent("bytes", "POST", "/v1/leases", draw.randbytes(_size(draw)))
        case 7:
            lease = _lease(draw).encode("utf-8", "surrogatepass")
            index = draw.randrange(max(1, len(lease)))
            return Sent(
                "cut", "POST", "/v1/leases", lease[:index] + draw.randbytes(3) + lease[index + draw.randrange(9) :]
            )
        case 8:
            properties = _fill(draw, _size(draw), lambda number: f'"p{number}": "{number}"', "{}")
            return Sent("properties", "PUT", "/v1/os-hosts/1", properties.encode())
        case 9:
            name = draw.choice(["marker", "limit", "sort_by", "name", "status", "user_id", "nosuch", "available_from"])
            value = quote(_text(draw, 2 ** draw.randrange(2, 12)))
            query = "&".join([f"{name}={value}"] * draw.randrange(1, 4))
            return Sent(
                "query", "GET", draw.choice(["/v1/leases", "/v1/os-hosts", "/v1/os-hosts/allocations"]) + f"?{query}"
            )
        case 10:
            name = quote(_text(draw, 2 ** draw.randrange(2, 12)), safe="")
            kind = draw.choice(["leases", "os-hosts", "floatingips", "os-hosts/properties"])
            return Sent("path", draw.choice(["GET", "DELETE", "PUT", "BREW"]), f"/v1/{kind}/{name}")
        case 11 | 12 | 13:
            return Sent(
                f"change {known.name}", "PUT", known.path, _change(draw, known).encode("utf-8", "surrogatepass")
            )
        case 14:
            path = f"{known.path}/reservations"
            return Sent(f"add {known.name}", "POST", path, _added(draw).encode("utf-8", "surrogatepass"))
        case _:
            name = draw.choice(
                ["X-Auth-Token", "OpenStack-API-Version", "Accept", "Content-Type", "X-Forwarded-For", "X-Odd"]
            )
            value = "".join(draw.choice("abc=;, q0.1/*é") for _ in range(2 ** draw.randrange(1, 13)))
            return Sent("header", draw.choice(["GET", "POST"]), "/v1/leases", b"{}", ((name, value),))


# --- the service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("hostile") / "data", hosts=50) as running:
        yield running


def _send(service: Standalone, sent: Sent, *, user: str, version: str) -> tuple[int, bytes]:
    caller = service.caller(user)
    with closing(http.client.HTTPConnection("127.0.0.1", caller.port, timeout=patience())) as connection:
        headers = {"X-Auth-Token": caller.token, "Content-Type": "application/json"}
        headers |= {"OpenStack-API-Version": f"reservation {version}"}
        headers |= {name: value.encode("latin-1").decode("latin-1") for name, value in sent.headers}
        with suppress(BrokenPipeError, ConnectionResetError):  # a body that is too large is answered before its end
            connection.request(sent.method, sent.path, sent.body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture(scope="module")
def live(service: Standalone) -> LiveLeases:
    return LiveLeases(service.caller())


def _cost(service: Standalone, draw: Random, live: LiveLeases) -> tuple[str, Cost]:
    """Draw a request and send it; return its description and its cost."""
    sent = _request(draw, live)
    user, version = draw.choice(["demo", "admin"]), draw.choice(["1.0", "1.1", "1.2"])
    meter = Meter(service.process.pid)
    meter.begin()
    status, answer = _send(service, sent, user=user, version=version)
    cost = meter.end()
    description = (
        f"{sent.kind} as {user} {version}: {len(sent.body or b'')} bytes, {status}, {cost} {(sent.body or b'')[:200]!r}"
    )
    # A process that the machine does not serve for seconds refuses: how much it has used, is checked all the same.
    late = status == 503 and (b"took longer than" in answer or b"not carried out within" in answer)
    assert status < 500 or late, (description, sent.path, answer)
    if status == 201 and "lease" in (made := json.loads(answer)):
        service.caller(user).call(
            "DELETE", f"/leases/{made['lease']['id']}"
        )  # so that it does not add to the cost of later requests
    if sent.path.startswith((live.waiting.path, live.running.path)) and status in {200, 201, 409}:
        live.renew()
        meter.settle()
    return description, cost


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_cost_of_every_request_is_bounded(service: Standalone, live: LiveLeases, seed: int) -> None:
    draw = Random(seed)
    expensive: list[str] = []
    for index in range(REQUESTS // 8):
        before = draw.getstate()
        description, cost = _cost(service, draw, live)
        for _ in range(1, ATTEMPTS):
            if cost.is_bounded():
                break
            Meter(service.process.pid).settle()  # so that remaining work of earlier requests is not counted
            draw.setstate(before)  # the same request, for the present leases
            description, cost = _cost(service, draw, live)
        if not cost.is_bounded():
            expensive.append(f"{seed}/{index} {description}")
    assert expensive == []
