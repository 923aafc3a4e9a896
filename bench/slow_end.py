"""One end that hangs, and many starts in the same minute: how late are they? In real time, through real threads."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.ledger import HOST, parameters
from bench.measure import percentile
from tenure.cmd.standalone import open_service
from tenure.domain.actor import Actor
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseQuery, LeaseRequest, Moment, ReservationRequest, When
from tenure.drivers.simulated import Fault, FaultKind
from tenure.factory import Service
from tests.support.simulated import SimulatedCloud

OWNER = Actor("bench", "bench", frozenset({"member", "reader"}))
HOUR = timedelta(hours=1)

#: How long after its due time the last start may be over.
LATEST = timedelta(seconds=10)
#: How many leases are booked and deleted to see how long booking takes, and how much longer it may take in the end.
TRIALS = 10
MARGIN = 3
GIVE_UP = timedelta(seconds=120)
HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after their due times so many starts were over, while an end hung."""

    starts: int
    #: The time over which they were spread.
    spread: timedelta
    late: Sequence[timedelta]

    @property
    def median(self) -> timedelta:
        return timedelta(seconds=statistics.median(moment.total_seconds() for moment in self.late))

    @property
    def p95(self) -> timedelta:
        return timedelta(seconds=percentile([moment.total_seconds() for moment in self.late], 95))

    @property
    def latest(self) -> timedelta:
        return max(self.late)

    def complaints(self) -> Iterator[str]:
        if self.latest > LATEST:
            yield f"slow end: a start was over {self.latest.total_seconds():.1f} s late, {LATEST} is allowed"


def measure_lateness(starts: int, spread: timedelta, say: Callable[[str], None]) -> Lateness:
    """Let one teardown hang, and ``starts`` leases start meanwhile: at the same instant, or spread over a time."""
    with _service(starts + 1) as service:
        needed = starts * MARGIN * _booking_time(service)
        begin = datetime.now(UTC) + timedelta(seconds=5) + needed
        begin = begin.replace(microsecond=0)
        over = f"over {spread.total_seconds():.0f} s"
        say(f"slow end: booking {starts} leases that start from {begin:%H:%M:%S} on, {over}")
        _book(service, HANGS, Moment.NOW, begin)
        for number in range(starts):
            start = begin + spread * number / starts
            _book(service, f"lease-{number:03d}", start.replace(microsecond=0), begin + HOUR)
        if datetime.now(UTC) > begin:
            raise RuntimeError("the leases were not booked before they were to start")
        cloud = service.components.driver
        assert isinstance(cloud, SimulatedCloud)
        cloud.inject(Fault(FaultKind.BLOCK, "ensure_ended", lease_name=HANGS))
        service.engine.start()
        try:
            if not cloud.wait_until_blocked(timeout_seconds=60):
                raise RuntimeError("the end did not begin, so it did not hang")
            leases = _started(service, starts, begin + spread + GIVE_UP)
            if _lease(service, HANGS).status is not LeaseStatus.TERMINATING:
                raise RuntimeError("the end did not hang until all others had started")
        finally:
            cloud.clear_faults()
            service.engine.stop()
        return Lateness(starts, spread, [_late(service, lease) for lease in leases])


@contextmanager
def _service(hosts: int) -> Iterator[Service]:
    """What ``tenure-standalone`` serves, with nobody asking."""
    logging.getLogger("tenure").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        service = open_service(Path(folder), hosts=hosts)
        try:
            yield service
        finally:
            service.components.db.close()
            with suppress(AttributeError):
                service.components.driver.close()  # type: ignore[union-attr]  # a simulated cloud is closed


def _book(service: Service, name: str, start: When, end: datetime) -> None:
    one = ReservationRequest(HOST, parameters(1))
    service.manager.leases.create(OWNER, LeaseRequest(name, start, end, reservations=(one,)))


def _booking_time(service: Service) -> timedelta:
    """How long it takes to book a lease on this machine now."""
    day = datetime.now(UTC) + timedelta(days=1)
    began = time.monotonic()
    for _ in range(TRIALS):
        _book(service, "trial", day, day + HOUR)
    taken = time.monotonic() - began
    for lease in _leases(service):
        service.manager.leases.delete(OWNER, lease.id)
    return timedelta(seconds=taken / TRIALS)


def _leases(service: Service) -> list[Lease]:
    return list(service.manager.leases.list(OWNER, LeaseQuery(limit=10_000)).items)


def _lease(service: Service, name: str) -> Lease:
    return next(lease for lease in _leases(service) if lease.name == name)


def _started(service: Service, starts: int, latest: datetime) -> list[Lease]:
    """The leases that have started, as soon as all have."""
    while datetime.now(UTC) < latest:
        time.sleep(1)
        active = [lease for lease in _leases(service) if lease.status is LeaseStatus.ACTIVE and lease.name != HANGS]
        if len(active) == starts:
            return active
    raise RuntimeError(f"not all of {starts} leases have started {GIVE_UP} after they were to")


def _late(service: Service, lease: Lease) -> timedelta:
    active = next(entry for entry in service.manager.leases.history(OWNER, lease.id) if entry.to_status == "ACTIVE")
    return active.at - lease.starts_at
