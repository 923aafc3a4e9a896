"""Hosts through the services: concurrent requests, and a slow or refusing cloud."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from tenure.domain.errors import Conflict, NotFound, Unavailable
from tenure.domain.request import LeaseChange, ResourceQuery
from tenure.domain.resource import Resource, ResourceHealth
from tenure.drivers.simulated import Fault, FaultKind
from tests.support.engines import watch
from tests.support.waiting import patience
from tests.support.world import ADMIN, HOST, OWNER, World

ADDRESS = "virtual:floatingip"
HOUR = timedelta(hours=1)


def host(world: World, external_id: str = "1") -> Resource:
    return world.resources.get(ADMIN, HOST, external_id)


def names(world: World) -> list[str]:
    return [host.name for host in world.resources.list(ADMIN, ResourceQuery(HOST, limit=100)).items]


def unregister(world: World, external_id: str = "1") -> None:
    world.resources.unregister(ADMIN, HOST, external_id)


@contextmanager
def held_up(
    world: World, verb: str, work: Callable[[], object], *, after_effects: int = 0, refused: bool = False
) -> Iterator[Future[object]]:
    """Run ``work`` in a thread with its cloud call blocked; at the end the call goes on, or is refused.

    With ``after_effects``, the same call of other requests has no effect, and is not blocked.
    """
    fault = world.cloud.inject(Fault(FaultKind.BLOCK, verb=verb, after_effects=after_effects))
    if refused:
        world.cloud.inject(Fault(FaultKind.REFUSED, verb=verb, after_effects=after_effects, reason="not today"))
    with ThreadPoolExecutor(1) as pool:
        try:
            waiting = pool.submit(work)
            assert world.cloud.wait_until_blocked(timeout_seconds=patience())
            yield waiting
        finally:
            world.cloud.clear_faults(fault)
        waiting.exception(patience())


class TestConcurrentUnregistrations:
    @pytest.mark.parametrize("served", [False, True])
    def test_slow_unregistration_keeps_a_newer_registration(self, world: World, served: bool):
        """A faster request has unregistered the host, registered it again, and booked it."""
        if served:
            lease = world.book(4)
            world.pass_time(HOUR / 2)
            world.leases.delete(OWNER, lease.id)
        with held_up(world, "ensure_unregistered", lambda: unregister(world), after_effects=1) as slow:
            unregister(world)
            again = world.register("sim-host-001", gpu="a100")
            lease = world.book(4, start=1)
        assert slow.result(patience()) is None
        assert host(world).reservable
        with world.db.read() as tx:
            assert len(tx.resources.known_external_ids(f"retired:{HOST}")) == served
        assert (host(world).id, host(world).properties) == (again.id, {"gpu": "a100"})
        assert len(world.hosts_of(lease.id)) == 4
        world.leases.update(OWNER, lease.id, LeaseChange(name="still mine"))

    def test_second_of_two_unregistrations_changes_nothing(self, world: World):
        with held_up(world, "ensure_unregistered", lambda: unregister(world)) as slow:
            unregister(world)
            assert "sim-host-001" not in names(world)
        assert slow.result(patience()) is None
        with pytest.raises(NotFound):
            host(world)
        assert "1" not in world.cloud.world.pool()

    def test_refused_unregistration_keeps_the_host_reservable(self, world: World):
        world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_unregistered", reason="not today"))
        with pytest.raises(Conflict, match="not today"):
            unregister(world)
        assert host(world).reservable
        lease = world.book(4)
        world.leases.delete(OWNER, lease.id)
        unregister(world)
        assert "sim-host-001" not in names(world)

    def test_refused_unregistration_does_not_disturb_another(self, world: World):
        """The other request found the host closed before the refusal came."""
        with held_up(world, "ensure_unregistered", lambda: unregister(world), after_effects=1, refused=True) as slow:
            world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_unregistered"))
            with pytest.raises(Unavailable):
                unregister(world)
        with pytest.raises(Conflict, match="not today"):
            slow.result(patience())
        assert not host(world).reservable

    def test_busy_cloud_leaves_the_host_closed_until_a_retry(self, world: World):
        world.cloud.inject(Fault(FaultKind.LOST_REPLY, verb="ensure_unregistered"))
        with pytest.raises(Unavailable):
            unregister(world)
        assert not host(world).reservable
        unregister(world)
        assert "sim-host-001" not in names(world)


class TestRegistration:
    @pytest.fixture(autouse=True)
    def extra(self, world: World) -> str:
        return world.cloud.world.add_host("extra")

    def test_interrupted_registration_is_completed_with_the_last_properties(self, world: World, extra: str):
        world.cloud.inject(Fault(FaultKind.LOST_REPLY, verb="ensure_registered", count=2))
        for own in ({"gpu": "a100"}, {"disk": "ssd"}):
            with pytest.raises(Unavailable):
                world.register("extra", **own)
            assert not host(world, extra).reservable
        made = world.register("extra", rack="7")
        assert (made.properties, made.reservable) == ({"rack": "7"}, True)
        assert host(world, extra) == made
        found = world.resources.properties(ADMIN, HOST, include_private=True)
        assert [(setting.name, setting.values) for setting in found] == [("rack", ("7",))]
        with pytest.raises(Conflict, match="registered already"):
            world.register("extra", rack="8")
        assert host(world, extra) == made

    def test_one_of_two_concurrent_registrations_succeeds(self, world: World, extra: str):
        with held_up(world, "ensure_registered", lambda: world.register("extra", gpu="a100")) as slow:
            made = world.register("extra", rack="7")
            world.resources.update(ADMIN, HOST, extra, {"disk": "ssd"})
        with pytest.raises(Conflict, match="registered already"):
            slow.result(patience())
        assert host(world, extra).properties == {**made.properties, "disk": "ssd"} == {"rack": "7", "disk": "ssd"}
        assert host(world, extra).reservable

    def test_slow_registration_does_not_reopen_a_host_being_unregistered(self, world: World, extra: str):
        with held_up(world, "ensure_registered", lambda: world.register("extra")) as slow:
            world.register("extra")
            world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_unregistered"))
            with pytest.raises(Unavailable):
                unregister(world, extra)
        with pytest.raises(Conflict):
            slow.result(patience())
        assert not host(world, extra).reservable

    def test_refused_registration_leaves_no_resource(self, world: World, extra: str):
        world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_registered", reason="not today"))
        with pytest.raises(Conflict, match="not today"):
            world.register("extra", gpu="a100")
        with pytest.raises(NotFound):
            host(world, extra)
        assert world.register("extra").reservable

    def test_refused_registration_keeps_a_faster_registration(self, world: World, extra: str):
        with held_up(
            world, "ensure_registered", lambda: world.register("extra"), after_effects=2, refused=True
        ) as slow:
            made = world.register("extra")
        with pytest.raises(Conflict, match="not today"):
            slow.result(patience())
        assert host(world, extra) == made

    def test_properties_cannot_change_during_registration(self, world: World, extra: str):
        """The registration in progress would find another version than its own, and never finish."""
        with (
            held_up(world, "ensure_registered", lambda: world.register("extra", gpu="a100")) as slow,
            pytest.raises(Conflict, match="not registered yet"),
        ):
            world.resources.update(ADMIN, HOST, extra, {"rack": "7"})
        assert slow.result(patience()) == host(world, extra)
        assert host(world, extra).properties == {"gpu": "a100"}


@pytest.mark.parametrize("verb", ["ensure_registered", "ensure_unregistered"])
def test_health_check_does_not_disturb_a_registration(world: World, verb: str):
    """Every manager checks the health every minute. For addresses, the cloud is asked for registered ones only."""
    public = world.cloud.world.addresses.public
    first, second = "203.0.113.10", "203.0.113.11"
    world.resources.register(ADMIN, ADDRESS, f"{public}/{first}", {})

    def look(called: str, *_arguments: object) -> None:
        if called == verb:
            world.service.health_check.run()
            world.service.refresh.run()

    watch(world, look)
    made = world.resources.register(ADMIN, ADDRESS, f"{public}/{second}", {})
    assert (made.health, made.reservable) == (ResourceHealth.WELL, True)
    world.resources.unregister(ADMIN, ADDRESS, made.external_id)
    addresses = world.resources.list(ADMIN, ResourceQuery(ADDRESS, limit=10)).items
    assert [address.name for address in addresses] == [first]


class TestRequestedProperties:
    @pytest.mark.parametrize("parameter", ["resource_properties", "hypervisor_properties"])
    @pytest.mark.parametrize("name", ["gpu", "größe", 'a"b', "back\\slash", "two words", "a/b"])
    def test_requested_property_cannot_change_in_any_json_form(self, world: World, name: str, parameter: str):
        """JSON has several ways to write a name."""
        every = "".join(f"\\u{ord(letter):04x}" for letter in name)
        asks = (json.dumps(["==", f"${name}", "a"]), f'["==", "\\u0024{every}", "a"]')
        for expression in asks:
            world.resources.update(ADMIN, HOST, "1", {name: "a", "other": "1"})
            asked: dict[str, Any] = {parameter: expression}
            lease = world.book(1, start=1, **asked)
            assert world.hosts_of(lease.id) == ["sim-host-001"]
            with pytest.raises(Conflict, match="leases on this host ask for them"):
                world.resources.update(ADMIN, HOST, "1", {name: None})
            world.resources.update(ADMIN, HOST, "1", {"other": "2", "new": expression})
            world.leases.delete(OWNER, lease.id)
            world.resources.update(ADMIN, HOST, "1", {name: None})

    def test_value_in_a_condition_is_not_a_property_name(self, world: World):
        world.resources.update(ADMIN, HOST, "1", {"gpu": "$rack", "rack": "7"})
        world.book(1, start=1, resource_properties='["==", "$gpu", "$rack"]')
        world.resources.update(ADMIN, HOST, "1", {"rack": "8"})
        assert host(world).properties == {"gpu": "$rack", "rack": "8"}

    def test_many_leases_need_one_statement(self, world: World):
        def statements() -> int:
            seen: list[str] = []

            def count(_connection, _cursor, statement: str, *_rest: object) -> None:
                seen.append(statement)

            event.listen(world.db.engine, "before_cursor_execute", count)
            with pytest.raises(Conflict):
                world.resources.update(ADMIN, HOST, "1", {"gpu": "b"})
            event.remove(world.db.engine, "before_cursor_execute", count)
            return len([statement for statement in seen if statement.startswith("SELECT")])

        world.resources.update(ADMIN, HOST, "1", {"gpu": "a"})
        world.book(1, start=1, resource_properties='["==", "$gpu", "a"]')
        assert statements() == 2
        for number in range(2, 12):
            world.book(1, start=number, resource_properties='["==", "$gpu", "a"]')
        assert statements() == 2
