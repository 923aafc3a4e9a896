"""The waiting list beside everything else: filters, limits, trusts, hosts that come back, other requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.config import new_config
from tenure.domain.actor import Actor
from tenure.domain.errors import Conflict, Denied, InvalidParameter, NotEnoughResources, OverQuota
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import FlexibleRequest, LeaseChange, ReservationRequest
from tenure.enforcement.contract import EnforcementFilter, Values
from tenure.services.limits.quotas import FixedLimits, Quotas
from tenure.services.search.periods import PeriodSearch
from tenure.services.waiting import waiting_list
from tenure.services.waiting.waiting_list import WaitingList
from tenure.store.waiting import Line
from tests.services.test_admission_metrics import Count
from tests.support import ledger
from tests.support.engines import another, deliver_all, rebuild
from tests.support.world import ADMIN, HOST, OWNER, STRANGER, World, instance_reservation, open_world, reservation

HOUR = timedelta(hours=1)
TWO = reservation(2, 2)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=2) as world:
        yield world


def ask(
    world: World,
    *requested: ReservationRequest,
    start: float = 1,
    actor: Actor = OWNER,
    lease_id: str | None = None,
    **fields: Any,
) -> Lease:
    """Ask for a lease of two hosts for an hour, which waits if there is no room."""
    begin = world.clock.now() + start * HOUR
    request = FlexibleRequest("waiting", (requested or (TWO,),), None, begin, begin + HOUR, waits=True, **fields)
    return world.leases.create(actor, request, lease_id=lease_id)


def delete(world: World, lease: Lease) -> None:
    world.leases.delete(OWNER, lease.id)
    world.engine.settle()


def status(world: World, lease: Lease) -> LeaseStatus:
    return world.leases.get(ADMIN, lease.id).status


def taken(world: World) -> Lease:
    """Book both hosts, and serve the list, so that nothing is left of what was freed before."""
    lease = world.book(2, start=1)
    world.engine.settle()
    return lease


def test_a_lease_is_served_if_the_last_room_was_freed_just_before_it_was_put_on_the_list(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    before, enter = taken(world), WaitingList.enter

    def late(*arguments: Any, **named: Any) -> Lease:
        delete(world, before)
        return enter(*arguments, **named)

    monkeypatch.setattr(WaitingList, "enter", late)
    lease = ask(world)
    assert lease.status is LeaseStatus.WAITING
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.PENDING


def test_what_is_freed_while_the_list_is_served_goes_to_the_first(world: World, monkeypatch: pytest.MonkeyPatch):
    before = taken(world)
    first, second = ask(world), ask(world)
    search = PeriodSearch.first
    searches: list[Any] = []

    def freeing(*arguments: Any, **named: Any) -> Any:
        """Delete the lease that is in the way after the search for the first one that waits has found nothing."""
        found = search(*arguments, **named)
        searches.append(found)
        if len(searches) == 1:
            world.leases.delete(OWNER, before.id)
        return found

    monkeypatch.setattr(PeriodSearch, "first", freeing)
    world.engine.settle()
    assert searches[0].offers == ()
    assert [status(world, lease) for lease in (first, second)] == [LeaseStatus.PENDING, LeaseStatus.WAITING]


def test_a_lease_that_two_managers_serve_is_booked_once(world: World, monkeypatch: pytest.MonkeyPatch):
    before = taken(world)
    lease = ask(world)
    world.leases.delete(OWNER, before.id)
    other = another(world)
    search = PeriodSearch.first
    served: list[int] = []

    def slow(*arguments: Any, **named: Any) -> Any:
        """Let the other manager serve the list between the search of the first and its booking."""
        found = search(*arguments, **named)
        if not served:
            served.append(0)
            other.engine.settle()
        return found

    monkeypatch.setattr(PeriodSearch, "first", slow)
    count = Count()
    world.engine.settle()
    assert len(world.leases.get(OWNER, lease.id).reservations) == 1
    assert status(world, lease) is LeaseStatus.PENDING
    assert count.since() == {"waited": 1}
    assert ledger.faults(str(world.db.engine.url)) == []


@pytest.mark.parametrize(
    "free",
    [
        lambda world, lease: world.leases.delete(OWNER, lease.id),
        lambda world, lease: world.leases.update(OWNER, lease.id, LeaseChange(starts_at=lease.starts_at + HOUR)),
        lambda world, lease: world.leases.update(
            OWNER, lease.id, LeaseChange(starts_at=lease.starts_at - HOUR, ends_at=lease.ends_at - HOUR)
        ),
        lambda world, _lease: [world.register(name) for name in new_hosts(world)],
    ],
    ids=["deleted", "later", "earlier", "new hosts"],
)
def test_a_lease_gets_what_is_freed(world: World, free: Callable[[World, Lease], object]):
    before = taken(world)
    lease = ask(world)
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.WAITING
    free(world, before)
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.PENDING


def new_hosts(world: World) -> list[str]:
    """Return the names of two hosts of the cloud that are not registered yet."""
    return [world.cloud.world.add_host(f"new-{number}") for number in (1, 2)]


def test_a_lease_gets_hosts_that_are_enabled_again(world: World):
    world.resources.disable(ADMIN, HOST, "1", reason="repair")
    lease = ask(world)
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.WAITING
    world.resources.enable(ADMIN, HOST, "1")
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.PENDING


def test_a_running_lease_that_ends_early_makes_room(world: World):
    running = world.book(2, hours=9)
    world.pass_time(timedelta(minutes=1))
    lease = ask(world)
    assert lease.status is LeaseStatus.WAITING
    world.leases.update(OWNER, running.id, LeaseChange(ends_at=world.clock.now() + HOUR / 2))
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.PENDING


def test_a_lease_waits_for_the_limits_of_its_project(world: World):
    rebuild(world, quotas=Quotas(FixedLimits({"leases": 1}, (STRANGER.project_id,)), horizon=timedelta(days=1)))
    own = world.book(2, start=5)
    others = world.book(2, start=1, actor=STRANGER)
    lease = ask(world)
    world.leases.delete(STRANGER, others.id)
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.WAITING  # there is room, but the project has its lease
    delete(world, own)
    assert status(world, lease) is LeaseStatus.PENDING


@pytest.mark.parametrize("order", [(0,), (0, 1), (1, 0)])
def test_a_request_whose_choices_exceed_a_limit_or_lack_room_waits_in_any_order(world: World, order: tuple[int, ...]):
    """The limit is full, but not too small for the request: it counts like a lack of room."""
    rebuild(world, quotas=Quotas(FixedLimits({"hosts": 1}, (STRANGER.project_id,))))
    before = world.book(1, start=1)
    choices = [(reservation(1, 1),), (reservation(2, 2),)]
    begin = world.clock.now() + HOUR
    requested = tuple(choices[index] for index in order)
    request = FlexibleRequest("waiting", requested, None, begin, begin + HOUR, waits=True, is_listed=True)
    with pytest.raises((OverQuota, NotEnoughResources)):
        world.leases.create(OWNER, replace(request, waits=False))
    lease = world.leases.create(OWNER, request)
    assert lease.status is LeaseStatus.WAITING
    delete(world, before)
    assert status(world, lease) is LeaseStatus.PENDING


def test_a_request_that_the_limit_can_never_admit_does_not_wait(world: World):
    rebuild(world, quotas=Quotas(FixedLimits({"hosts": 1, "hours_of_addresses": 3})))
    with pytest.raises(OverQuota):
        ask(world)


def test_a_request_that_no_hosts_can_ever_serve_does_not_wait(world: World):
    taken(world)
    with pytest.raises(NotEnoughResources, match="3 asked for"):
        ask(world, reservation(3, 3))
    with pytest.raises(NotEnoughResources, match="No resource has the property gpo"):
        ask(world, reservation(1, 1, resource_properties='["==", "$gpo", "a100"]'))
    with pytest.raises(NotEnoughResources):
        ask(world, reservation(1, 1), reservation(2, 2))
    with pytest.raises(NotEnoughResources):
        ask(world, instance_reservation(1, vcpus=10_000))
    assert ask(world, reservation(2, 2)).status is LeaseStatus.WAITING


def test_a_request_waits_for_hosts_that_are_out_of_order(world: World):
    world.resources.disable(ADMIN, HOST, "1", reason="test")
    lease = ask(world, reservation(2, 2))
    assert lease.status is LeaseStatus.WAITING
    world.resources.enable(ADMIN, HOST, "1")
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.PENDING


def test_all_leases_are_served_from_time_to_time(world: World):
    """The limits of a project may become larger, which frees nothing."""

    def limit(leases: int) -> None:
        limits = FixedLimits({"leases": leases}, (STRANGER.project_id,))
        rebuild(world, quotas=Quotas(limits, horizon=timedelta(days=1)))

    limit(1)
    world.book(2, start=5)
    others = world.book(2, start=1, actor=STRANGER)
    lease = ask(world)
    world.leases.delete(STRANGER, others.id)
    world.engine.settle()
    limit(2)
    world.engine.settle()
    assert status(world, lease) is LeaseStatus.WAITING
    assert world.service.waiting_list.run() == 1
    assert status(world, lease) is LeaseStatus.PENDING


def test_a_project_has_a_limited_number_of_waiting_leases(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting_list, "MOST_WAITING", 1)
    taken(world)
    ask(world)
    with pytest.raises(Conflict, match="1 leases of the project are on the waiting list already"):
        ask(world)
    assert ask(world, actor=STRANGER).status is LeaseStatus.WAITING


def test_a_repeated_request_has_one_place(world: World):
    taken(world)
    lease_id = "0b1d3a5e-0000-4000-8000-000000000001"
    leases = [ask(world, lease_id=lease_id) for _ in range(2)]
    assert [lease.id for lease in leases] == [lease_id, lease_id]
    with world.db.read() as tx:
        assert tx.leases.count(OWNER.project_id, LeaseStatus.WAITING) == 1
    with pytest.raises(Conflict):
        ask(world, lease_id=lease_id, actor=STRANGER)


def test_a_waiting_lease_keeps_its_trust(world: World):
    before = taken(world)
    lease = ask(world, reservation(2, 2, before_end="snapshot"))
    (trust,) = world.cloud.world.trusts()
    world.service.reconciler.run()
    delete(world, before)
    assert status(world, lease) is LeaseStatus.PENDING
    world.service.reconciler.run()
    assert set(world.cloud.world.trusts()) == {trust}
    delete(world, lease)
    world.service.reconciler.run()
    assert set(world.cloud.world.trusts()) == set()


def test_a_lease_that_must_be_prepared_is_prepared_once_there_is_room(world: World):
    before = taken(world)
    lease = ask(world, instance_reservation(2, affinity=False))
    assert lease.status is LeaseStatus.WAITING
    delete(world, before)
    booked = world.leases.get(OWNER, lease.id)
    assert booked.status is LeaseStatus.PENDING
    assert booked.reservations[0].effects["server_group_id"] is not None


class Accountant(EnforcementFilter):
    """Agrees to leases, and notes what it is notified of."""

    listens_to = frozenset({"commit_create", "on_end"})

    def __init__(self) -> None:
        self.asked = 0
        self.denies = False
        self.notified: list[str] = []

    def check_create(self, context: Values, lease_values: Values) -> None:
        self.asked += 1
        if self.denies:
            raise Denied("The account is empty.")

    def check_update(self, context: Values, current_lease_values: Values, new_lease_values: Values) -> None:
        """Agree."""

    def commit_create(self, context: Values, lease_values: Values, *, key: str) -> None:
        self.notified.append("commit_create")

    def on_end(self, context: Values, lease_values: Values, *, key: str) -> None:
        self.notified.append("on_end")


@pytest.fixture
def accountant() -> Accountant:
    return Accountant()


@pytest.fixture
def judged(tmp_path: Path, accountant: Accountant) -> Iterator[World]:
    with open_world(tmp_path, hosts=2, filters={"accountant": accountant}) as world:
        yield world


def test_filters_are_asked_when_there_is_room_and_keep_account_of_what_is_booked(judged: World, accountant: Accountant):
    before = judged.book(2, start=1, actor=STRANGER)
    deliver_all(judged)
    accountant.asked, accountant.notified = 0, []
    lease = ask(judged)
    assert accountant.asked == 0
    judged.leases.delete(STRANGER, before.id)
    judged.engine.settle()
    assert status(judged, lease) is LeaseStatus.PENDING
    assert accountant.asked == 1
    deliver_all(judged)
    assert sorted(accountant.notified) == ["commit_create", "on_end"]  # of the lease, and of the one before it


def test_filters_hear_nothing_of_a_lease_that_was_never_booked(judged: World, accountant: Accountant):
    judged.book(2, start=1)
    deliver_all(judged)
    accountant.notified = []
    failing, deleted = ask(judged), ask(judged)
    judged.leases.delete(OWNER, deleted.id)
    judged.pass_time(HOUR)
    assert status(judged, failing) is LeaseStatus.ERROR
    judged.leases.delete(OWNER, failing.id)
    judged.engine.settle()
    assert accountant.notified == []


def test_a_lease_that_a_filter_denies_fails_with_its_reason(judged: World, accountant: Accountant):
    before = judged.book(2, start=1)
    lease = ask(judged)
    accountant.denies = True
    judged.leases.delete(OWNER, before.id)
    judged.engine.settle()
    failed = judged.leases.get(OWNER, lease.id)
    assert failed.status is LeaseStatus.ERROR
    assert failed.status_reason == "It cannot be booked: The account is empty."
    with pytest.raises(InvalidParameter):
        ask(judged, start=0)


def test_a_lease_that_cannot_be_served_does_not_stop_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    before = taken(world)
    broken, next_one = ask(world), ask(world)
    search = PeriodSearch.first

    def failing(*arguments: Any, **named: Any) -> Any:
        with world.db.read() as tx:
            first = tx.waiting.in_lines({Line(HOST, "")})[0].lease_id
        if first == broken.id and not any("could not be served" in record.message for record in caplog.records):
            raise ZeroDivisionError
        return search(*arguments, **named)

    monkeypatch.setattr(PeriodSearch, "first", failing)
    delete(world, before)
    assert [status(world, lease) for lease in (broken, next_one)] == [LeaseStatus.WAITING, LeaseStatus.PENDING]


def test_waiting_leases_are_no_reason_for_a_refusal(world: World):
    before = taken(world)
    lease = ask(world)
    with pytest.raises(NotEnoughResources):
        world.book(1, start=1)
    delete(world, lease)
    delete(world, before)
    assert world.book(2, start=1).status is LeaseStatus.PENDING


class Interruption(EnforcementFilter):
    """A filter that does something while it judges a lease of one name; it agrees to everything."""

    def __init__(self, name: str) -> None:
        super().__init__(new_config())
        self.name = name
        self.act: Callable[[], object] = lambda: None

    def check_create(self, context: Values, lease_values: Values) -> None:
        if lease_values["name"] == self.name:
            self.act()


def test_a_lease_is_served_what_a_later_request_that_is_judged_is_about_to_get(tmp_path: Path):
    interruption = Interruption("later")
    with open_world(tmp_path, hosts=2, filters={"Interruption": interruption}) as world:
        before = taken(world)
        lease = ask(world)
        world.engine.settle()
        world.leases.delete(OWNER, before.id)
        interruption.act = world.engine.settle
        with pytest.raises(NotEnoughResources):
            world.book(2, start=1, name="later")
        assert status(world, lease) is LeaseStatus.PENDING
