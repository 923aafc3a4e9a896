"""Offers after random histories: each is true, and there is no better one."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from tenure.domain.availability import OfferQuery
from tenure.domain.errors import NotEnoughResources, TenureError
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseRequest, ReservationRequest, Window
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.services.context import Rules
from tests.support.engines import rebuild
from tests.support.packing import Packing
from tests.support.world import ADMIN, OWNER, World, address_reservation, instance_reservation, open_world, reservation

HOUR = timedelta(hours=1)
HORIZON = 14
#: The share of the starts without room in the model that are tried on the service all the same.
TRIED_ANYWAY = 0.02

#: The searches of the long test, in batches, and those of each of the histories of a batch.
BATCHES = 20
HISTORIES = 20
SEARCHES = 25
assert BATCHES * HISTORIES * SEARCHES >= 10_000


@contextmanager
def open_site(folder: Path, *, hosts: int = 3, cleaning: timedelta = timedelta(0)) -> Iterator[World]:
    """Open a service with hosts of 4 and, the last, 8 VCPUs, and two addresses.

    Its exact search takes as long as it needs.
    """
    rng = random.Random(0)  # the choice of hosts depends on the ids of leases: failures must be repeatable
    with (
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        open_world(folder, hosts=hosts, rules=Rules(exact_time=timedelta(minutes=1), cleaning_time=cleaning)) as world,
    ):
        world.resize(*(hosts - 1) * (4,), 8)
        for address in ("203.0.113.10", "203.0.113.11"):
            world.resources.register(ADMIN, "virtual:floatingip", f"{PUBLIC_NETWORK}/{address}", {})
        yield world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_site(tmp_path) as world:
        yield world


class History:
    """Leases of all types, in hours from a full hour on, and searches."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)  # a test's randomness is not for security
        self.sample = random.Random(seed)
        self.leases: list[Lease] = []

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def requested(self) -> tuple[ReservationRequest, ...]:
        """Return the reservations of a random lease."""
        dice = self.dice
        kinds = (
            lambda: reservation(count := dice.randint(1, 2), count),
            lambda: reservation(1, 2, resource_properties='["==", "$rack", "r1"]'),
            lambda: instance_reservation(
                dice.randint(1, 5), vcpus=dice.choice((1, 2, 3, 4, 8)), affinity=dice.choice((None, True, False))
            ),
            lambda: address_reservation(dice.randint(1, 2)),
        )
        return tuple(dice.choice(kinds)() for _ in range(dice.choice((1, 1, 2, 3))))

    def step(self) -> None:
        """Make a random request, which may be refused, or let time pass."""
        dice = self.dice
        with suppress(TenureError):
            match dice.choice(("book", "book", "book", "book", "delete", "host", "pass")):
                case "book":
                    start = dice.randint(0, HORIZON - 4)
                    self.leases.append(self.world.reserve(*self.requested(), start=start, hours=dice.randint(1, 5)))
                case "delete" if self.leases:
                    self.world.leases.delete(OWNER, dice.choice(self.leases).id)
                case "host":
                    host = str(dice.randint(1, 3))
                    change = dice.choice(("disable", "enable", "rack"))
                    if change == "disable":
                        self.world.resources.disable(ADMIN, "physical:host", host, reason="test")
                    elif change == "enable":
                        self.world.resources.enable(ADMIN, "physical:host", host)
                    else:
                        self.world.resources.update(ADMIN, "physical:host", host, {"rack": dice.choice(("r1", "r2"))})
                case "pass":
                    self.world.pass_time(HOUR)

    def fits(self, requested: Sequence[ReservationRequest], start: datetime, end: datetime) -> bool:
        """Whether such a lease can be booked."""
        request = LeaseRequest("trial", start, end, reservations=tuple(requested))
        try:
            self.world.service.manager.dry_runs.create(OWNER, request)
        except NotEnoughResources:
            return False
        return True

    def has_room(self, requested: Sequence[ReservationRequest], start: datetime, end: datetime) -> bool:
        """Whether such a lease can be booked; mostly the model knows that it cannot."""
        return self.first_fitting(requested, [start], end - start) is not None

    def first_fitting(
        self, requested: Sequence[ReservationRequest], starts: Iterable[datetime], length: timedelta
    ) -> datetime | None:
        """Return the first of these starts at which such a lease can be booked.

        Of the starts without room in the model, only a sample is tried.
        """
        packing = Packing(self.world)
        for start in starts:
            may_fit = packing.may_fit(requested, start, start + length)
            if (may_fit or self.sample.random() < TRIED_ANYWAY) and self.fits(requested, start, start + length):
                assert may_fit, f"the model has no room at {start}"
                return start
        return None


def check_first(history: History) -> int:
    """Search for the first periods, take each, and try all earlier ones; return how many periods were found."""
    world, requested = history.world, history.requested()
    length = history.dice.randint(1, 4) * HOUR
    earliest = history.now + history.dice.randint(0, 3) * HOUR
    latest = history.now + HORIZON * HOUR
    found = world.service.manager.offers.first(OWNER, OfferQuery(requested, Window(length, earliest, latest), limit=2))
    assert found.is_complete
    starts = [earliest + index * HOUR / 2 for index in range(2 * HORIZON)]
    begin = earliest
    for offer in found.offers:
        assert begin <= offer.starts_at <= latest
        assert offer.ends_at == offer.starts_at + length
        earlier = (start for start in starts if begin <= start < offer.starts_at)
        assert history.first_fitting(requested, earlier, length) is None
        assert Packing(world).may_fit(requested, offer.starts_at, offer.ends_at)
        request = LeaseRequest("taken", offer.starts_at, offer.ends_at, reservations=requested)
        world.leases.delete(OWNER, world.leases.create(OWNER, request).id)
        begin = offer.ends_at
    if len(found.offers) < 2:
        later = (start for start in starts if begin <= start <= latest)
        assert history.first_fitting(requested, later, length) is None
    return len(found.offers)


def check_longest(history: History) -> None:
    """Search for the longest lease; it fits, and none that is longer does."""
    requested, start = history.requested(), history.now + history.dice.randint(0, 5) * HOUR
    try:
        found = history.world.service.manager.offers.longest(OWNER, requested, start)
    except NotEnoughResources:
        assert not history.fits(requested, start, start + timedelta(seconds=1))
        return
    assert found.is_complete
    end = found.ends_at or start + timedelta(days=1000)
    assert history.fits(requested, start, end)
    assert found.ends_at is None or not history.fits(requested, start, end + HOUR / 2)


def check_largest(history: History) -> None:
    """Search for the largest amount; it fits, and no larger one does."""
    start = history.now + history.dice.randint(0, 5) * HOUR
    end = start + history.dice.randint(1, 5) * HOUR
    requested = history.requested()[0]
    found = history.world.service.manager.offers.largest(OWNER, requested, start, end)
    assert found.is_complete
    for amount, fits in ((found.amount, True), (found.amount + 1, False)):
        sizes = {"min": amount, "max": amount} if "min" in requested.parameters else {"amount": amount}
        resized = ReservationRequest(requested.resource_type, {**requested.parameters, **sizes})
        if amount:
            assert history.fits([resized], start, end) == fits, amount


@pytest.mark.parametrize("check", [check_first, check_longest, check_largest])
def test_offers_can_be_taken_and_none_is_better(world: World, check: Callable[[History], object]):
    history = History(world, 1)
    for _ in range(10):
        history.step()
        check(history)


def swapped(world: World, start: int) -> None:
    """Book the first host, in rack r1, from hour 5 to hour 9, and the second for two hours of these from ``start`` on.

    No plan can move alone, but the two can change places.
    """
    world.resources.disable(ADMIN, "physical:host", "3", reason="test")
    world.resources.update(ADMIN, "physical:host", "1", {"rack": "r1"})
    world.reserve_on(1, reservation(1, 1), start=5, hours=4)
    world.reserve_on(2, instance_reservation(1, vcpus=4), start=start, hours=2)
    world.resources.disable(ADMIN, "physical:host", "3", reason="test")


IN_RACK = (reservation(1, 1, resource_properties='["==", "$rack", "r1"]'),)


def test_first_period_begins_when_a_plan_on_another_host_ends(world: World):
    swapped(world, 5)
    now = world.clock.now()
    window = Window(2 * HOUR, now + 5 * HOUR, now + HORIZON * HOUR)
    [offer] = world.service.manager.offers.first(OWNER, OfferQuery(IN_RACK, window, limit=1)).offers
    assert offer.starts_at == now + 7 * HOUR


def test_two_reservations_that_fit_alone_begin_when_both_fit(world: World):
    """Each fits alone at all times, so no time at which room appears for a single one comes before both have room."""
    for host in ("2", "3"):
        world.resources.disable(ADMIN, "physical:host", host, reason="test")
    world.reserve(instance_reservation(1, vcpus=2), start=1, hours=2)
    now = world.clock.now()
    both = (instance_reservation(1, vcpus=2), instance_reservation(1, vcpus=1))
    window = Window(HOUR, now + HOUR, now + HORIZON * HOUR)
    found = world.service.manager.offers.first(OWNER, OfferQuery(both, window, limit=1))
    assert [offer.starts_at for offer in found.offers] == [now + 3 * HOUR]


def test_search_without_time_for_moves_finds_the_first_period_without_them(world: World):
    """The time is over in the middle of the only attempt."""
    world.resources.update(ADMIN, "physical:host", "1", {"rack": "r1"})
    world.reserve_on(1, reservation(1, 1), start=5, hours=4)
    now = world.clock.now()
    query = OfferQuery(IN_RACK, Window(2 * HOUR, now + 5 * HOUR, now + HORIZON * HOUR), limit=1)
    found = world.service.manager.offers.first(OWNER, query)
    assert ([offer.starts_at for offer in found.offers], found.is_complete) == ([now + 5 * HOUR], True)
    rebuild(world, rules=replace(world.service.components.rules, search_time=timedelta(microseconds=1)))
    found = world.service.manager.offers.first(OWNER, query)
    assert ([offer.starts_at for offer in found.offers], found.is_complete) == ([now + 9 * HOUR], False)


def test_longest_lease_ends_when_a_plan_on_another_host_begins(world: World):
    swapped(world, 7)
    now = world.clock.now()
    found = world.service.manager.offers.longest(OWNER, IN_RACK, now + 5 * HOUR)
    assert found.ends_at == now + 7 * HOUR


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 25))])
@pytest.mark.parametrize("check", [check_first, check_longest, check_largest])
def test_offers_after_longer_histories_can_be_taken_and_none_is_better(
    world: World, check: Callable[[History], object], seed: int
):
    history = History(world, seed)
    for _ in range(25):
        history.step()
        check(history)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(BATCHES))
def test_thousands_of_offers_can_be_taken(tmp_path: Path, batch: int):
    searches = found = 0
    for number in range(HISTORIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_site(folder) as world:
            history = History(world, 1000 + batch * HISTORIES + number)
            for _ in range(SEARCHES):
                history.step()
                found += check_first(history)
                searches += 1
    assert searches == HISTORIES * SEARCHES
    assert found > searches // 2
