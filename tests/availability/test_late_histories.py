"""Late starts after random histories: hosts are given back late and cleaned, so plans are delayed, move and change.

A lease is booked from its start date to its end, whatever became of its plans; and it can last as long as it is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from tenure.domain.actor import Actor
from tenure.domain.capacity import WHOLE
from tenure.domain.errors import NotEnoughResources, TenureError
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange, ReservationRequest
from tenure.domain.usage import MICROSECOND, UsageQuery
from tests.availability.test_offers import open_site
from tests.support.world import ADMIN, HOST, NOW, World, instance_reservation, reservation

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
CLEANING = 30 * MINUTE


@dataclass
class Booked:
    """A lease of a project of its own, and how many units it has asked for since when."""

    id: str
    actor: Actor
    asked: ReservationRequest
    units: list[tuple[datetime, int]] = field(default_factory=list)

    @property
    def counted(self) -> tuple[str, int]:
        """What accounts count of a unit."""
        vcpus = self.asked.parameters.get("vcpus")
        return ("VCPU", vcpus) if isinstance(vcpus, int) else (WHOLE, 1)

    def total(self, lease: Lease, now: datetime) -> int:
        """Return what is booked until now: units multiplied by microseconds."""
        end, found = min(lease.ends_at, now), 0
        for index, (since, units) in enumerate(self.units):
            until = self.units[index + 1][0] if index + 1 < len(self.units) else end
            found += units * max(timedelta(0), min(until, end) - max(since, lease.starts_at)) // MICROSECOND
        return found * self.counted[1]


class LateHistory:
    """Leases of hosts, and of instances on them; many are given back late."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = Random(seed)
        self.booked: list[Booked] = []

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def lease(self, booked: Booked) -> Lease | None:
        """Return the lease, unless it is deleted."""
        with self.world.db.read() as tx:
            return tx.leases.get(booked.id)

    def has_started(self, lease: Lease) -> bool:
        with self.world.db.read() as tx:
            return any(entry.to_status == LeaseStatus.ACTIVE for entry in tx.leases.history(lease.id))

    def living(self) -> list[Booked]:
        """Return the leases that have not ended; only those that should have started, if there are any."""
        known = [(booked, lease) for booked in self.booked if (lease := self.lease(booked)) and _lives(lease)]
        late = [booked for booked, lease in known if _is_late(lease, self.now)]
        return late if late and self.dice.random() < 0.7 else [booked for booked, _ in known]

    def step(self) -> None:
        """Make a random request, which may be refused, or none."""
        dice, world, living = self.dice, self.world, self.living()
        booked = dice.choice(living) if living else None
        lease = self.lease(booked) if booked else None
        with suppress(TenureError):
            match dice.choice(("book", "book", "pass", "end", "end", "units", "delete")):
                case "end" if lease is not None and booked is not None:
                    end = lease.ends_at + dice.choice((-20, 30, 90)) * MINUTE
                    world.leases.update(booked.actor, lease.id, LeaseChange(ends_at=end))
                case "units" if lease is not None and booked is not None:
                    self.change_units(booked, lease, dice.randint(1, 2))
                case "delete" if lease is not None and booked is not None and lease.status is LeaseStatus.PENDING:
                    world.leases.delete(booked.actor, lease.id)
                case "book":
                    self.book()

    def begin(self, hosts: int) -> None:
        """Book the first leases; of two hosts, both are given back late, so that the next lease may have to move."""
        for number in range(3):
            if hosts > 1 and number < hosts:
                self.book_first(reservation(1, 1), 1, hours=0.5, late=(70, 150, 300))
            else:
                self.book()

    def book(self) -> None:
        """Book a lease as early as there is room, so that leases follow each other on the hosts."""
        dice = self.dice
        count = dice.choice((1, 1, 2))
        whole = dice.random() < 0.7
        asked = reservation(count, count) if whole else instance_reservation(count, vcpus=dice.choice((2, 4)))
        late = (15, 40, 70, 150, 300) if dice.random() < 0.7 else ()
        self.book_first(asked, count, hours=dice.choice((0.5, 1, 2)), late=late)

    def book_first(self, asked: ReservationRequest, count: int, *, hours: float, late: Sequence[int]) -> None:
        """Book a lease as early as there is room; its hosts are given back that many minutes ``late``, if any."""
        dice, number = self.dice, len(self.booked)
        actor = Actor(f"user-{number}", f"project-{number}", frozenset({"member", "reader"}))
        for start in range(8):
            with suppress(NotEnoughResources):
                lease = self.world.reserve(asked, start=start / 4, hours=hours, actor=actor)
                self.booked.append(Booked(lease.id, actor, asked, [(self.now, count)]))
                if late:
                    self.world.teardown_lasts(lease, until=lease.ends_at + dice.choice(late) * MINUTE)
                return

    def change_units(self, booked: Booked, lease: Lease, count: int) -> None:
        sizes = {"min": count, "max": count} if booked.asked.resource_type == HOST else {"amount": count}
        change = LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, sizes),))
        self.world.leases.update(booked.actor, lease.id, change)
        booked.units.append((self.now, count))


def _lives(lease: Lease) -> bool:
    return lease.status in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}


def _is_late(lease: Lease, now: datetime) -> bool:
    return lease.status is LeaseStatus.PENDING and lease.starts_at < now


def check_accounts(history: LateHistory) -> None:
    """A lease is booked from its start date, also before it starts late; one that never starts counts for nothing."""
    now = history.now
    query = UsageQuery(NOW - HOUR, now)
    sums = {
        (usage_sum.project_id, usage_sum.resource_class): usage_sum.booked
        for usage_sum in history.world.service.manager.usage.show(ADMIN, query).sums
    }
    for booked in history.booked:
        lease = history.lease(booked)
        counts = lease is not None and (lease.status is LeaseStatus.PENDING or history.has_started(lease))
        expected = booked.total(lease, now) if lease is not None and counts else 0
        assert sums.get((booked.actor.project_id, booked.counted[0]), 0) == expected, (booked, lease)


def check_prolongation(history: LateHistory) -> None:
    """Each lease can be prolonged until when it may last, also while it waits for its host."""
    for booked in history.booked:
        if history.lease(booked) is None:
            continue
        shown = history.world.leases.get(booked.actor, booked.id, look_ahead=True)
        if shown.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}:
            continue
        end = shown.may_end_at or shown.ends_at + HOUR  # nothing limits it
        if end <= shown.ends_at:
            continue
        change = LeaseChange(ends_at=end)
        try:
            history.world.service.manager.dry_runs.update(booked.actor, booked.id, change)
        except NotEnoughResources as refusal:
            raise AssertionError(f"{booked} may last until {end}") from refusal
        except TenureError:
            continue  # it is about to start, or to end


def run(folder: Path, seed: int, steps: int) -> None:
    hosts = 1 + seed % 2
    with open_site(folder, hosts=hosts, cleaning=CLEANING) as world:
        history = LateHistory(world, seed)
        history.begin(hosts)
        for _ in range(steps):
            history.step()
            check_prolongation(history)
            world.pass_time(history.dice.choice((10, 20, 30)) * MINUTE, leap=5 * MINUTE)
            check_accounts(history)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1, 3, 37, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 60) if seed != 37)]
)
def test_late_leases_are_booked_from_their_start_date_and_last_as_long_as_is_said(tmp_path: Path, seed: int):
    run(tmp_path, seed, 12)
