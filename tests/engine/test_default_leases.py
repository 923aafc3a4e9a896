"""Servers that are booted without a lease get a default lease, once, if the operator has enabled that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.event import listen

from tenure.domain.actor import Actor
from tenure.domain.errors import Conflict, Unavailable
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange, LeaseQuery, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.contract import ServerPage
from tenure.drivers.openstack.requests import Circumstances, Request
from tenure.drivers.simulated import Fault, FaultKind
from tenure.engine.default_leases import DefaultLeases, DefaultTerms
from tenure.services.leases.default_leases import DefaultLeaseBook
from tenure.services.limits.quotas import FixedLimits, Quotas
from tenure.services.requests.leases import LeaseService
from tests.support.engines import rebuild
from tests.support.world import OWNER, STRANGER, World, open_world

DAY = timedelta(days=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=1) as opened:
        opened.cloud.world.add_host("general")
        yield opened


#: All leases last equally long.
TERMS = DefaultTerms("virtual:server", spread=timedelta(0))


class Sweep:
    """The passes of one manager."""

    def __init__(self, world: World, terms: DefaultTerms = TERMS) -> None:
        book = DefaultLeaseBook(world.db)
        self.changed = DefaultLeases(world.leases, book, world.cloud, world.clock, terms)
        self.existing = DefaultLeases(world.leases, book, world.cloud, world.clock, terms, existing=True)

    def run(self) -> int:
        """Run a pass of each; return how many leases were given."""
        return self.changed.run().given + self.existing.run().given


def sweep(world: World) -> Sweep:
    return Sweep(world)


def sweep_with(world: World, terms: DefaultTerms) -> Sweep:
    return Sweep(world, terms)


def boot(world: World, **metadata: str) -> str:
    marks = {f"tenure:{name}": value for name, value in metadata.items()}
    return world.cloud.world.instances.boot("demo-project", "1", name="forgotten", user_id="demo-user", metadata=marks)


def leases(world: World, limit: int = 10):
    return world.leases.list(OWNER, LeaseQuery(limit=limit)).items


def test_a_forgotten_server_is_left_where_it_is_and_shelved_after_a_month(world: World):
    server_id = boot(world)
    [before] = world.cloud.world.servers()
    assert sweep(world).run() == 1
    [lease] = leases(world)
    assert (lease.name, lease.user_id, lease.ends_at - lease.starts_at) == ("server forgotten", "demo-user", 30 * DAY)
    world.pass_time(29 * DAY)
    [running] = world.cloud.world.servers()
    assert (running.id, running.host) == (server_id, before.host)
    world.pass_time(2 * DAY)
    [after] = world.cloud.world.servers()
    assert after.shelved


def test_a_server_whose_flavor_is_not_counted_gets_a_lease(world: World):
    """It stays in its place, so that no room is promised to it."""
    world.cloud.world.instances.add_flavor("special", extra_specs={"hw:numa_nodes": "2"})
    server_id = world.cloud.world.instances.boot("demo-project", "special", name="forgotten", user_id="demo-user")
    assert sweep(world).run() == 1
    world.pass_time(32 * DAY)
    [after] = world.cloud.world.servers()
    assert (after.id, after.shelved) == (server_id, True)


def test_each_server_gets_only_one_default_lease(world: World):
    boot(world)
    first, second = sweep(world), sweep(world)
    assert [first.run(), first.run()] == [1, 0]
    [lease] = leases(world)
    second.run()
    world.pass_time(timedelta(minutes=1))
    world.leases.delete(OWNER, lease.id)
    world.pass_time(timedelta(minutes=1))
    sweep(world).run()
    assert not leases(world)


def test_a_server_that_has_a_lease_gets_no_other(world: World):
    now = world.clock.now()
    size: dict[str, object] = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    asked = LeaseRequest("mine", now + DAY, now + 2 * DAY, reservations=(request(size),))
    server_id = boot(world)
    named = replace(asked, reservations=(request({"server_id": server_id, "at_end": "shelve"}),))
    booked = world.leases.create(OWNER, named)
    marks = {"tenure:lease": booked.id, "tenure:reservation": booked.reservations[0].id}
    world.cloud.world.instances.write(server_id, marks)
    held = world.leases.create(OWNER, replace(asked, hold_for=timedelta(minutes=1)))
    boot(world, lease=held.id, reservation=held.reservations[0].id)
    world.clock.advance(timedelta(minutes=2))
    assert sweep(world).run() == 0


def test_owners_mark_on_a_server_does_not_prevent_its_lease(world: World):
    """Neither the mark of an unknown reservation, nor of another project's, nor of one that has no such server."""
    now = world.clock.now()
    size: dict[str, object] = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    asked = LeaseRequest("theirs", now + DAY, now + 2 * DAY, reservations=(request(size),))
    foreign = world.leases.create(STRANGER, asked)
    boot(world, reservation="x")
    boot(world, reservation=foreign.reservations[0].id)
    another: dict[str, object] = {"server_id": boot(world), "at_end": "shelve"}
    for parameters in (size, another):
        own = world.leases.create(OWNER, replace(asked, name="mine", reservations=(request(parameters),)))
        boot(world, reservation=own.reservations[0].id)
    assert sweep(world).run() == 4


@pytest.mark.parametrize("busy", [False, True])
def test_lease_of_a_deleted_server_ends_at_once(world: World, busy: bool):
    server_id = boot(world)
    given = sweep(world)
    given.run()
    [lease] = leases(world)
    world.pass_time(timedelta(minutes=1))
    world.cloud.world.delete_server(server_id)
    if busy:
        world.cloud.inject(Fault(FaultKind.BUSY, verb="servers", count=1))
        given.changed.run()
        assert leases(world)
    given.changed.run()
    world.pass_time(timedelta(seconds=10))
    assert not leases(world)
    with world.db.read() as tx:
        assert "The server is gone." in [entry.reason for entry in tx.leases.history(lease.id)]
    assert sweep(world).run() == 0


def test_server_over_quota_gets_its_lease_when_quota_is_free(world: World):
    """However long the quota is used up, it delays the lease only."""
    limits = {"leases": 0}
    rebuild(world, quotas=Quotas(FixedLimits(limits, ())))
    boot(world)
    given = sweep(world)
    assert [given.run(), given.run()] == [0, 0]
    world.clock.advance(3 * DAY)
    limits["leases"] = 5
    assert [given.run(), given.run()] == [1, 0]


def test_projects_can_be_exempt(world: World):
    boot(world)
    terms = replace(TERMS, exempt=frozenset({"demo-project"}))
    assert sweep_with(world, terms).run() == 0


def test_the_repair_reads_no_lease_of_a_server_in_its_place(world: World):
    for _ in range(3):
        boot(world)
    assert sweep(world).run() == 3
    world.pass_time(timedelta(minutes=1))
    statements: list[str] = []
    listen(world.db.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    for inventory in ("physical:host", "virtual:floatingip", "volume"):
        assert list(world.service.reconciliation.running(inventory)) == []
    assert len(statements) <= 3 * 4
    assert list(world.cloud.held("physical:host")) == []


def test_servers_of_any_age_get_leases(world: World):
    """Those that were there before the option was set, and those that were booted while no manager ran."""
    boot(world)
    world.clock.advance(20 * DAY)
    assert sweep(world).run() == 1


def test_a_cloud_that_does_not_answer_is_asked_again(world: World):
    """It is asked for the servers only: the list shows what a lease must know of its server."""
    boot(world)
    given = sweep(world)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="servers", count=2))
    world.cloud.inject(Fault(FaultKind.BUSY, verb="fetch", count=None))
    assert [given.run(), given.run()] == [0, 1]


@pytest.mark.slow
def test_existing_servers_get_leases_in_batches_within_a_bound_of_calls(world: World, monkeypatch: pytest.MonkeyPatch):
    """500 servers in passes of 100; a restart goes on, and what is done costs only the pages of the list."""
    for number in range(1, 13):
        world.cloud.world.add_host(f"general-{number}")
    for _ in range(500):
        boot(world)
    world.clock.advance(20 * DAY)
    lists: list[Request] = []
    others: list[Request] = []
    send = world.cloud._transport.send

    def count(request: Request, circumstances: Circumstances) -> object:
        (lists if request.method == "GET" else others).append(request)
        return send(request, circumstances)

    monkeypatch.setattr(world.cloud._transport, "send", count)
    given, calls = [], []
    first, second = sweep(world), sweep(world)
    for manager in [first, first, *[second] * 5]:  # the first is stopped after its second pass
        before = len(lists), len(others)
        report = manager.existing.run()
        world.engine.settle()
        given.append(report.given)
        calls.append((len(lists) - before[0], len(others) - before[1]))
    assert given == [100, 100, 100, 100, 100, 0, 0]
    of_lease = 4  # a server is read, marked, and tagged, and read again at the start
    assert all(read + changed <= 3 + of_lease * 100 for read, changed in calls), calls
    assert calls[-1] == (0, 0)
    assert len(leases(world, limit=1000)) == 500
    again = sweep(world)
    lists.clear()
    assert (again.run(), len(lists)) == (0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.long)])
def test_servers_that_got_leases_together_are_shelved_in_turn(world: World, count: int):
    """Those that are not prolonged; the offset of a server is its own, and only ever added."""
    for number in range(count // 40):
        world.cloud.world.add_host(f"general-{number}")
    booted = {boot(world) for _ in range(count)}
    manager = sweep_with(world, replace(TERMS, spread=timedelta(hours=24), per_pass=count))
    assert manager.run() == count
    world.engine.settle()
    given = leases(world, limit=1000)
    assert len(given) == count
    lengths = [lease.ends_at - lease.starts_at for lease in given]
    assert min(lengths) >= 30 * DAY
    assert max(lengths) < 31 * DAY
    assert max(Counter(length // timedelta(hours=1) for length in lengths).values()) <= count // 10 + 4
    kept = given[0]
    world.leases.update(OWNER, kept.id, LeaseChange(ends_at=kept.ends_at + 30 * DAY))
    world.pass_time(30 * DAY)
    assert not any(server.shelved for server in world.cloud.world.servers())
    shelved = []
    for _ in range(4):
        world.pass_time(timedelta(hours=6))
        shelved.append(sum(server.shelved for server in world.cloud.world.servers()))
    assert all(earlier < later for earlier, later in pairwise(shelved)), shelved
    left = [server.id for server in world.cloud.world.servers() if not server.shelved]
    assert left == [kept.reservations[0].parameters["server_id"]]
    assert booted == {server.id for server in world.cloud.world.servers()}


@pytest.mark.parametrize("when", ["before the list", "after the list", "after the lease"])
def test_a_server_deleted_at_once_leaves_no_lease(world: World, monkeypatch: pytest.MonkeyPatch, when: str):
    server_id = boot(world)
    given = sweep(world)
    list_servers = world.cloud.servers

    def list_and_delete(since: datetime | None, after: str | None = None) -> ServerPage:
        page = list_servers(since, after)
        if when == "after the list" and page.servers and not page.servers[0].is_gone:
            world.cloud.world.delete_server(server_id)
        return page

    monkeypatch.setattr(world.cloud, "servers", list_and_delete)
    if when == "before the list":
        world.cloud.world.delete_server(server_id)
    given.run()
    if when == "after the lease":
        world.cloud.world.delete_server(server_id)
    world.clock.advance(timedelta(seconds=1))
    given.run()
    world.pass_time(timedelta(seconds=10))
    assert not leases(world)


def test_refused_servers_do_not_delay_the_others(world: World):
    """A pass goes on with the next servers, and asks again for the refused ones later."""
    limits = {"leases": 2}
    rebuild(world, quotas=Quotas(FixedLimits(limits, ())))
    for _ in range(5):
        boot(world)
    given = sweep_with(world, replace(TERMS, per_pass=2))
    assert [given.existing.run().given for _ in range(4)] == [2, 0, 0, 0]
    limits["leases"] = 10
    world.clock.advance(timedelta(hours=2))
    assert [given.existing.run().given for _ in range(3)] == [2, 1, 0]


class Unsteady:
    """Leases, of which those of one server cannot be booked right now."""

    def __init__(self, leases: LeaseService, server_id: str) -> None:
        self._leases = leases
        self._server_id = server_id
        self.is_down = True

    def create(self, actor: Actor, request: LeaseRequest, *, lease_id: str) -> Lease:
        if self.is_down and request.reservations[0].parameters["server_id"] == self._server_id:
            raise Unavailable("The filter does not answer.")
        return self._leases.create(actor, request, lease_id=lease_id)


def test_a_server_that_fails_again_and_again_does_not_delay_the_others(world: World):
    """The walk comes to its end, and the next one begins at once."""
    booted = [boot(world) for _ in range(3)]
    unsteady: Any = Unsteady(world.leases, booted[0])
    terms = replace(TERMS, per_pass=1)
    given = DefaultLeases(unsteady, DefaultLeaseBook(world.db), world.cloud, world.clock, terms, existing=True)
    reports = [given.run() for _ in range(3)]
    assert [(report.given, report.is_complete) for report in reports] == [(0, False), (1, False), (1, True)]
    assert reports[0].refused == {booted[0]: "The filter does not answer."}
    unsteady.is_down = False
    assert [given.run().given, given.run().given] == [1, 0]


def test_a_forgotten_marker_begins_the_list_again(world: World, monkeypatch: pytest.MonkeyPatch):
    world.cloud.openstack.page = 2
    booted = [boot(world) for _ in range(4)]
    given = sweep_with(world, replace(TERMS, per_pass=2))
    given.existing.run()
    for server_id in booted[:2]:
        world.cloud.world.delete_server(server_id)
    reports = [given.existing.run() for _ in range(3)]
    assert (sum(report.given for report in reports), reports[-1].is_complete) == (2, True)


@pytest.mark.parametrize("way", ["at once", "named later"])
def test_default_lease_gives_way_to_a_users_lease(world: World, way: str):
    server_id = boot(world)
    sweep(world).run()
    world.pass_time(timedelta(minutes=1))
    [given] = leases(world)
    now = world.clock.now()
    size: dict[str, object] = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    parameters = {"at_end": "shelve", **({"server_id": server_id} if way == "at once" else size)}
    asked = LeaseRequest(
        "mine", now + timedelta(hours=1), now + timedelta(hours=2), reservations=(request(parameters),)
    )
    mine = world.leases.create(OWNER, asked)
    if way == "named later":
        named = (ReservationChange(mine.reservations[0].id, {"server_id": server_id}),)
        world.leases.update(OWNER, mine.id, LeaseChange(reservations=named))
    assert [lease.id for lease in leases(world)] == [mine.id]
    sweep(world).run()
    world.service.reconciler.run()
    [server] = world.cloud.world.servers()
    assert (server.shelved, server.metadata["tenure:lease"]) == (True, mine.id)
    world.pass_time(timedelta(minutes=90))
    [server] = world.cloud.world.servers()
    assert not server.shelved
    assert given.id not in {lease.id for lease in leases(world)}


@pytest.mark.parametrize("kind", [FaultKind.BUSY, FaultKind.REFUSED])
def test_server_stays_after_its_default_lease_gave_way(world: World, kind: FaultKind):
    server_id = boot(world)
    terms = replace(TERMS, at_end="delete")
    sweep_with(world, terms).run()
    world.pass_time(timedelta(minutes=1))
    now = world.clock.now()
    asked = LeaseRequest("mine", now + DAY, now + 2 * DAY, reservations=(request({"server_id": server_id}),))
    world.cloud.inject(Fault(kind, verb="ensure_prepared", count=1))
    with suppress(Conflict):
        world.leases.create(OWNER, asked)
    world.service.reconciler.run()
    world.service.reconciler.run()
    assert [server.id for server in world.cloud.world.servers()] == [server_id]


def request(parameters: dict[str, object]) -> ReservationRequest:
    return ReservationRequest("virtual:server", parameters)


def test_users_lease_does_not_give_way(world: World):
    server_id = boot(world)
    now = world.clock.now()
    asked = LeaseRequest(
        "mine", now + timedelta(hours=1), now + timedelta(hours=2), reservations=(request({"server_id": server_id}),)
    )
    world.leases.create(OWNER, asked)
    with pytest.raises(Conflict):
        world.leases.create(OWNER, asked)
