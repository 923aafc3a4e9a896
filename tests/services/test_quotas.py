"""Quotas: what is counted, what is refused, and that concurrent requests do not exceed them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest

from tenure.config import new_config, read_config
from tenure.deployment import ConfigurationError, open_quotas
from tenure.domain.errors import OverQuota, TenureError, TooManyConflicts
from tenure.domain.request import LeaseChange, LeaseQuery, ReservationChange
from tenure.resources.contract import load_types
from tenure.services.limits.quotas import FixedLimits, Quotas, names_of
from tests.support.databases import MARIADB, POSTGRESQL
from tests.support.engines import rebuild
from tests.support.waiting import patience
from tests.support.world import ADMIN, OWNER, STRANGER, World, open_world, reservation

HOUR = timedelta(hours=1)
LIMIT = 7
REQUESTS = 100


def limit(world: World, *, exempt: tuple[str, ...] = (), **limits: int) -> None:
    rebuild(world, quotas=Quotas(FixedLimits(limits, exempt), horizon=timedelta(days=1)))


def test_project_never_exceeds_its_leases_limit(world: World):
    limit(world, leases=2, exempt=(ADMIN.project_id,))
    first = world.book(1, start=1)
    world.book(1, start=3)
    with pytest.raises(OverQuota) as refused:
        world.book(1, start=5)
    assert refused.value.message == "Quota exceeded for leases: 2 of 2 used, 1 more requested."
    assert refused.value.details == {"resource": "leases", "limit": 2, "used": 2, "requested": 1}
    world.book(1, start=5, actor=STRANGER)  # each project has its own
    for hour in range(10, 13):
        world.book(1, start=hour, actor=ADMIN)
    world.pass_time(2 * HOUR)  # the first is over
    assert world.leases.get(OWNER, first.id).status == "TERMINATED"
    last = world.book(1, start=5)
    world.leases.delete(OWNER, last.id)
    world.book(1, start=5)


def test_hosts_count_at_their_peak(world: World):
    limit(world, hosts=2)
    world.book(2, start=0, hours=2)
    later = world.book(2, start=2, hours=2)  # begins when the first ends
    with pytest.raises(OverQuota):
        world.book(1, start=1, hours=2)
    with pytest.raises(OverQuota, match="hosts: 2 of 2 used, 2 more requested"):
        world.leases.update(OWNER, later.id, LeaseChange(starts_at=later.starts_at - HOUR))
    with pytest.raises(OverQuota):
        world.leases.add_reservation(OWNER, later.id, reservation(1, 1))
    reservation_id = later.reservations[0].id
    one_host = LeaseChange(reservations=(ReservationChange(reservation_id, {"min": 1, "max": 1}),))
    world.leases.update(OWNER, later.id, one_host)
    assert len(world.leases.add_reservation(OWNER, later.id, reservation(1, 1)).reservations) == 2


def test_hours_count_within_the_horizon(world: World):
    limit(world, hours_of_hosts=10)
    lease = world.book(2, start=1, hours=4)
    with pytest.raises(OverQuota, match="hours of hosts: 8 of 10 used, 3 more requested"):
        world.book(1, start=1, hours=3)
    with pytest.raises(OverQuota, match="hours of hosts: 8 of 10 used, 3 more requested"):
        world.book(1, start=10, hours=3)  # at another time
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
    with pytest.raises(OverQuota):
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + 2 * HOUR))
    world.book(1, start=24, hours=100)  # beyond the day that counts


def test_a_range_gets_what_the_hours_at_other_times_leave(world: World):
    limit(world, hours_of_hosts=10)
    world.book(2, start=1, hours=4)
    lease = world.book((1, 5), start=10, hours=1)
    assert len(world.hosts_of(lease.id)) == 2


def test_project_above_its_limit_can_release(world: World):
    """The limit was lowered after the booking."""
    lease = world.book(3, start=1, hours=3)
    limit(world, hosts=1, leases=0)
    shorter = world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at - HOUR))
    assert shorter.ends_at == lease.ends_at - HOUR
    with pytest.raises(OverQuota):
        world.book(1, start=10)
    world.leases.delete(OWNER, lease.id)


def test_over_quota_request_books_nothing(world: World):
    limit(world, hosts=2)
    with pytest.raises(OverQuota):
        world.book(4)
    limit(world, hosts=4)
    world.book(4)


def test_each_type_has_a_limit_name(world: World):
    assert {"leases", "hosts", "instances", "floating_ips", "hours_of_hosts"} <= set(
        names_of(world.service.components.types)
    )


def test_limits_are_read_from_the_configuration(tmp_path: Path):
    file = tmp_path / "tenure.conf"
    file.write_text("[quota]\ndriver = config\nlimits = leases:2,hours_of_hosts:100\nexempt_project_ids = rich\n")
    conf = new_config()
    read_config(conf, [], files=[file], prog="test")
    quotas = open_quotas(conf)
    assert quotas.of_project("poor", load_types()) == {"leases": 2, "hours_of_hosts": 100}
    assert quotas.of_project("rich", load_types()) == {}
    conf.set_override("limits", {"hots": 1}, group="quota")
    with pytest.raises(ConfigurationError, match="there is no 'hots', only"):
        open_quotas(conf)


# --- many at once


def race(world: World) -> Counter[str]:
    """Send a hundred requests for one host each at once; return how many were booked, and the errors of the others."""
    gate = Barrier(20)

    def book(number: int) -> str:
        if number < gate.parties:
            gate.wait(patience())
        for _ in range(50):
            try:
                world.book(1, start=1, name=f"lease {number}")
            except TooManyConflicts:
                continue
            except TenureError as error:
                return type(error).__name__
            return "booked"
        return "never answered"

    with ThreadPoolExecutor(gate.parties) as pool:
        return Counter(pool.map(book, range(REQUESTS)))


@pytest.mark.races
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sqlite"),
        pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
        pytest.param(MARIADB, marks=pytest.mark.mariadb),
    ],
)
def test_hundred_concurrent_requests_never_exceed_the_limit(kind, fresh_database, tmp_path: Path):
    if kind == "sqlite":
        with open_world(tmp_path, hosts=40) as world:
            check_race(world)
    else:
        with fresh_database(kind) as url, open_world(url, hosts=40) as world:
            check_race(world)


def check_race(world: World) -> None:
    limit(world, leases=LIMIT)
    assert race(world) == {"booked": LIMIT, "OverQuota": REQUESTS - LIMIT}
    assert len(world.leases.list(ADMIN, LeaseQuery(limit=200)).items) == LIMIT
