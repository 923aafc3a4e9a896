"""Searches of a project with limits: what they find is within the limits, and is the best that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.availability import Change, OfferQuery
from tenure.domain.errors import NotEnoughResources, OverQuota
from tenure.domain.request import FlexibleRequest, LeaseRequest, Window
from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.support.engines import rebuild
from tests.support.world import ADMIN, HOST, NOW, OWNER, STRANGER, World, open_world, reservation

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
KIND_A, KIND_B = '["==", "$kind", "a"]', '["==", "$kind", "b"]'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as world:
        yield world


def limited(world: World, **limits: int) -> World:
    rebuild(world, quotas=Quotas(FixedLimits(limits, (STRANGER.project_id,))))
    return world


def divided(world: World) -> None:
    """Make two hosts of kind a, and two of kind b."""
    for host, kind in zip("1234", "aabb", strict=True):
        world.resources.update(ADMIN, HOST, host, {"kind": kind})


def test_first_period_begins_when_the_limit_has_room_again(world: World):
    """All hosts that are asked for are free at all times: only the usage of the limit changes."""
    divided(world)
    limited(world, hosts=2)
    world.reserve(reservation(2, 2, resource_properties=KIND_A), start=1, hours=2)
    asked = (reservation(2, 2, resource_properties=KIND_B),)
    window = Window(HOUR, NOW + HOUR, NOW + 20 * HOUR)
    found = world.service.manager.offers.first(OWNER, OfferQuery(asked, window, 1))
    assert ([offer.starts_at for offer in found.offers], found.is_complete) == ([NOW + 3 * HOUR], True)
    lease = world.leases.create(OWNER, FlexibleRequest("flexible", choices=(asked,), window=window))
    assert lease.starts_at == NOW + 3 * HOUR


def test_no_period_overlaps_a_booking_that_fills_the_limit(world: World):
    divided(world)
    limited(world, hosts=2)
    world.reserve(reservation(2, 2, resource_properties=KIND_A), start=2, hours=2)
    asked = (reservation(1, 1, resource_properties=KIND_B),)
    window = Window(3 * HOUR, NOW, NOW + 20 * HOUR)
    found = world.service.manager.offers.first(OWNER, OfferQuery(asked, window, 2))
    assert [offer.starts_at for offer in found.offers] == [NOW + 4 * HOUR, NOW + 7 * HOUR]


def test_first_period_goes_beyond_the_horizon_of_the_hours(world: World):
    """Hours count in the next 30 days: a lease of 5 hours with 3 hours left may begin 3 hours before that."""
    limited(world, hours_of_hosts=3)
    window = Window(5 * HOUR, NOW, NOW + 40 * 24 * HOUR)
    found = world.service.manager.offers.first(OWNER, OfferQuery((reservation(1, 1),), window, 1))
    assert [offer.starts_at for offer in found.offers] == [NOW + 30 * 24 * HOUR - 3 * HOUR]
    window = Window(5 * HOUR, NOW, NOW + 20 * 24 * HOUR)
    found = world.service.manager.offers.first(OWNER, OfferQuery((reservation(1, 1),), window, 1))
    assert (found.offers, found.is_complete) == ((), True)


def test_a_full_limit_of_leases_leaves_no_period(world: World):
    limited(world, leases=1)
    world.reserve(reservation(1, 1), start=1)
    found = world.service.manager.offers.first(OWNER, OfferQuery((reservation(1, 1),), Window(HOUR, NOW), 1))
    assert (found.offers, found.is_complete) == ((), True)


def test_longest_lease_takes_the_hours_that_are_left(world: World):
    limited(world, hours_of_hosts=3)
    found = world.service.manager.offers.longest(OWNER, (reservation(1, 1),), NOW)
    assert (found.ends_at, found.is_complete) == (NOW + 3 * HOUR, True)
    two = (reservation(1, 1), reservation(1, 1))
    assert world.service.manager.offers.longest(OWNER, two, NOW).ends_at == NOW + 1.5 * HOUR
    world.reserve(reservation(1, 1), hours=3)


def test_longest_lease_ends_when_a_booking_of_the_project_fills_the_limit(world: World):
    divided(world)
    limited(world, hosts=2)
    world.reserve(reservation(2, 2, resource_properties=KIND_A), start=4, hours=2)
    asked = (reservation(1, 1, resource_properties=KIND_B),)
    assert world.service.manager.offers.longest(OWNER, asked, NOW).ends_at == NOW + 4 * HOUR
    with pytest.raises(OverQuota):
        world.service.manager.offers.longest(OWNER, asked, NOW + 5 * HOUR)


def test_longest_lease_has_no_end_if_hours_do_not_limit_it(world: World):
    limited(world, hours_of_hosts=30 * 24)
    assert world.service.manager.offers.longest(OWNER, (reservation(1, 1),), NOW).ends_at is None


def test_an_offer_of_a_range_is_booked_with_what_the_limit_leaves(world: World):
    limited(world, hours_of_hosts=1)
    asked = (reservation(2, 3),)
    window = Window(HOUR / 2, NOW + HOUR)
    [offer] = world.service.manager.offers.first(OWNER, OfferQuery(asked, window, 1)).offers
    lease = world.leases.create(OWNER, LeaseRequest("taken", offer.starts_at, offer.ends_at, reservations=asked))
    assert len(world.hosts_of(lease.id)) == 2


def test_a_range_gets_as_much_as_the_limit_leaves(world: World):
    limited(world, hosts=3)
    world.reserve(reservation(1, 1), start=1, hours=2)
    assert len(world.hosts_of(world.reserve(reservation(1, 4), start=2, hours=2).id)) == 2
    with pytest.raises(OverQuota):
        world.reserve(reservation(1, 4), start=2, hours=2)
    several = world.reserve(reservation(1, 1), reservation(1, 4), start=10, hours=1)
    assert len(world.hosts_of(several.id)) == 3


def test_an_earlier_end_is_within_the_limit(world: World):
    """There is room until hour 5, but hours of the project until hour 3 only."""
    limited(world, hours_of_hosts=3)
    world.book(4, start=5, hours=2, actor=STRANGER)
    asked = LeaseRequest("refused", NOW, NOW + 6 * HOUR, reservations=(reservation(1, 1),))
    with pytest.raises((NotEnoughResources, OverQuota)):
        world.leases.create(OWNER, asked)
    found = world.service.manager.alternatives.to_lease(OWNER, asked, 0)
    assert {alternative.change: alternative.ends_at for alternative in found}[Change.END] == NOW + 3 * HOUR


def test_two_ranges_fit_side_by_side_without_the_exact_search(world: World):
    """The first would take all hosts if it could."""
    rebuild(world, rules=replace(world.service.components.rules, exact_time=timedelta(0)))
    both = (reservation(1, 4), reservation(1, 4))
    window = Window(HOUR, NOW + HOUR)
    [offer] = world.service.manager.offers.first(OWNER, OfferQuery(both, window, 1)).offers
    lease = world.leases.create(OWNER, LeaseRequest("taken", offer.starts_at, offer.ends_at, reservations=both))
    assert len(world.hosts_of(lease.id)) >= 2
