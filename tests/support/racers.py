"""Clients that compete for few resources over HTTP: threads of a process that create, change and delete leases.

``run`` starts the process, waits for it and returns what each answer promised. The program uses only the standard
library, and shares no code with the service.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

#: The timeout of a request; exceeding it is a failure.
ANSWER_SECONDS = 60
STEP = timedelta(minutes=10)
#: The maximum number of leases of a thread, and of all threads together.
OWN, SHARED = 4, 12


@dataclass(frozen=True, kw_only=True)
class Race:
    """The parameters of a race: ``operations`` in all, by ``threads`` distributed over the services at ``ports``."""

    ports: Sequence[int] = ()
    tokens: Sequence[str]
    threads: int = 16
    operations: int = 10_000
    seed: int = 0
    #: The hours ahead in which leases are planned: few, so that most hosts are in use.
    hours: int = 12
    #: The types of reservations, each with the same probability.
    mixtures: Sequence[Sequence[str]] = (("physical:host",),)
    #: The network of the requested addresses.
    network_id: str = ""
    #: The time limit of a race.
    limit_seconds: float = 570


@dataclass
class Promise:
    """What the answers promised for one lease."""

    start: str
    end: str
    #: The units of each reservation, by id.
    units: dict[str, int]
    #: The type of each reservation, by id.
    types: dict[str, str]
    shared: bool
    deleted: bool = False
    changes: int = 0
    #: The granted ends of a lease that several threads change.
    ends: list[str] = field(default_factory=list)


@dataclass
class Report:
    """The result of a race."""

    seconds: float = 0.0
    #: The number of answers by method, status and error name.
    answers: dict[str, int] = field(default_factory=dict)
    #: By lease id.
    promises: dict[str, Promise] = field(default_factory=dict)
    #: Forbidden answers: server errors, timeouts, and reads that contradict what was granted. A request that others
    #: overtook until its time was over, or that found no turn, is none: it is refused, with 503.
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    median: float = 0.0

    @property
    def operations(self) -> int:
        return sum(count for name, count in self.answers.items() if not name.startswith("GET"))

    def count_given_up(self) -> int:
        """How many requests were refused since their time was over, or since they found no turn."""
        return sum(number for name, number in self.answers.items() if name.split()[1] == "503")

    def count(self, verb: str, *, refused: bool = False) -> int:
        return sum(
            number
            for name, number in self.answers.items()
            if name.split()[0] == verb and (name.split()[1][0] != "2") is refused
        )


def run(race: Race) -> Report:
    """Run a race and return its report; raise if the clients themselves fail."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(asdict(race)),
        capture_output=True,
        text=True,
        timeout=race.limit_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    promises = {lease_id: Promise(**promise) for lease_id, promise in report.pop("promises").items()}
    return Report(**report, promises=promises)


#: In the message of a refusal because the time of a request is over.
_NOTHING_CHANGED = "nothing was changed"


class _Racers:
    def __init__(self, race: Race) -> None:
        self.race = race
        self.guard = threading.Lock()
        self.left = race.operations
        self.report = Report()
        self.answers: Counter[str] = Counter()
        self.took: list[float] = []
        self.shared: list[str] = []
        self.base = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)

    @property
    def is_mixed(self) -> bool:
        return any(len(mixture) > 1 for mixture in self.race.mixtures)

    def take(self) -> bool:
        """Whether another operation remains."""
        with self.guard:
            self.left -= 1
            return self.left >= 0

    def __call__(self) -> Report:
        began = time.monotonic()
        threads = [_Racer(self, number) for number in range(self.race.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.report.seconds = time.monotonic() - began
        self.report.answers = dict(sorted(self.answers.items()))
        self.report.slowest = max(self.took)
        self.report.median = sorted(self.took)[len(self.took) // 2]
        return self.report


class _Racer(threading.Thread):
    def __init__(self, racers: _Racers, number: int) -> None:
        super().__init__(daemon=True)
        race = racers.race
        self.racers = racers
        self.random = random.Random(f"{race.seed}-{number}")
        self.port = race.ports[number % len(race.ports)]
        self.token = race.tokens[0]
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        self.own: list[str] = []

    def run(self) -> None:
        try:
            while self.racers.take():
                self.step()
        except Exception as error:
            self.wrong(f"a client ended: {error!r}")
            raise
        finally:
            self.connection.close()

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.3 and self.racers.shared:
            self.with_others()
        elif not self.own or (len(self.own) < OWN and chance < 0.75):
            self.make()
        elif chance < 0.9:
            self.change(self.random.choice(self.own))
        elif chance < 0.94 and self.racers.is_mixed:
            self.more_or_less(self.random.choice(self.own))
        else:
            self.delete(self.own.pop(self.random.randrange(len(self.own))))
        if chance < 0.05 and self.own:
            self.look(self.random.choice(self.own))

    def with_others(self) -> None:
        """Change or delete a lease that other threads change and delete at the same time."""
        lease_id = self.random.choice(self.racers.shared)
        if self.random.random() < 0.8:
            self.change(lease_id)
            return
        with self.racers.guard:
            if lease_id in self.racers.shared:
                self.racers.shared.remove(lease_id)
        self.delete(lease_id)

    # --- operations

    def make(self) -> None:
        shared = len(self.racers.shared) < SHARED and self.random.random() < 0.3
        at_once = not shared and self.random.random() < 0.1
        if at_once:
            start, end = "now", _text(datetime.now(UTC) + timedelta(seconds=self.random.randint(3, 8)))
        else:
            begin, finish = self.period()
            start, end = _text(begin), _text(finish)
        reservations = [
            self.reservation(resource_type) for resource_type in self.random.choice(self.racers.race.mixtures)
        ]
        body: dict[str, Any] = {"name": "race", "start_date": start, "end_date": end, "reservations": reservations}
        status, answer = self.call("POST", "/v1/leases", body)
        if status != 201:
            return
        lease = answer["lease"]
        promise = Promise(
            lease["start_date"], lease["end_date"], _units(lease), _types(lease), shared, ends=[lease["end_date"]]
        )
        if [_amount(reservation) for reservation in lease["reservations"]] != [
            _amount(reservation) for reservation in reservations
        ]:
            self.wrong(f"asked for {reservations}, got {lease}")
        if not at_once and (lease["start_date"], lease["end_date"]) != (start, end):
            self.wrong(f"asked for {start} to {end}, got {lease}")
        with self.racers.guard:
            self.racers.report.promises[lease["id"]] = promise
            if shared:
                self.racers.shared.append(lease["id"])
        if not shared:
            self.own.append(lease["id"])

    def change(self, lease_id: str) -> None:
        """Mostly extend the lease; otherwise shorten it, move it, or change its number of hosts."""
        promise = self.racers.report.promises[lease_id]
        chance = self.random.random()
        start, end = datetime.fromisoformat(promise.start), datetime.fromisoformat(promise.end)
        body: dict[str, Any]
        if chance < 0.6:
            body = {"end_date": _text(end + STEP * self.random.randint(1, 6))}
        elif chance < 0.7:
            body = {"end_date": _text(max(start + STEP, end - STEP))}
        elif chance < 0.85:
            begin, finish = self.period()
            body = {"start_date": _text(begin), "end_date": _text(finish)}
        elif promise.shared or not promise.units:
            body = {"end_date": _text(end + STEP)}
        else:
            body = {"reservations": [self.other_amount(promise)]}
        status, answer = self.call("PUT", f"/v1/leases/{lease_id}", body)
        if status != 200:
            return
        lease = answer["lease"]
        if "end_date" in body and lease["end_date"] != body["end_date"]:
            self.wrong(f"asked for the end {body['end_date']}, got {lease}")
        with self.racers.guard:
            promise.start, promise.end = lease["start_date"], lease["end_date"]
            if "reservations" in body:
                promise.units = _units(lease)
            promise.changes += 1
            promise.ends.append(lease["end_date"])

    def more_or_less(self, lease_id: str) -> None:
        """Drop one of several reservations, or add one, while no other thread changes the lease."""
        promise = self.racers.report.promises[lease_id]
        if len(promise.units) > 1:
            dropped = self.random.choice(sorted(promise.units))
            status, _ = self.call("DELETE", f"/v1/leases/{lease_id}/reservations/{dropped}")
            if status == 204:
                with self.racers.guard:
                    del promise.units[dropped]  # if the lease has ended this is no change, and not counted
            return
        resource_type = self.random.choice(self.random.choice(self.racers.race.mixtures))
        status, answer = self.call("POST", f"/v1/leases/{lease_id}/reservations", self.reservation(resource_type))
        if status == 201:
            with self.racers.guard:
                promise.units, promise.types = _units(answer["lease"]), _types(answer["lease"])
                promise.changes += 1

    def delete(self, lease_id: str) -> None:
        status, _ = self.call("DELETE", f"/v1/leases/{lease_id}")
        if status == 204:
            with self.racers.guard:
                self.racers.report.promises[lease_id].deleted = True

    def look(self, lease_id: str) -> None:
        """Check that a granted lease can be read at once."""
        promise = self.racers.report.promises[lease_id]
        status, answer = self.call("GET", f"/v1/leases/{lease_id}")
        if status == 200 and answer["lease"]["end_date"] != promise.end:
            self.wrong(f"granted until {promise.end}, read {answer['lease']}")
        if status == 404:
            self.wrong(f"lease {lease_id} was granted and is not there")

    # --- inside

    def reservation(self, resource_type: str) -> dict[str, Any]:
        """Return a reservation of a random type, so large that a few of them fill the resources."""
        affinity = self.random.choice([None, None, True, False])
        if resource_type == "virtual:instance":
            size = {"vcpus": self.random.choice([8, 16, 32]), "memory_mb": 16_384, "disk_gb": 10}
            return {"resource_type": resource_type, "amount": self.random.randint(1, 5), "affinity": affinity, **size}
        if resource_type == "flavor:instance":
            flavor = self.random.choice(["4", "5"])  # one of them needs GPUs, of which few hosts have few
            return {
                "resource_type": resource_type,
                "amount": self.random.randint(1, 4),
                "affinity": affinity,
                "flavor_id": flavor,
            }
        if resource_type == "virtual:floatingip":
            return {
                "resource_type": resource_type,
                "amount": self.random.randint(1, 3),
                "network_id": self.racers.race.network_id,
            }
        hosts = self.random.choice([1, 1, 1, 2, 3])
        return {"resource_type": resource_type, "min": hosts, "max": hosts}

    def other_amount(self, promise: Promise) -> dict[str, Any]:
        """Change the amount of one reservation of the lease."""
        number = self.random.choice(sorted(promise.units))
        amount = self.random.randint(1, 3 if promise.types[number] == "physical:host" else 5)
        if promise.types[number] == "physical:host":
            return {"id": number, "min": amount, "max": amount}
        return {"id": number, "amount": amount}

    def period(self) -> tuple[datetime, datetime]:
        begin = self.racers.base + STEP * self.random.randrange(self.racers.race.hours * 6)
        return begin, begin + STEP * self.random.randint(1, 12)

    def call(self, verb: str, path: str, body: Any = None, *, counted: bool = True) -> tuple[int, Any]:
        headers = {
            "X-Auth-Token": self.token,
            "OpenStack-API-Version": "reservation 1.1",
            "Content-Type": "application/json",
        }
        began = time.monotonic()
        self.connection.request(verb, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        content = answer.read()
        took = time.monotonic() - began
        document = json.loads(content) if content else None
        refusal = {} if answer.status < 300 or document is None else document
        name = refusal.get("error_name", "")
        is_given_up = answer.status == 503 and (
            answer.getheader("Retry-After") is not None or _NOTHING_CHANGED in refusal.get("error_message", "")
        )
        if answer.status >= 500 and not is_given_up:
            self.wrong(f"{verb} {path}: {answer.status} {document}")
        if counted:
            with self.racers.guard:
                self.racers.answers[f"{verb} {answer.status} {name}".strip()] += 1
                self.racers.took.append(took)
        return answer.status, document

    def wrong(self, what: str) -> None:
        with self.racers.guard:
            self.racers.report.wrong.append(what)


def _amount(reservation: dict[str, Any]) -> int:
    amount: int = reservation.get("min", reservation.get("amount", 0))
    return amount


def _units(lease: dict[str, Any]) -> dict[str, int]:
    return {
        reservation["id"]: _amount(reservation)
        for reservation in lease["reservations"]
        if reservation["status"] != "deleted"
    }


def _types(lease: dict[str, Any]) -> dict[str, str]:
    return {reservation["id"]: reservation["resource_type"] for reservation in lease["reservations"]}


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    json.dump(asdict(_Racers(Race(**json.load(sys.stdin)))()), sys.stdout)
