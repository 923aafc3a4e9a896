"""Searches at full size: the index of availability beside a ledger with a million allocations to come."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bench.ledger import RACK, Size
from bench.measure import Series, percentile
from bench.operations import ADMIN, GPU, HOUR, LARGE, RACK_1, Site, Wanted, member, open_site, refused, times_of
from bench.scale import described
from tenure.domain.availability import AvailabilityQuery, Grouping, OfferQuery
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import FlexibleRequest, Window
from tenure.services.availability.index import AvailabilityIndex
from tests.support.databases import DatabaseServers

#: Half of the bookings are over, and not in the index.
FULL_SIZE = Size("huge", 100_000, bookings_of_host=20, rush=False)
QUICK_SIZE = Size("quick", 1_000, bookings_of_host=20, rush=False)
YEAR = timedelta(days=365)
HOST = "physical:host"
Say = Callable[[str], None]
#: What is promised at full size: 99 of 100 of these operations within so many milliseconds, and the index in so many
#: seconds.
LIMIT_MS = 50
BUILD_SECONDS = 60
PROMISED = frozenset(
    {
        "first period: 4 large hosts with a GPU, 3 days",
        "availability: hosts with a GPU over a year",
        "refused: no such host",
        "refused: more large hosts with a GPU than there are",
    }
)


@dataclass(frozen=True, slots=True)
class Searches:
    """What was measured on one kind of database.

    ``mebibytes`` is by how much the process has grown while the index was made.
    """

    kind: str
    size: Size
    build_seconds: float
    mebibytes: float
    operations: Sequence[tuple[str, Series]]

    def complaints(self) -> list[str]:
        """Return what is slower than promised, at full size."""
        if self.size is not FULL_SIZE:
            return []
        slow = [
            f"{self.kind}: {name}: p99 {percentile(series.seconds, 99) * 1000:.0f} ms instead of {LIMIT_MS} ms"
            for name, series in self.operations
            if name in PROMISED and percentile(series.seconds, 99) * 1000 > LIMIT_MS
        ]
        late = [f"{self.kind}: the index is made in {self.build_seconds:.0f} s instead of {BUILD_SECONDS} s"]
        return slow + (late if self.build_seconds > BUILD_SECONDS else [])


def _first(wanted: Wanted, length: timedelta) -> Callable[[Site, random.Random], object]:
    def act(site: Site, rng: random.Random) -> object:
        earliest = site.times.now + timedelta(days=rng.randrange(1, 60))
        request = wanted.lease(earliest, earliest + length)
        query = OfferQuery(request.reservations, Window(length, earliest, earliest + YEAR))
        return site.service.manager.offers.first(member(0), query)

    return act


def _availability(**query: object) -> Callable[[Site, random.Random], object]:
    def act(site: Site, _rng: random.Random) -> object:
        asked = AvailabilityQuery(HOST, ends_at=site.times.now + YEAR, **query)  # type: ignore[arg-type]  # its fields
        return site.service.manager.availability.show(ADMIN, asked)

    return act


#: How many leases wait while the list is served.
WAITING = 10


def _serve_waiting(site: Site, _rng: random.Random) -> object:
    """Serve a line in which leases wait that never fit: for all hosts of a rack and one more, within 30 days."""
    with site.db.read() as tx:
        is_ready = tx.leases.count(member(0).project_id, LeaseStatus.WAITING) >= WAITING
    for _ in range(0 if is_ready else WAITING):
        wanted = Wanted(RACK + 1, RACK + 1, resource=RACK_1).lease(site.times.now, site.times.now)
        window = Window(HOUR, latest=site.times.now + timedelta(days=30))
        request = FlexibleRequest("waits", (wanted.reservations,), window, waits=True)
        site.service.manager.leases.create(member(0), request)
    site.db.write(lambda tx: tx.waiting.serve_all())
    return site.service.waiting_list.serve()


def _refused(wanted: Wanted) -> Callable[[Site, random.Random], object]:
    prepare = refused(wanted)
    return lambda site, rng: prepare(site, rng).act()


OPERATIONS: Sequence[tuple[str, Callable[[Site, random.Random], object]]] = (
    ("first period: 1 host, 8 hours", _first(Wanted(), 8 * HOUR)),
    ("first period: 4 large hosts with a GPU, 3 days", _first(Wanted(4, 4, LARGE, GPU), timedelta(days=3))),
    ("first period: 10 hosts of one rack, 1 day", _first(Wanted(10, 10, resource=RACK_1), timedelta(days=1))),
    (
        f"first period: all {RACK} hosts of one rack, 1 day",
        _first(Wanted(RACK, RACK, resource=RACK_1), timedelta(days=1)),
    ),
    ("availability: all hosts over a year", _availability()),
    ("availability: hosts with a GPU over a year", _availability(resource_properties=GPU)),
    ("availability: processors over a year", _availability(resource_class="VCPU")),
    ("availability: by kind over a year", _availability(group_by=Grouping.KIND)),
    (f"served: {WAITING} waiting leases that do not fit", _serve_waiting),
    ("refused: no such host", _refused(Wanted(resource='["==", "$gpu", "h100"]'))),
    ("refused: more large hosts with a GPU than there are", _refused(Wanted(90_000, 90_000, LARGE, GPU))),
)


def measure_searches(servers: DatabaseServers, kind: str, *, quick: bool, rounds: int, say: Say) -> Searches:
    """Build an index beside a large ledger, and search in it."""
    size = QUICK_SIZE if quick else FULL_SIZE
    times = times_of(size, datetime.now(UTC))
    say(f"{kind}: writing {described(size)}")
    with servers.fresh_database(kind) as url, open_site(url, size, times) as site:
        say(f"{kind}: building the index")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        AvailabilityIndex(site.db, site.service.parts.clock).view()
        built = time.perf_counter() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        operations = []
        for name, act in OPERATIONS:
            rng, series = random.Random(1), Series()  # not for security
            act(site, rng)
            for _ in range(rounds):
                began = time.perf_counter()
                act(site, rng)
                series.seconds.append(time.perf_counter() - began)
            say(f"{kind}: {name}: {series.median * 1000:.1f} ms, p99 {percentile(series.seconds, 99) * 1000:.1f} ms")
            operations.append((name, series))
        return Searches(kind, size, built, grown, operations)
