"""Large requests: fast, limited in time, and without delaying other requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from oslo_config import cfg
from sqlalchemy import event

from tenure.domain.errors import NotEnoughResources, Unavailable
from tenure.domain.lease import Lease
from tenure.domain.request import (
    FlexibleRequest,
    LeaseChange,
    LeaseQuery,
    LeaseRequest,
    ReservationRequest,
    ResourceQuery,
)
from tenure.enforcement.contract import EnforcementFilter
from tenure.store.database import Database, Transaction
from tests.support import ledger
from tests.support.interrupting import after_planning
from tests.support.world import (
    ADMIN,
    HOST,
    NOW,
    OWNER,
    World,
    instance_reservation,
    open_world,
    reservation,
)

HOSTS = 12


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=HOSTS) as world:
        yield world


def apart(count: int, amount: int = HOSTS, **parameters: object) -> list[ReservationRequest]:
    """Return this number of instance reservations, each with its instances on different hosts."""
    return [instance_reservation(amount, **{"affinity": False, **parameters}) for _ in range(count)]


def prolong(world: World, lease: Lease) -> object:
    return world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + timedelta(hours=1)))


def statements(world: World, work: Callable[[], object]) -> list[str]:
    """Return the statements that the work executes."""
    run: list[str] = []

    def note(_connection, _cursor, statement, *_more) -> None:
        run.append(statement)

    event.listen(world.db.engine, "before_cursor_execute", note)
    try:
        work()
    finally:
        event.remove(world.db.engine, "before_cursor_execute", note)
    return run


def test_equal_reservations_need_one_search(world: World):
    few, many = (len(statements(world, partial(world.reserve, *apart(count), start=1))) for count in (6, 18))
    assert many - few < 12 * 4  # to prepare a reservation takes statements, to book it none


def test_alike_reservations_are_booked_without_a_statement_each(world: World):
    few, many = (
        len(statements(world, partial(world.reserve, *[instance_reservation()] * count, start=start)))
        for start, count in ((1, 6), (5, 18))
    )
    assert many - few < 12


def test_deleting_a_large_lease_needs_no_statements_for_each_reservation(world: World):
    leases = [world.reserve(*apart(count), start=1) for count in (6, 18)]
    few, many = (len(statements(world, partial(world.leases.delete, OWNER, lease.id))) for lease in leases)
    assert many - few < 12


def test_moving_a_pending_lease_needs_one_search(world: World):
    leases = [world.reserve(*apart(count), start=1) for count in (6, 18)]
    before = [world.units(lease) for lease in leases]
    few, many = (len(statements(world, partial(prolong, world, lease))) for lease in leases)
    assert many - few < 12 * 4
    assert [world.units(lease) for lease in leases] == before  # where they were
    assert ledger.faults(str(world.db.engine.url)) == []


def test_reservations_with_different_starts_are_moved_only_if_all_fit(tmp_path: Path):
    """As after a late release: each reservation has room at its new time, but both together have not."""
    with open_world(tmp_path, hosts=1) as world:
        world.resize(8)
        lease = world.reserve(*[instance_reservation(vcpus=3)] * 2, start=2)
        world.reserve(instance_reservation(vcpus=4), start=1)
        with world.db.read() as tx:
            [plan] = tx.allocations.of_reservations([lease.reservations[0].id])
        later = plan.period.start + timedelta(minutes=30)
        world.db.write(lambda tx: tx.allocations.shorten([plan.id], start=later))
        with pytest.raises(NotEnoughResources):
            world.leases.update(OWNER, lease.id, LeaseChange(starts_at=lease.starts_at - timedelta(hours=1)))
        assert ledger.overbooked(str(world.db.engine.url)) == []


def test_large_lease_gets_all_its_reservations(world: World):
    lease = world.reserve(
        *apart(3, 7),
        reservation(2, 2),
        instance_reservation(40),
        instance_reservation(4, affinity=True),
        reservation(1, 3),
        *apart(2, 5, vcpus=2),
        start=1,
    )
    with world.db.read() as tx:
        parts = [tx.allocations.of_reservations([reservation.id]) for reservation in lease.reservations]
    assert [sum(part.units for part in found) for found in parts] == [7, 7, 7, 2, 40, 4, 3, 5, 5]
    assert [len(found) for found in parts[:3]] == [7] * 3
    assert len(parts[5]) == 1
    assert ledger.faults(str(world.db.engine.url)) == []


def test_large_lease_takes_only_free_resources(world: World):
    other = world.reserve(*apart(6, 6), start=1, hours=2)
    lease = world.reserve(*apart(6, 6, vcpus=8), start=2)
    assert world.units(lease)
    assert world.units(other)
    assert ledger.faults(str(world.db.engine.url)) == []


def test_refusal_of_a_large_lease_names_the_reservation_without_room(world: World):
    with pytest.raises(NotEnoughResources) as refused:
        world.reserve(*apart(5), *apart(1, HOSTS + 1), start=1)
    assert refused.value.field == "reservations[5].amount"
    world.reserve(reservation(HOSTS, HOSTS), start=1)  # nothing of it was left


def test_hosts_booked_since_the_plan_are_not_promised_again(world: World, monkeypatch: pytest.MonkeyPatch):
    others: list[Lease] = []
    plans = after_planning(monkeypatch, lambda: others.append(world.reserve(reservation(4, 4), start=1)))
    lease = world.reserve(*apart(6, 8), start=1)
    assert len(others) == 1
    assert len(plans) == 3  # one of them for the other
    assert sum(units for _, units in world.units(lease)) == 48
    assert ledger.faults(str(world.db.engine.url)) == []


def test_room_booked_in_part_since_the_plan_is_not_promised_again(world: World, monkeypatch: pytest.MonkeyPatch):
    """Each host has room for some of the instances, but not for all that were chosen there."""
    world.resize(*[8] * HOSTS)

    def take_five_of_eight() -> None:
        for number in range(1, HOSTS + 1):
            world.reserve_on(number, instance_reservation(vcpus=5), start=1)

    after_planning(monkeypatch, take_five_of_eight)
    lease = world.reserve(*apart(6, HOSTS // 2), start=1)
    assert sum(units for _, units in world.units(lease)) == 36
    assert ledger.faults(str(world.db.engine.url)) == []


class Agreeing(EnforcementFilter):
    """A filter that agrees to everything, and counts the requests."""

    asked = 0

    def check_create(self, context, lease_values):
        self.asked += 1

    def check_update(self, context, current_lease_values, new_lease_values):
        raise NotImplementedError

    def on_end(self, context, lease_values, *, key):
        raise NotImplementedError


def test_request_is_refused_without_changing_hosts_if_plans_leave_too_few_wherever_they_move(world: World):
    world.reserve(reservation(2, 2), start=2)

    def ask() -> None:
        with pytest.raises(NotEnoughResources) as refused:
            world.reserve(reservation(HOSTS, HOSTS), start=1, hours=3)
        assert refused.value.is_proven

    run = statements(world, ask)
    assert not [statement for statement in run if statement.startswith(("UPDATE resources", "INSERT INTO allocations"))]


def test_plans_move_to_hosts_that_a_request_does_not_want(world: World):
    with world.db.read() as tx:
        hosts = [host.external_id for host in tx.resources.page(ResourceQuery(HOST, 100))]
    for number, host in enumerate(hosts):
        world.resources.update(ADMIN, HOST, host, {"gpu": "yes" if number < HOSTS - 2 else "no"})
    world.reserve_on(int(hosts[0]), reservation(1, 1), start=2)
    asked = reservation(HOSTS - 2, HOSTS - 2, resource_properties='["==", "$gpu", "yes"]')
    assert len(world.units(world.reserve(asked, start=1, hours=3))) == HOSTS - 2


def test_large_lease_is_judged_once_and_booked_as_judged(tmp_path: Path):
    judge = Agreeing(cfg.ConfigOpts())
    with open_world(tmp_path, hosts=HOSTS, filters={"judge": judge}) as world:
        world.reserve(*apart(6, 8), start=1)
        assert judge.asked == 1


@pytest.mark.parametrize("requested", [apart(6), apart(1)], ids=["large", "small"])
def test_request_over_its_time_budget_is_refused_and_changes_nothing(tmp_path: Path, requested):
    with open_world(tmp_path, hosts=HOSTS, planning_time=timedelta(0)) as world:
        with pytest.raises(Unavailable, match="took longer than 0 seconds; nothing was changed"):
            world.reserve(*requested, start=1)
        assert world.leases.list(OWNER, LeaseQuery(10)).items == ()


def test_a_dry_run_writes_nothing(world: World):
    request = LeaseRequest("dry", NOW, NOW + timedelta(hours=1), reservations=tuple(apart(6)))
    run = statements(world, lambda: world.service.manager.dry_runs.create(OWNER, request))
    assert run
    assert all(statement.lstrip().startswith(("BEGIN", "SELECT")) for statement in run)


def test_a_dry_run_does_not_wait_for_a_transaction_that_takes_the_same_hosts(database_url: str):
    with open_world(database_url, hosts=3, database=partial(Database, row_wait_seconds=1)) as world:
        request = LeaseRequest("dry", NOW, NOW + timedelta(hours=1), reservations=(reservation(3, 3),))

        def look(tx: Transaction) -> None:
            assert len(tx.resources.lock_all([HOST])) == 3
            world.service.manager.dry_runs.create(OWNER, request)

        world.db.write(look)


def test_equal_choices_are_tried_once(world: World):
    def refused(*choices: tuple[ReservationRequest, ...]) -> NotEnoughResources:
        request = FlexibleRequest("flexible", choices, None, NOW, NOW + timedelta(hours=1), is_listed=True)
        with pytest.raises(NotEnoughResources) as raised:
            world.service.manager.dry_runs.create(OWNER, request)
        return raised.value

    two, three = ((reservation(HOSTS + more, HOSTS + more),) for more in (2, 3))
    refused(two, three)
    assert statements(world, lambda: refused(two, three, two, two)) == statements(world, lambda: refused(two, three))
    reasons = refused(two, three, two).additions["choices"]
    assert isinstance(reasons, list)
    assert reasons[0] == reasons[2] != reasons[1]
