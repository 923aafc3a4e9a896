"""Concurrent requests with filters: each books exactly its judged allocations, and is judged once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.config import new_config
from tenure.domain.actor import Actor
from tenure.domain.errors import Denied, TenureError
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseRequest
from tenure.enforcement.contract import EnforcementFilter, Values
from tests.support.databases import MARIADB, POSTGRESQL
from tests.support.waiting import patience
from tests.support.world import OWNER, STRANGER, World, instance_reservation, open_world, reservation, url_in

HOUR = timedelta(hours=1)
#: The number of concurrent requests: as many as may wait for filters.
TOGETHER = 8


class Panel(EnforcementFilter):
    """A filter that waits until the first requests are all there, and answers others at once; it refuses one name."""

    def __init__(self, together: int = TOGETHER) -> None:
        super().__init__(new_config())
        self.asked: Counter[str] = Counter()
        self.refused = ""
        self._together = threading.Barrier(together)
        self._lock = threading.Lock()

    def check_create(self, context: Values, lease_values: Values) -> None:
        with self._lock:
            self.asked[lease_values["name"]] += 1
            waits = self.asked.total() <= self._together.parties
        if waits:
            self._together.wait(patience())
        if lease_values["name"] == self.refused:
            raise Denied("Not you.")


def hosts(world: World, name: str, actor: Actor = OWNER) -> Lease:
    return world.book(1, start=1, name=name, actor=actor)


def instances(world: World, name: str, actor: Actor = OWNER) -> Lease:
    """Book two instances on different hosts; the smallest hosts have room for two of them."""
    return world.reserve(instance_reservation(2, vcpus=16, affinity=False), start=1, name=name, actor=actor)


def all_at_once(world: World, book: Callable[[World, str, Actor], Lease]) -> Counter[str]:
    """Return the outcomes of concurrent requests of two projects: all of them are in the lane of bookings at once."""

    def ask(number: int) -> str:
        try:
            book(world, f"lease {number}", (OWNER, STRANGER)[number % 2])
        except TenureError as error:
            return type(error).__name__
        return "booked"

    with ThreadPoolExecutor(TOGETHER) as pool:
        return Counter(pool.map(ask, range(TOGETHER)))


@pytest.mark.races
@pytest.mark.parametrize("book", [hosts, instances])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sqlite"),
        pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
        pytest.param(MARIADB, marks=pytest.mark.mariadb),
    ],
)
def test_concurrent_requests_with_enough_room_are_all_booked(kind, book, fresh_database, tmp_path: Path):
    """There is just enough for all: a request that gets something else than was judged would take it from another."""
    panel = Panel()

    def check(url: str) -> None:
        with open_world(url, hosts=TOGETHER, filters={"Panel": panel}) as world:
            assert all_at_once(world, book) == {"booked": TOGETHER}

    if kind == "sqlite":
        check(url_in(tmp_path))
    else:
        with fresh_database(kind) as url:
            check(url)
    assert panel.asked.total() <= TOGETHER * 3 // 2, panel.asked  # once each, unless the machine is slow


def test_last_host_goes_to_the_second_request_if_the_first_is_denied(tmp_path: Path):
    """A host in another request's plan is still free: the second request is judged as well."""
    panel = Panel(together=2)
    panel.refused = "lease 0"
    with (
        open_world(tmp_path, hosts=1, filters={"Panel": panel}) as world,
        ThreadPoolExecutor(2) as pool,
    ):
        first, second = (pool.submit(hosts, world, f"lease {number}") for number in range(2))
        assert isinstance(first.exception(patience()), Denied)
        assert world.hosts_of(second.result(patience()).id)
    assert panel.asked == {"lease 0": 1, "lease 1": 1}


def test_judged_host_is_booked_even_if_another_is_better_by_now(tmp_path: Path):
    """While the filter thinks, a lease elsewhere is booked that ends just before this one: the gap there is tighter."""
    panel = Panel(together=1)
    with open_world(tmp_path, filters={"Panel": panel}) as world:
        judged: list[str] = []
        ask = panel.check_create

        def and_then(context: Values, lease_values: Values) -> None:
            ask(context, lease_values)
            if lease_values["name"] == "mine" and not judged:
                [host] = lease_values["reservations"][0]["allocations"]
                judged.append(host["hypervisor_hostname"])
                elsewhere = f'["!=", "$hypervisor_hostname", "{judged[0]}"]'
                world.book(1, start=0, hours=1, name="other", hypervisor_properties=elsewhere)

        panel.check_create = and_then  # type: ignore[method-assign]
        begin = world.clock.now() + HOUR
        lease = world.leases.create(OWNER, LeaseRequest("mine", begin, begin + HOUR, None, (reservation(1, 1),)))
        assert world.hosts_of(lease.id) == judged
    assert panel.asked["mine"] == 1


def test_denied_request_does_not_affect_the_next_choice(tmp_path: Path):
    """The gap after another lease is the best place for both requests."""
    panel = Panel(together=1)
    panel.refused = "refused"
    with open_world(tmp_path, filters={"Panel": panel}) as world:
        before = world.book(1, start=0, hours=1, name="before")
        with pytest.raises(Denied):
            hosts(world, "refused")
        assert world.hosts_of(hosts(world, "next").id) == world.hosts_of(before.id)
