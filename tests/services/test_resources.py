"""Hosts through the services: what is left when requests meet, and when the cloud is slow or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest

from tenure.domain.errors import NotFound
from tenure.domain.request import LeaseChange, ResourceQuery
from tenure.domain.resource import Resource
from tenure.drivers.simulated import Fault, FaultKind
from tests.support.world import ADMIN, HOST, OWNER, World

HOUR = timedelta(hours=1)
#: No wait in here is longer than this, whatever goes wrong.
SECONDS = 30.0


def host(world: World, external_id: str = "1") -> Resource:
    return world.resources.get(ADMIN, HOST, external_id)


def names(world: World) -> list[str]:
    return [one.name for one in world.resources.list(ADMIN, ResourceQuery(HOST, limit=100)).items]


def unregister(world: World, external_id: str = "1") -> None:
    world.resources.unregister(ADMIN, HOST, external_id)


@contextmanager
def held_up(world: World, verb: str, work: Callable[[], object], *, after_effects: int = 0) -> Iterator[Future[object]]:
    """``work`` in a thread of its own, with its call of the cloud held up; it goes on at the end."""
    fault = world.cloud.inject(Fault(FaultKind.BLOCK, verb=verb, after_effects=after_effects))
    with ThreadPoolExecutor(1) as pool:
        try:
            waiting = pool.submit(work)
            assert world.cloud.wait_until_blocked(timeout_seconds=SECONDS)
            yield waiting
        finally:
            world.cloud.clear_faults(fault)
        waiting.exception(SECONDS)


class TestTwoWhoTakeAHostBack:
    @pytest.mark.parametrize("served", [False, True])
    def test_a_slow_one_leaves_alone_who_registered_it_meanwhile(self, world: World, served: bool):
        """The host was given back by somebody faster, registered anew, and promised to somebody."""
        if served:
            lease = world.book(4)
            world.pass_time(HOUR / 2)
            world.leases.delete(OWNER, lease.id)
        with held_up(world, "ensure_unregistered", lambda: unregister(world), after_effects=1) as slow:
            unregister(world)
            again = world.register("sim-host-001", gpu="a100")
            lease = world.book(4, start=1)
        assert slow.result(SECONDS) is None
        assert host(world).reservable
        with world.db.read() as tx:
            assert len(tx.resources.known_external_ids(f"retired:{HOST}")) == served
        assert (host(world).id, host(world).properties) == (again.id, {"gpu": "a100"})
        assert len(world.hosts_of(lease.id)) == 4
        world.leases.update(OWNER, lease.id, LeaseChange(name="still mine"))

    def test_the_last_of_two_finds_nothing_to_do(self, world: World):
        with held_up(world, "ensure_unregistered", lambda: unregister(world)) as slow:
            unregister(world)
            assert "sim-host-001" not in names(world)
        assert slow.result(SECONDS) is None
        with pytest.raises(NotFound):
            host(world)
        assert "1" not in world.cloud.world.pool()
