"""Large requests: how long they take, and how long others wait for a lease of one host meanwhile."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from tenure.domain.actor import Actor
from tenure.domain.errors import TenureError
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange, ReservationRequest
from tenure.services.context import Rules
from tests.support.databases import KINDS, DatabaseServers
from tests.support.world import (
    ADMIN,
    OWNER,
    STRANGER,
    World,
    address_reservation,
    instance_reservation,
    open_world,
    reservation,
)

#: How long a lease of one host may take while another project asks for as much as it may.
LONGEST = timedelta(seconds=1)
#: The reservations of a lease, and the instances of each, that may be asked for at most or usually are.
RESERVATIONS = 100
INSTANCES = 100
ADDRESS = "virtual:floatingip"
FIRST_ADDRESS = "203.0.113.10"


@dataclass(frozen=True, slots=True)
class Crowd:
    """What became of a large request, and of the small ones beside it."""

    kind: str
    name: str
    #: How the large request ended: ``granted``, or the name of the error.
    outcome: str
    taken: timedelta
    others: Sequence[timedelta]

    @property
    def median(self) -> timedelta:
        return timedelta(seconds=statistics.median(taken.total_seconds() for taken in self.others))

    def complaints(self) -> Iterator[str]:
        if max(self.others) > LONGEST:
            yield f"{self.kind}: beside {self.name} a lease of one host took {max(self.others).total_seconds():.2f} s"


def measure_large(servers: DatabaseServers, *, quick: bool, say: Callable[[str], None]) -> list[Crowd]:
    """Send each large request to a cloud of 2,000 hosts on each database, and small ones beside it."""
    hosts = 50 if quick else 2000
    found: list[Crowd] = []
    for kind in KINDS:
        hurried = Rules().planning_time
        with servers.fresh_database(kind) as url, open_world(url, hosts=hosts, planning_time=hurried) as world:
            for name, ask in _requests(world, hosts).items():
                crowd = _beside(world, kind, name, ask)
                found.append(crowd)
                say(f"{kind}: {name}: {crowd.outcome} in {crowd.taken.total_seconds():.2f} s")
    return found


def _requests(world: World, hosts: int) -> dict[str, Callable[[], object]]:
    """The large requests, in the order in which they are sent; what is booked stays."""
    few = min(INSTANCES, hosts)
    sizes = {"memory_mb": 65536, "vcpus": 16}
    alike = [instance_reservation(few, affinity=False) for _ in range(RESERVATIONS)]
    larger = [instance_reservation(few, affinity=False, **sizes) for _ in range(RESERVATIONS)]
    together = [instance_reservation(2, affinity=True, **sizes) for _ in range(RESERVATIONS)]
    conditions = [reservation(1, 1, resource_properties=_condition(number)) for number in range(RESERVATIONS)]
    nearly_all = reservation(hosts - 200 if hosts > 400 else 1, hosts)
    booked: list[Lease] = []

    def book(*requests: ReservationRequest) -> None:
        booked.append(world.reserve(*requests, start=1))

    def prolong() -> None:
        [first, *_] = booked
        world.leases.update(OWNER, first.id, LeaseChange(ends_at=first.ends_at + timedelta(hours=1)))

    def book_with_an_address() -> None:
        world.resources.register(ADMIN, ADDRESS, f"{world.cloud.world.addresses.public}/{FIRST_ADDRESS}", {})
        book(*alike[1:], address_reservation(1, FIRST_ADDRESS))

    return {
        "100 of 100 instances apart": partial(book, *alike),
        "the same, an hour longer": prolong,
        "99 of 100 instances apart and an address by name": book_with_an_address,
        "100 with conditions of their own": partial(book, *conditions),
        "all hosts but one": partial(book, nearly_all),
        "100 of 100 where plans must move": partial(book, *larger),
        "100 together where plans must move": partial(book, *together),
    }


def _condition(number: int) -> str:
    """An expression that is true of every host, and that no other reservation has."""
    return json.dumps(["or", *([">=", "$vcpus", str(least)] for least in range(-10 - number, 0 - number))])


def _beside(world: World, kind: str, name: str, large: Callable[[], object]) -> Crowd:
    over = threading.Event()
    outcome = ["granted"]
    taken: list[float] = []

    def ask() -> None:
        began = time.monotonic()
        try:
            large()
        except TenureError as error:
            outcome[0] = error.name
        finally:
            taken.append(time.monotonic() - began)
            over.set()

    others = [_one_host(world, STRANGER)]  # so that all that is made once is there
    others.clear()
    asking = threading.Thread(target=ask)
    asking.start()
    while not over.is_set() or not others:
        others.append(_one_host(world, STRANGER))
    asking.join()
    return Crowd(kind, name, outcome[0], timedelta(seconds=taken[0]), others)


def _one_host(world: World, actor: Actor) -> timedelta:
    """How long a lease of one host takes, on a day of its own; the lease is deleted again."""
    began = time.monotonic()
    lease = None
    with suppress(TenureError):
        lease = world.reserve(reservation(1, 1), start=1, actor=actor)
    taken = timedelta(seconds=time.monotonic() - began)
    if lease is not None:
        world.leases.delete(actor, lease.id)
    return taken
