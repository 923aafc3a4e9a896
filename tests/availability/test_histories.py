"""Searches after random histories in which everything decides: limits, several demands, overdue and shrunk hosts.

Each offer that is taken at once succeeds, and there is no better one: by a model of the limits and of the room, and by
dry runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tenure.domain.availability import OfferQuery
from tenure.domain.errors import Conflict, InvalidParameter, NotEnoughResources, OverQuota, TenureError
from tenure.domain.lease import LeaseStatus
from tenure.domain.period import minute_of
from tenure.domain.request import (
    FlexibleRequest,
    LeaseChange,
    LeaseRequest,
    ReservationRequest,
    StartTimes,
    UserEvent,
    Window,
)
from tenure.domain.usage import UsageQuery
from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.availability.test_alternatives import amount_of, changed
from tests.availability.test_offers import HORIZON, History, open_site
from tests.support.engines import rebuild
from tests.support.world import ADMIN, OWNER, STRANGER, World, instance_reservation, reservation

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
#: How far ahead hours count.
LIMIT_HORIZON = timedelta(hours=24)
#: The noun of a type in the names of limits.
NOUNS = {"physical:host": "hosts", "virtual:instance": "instances", "virtual:floatingip": "floating_ips"}
RACK = '["==", "$rack", "r1"]'


class LimitedHistory(History):
    """A history of two projects, of which one has limits; hosts are overdue and shrink."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        dice = self.dice
        self.limits = {
            name: limit
            for name, limit in {
                "leases": dice.choice((6, 9)),
                "hosts": dice.choice((2, 3)),
                "instances": dice.choice((3, 6)),
                "hours_of_hosts": dice.choice((5, 9)),
                "hours_of_instances": dice.choice((12, 20)),
            }.items()
            if dice.random() < 0.6
        }
        rebuild(world, quotas=Quotas(FixedLimits(self.limits, (STRANGER.project_id,)), horizon=LIMIT_HORIZON))

    def requested(self) -> tuple[ReservationRequest, ...]:
        """Return the reservations of a random lease: some ask for a range, and several for parts of the same hosts."""
        dice = self.dice
        match dice.choice(("any", "any", "range", "parts", "parts")):
            case "range":
                least = dice.randint(1, 2)
                return (reservation(least, least + dice.randint(1, 2)),)
            case "parts":
                return tuple(instance_reservation(1, vcpus=dice.choice((2, 3, 4))) for _ in range(dice.choice((2, 3))))
        return super().requested()

    def step(self) -> None:
        """Make a random request of one of the projects, let a host fail to end or shrink, or let time pass."""
        dice, world = self.dice, self.world
        with suppress(TenureError):
            match dice.choice(("book", "book", "book", "late", "shrink", "other", "other")):
                case "book":
                    start, actor = dice.randint(0, HORIZON - 4), dice.choice((OWNER, STRANGER))
                    hours = dice.randint(1, 5)
                    lease = world.reserve(*self.requested(), start=start, hours=hours, actor=actor)
                    if actor is OWNER:
                        self.leases.append(lease)
                case "late" if self.leases:
                    late = dice.choice(self.leases)
                    world.teardown_lasts(late, until=late.ends_at + dice.choice((20, 50)) * MINUTE)
                case "shrink":
                    world.resize(dice.choice((2, 4)), 4, dice.choice((6, 8, 8)))
                case _:
                    super().step()

    def fits(self, requested: Sequence[ReservationRequest], start: datetime, end: datetime) -> bool:
        try:
            return super().fits(requested, start, end)
        except OverQuota:
            return False

    def booked(self) -> list[tuple[str, datetime, datetime, int]]:
        """Return what the project has booked: the noun, from when to when, and how many units."""
        with self.world.db.read() as tx:
            return [
                (NOUNS[each.resource_type], each.period.start, each.period.end, each.units)
                for each in tx.projects.booked(OWNER.project_id, after=self.now)
            ]

    def is_within_limits(self, requested: Sequence[ReservationRequest], start: datetime, end: datetime) -> bool:
        """Whether the least units of a lease are within the limits, counted instant by instant."""
        now, until = self.now, self.now + LIMIT_HORIZON
        booked = self.booked()
        with self.world.db.read() as tx:
            leases = tx.projects.count_leases(OWNER.project_id)
        if leases + 1 > max(self.limits.get("leases", math.inf), leases):
            return False
        for noun in {NOUNS[request.resource_type] for request in requested}:
            units = sum(amount_of(request) for request in requested if NOUNS[request.resource_type] == noun)
            mine = [(since, to, count) for name, since, to, count in booked if name == noun]
            after = [*mine, (start, end, units)]
            peaks, hours = (
                [max((_at(uses, at) for at in _instants(uses, now)), default=0) for uses in (mine, after)],
                [math.ceil(_length(uses, now, until) / HOUR) for uses in (mine, after)],
            )
            for name, (before, then) in ((noun, peaks), (f"hours_of_{noun}", hours)):
                if then > max(self.limits.get(name, math.inf), before):
                    return False
        return True

    def first_fitting(self, requested: Sequence[ReservationRequest], starts: Any, length: timedelta) -> datetime | None:
        within = (start for start in starts if self.is_within_limits(requested, start, start + length))
        return super().first_fitting(requested, within, length)


def _instants(uses: Sequence[tuple[datetime, datetime, int]], now: datetime) -> list[datetime]:
    return [max(start, now) for start, _, _ in uses]


def _at(uses: Sequence[tuple[datetime, datetime, int]], instant: datetime) -> int:
    return sum(units for start, end, units in uses if start <= instant < end)


def _length(uses: Sequence[tuple[datetime, datetime, int]], start: datetime, end: datetime) -> timedelta:
    lengths = (units * max(timedelta(0), min(to, end) - max(since, start)) for since, to, units in uses)
    return sum(lengths, timedelta(0))


def take(history: LimitedHistory, requested: Sequence[ReservationRequest], start: datetime, end: datetime) -> None:
    """Book what was offered, and delete it."""
    lease = history.world.leases.create(OWNER, LeaseRequest("taken", start, end, reservations=tuple(requested)))
    history.world.leases.delete(OWNER, lease.id)


def check_first(history: LimitedHistory) -> None:
    requested = history.requested()
    length = history.dice.randint(1, 4) * HOUR
    earliest = history.now + history.dice.randint(0, 3) * HOUR
    latest = history.now + HORIZON * HOUR
    found = history.world.service.manager.offers.first(
        OWNER, OfferQuery(requested, Window(length, earliest, latest), 1)
    )
    assert found.is_complete
    until = latest + SECOND
    for offer in found.offers:
        take(history, requested, offer.starts_at, offer.ends_at)
        assert history.is_within_limits(requested, offer.starts_at, offer.ends_at)
        until = offer.starts_at
    starts = [earliest + index * HOUR / 2 for index in range(2 * HORIZON)]
    assert history.first_fitting(requested, [start for start in starts if start < until], length) is None


def check_longest(history: LimitedHistory) -> None:
    requested, start = history.requested(), history.now + history.dice.randint(0, 5) * HOUR
    try:
        found = history.world.service.manager.offers.longest(OWNER, requested, start)
    except (NotEnoughResources, OverQuota):
        assert not history.fits(requested, start, start + SECOND)
        return
    assert found.is_complete
    take(history, requested, start, found.ends_at or start + timedelta(days=1000))
    assert found.ends_at is None or not history.fits(requested, start, found.ends_at + HOUR / 2)


def check_largest(history: LimitedHistory) -> None:
    start = history.now + history.dice.randint(0, 5) * HOUR
    end = start + history.dice.randint(1, 5) * HOUR
    requested = history.requested()[0]
    found = history.world.service.manager.offers.largest(OWNER, requested, start, end)
    assert found.is_complete
    for amount, fits in ((found.amount, True), (found.amount + 1, False)):
        sizes = {"min": amount, "max": amount} if "min" in requested.parameters else {"amount": amount}
        resized = replace(requested, parameters={**requested.parameters, **sizes})
        assert not amount or history.fits([resized], start, end) == fits, amount


def check_alternatives(history: LimitedHistory) -> None:
    """Take each alternative to a refusal, with a date of the action before the end and an event inside the lease."""
    dice, world, requested = history.dice, history.world, history.requested()
    start = history.now + dice.randint(0, 8) * HOUR
    end = start + dice.randint(1, 5) * HOUR
    inside = start + (end - start) * dice.choice((0.25, 0.5, 0.9))
    dates: dict[str, Any] = dice.choice(({}, {"before_end_at": inside}, {"events": (UserEvent(inside, "x"),)}))
    request = LeaseRequest("wanted", start, end, reservations=requested, **dates)
    try:
        history.leases.append(world.leases.create(OWNER, request))
    except NotEnoughResources as refusal:
        for alternative in world.service.manager.alternatives.to_lease(OWNER, request, refusal.shortfall.reservation):
            world.leases.delete(OWNER, world.leases.create(OWNER, changed(request, alternative)).id)
    except OverQuota:
        assert not history.is_within_limits(requested, start, end)


def check_choices(history: LimitedHistory) -> None:
    """Ask for two choices in both orders: they are booked, wait, or are refused alike."""
    dice, world = history.dice, history.world
    choices = (history.requested(), history.requested())
    start = history.now + dice.randint(1, 6) * HOUR
    outcomes = []
    for ordered in (choices, choices[::-1]):
        request = FlexibleRequest("wanted", ordered, None, start, start + 2 * HOUR, waits=True, is_listed=True)
        try:
            lease = world.leases.create(OWNER, request)
        except (NotEnoughResources, OverQuota, Conflict):
            outcomes.append("refused")
            continue
        outcomes.append("waits" if lease.status is LeaseStatus.WAITING else "booked")
        world.leases.delete(OWNER, lease.id)
    assert outcomes[0] == outcomes[1]
    assert ("booked" in outcomes) == any(history.fits(requested, start, start + 2 * HOUR) for requested in choices)


def check_hours(history: LimitedHistory) -> None:
    """Ask for starts at times of the day; the clock of the zone is set in this night."""
    dice, requested = history.dice, history.requested()
    since, until = sorted(time(dice.randint(0, 6), dice.choice((0, 30))) for _ in range(2))
    zone, now = ZoneInfo("Europe/Paris"), history.now
    times, length = StartTimes((), since, until, "Europe/Paris"), dice.randint(1, 3) * HOUR
    window = Window(length, now, now + HORIZON * HOUR, times)
    found = history.world.service.manager.offers.first(OWNER, OfferQuery(requested, window, 1))
    starts = [now + index * HOUR / 2 for index in range(2 * HORIZON)]
    allowed = [start for start in starts if since <= start.astimezone(zone).time() <= until]
    last = now + HORIZON * HOUR
    for offer in found.offers:
        assert since <= offer.starts_at.astimezone(zone).time() <= until
        take(history, requested, offer.starts_at, offer.ends_at)
        last = offer.starts_at
    assert history.first_fitting(requested, [start for start in allowed if start < last], length) is None


def check_prolongation(history: LimitedHistory) -> None:
    """Prolong a lease until when it may last."""
    world = history.world
    for lease in history.leases[-3:]:
        with suppress(TenureError):
            shown = world.leases.get(OWNER, lease.id, look_ahead=True)
            if shown.may_end_at is None or shown.may_end_at <= shown.ends_at:
                continue
            try:
                world.service.manager.dry_runs.update(OWNER, lease.id, LeaseChange(ends_at=shown.may_end_at))
            except NotEnoughResources as refusal:
                raise AssertionError(f"{lease.id} may last until {shown.may_end_at}") from refusal
            except OverQuota:
                continue


def check_soon(history: LimitedHistory) -> None:
    """Search for leases that begin in this minute, and may be over before now: they are refused, or can be taken."""
    dice, world, requested = history.dice, history.world, history.requested()
    world.pass_time(MINUTE / 2)
    start, length = minute_of(history.now), dice.choice((1, 10, 40, 90)) * SECOND
    offers, window = world.service.manager.offers, Window(length, start, dice.choice((None, start + HOUR)))
    for offer in offers.first(OWNER, OfferQuery(requested, window, 1)).offers:
        assert offer.ends_at > history.now
        take(history, requested, offer.starts_at, offer.ends_at)
    request = FlexibleRequest("soon", (requested,), window, waits=dice.random() < 0.5 and window.latest is not None)
    for ask in (
        lambda: world.service.manager.dry_runs.create(OWNER, replace(request, waits=False)),
        lambda: world.leases.delete(OWNER, world.leases.create(OWNER, request).id),
        lambda: offers.largest(OWNER, requested[0], start, start + length),
    ):
        with suppress(NotEnoughResources, OverQuota, Conflict, InvalidParameter):
            ask()
    with suppress(NotEnoughResources, OverQuota):
        found = offers.longest(OWNER, requested, start)
        assert found.ends_at is None or found.ends_at > history.now
    world.pass_time(MINUTE / 2)


CHECKS = (
    check_first,
    check_longest,
    check_largest,
    check_alternatives,
    check_choices,
    check_prolongation,
    check_soon,
)


def accounts(world: World, until: datetime) -> object:
    """Return the accounts of the past."""
    start = until - timedelta(days=30)
    return world.service.manager.usage.show(ADMIN, UsageQuery(start, until)).sums


def run(folder: Path, seed: int, steps: int, checks: Sequence[Callable[[LimitedHistory], None]] = CHECKS) -> None:
    with open_site(folder) as world:
        history = LimitedHistory(world, seed)
        for _ in range(steps):
            past = history.now
            before = accounts(world, past)
            history.step()
            for check in checks:
                check(history)
            assert accounts(world, past) == before
            world.pass_time(10 * MINUTE, leap=5 * MINUTE)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 60))])
def test_what_is_found_with_limits_can_be_taken_and_nothing_is_better(tmp_path: Path, seed: int):
    run(tmp_path, seed, 6)


@pytest.mark.slow
@pytest.mark.parametrize("night", ["2030-03-30T20:00:00Z", "2030-10-26T19:00:00Z"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 20))])
def test_starts_in_the_nights_of_clock_changes_are_at_the_times_that_are_asked_for(
    tmp_path: Path, night: str, seed: int
):
    with open_site(tmp_path) as world:
        world.clock.set(datetime.fromisoformat(night))
        history = LimitedHistory(world, seed)
        for _ in range(8):
            history.step()
            check_hours(history)
