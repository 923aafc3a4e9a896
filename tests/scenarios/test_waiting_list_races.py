"""The waiting list under races: threads of two managers book, wait and delete, on every kind of database.

All leases want one of the same hosts in the same period, so every order of service shows: while a lease waits, no
request that was made after it may get anything.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

import pytest

from tenure.domain.errors import Busy, Conflict, LeaseBusy, NotEnoughResources
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import FlexibleRequest, Window
from tenure.services.waiting import waiting_list
from tenure.store.database import Database
from tests.support import ledger
from tests.support.engines import another, running
from tests.support.lengths import times
from tests.support.waiting import patience
from tests.support.world import OWNER, World, open_world, reservation

HOUR = timedelta(hours=1)
THREADS = 16
HOSTS = 3
#: The requests and deletions of each thread.
OPERATIONS = times(8, 100)
BEGIN = 5
#: How many leases of a project may wait, in the race for the last positions of the list, and how often that is run.
MOST, ROUNDS = 3, times(1, 10)


@contextmanager
def two_managers(url: str) -> Iterator[tuple[World, World]]:
    """Open two managers of a cloud; both engines run."""
    with open_world(url, hosts=HOSTS) as world, ExitStack() as stack:
        db = Database(url, clock=world.clock)
        stack.callback(db.close)
        other = replace(world, service=another(world, db=db), db=db)
        for manager in (world, other):
            stack.enter_context(running(manager))
        yield world, other


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was granted or waits: when it was made, and when it was answered, as numbers of one sequence."""

    lease: Lease
    made: int
    answered: int


class Races:
    """What all threads have asked for, and the checks of the order in which they are served."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ticks = itertools.count()
        self.guard = threading.Lock()
        self.asked: dict[str, Asked] = {}
        self.waited = 0

    def note(self, lease: Lease, made: int) -> None:
        with self.guard:
            self.asked[lease.id] = Asked(lease, made, next(self.ticks))
            self.waited += lease.status is LeaseStatus.WAITING

    def forget(self, lease_id: str) -> None:
        """Leave out a lease that is about to be deleted."""
        with self.guard:
            del self.asked[lease_id]

    def check_order(self) -> None:
        """No lease that waits was asked for, and answered, before one that is booked was asked for."""
        with self.guard:
            asked = dict(self.asked)
        with self.world.db.read() as tx:
            status = {lease.id: lease.status for lease in tx.leases.by_ids(asked)}
        with self.guard:
            asked = {lease_id: each for lease_id, each in asked.items() if lease_id in self.asked}
        booked = [asked[lease_id] for lease_id in asked if status.get(lease_id) is LeaseStatus.PENDING]
        waiting = [asked[lease_id] for lease_id in asked if status.get(lease_id) is LeaseStatus.WAITING]
        if booked and waiting:
            overtaken = min(waiting, key=lambda each: each.answered)
            last = max(booked, key=lambda each: each.made)
            assert overtaken.answered > last.made, f"{overtaken.lease.id} was overtaken by {last.lease.id}"


class Client:
    """A thread that asks for leases, with or without waiting, and deletes some of its own."""

    def __init__(self, races: Races, manager: World, seed: int) -> None:
        self.races = races
        self.manager = manager
        self.dice = Random(seed)
        self.own: list[str] = []

    def run(self, gate: threading.Barrier) -> None:
        gate.wait(patience())
        for _ in range(OPERATIONS):
            if self.own and self.dice.random() < 0.5:
                self.delete(self.own.pop(self.dice.randrange(len(self.own))))
            else:
                self.ask(waits=self.dice.random() < 0.5)
            self.races.check_order()

    def ask(self, *, waits: bool) -> None:
        start = self.manager.clock.now() + BEGIN * HOUR
        window = Window(HOUR, start, start) if self.dice.random() < 0.5 else None
        request = FlexibleRequest(
            "race",
            choices=((reservation(1, 1),),),
            window=window,
            starts_at=None if window else start,
            ends_at=None if window else start + HOUR,
            waits=waits,
        )
        while True:
            made = next(self.races.ticks)
            try:
                lease = self.manager.leases.create(OWNER, request)
            except Busy:  # the other threads are of the same project
                continue
            except NotEnoughResources:
                assert not waits
                return
            self.own.append(lease.id)
            self.races.note(lease, made)
            return

    def delete(self, lease_id: str) -> None:
        self.races.forget(lease_id)
        while True:
            try:
                self.manager.leases.delete(OWNER, lease_id)
            except LeaseBusy:
                continue
            return


@pytest.mark.races
def test_waiting_leases_are_neither_lost_nor_overtaken(database_url: str):
    with two_managers(database_url) as managers:
        races = Races(managers[0])
        clients = [Client(races, managers[seed % 2], seed) for seed in range(THREADS)]
        gate = threading.Barrier(THREADS)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda client: client.run(gate), clients))
        assert ledger.faults(database_url) == []
        assert races.waited >= THREADS
    left = set(races.asked)
    with open_world(database_url, hosts=0) as world:
        world.engine.settle()
        while left:
            with world.db.read() as tx:
                leases = tx.leases.by_ids(left)
            booked = [lease.id for lease in leases if lease.status is LeaseStatus.PENDING]
            waiting = [lease.id for lease in leases if lease.status is LeaseStatus.WAITING]
            assert len(booked) + len(waiting) == len(left)
            assert len(booked) == min(HOSTS, len(left)), f"{len(waiting)} wait although there is room"
            for lease_id in booked:
                world.leases.delete(OWNER, lease_id)
            left -= set(booked)
            world.engine.settle()
            assert ledger.faults(database_url) == []


@pytest.mark.races
def test_requests_at_the_same_time_do_not_pass_the_limit_of_the_list(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(waiting_list, "MOST_WAITING", MOST)
    with two_managers(database_url) as managers:
        start = managers[0].clock.now() + BEGIN * HOUR
        managers[0].reserve(reservation(HOSTS, HOSTS), start=BEGIN)
        request = FlexibleRequest(
            "race", choices=((reservation(1, 1),),), starts_at=start, ends_at=start + HOUR, waits=True
        )
        gate = threading.Barrier(THREADS)

        def ask(number: int) -> Lease | None:
            gate.wait(patience())
            try:
                return managers[number % 2].leases.create(OWNER, request)
            except Conflict:
                return None

        with ThreadPoolExecutor(THREADS) as pool:
            for _ in range(ROUNDS):
                waiting = [lease.id for lease in pool.map(ask, range(THREADS)) if lease is not None]
                with managers[0].db.read() as tx:
                    assert tx.leases.count(OWNER.project_id, LeaseStatus.WAITING) == len(waiting) == MOST
                for lease_id in waiting:
                    managers[0].leases.delete(OWNER, lease_id)
