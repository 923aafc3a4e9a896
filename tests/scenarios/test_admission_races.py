"""Concurrent bookings that need plans to move, beside deletions, on every kind of database.

The clouds are small and crowded: often only the move of a plan, or a new arrangement of all plans, makes room. No
resource is allocated twice, every granted lease keeps its full amounts until its end, and no request is answered with
``Unavailable``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random

import pytest

from tenure.domain.admission import AdmissionWay
from tenure.domain.errors import LeaseBusy, NotEnoughResources
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import ReservationRequest
from tenure.services.context import Rules
from tenure.store.database import Database
from tests.services.test_admission_metrics import Count
from tests.support import ledger
from tests.support.engines import another
from tests.support.lengths import times
from tests.support.waiting import patience
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation

HOUR = timedelta(hours=1)
THREADS = 6
#: The bookings and deletions of each thread.
OPERATIONS = times(15, 150)
#: The hours in which all leases of random races are.
HOURS = 6
#: The races for the host of a rack; and how often random races are run at most, until plans have moved.
ROUNDS = times(5, 30)

IN_RACK = '["==", "$rack", "a"]'


class Watch:
    """How the leases of all managers of this process were admitted."""

    def __init__(self) -> None:
        self._count = Count()

    @property
    def ways(self) -> Counter[AdmissionWay]:
        """How many leases were admitted in each way."""
        found = self._count.since()
        return Counter({way: int(found[way.value]) for way in AdmissionWay if way.value in found})

    @property
    def moved(self) -> int:
        """How many leases were admitted because plans made way."""
        return self.ways[AdmissionWay.MOVED] + self.ways[AdmissionWay.EXACT]


@contextmanager
def crowded(url: str, *vcpus: int) -> Iterator[tuple[World, World]]:
    """Open two managers of a cloud with hosts of these sizes, the first of them in a rack of its own."""
    rules = Rules(exact_time=timedelta(minutes=1))
    with open_world(url, hosts=len(vcpus), rules=rules) as world:
        world.resize(*vcpus)
        for number in range(1, len(vcpus) + 1):
            world.resources.update(ADMIN, HOST, str(number), {"rack": "a" if number == 1 else "b"})
        db = Database(url, clock=world.clock)
        try:
            yield world, replace(world, service=another(world, db=db), db=db)
        finally:
            db.close()


def together(*works: Callable[[], object]) -> list[object]:
    """Run all at once, each in a thread of its own; return the results."""
    gate = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> object:
        gate.wait(patience())
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def book(world: World, requested: Sequence[ReservationRequest], start: int, hours: int) -> Lease | None:
    """Book a lease; None if there is no room. All other errors fail the test."""
    try:
        return world.reserve(*requested, start=start, hours=hours)
    except NotEnoughResources:
        return None


def delete(world: World, lease: Lease) -> None:
    """Delete a lease, again if it is being changed at this moment."""
    while True:
        try:
            world.leases.delete(OWNER, lease.id)
        except LeaseBusy:
            continue
        return


def amounts(lease: Lease) -> dict[str, int]:
    """Return the requested units of each reservation."""
    return {
        reservation.id: int(str(reservation.parameters["min" if reservation.resource_type == HOST else "amount"]))
        for reservation in lease.reservations
    }


def check_promises(url: str, granted: Sequence[Lease], deleted: Sequence[Lease]) -> None:
    """The ledger is sound and has exactly the granted leases, complete."""
    assert ledger.faults(url) == []
    stored = ledger.leases(url)
    assert stored.keys() == {lease.id for lease in granted} | {lease.id for lease in deleted}
    for lease in granted:
        assert not stored[lease.id].deleted
        assert stored[lease.id].units == amounts(lease)
    for lease in deleted:
        assert stored[lease.id].deleted
        assert stored[lease.id].hosts == ()


def live_through(world: World, url: str, leases: Sequence[Lease], hours: int) -> None:
    """Let the time of all leases pass: each starts and ends."""
    for _ in range(hours):
        world.pass_time(HOUR)
        assert ledger.faults(url) == []
    assert {world.leases.get(OWNER, lease.id).status for lease in leases} == {LeaseStatus.TERMINATED}


class Booker:
    """A thread that books random leases, and deletes some of its own."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = Random(seed)
        self.granted: list[Lease] = []
        self.deleted: list[Lease] = []
        self.refused = 0

    def requested(self) -> list[ReservationRequest]:
        dice = self.dice
        kinds = (
            lambda: reservation(count := dice.randint(1, 2), count),
            lambda: reservation(1, 1, resource_properties=IN_RACK),
            lambda: instance_reservation(
                dice.randint(1, 3), vcpus=dice.randint(1, 4), affinity=dice.choice((None, None, True, False))
            ),
        )
        return [dice.choice((*kinds, kinds[2]))() for _ in range(dice.choice((1, 1, 2)))]

    def run(self) -> None:
        for _ in range(OPERATIONS):
            if self.granted and self.dice.random() < 0.3:
                lease = self.granted.pop(self.dice.randrange(len(self.granted)))
                delete(self.world, lease)
                self.deleted.append(lease)
                continue
            start = self.dice.randint(1, HOURS - 1)
            lease_or_none = book(self.world, self.requested(), start, self.dice.randint(1, min(3, HOURS - start)))
            if lease_or_none is None:
                self.refused += 1
            else:
                self.granted.append(lease_or_none)


@pytest.mark.races
def test_concurrent_bookings_that_move_plans_keep_all_promises(database_url: str):
    with crowded(database_url, 4, 4, 8) as managers:
        watch = Watch()
        bookers = [Booker(managers[seed % 2], seed) for seed in range(THREADS)]
        for _ in range(ROUNDS):  # how many requests need plans to move is up to the order of the threads
            together(*(booker.run for booker in bookers))
            if watch.moved >= THREADS // 2:
                break
        granted = [lease for booker in bookers for lease in booker.granted]
        deleted = [lease for booker in bookers for lease in booker.deleted]
        refused = sum(booker.refused for booker in bookers)
        print(dict(watch.ways), f"refused: {refused}, deleted: {len(deleted)}")
        check_promises(database_url, granted, deleted)
        assert watch.ways.total() == len(granted) + len(deleted)
        assert watch.moved >= THREADS // 2
        assert refused >= THREADS
        live_through(managers[0], database_url, granted, HOURS + 1)


def fragment(world: World, start: int) -> list[Lease]:
    """Book instances so that the host of rack a becomes free only if two plans move, one after the other.

    The instance there has room on the second host only after the small one there has moved to the third.
    """
    return [
        world.reserve_on(host, instance_reservation(1, vcpus=vcpus), start=start)
        for host, vcpus in ((1, 4), (2, 1), (3, 4))
    ]


@pytest.mark.races
def test_one_of_several_requests_gets_what_only_a_new_arrangement_makes_free(database_url: str):
    with crowded(database_url, 4, 4, 6) as managers:
        world = managers[0]
        granted = [lease for start in range(1, ROUNDS + 1) for lease in fragment(world, start)]
        deleted: list[Lease] = []
        watch = Watch()
        outdated = 0

        def want_host(manager: World, start: int) -> Lease | None:
            return book(manager, [reservation(1, 1, resource_properties=IN_RACK)], start, 1)

        def come_and_go(manager: World, start: int) -> None:
            """Book and delete an instance, which takes half of the room that the arrangement needs."""
            for _ in range(3):
                lease = book(manager, [instance_reservation(1, vcpus=1)], start, 1)
                if lease is not None:
                    delete(manager, lease)
                    deleted.append(lease)

        for start in range(1, ROUNDS + 1):
            racers = [partial(want_host, managers[number % 2], start) for number in range(THREADS - 2)]
            found = together(*racers, *(partial(come_and_go, manager, start) for manager in managers))
            winners = [lease for lease in found if isinstance(lease, Lease)]
            assert len(winners) <= 1
            if not winners:  # possible if each arrangement is outdated before it can be made
                outdated += 1
                winners = [lease for lease in [want_host(world, start)] if lease is not None]
                assert winners
            granted += winners
        print(dict(watch.ways), f"rounds without a winner: {outdated}")
        check_promises(database_url, granted, deleted)
        assert watch.ways[AdmissionWay.EXACT] >= ROUNDS
        live_through(world, database_url, granted, ROUNDS + 2)
