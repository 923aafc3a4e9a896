"""Two simulated clouds under one service, one for each region."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from tenure.clock import SimulatedClock
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseRequest
from tenure.drivers.router import Router
from tenure.factory import Components, build
from tenure.services.context import Rules
from tenure.simulation import default_policies, installed_types
from tenure.store.database import Database
from tests.support import schemas
from tests.support.simulated import SimulatedCloud
from tests.support.world import (
    ADMIN,
    HOST,
    NOW,
    OWNER,
    UNHURRIED,
    World,
    reservation,
    url_in,
)

NORTH, SOUTH = "north", "south"
HOSTS = 2


@dataclass
class Regions(World):
    """Two simulated clouds with hosts of the same ids; ``cloud`` is the home region's."""

    @property
    def south(self) -> SimulatedCloud:
        return self.clouds[SOUTH]

    def over_both(self, *, start: float = 0.0, south: int = 1) -> Lease:
        begin = self.clock.now() + timedelta(hours=start)
        requested = (replace(reservation(1, 1), region=NORTH), replace(reservation(south, south), region=SOUTH))
        return self.leases.create(
            OWNER, LeaseRequest("both", begin, begin + timedelta(hours=1), reservations=requested)
        )

    def host_in(self, region: str) -> Lease:
        """Book a lease of a host in this region, in an hour."""
        begin = self.clock.now()
        requested = (replace(reservation(1, 1), region=region),)
        return self.leases.create(OWNER, LeaseRequest("one", begin, begin + timedelta(hours=1), reservations=requested))

    def status(self, lease: Lease) -> LeaseStatus:
        return self.leases.get(OWNER, lease.id).status

    def free(self) -> tuple[int, int]:
        """Return the number of free hosts in each region."""
        return len(self.cloud.world.pool()), len(self.south.world.pool())


@contextmanager
def open_regions(location: str | Path, *, workers: int = 0) -> Iterator[Regions]:
    """Open a service with two regions, ``HOSTS`` reservable hosts in each; the database is as in ``open_world``."""
    clock = SimulatedClock(NOW)
    db = Database(url_in(location), clock=clock)
    schemas.lay_out(db)
    north, south = (SimulatedCloud.create(hosts=HOSTS, clock=clock, sleep=lambda _seconds: None) for _ in range(2))
    service = build(
        Components(
            db=db,
            driver=Router({NORTH: north, SOUTH: south}, workers=workers),
            types=installed_types(),
            authorize=default_policies().authorize,
            clock=clock,
            rules=Rules(regions=(NORTH, SOUTH), planning_time=UNHURRIED),
            workers=workers,
        )
    )
    world = Regions(service, clock, {NORTH: north, SOUTH: south}, db)
    for region in (NORTH, SOUTH):
        for number in range(1, HOSTS + 1):
            world.resources.register(ADMIN, HOST, f"sim-host-{number:03d}", {}, region=region)
    try:
        yield world
    finally:
        db.close()
        north.close()
        south.close()
