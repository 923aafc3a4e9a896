"""Volumes in the ledger: in any order of requests, no more is promised than is lent."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.capacity import Capacity
from tenure.domain.errors import LeaseBusy, NotEnoughResources, TenureError
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange, ReservationRequest
from tenure.domain.volume import pool_id
from tenure.drivers.simulated import Fault, FaultKind
from tests.support import ledger
from tests.support.waiting import patience
from tests.support.world import ADMIN, OWNER, World, open_world, url_in

VOLUME = "virtual:volume"
LENT = 100
#: What a volume counts, by what becomes of it.
COUNTS = {"delete": 1, "keep": 1, "snapshot": 2}


@pytest.fixture
def pool(world: World) -> str:
    return lend(world)


def lend(world: World) -> str:
    pool = world.cloud.world.volumes.fast
    world.resources.register(ADMIN, VOLUME, pool, {}, Capacity({"DISK_GB": LENT}))
    return pool


def volumes(world: World, *, start: float = 0, hours: float = 1, **parameters: object) -> Lease:
    asked = {"amount": 1, "size_gb": 10, "volume_type": "fast", "at_end": "delete", "before_end": "default"}
    return world.reserve(ReservationRequest(VOLUME, {**asked, **parameters}), start=start, hours=hours)


def in_use(world: World) -> int:
    """Return the size of all volumes and snapshots in the cloud."""
    return sum(volume.size_gb * (1 + volume.snapshots) for volume in world.cloud.world.volumes.all().values())


def ask(world: World, dice: random.Random, known: list[Lease]) -> None:
    """Do a random operation on a random lease."""
    lease = dice.choice(known) if known else None
    match dice.choice(("book", "book", "book", "grow", "end", "move", "delete", "remove", "wait")):
        case "book":
            at_end = dice.choice(tuple(COUNTS))
            start, hours = dice.choice((0, 1, 2, 5)), dice.choice((1, 2, 6))
            size, amount = dice.choice((5, 10, 20, 30)), dice.randint(1, 4)
            known.append(volumes(world, start=start, hours=hours, at_end=at_end, size_gb=size, amount=amount))
        case "grow" if lease is not None:
            parameters: Mapping[str, object] = {"amount": dice.randint(1, 6)}
            change(world, lease, reservations=(ReservationChange(lease.reservations[0].id, parameters),))
        case "end" if lease is not None:
            parameters = {"at_end": dice.choice(tuple(COUNTS))}
            change(world, lease, reservations=(ReservationChange(lease.reservations[0].id, parameters),))
        case "move" if lease is not None:
            change(world, lease, ends_at=world.clock.now() + timedelta(hours=dice.randint(0, 8)))
        case "delete" if lease is not None:
            world.leases.delete(OWNER, lease.id)
        case "remove":
            for volume_id in list(world.cloud.world.volumes.all())[:1]:
                world.cloud.world.volumes.delete_snapshot(volume_id)
                world.cloud.world.volumes.delete(volume_id)
        case _:
            world.pass_time(timedelta(minutes=dice.choice((10, 60, 150))))
            world.service.reconciler.run()


def change(world: World, lease: Lease, **fields: object) -> None:
    world.leases.update(OWNER, lease.id, LeaseChange(**fields))  # type: ignore[arg-type]  # by name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_volumes_never_exceed_the_lent_capacity(world: World, tmp_path: Path, pool: str, seed: int) -> None:
    url = url_in(tmp_path)
    dice = random.Random(seed)
    known: list[Lease] = []
    answers: Counter[str] = Counter()
    for _ in range(50):
        try:
            ask(world, dice, known)
            answers["granted"] += 1
        except TenureError as error:
            answers[type(error).__name__] += 1
        assert ledger.overbooked(url) == []
        assert in_use(world) <= LENT
    assert answers.keys() >= {"granted", "NotEnoughResources"}


@pytest.mark.races
def test_concurrent_volume_requests_fill_the_pool_exactly(database_url: str) -> None:
    with open_world(database_url, hosts=0) as world:
        lend(world)
        outcomes: Counter[str] = Counter()
        begin = threading.Barrier(12)

        def book(number: int) -> None:
            begin.wait(patience())
            while True:
                try:
                    volumes(world, start=1, size_gb=30, at_end=tuple(COUNTS)[number % 2])
                    outcomes["granted"] += 1
                except NotEnoughResources:
                    outcomes["refused"] += 1
                except LeaseBusy:
                    continue
                return

        threads = [threading.Thread(target=book, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience())
        assert outcomes == {"granted": 3, "refused": 9}
        assert ledger.overbooked(database_url) == []


def test_lease_that_failed_to_start_keeps_no_volumes(world: World, pool: str) -> None:
    world.cloud.world.volumes.add_pool("sim-storage@gone#1", 50, volume_type="gone")
    world.resources.register(ADMIN, VOLUME, "sim-storage@gone#1", {}, Capacity({"DISK_GB": 50}))
    lease = volumes(world, start=1, volume_type="gone", size_gb=50, at_end="keep")
    world.cloud.world.volumes.remove_pool("sim-storage@gone#1")
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started"))
    world.pass_time(timedelta(hours=3))
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ERROR
    world.service.reconciler.run()
    resource = world.resources.get(ADMIN, VOLUME, pool_id("sim-storage@gone#1"))
    world.resources.unregister(ADMIN, VOLUME, resource.external_id)


@pytest.mark.parametrize(("before", "after"), [("keep", "delete"), ("delete", "keep")])
@pytest.mark.parametrize("agreed", [True, False])
def test_at_end_changes_after_the_cloud_has_agreed(
    world: World, pool: str, before: str, after: str, agreed: bool
) -> None:
    lease = volumes(world, amount=6, hours=2, at_end=before)
    world.pass_time(timedelta(minutes=1))
    if not agreed:
        world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", count=1))
    [reservation] = lease.reservations
    with nullcontext() if agreed else pytest.raises(TenureError):
        change(world, lease, reservations=(ReservationChange(reservation.id, {"amount": 7, "at_end": after}),))
    world.pass_time(timedelta(minutes=5))
    kept = {("keep", False): 6, ("delete", False): 0, ("keep", True): 0, ("delete", True): 7}[before, agreed]
    with pytest.raises(NotEnoughResources):
        volumes(world, start=3, amount=11 - kept)
    volumes(world, start=3, amount=10 - kept, hours=2)
    world.pass_time(timedelta(hours=4))
    assert in_use(world) == LENT


@pytest.mark.slow
def test_change_keeps_room_until_the_cloud_has_agreed(world: World, pool: str) -> None:
    lease = volumes(world, amount=6, hours=2, at_end="keep")
    world.pass_time(timedelta(minutes=1))
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None))
    [reservation] = lease.reservations
    change(world, lease, reservations=(ReservationChange(reservation.id, {"amount": 7, "at_end": "delete"}),))
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.UPDATING
    with pytest.raises(NotEnoughResources):
        volumes(world, start=3, amount=5)


def test_unrecorded_volumes_of_a_growth_are_not_kept(world: World, pool: str) -> None:
    """The ledger would not know of such a volume, and would give its room to others."""
    lease = volumes(world, amount=2, size_gb=30, at_end="keep")
    world.pass_time(timedelta(minutes=1))
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None, after_effects=1))
    change(world, lease, reservations=(ReservationChange(lease.reservations[0].id, {"amount": 3}),))
    assert len(world.cloud.world.volumes.all()) == 3
    world.cloud.clear_faults()
    world.leases.delete(OWNER, lease.id)
    world.pass_time(timedelta(minutes=5))
    world.service.reconciler.run()
    assert len(world.cloud.world.volumes.all()) == 2
    volumes(world, size_gb=40)
    world.pass_time(timedelta(minutes=5))
    assert in_use(world) == LENT


def test_kept_volumes_count_from_their_creation(world: World, tmp_path: Path, pool: str) -> None:
    lease = volumes(world, amount=3, at_end="keep")
    world.pass_time(timedelta(0))
    world.leases.delete(OWNER, lease.id)
    world.pass_time(timedelta(0))
    assert len(world.cloud.world.volumes.all()) == 3
    assert ledger.kept(url_in(tmp_path)) == {lease.reservations[0].id: 3}
    with pytest.raises(NotEnoughResources):
        volumes(world, amount=8)


# --- volumes that are not given back


def stuck(world: World, *, amount: int = 1, hours: float = 1) -> Lease:
    """Book a lease whose volumes cannot be deleted at its end."""
    lease = volumes(world, amount=amount, hours=hours)
    world.pass_time(timedelta(minutes=1))
    cannot = "a server has it as its root disk"
    [reservation] = lease.reservations
    world.cloud.inject(
        Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=reservation.id, count=None, reason=cannot)
    )
    return lease


@pytest.mark.slow
def test_late_volume_blocks_only_its_own_room(world: World, pool: str) -> None:
    stuck(world)
    planned, large = volumes(world, start=1.3, amount=3), volumes(world, start=1.31, amount=7)
    world.pass_time(timedelta(hours=1, minutes=10))
    with pytest.raises(NotEnoughResources) as refused:
        volumes(world, hours=0.1, amount=10)
    assert {stage.stage: stage.count for stage in refused.value.shortfall.stages}["fitting"] == 9
    now = volumes(world, hours=0.1, amount=9)
    world.pass_time(timedelta(minutes=11))
    statuses = [world.leases.get(OWNER, lease.id).status for lease in (now, planned, large)]
    assert statuses == [LeaseStatus.TERMINATED, LeaseStatus.ACTIVE, LeaseStatus.PENDING]
    assert in_use(world) == 40
    world.cloud.clear_faults()
    world.pass_time(timedelta(minutes=5))
    assert world.leases.get(OWNER, large.id).status is LeaseStatus.ACTIVE
    assert in_use(world) == LENT


def test_late_volumes_count_only_for_near_starts(world: World, pool: str) -> None:
    stuck(world, amount=4)
    world.pass_time(timedelta(hours=1, minutes=10))
    for start in (0, 0.25):
        with pytest.raises(NotEnoughResources):
            volumes(world, start=start, amount=7)
    volumes(world, start=0.26, amount=10)


def test_growing_lease_leaves_room_for_late_volumes(world: World, pool: str) -> None:
    stuck(world, amount=4)
    lease = volumes(world, amount=5, hours=4)
    world.pass_time(timedelta(hours=1, minutes=10))
    [reservation] = lease.reservations
    with pytest.raises(NotEnoughResources):
        change(world, lease, reservations=(ReservationChange(reservation.id, {"amount": 7}),))
    change(world, lease, reservations=(ReservationChange(reservation.id, {"amount": 6}),))
    assert in_use(world) == LENT


@pytest.mark.slow
def test_volumes_that_become_late_while_a_start_waits_count(world: World, pool: str) -> None:
    """When the first late lease has ended, the start still lacks room, because the second one is late by then."""
    first, second = stuck(world, amount=3), stuck(world, amount=2, hours=1.1)
    waiting, beside = volumes(world, start=1, amount=8), volumes(world, start=1.2, amount=2)
    world.pass_time(timedelta(hours=1, minutes=15))
    assert world.leases.get(OWNER, waiting.id).status is LeaseStatus.PENDING
    assert world.leases.get(OWNER, beside.id).status is LeaseStatus.ACTIVE
    world.cloud.clear_faults()
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=second.reservations[0].id, count=None))
    world.pass_time(timedelta(minutes=20))
    assert world.leases.get(OWNER, first.id).status is LeaseStatus.TERMINATED
    assert world.leases.get(OWNER, waiting.id).status is LeaseStatus.PENDING
    assert in_use(world) == 40
    world.cloud.clear_faults()
    world.pass_time(timedelta(minutes=10))
    assert world.leases.get(OWNER, waiting.id).status is LeaseStatus.ACTIVE
