"""Alternatives to refused requests after random histories: each can be booked, and there is no better one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.availability import Alternative, Change
from tenure.domain.errors import NotEnoughResources
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationRequest, UserEvent
from tests.availability.test_offers import HORIZON, History, open_site
from tests.support.world import NOW, OWNER, World, open_world, reservation

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)

#: The refusals of the long test, in batches, and those in each of the histories of a batch.
BATCHES = 10
HISTORIES = 20
REFUSALS = 10
assert BATCHES * HISTORIES * REFUSALS >= 2000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_site(tmp_path) as world:
        yield world


def resized(reservation: ReservationRequest, amount: int) -> ReservationRequest:
    """Return the reservation for another number of units."""
    sizes = {"min": amount, "max": amount} if "min" in reservation.parameters else {"amount": amount}
    return replace(reservation, parameters={**reservation.parameters, **sizes})


def amount_of(reservation: ReservationRequest) -> int:
    amount = reservation.parameters.get("min", reservation.parameters.get("amount"))
    assert isinstance(amount, int)
    return amount


def changed(request: LeaseRequest, alternative: Alternative) -> LeaseRequest:
    """Return the request with what the alternative changes."""
    reservations = list(request.reservations)
    if alternative.reservation is not None:
        index = alternative.reservation
        if alternative.amount is not None:
            reservations[index] = resized(reservations[index], alternative.amount)
        if alternative.resource_properties is not None:
            condition = {"resource_properties": alternative.resource_properties}
            parameters = {**reservations[index].parameters, **condition}
            reservations[index] = replace(reservations[index], parameters=parameters)
    return replace(
        request,
        starts_at=alternative.starts_at,
        ends_at=alternative.ends_at,
        reservations=tuple(reservations),
    )


def check_refusal(history: History) -> bool:
    """Request a random lease; return whether it was refused, after a check of its alternatives."""
    dice, world, requested = history.dice, history.world, history.requested()
    start = history.now + dice.randint(0, 8) * HOUR
    end = start + dice.randint(1, 5) * HOUR
    request = LeaseRequest("wanted", start, end, reservations=requested)
    try:
        history.leases.append(world.leases.create(OWNER, request))
    except NotEnoughResources as refusal:
        lacking = refusal.shortfall.reservation
    else:
        return False
    found = world.service.manager.alternatives.to_lease(OWNER, request, lacking)
    alternatives = {alternative.change: alternative for alternative in found}
    assert len(alternatives) == len(found) <= 3
    for alternative in found:
        world.leases.delete(OWNER, world.leases.create(OWNER, changed(request, alternative)).id)
    check_start(history, requested, start, end, alternatives.get(Change.START))
    check_end(history, requested, start, end, alternatives.get(Change.END))
    check_amount(history, request, lacking, alternatives.get(Change.AMOUNT))
    return True


def check_start(
    history: History,
    requested: tuple[ReservationRequest, ...],
    start: datetime,
    end: datetime,
    alternative: Alternative | None,
) -> None:
    """The lease has its length, and no earlier start has room."""
    latest = history.now + 2 * HORIZON * HOUR  # no lease lasts until then
    if alternative is not None:
        assert alternative.ends_at - alternative.starts_at == end - start
        latest = alternative.starts_at
    starts = (start + index * HOUR / 2 for index in range(4 * HORIZON))
    assert history.first_fitting(requested, (start for start in starts if start < latest), end - start) is None


def check_end(
    history: History,
    requested: tuple[ReservationRequest, ...],
    start: datetime,
    end: datetime,
    alternative: Alternative | None,
) -> None:
    """The lease begins as requested, and cannot last longer."""
    if alternative is None:
        assert not history.has_room(requested, start, start + MINUTE)
        return
    assert alternative.starts_at == start
    assert alternative.ends_at < end
    assert not history.has_room(requested, start, min(alternative.ends_at + HOUR / 2, end))


def check_amount(history: History, request: LeaseRequest, lacking: int, alternative: Alternative | None) -> None:
    """The reservation that lacks resources has fewer units, and no more of them have room."""
    assert isinstance(request.starts_at, datetime)
    assert isinstance(request.ends_at, datetime)
    amount = 0
    if alternative is not None:
        assert alternative.reservation == lacking
        assert alternative.amount is not None
        amount = alternative.amount
    asked = amount_of(request.reservations[lacking])
    assert amount < asked
    if amount + 1 < asked:
        reservations = list(request.reservations)
        reservations[lacking] = resized(reservations[lacking], amount + 1)
        assert not history.has_room(reservations, request.starts_at, request.ends_at)


@pytest.mark.parametrize(
    "dates",
    [
        {"before_end_at": NOW + 3.5 * HOUR},
        {"events": (UserEvent(NOW + 3.5 * HOUR, "soon"), UserEvent(NOW + 4 * HOUR, "now"))},
    ],
)
def test_alternatives_keep_the_dates_of_the_request_inside_the_lease(tmp_path: Path, dates: dict[str, Any]):
    with open_world(tmp_path, hosts=1) as world:
        world.reserve(reservation(1, 1), start=1, hours=2)
        world.reserve(reservation(1, 1), start=4.75, hours=2)
        request = LeaseRequest("wanted", NOW + 2 * HOUR, NOW + 4 * HOUR, reservations=(reservation(1, 1),), **dates)
        with pytest.raises(NotEnoughResources):
            world.leases.create(OWNER, request)
        assert world.service.manager.alternatives.to_lease(OWNER, request, 0) == ()
        request = replace(request, ends_at=NOW + 3.6 * HOUR, events=request.events[:1])
        [alternative] = world.service.manager.alternatives.to_lease(OWNER, request, 0)
        assert alternative.starts_at == NOW + 3 * HOUR
        world.leases.create(OWNER, changed(request, alternative))


@pytest.mark.parametrize(
    "dates", [{"before_end_at": NOW + 4.5 * HOUR}, {"events": (UserEvent(NOW + 4.5 * HOUR, "x"),)}]
)
def test_alternatives_to_a_change_keep_its_dates_inside_the_lease(tmp_path: Path, dates: dict[str, Any]):
    """There is room until hour 4, but the date that is asked for lies after that."""
    with open_world(tmp_path, hosts=1) as world:
        lease = world.reserve(reservation(1, 1), start=1, hours=2)
        world.reserve(reservation(1, 1), start=4, hours=2)
        for change, expected in (
            (LeaseChange(ends_at=NOW + 5 * HOUR), 1),
            (LeaseChange(ends_at=NOW + 5 * HOUR, **dates), 0),
        ):
            with pytest.raises(NotEnoughResources):
                world.leases.update(OWNER, lease.id, change)
            found = world.service.manager.alternatives.to_change(OWNER, lease.id, change, 0)
            assert len([alternative for alternative in found if alternative.change is Change.END]) == expected
            for alternative in found:
                world.leases.update(
                    OWNER, lease.id, replace(change, starts_at=alternative.starts_at, ends_at=alternative.ends_at)
                )


@pytest.mark.slow
def test_alternatives_can_be_booked_and_none_is_better(world: World):
    history = History(world, 1)
    refused = 0
    for _ in range(20):
        history.step()
        refused += check_refusal(history)
    assert refused >= 5


@pytest.mark.long
@pytest.mark.parametrize("batch", range(BATCHES))
def test_alternatives_to_thousands_of_refusals_can_be_booked(tmp_path: Path, batch: int):
    for number in range(HISTORIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_site(folder) as world:
            history = History(world, 5000 + batch * HISTORIES + number)
            refused = 0
            while refused < REFUSALS:
                history.step()
                refused += check_refusal(history)
