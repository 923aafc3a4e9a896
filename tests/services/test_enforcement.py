"""Filters: what they are asked, when, and what happens to a denied request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.config import new_config
from tenure.deployment import ConfigurationError, open_filters
from tenure.domain.errors import Denied, InvalidParameter, NotEnoughResources, NotPermitted, TooManyConflicts
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange, LeaseQuery, ReservationChange
from tenure.enforcement.contract import EnforcementFilter, Values
from tenure.enforcement.duration import MaxLeaseDurationFilter
from tests.support.world import ADMIN, OWNER, World, open_world, reservation, url_in

HOUR = timedelta(hours=1)


class Witness(EnforcementFilter):
    """Notes what it is asked, and answers what the test has it answer."""

    def __init__(self) -> None:
        super().__init__(new_config())
        self.asked: list[tuple[str, Values, tuple[Values, ...]]] = []
        self.answer: Any = lambda: None

    def check_create(self, context: Values, lease_values: Values) -> None:
        self.asked.append(("create", context, (lease_values,)))
        self.answer()

    def check_update(self, context: Values, current_lease_values: Values, new_lease_values: Values) -> None:
        self.asked.append(("update", context, (current_lease_values, new_lease_values)))
        self.answer()

    def refuse(self) -> None:
        def answer() -> None:
            raise Denied("The account is empty.")

        self.answer = answer


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def world(tmp_path: Path, witness: Witness) -> Iterator[World]:
    with open_world(tmp_path, filters={"Witness": witness}) as world:
        yield world


def all_leases(world: World) -> int:
    return len(world.leases.list(ADMIN, LeaseQuery(limit=10)).items)


def hosts_in(lease: Values) -> list[list[str]]:
    return [[host["hypervisor_hostname"] for host in asked["allocations"]] for asked in lease["reservations"]]


def test_filter_gets_the_context_and_the_allocations(world: World, witness: Witness):
    lease = world.book(2, start=1, hours=2)
    [(operation, context, (asked,))] = witness.asked
    assert operation == "create"
    assert context == {
        "user_id": OWNER.user_id,
        "project_id": OWNER.project_id,
        "auth_url": None,
        "region_name": None,
    }
    assert asked["start_date"] == datetime.fromisoformat("2030-01-01T11:00")  # no zone, as Blazar's
    assert asked["end_date"] == datetime.fromisoformat("2030-01-01T13:00")
    assert (asked["id"], asked["name"], asked["status"]) == (lease.id, "lease", "CREATING")
    assert (asked["user_id"], asked["project_id"]) == (OWNER.user_id, OWNER.project_id)
    [reservation] = asked["reservations"]
    assert (reservation["resource_type"], reservation["min"], reservation["max"]) == ("physical:host", 2, 2)
    assert "id" not in reservation
    assert sorted(hosts_in(asked)[0]) == world.hosts_of(lease.id)
    assert {"id", "vcpus", "memory_mb", "local_gb", "hypervisor_type", "cpu_info", "trust_id", "created_at"} <= set(
        reservation["allocations"][0]
    )
    hosts = reservation["allocations"]
    assert asked["resource_requests"]["VCPU"] == sum(host["vcpus"] for host in hosts)


def test_denied_request_books_nothing(world: World, witness: Witness):
    witness.refuse()
    with pytest.raises(Denied, match="The account is empty"):
        world.book(4)
    assert all_leases(world) == 0
    witness.answer = lambda: None
    assert world.book(4).status is LeaseStatus.PENDING


def test_filters_are_not_asked_without_room(world: World, witness: Witness):
    with pytest.raises(NotEnoughResources):
        world.book(5)
    assert witness.asked == []


def test_filters_judge_only_changes_of_dates_or_reservations(world: World, witness: Witness):
    lease = world.book(1, start=1)
    witness.asked.clear()
    world.leases.update(OWNER, lease.id, LeaseChange(name="other"))
    world.leases.update(OWNER, lease.id, LeaseChange(name="more", ends_at=lease.ends_at))
    assert witness.asked == []

    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
    [(operation, _, (current, new))] = witness.asked
    assert operation == "update"
    assert new["end_date"] - current["end_date"] == HOUR
    assert hosts_in(new) == hosts_in(current)
    assert current["reservations"][0]["id"] == new["reservations"][0]["id"]
    assert {event["event_type"] for event in current["events"]} == {"start_lease", "before_end_lease", "end_lease"}

    reservation_id = lease.reservations[0].id
    world.leases.update(
        OWNER, lease.id, LeaseChange(reservations=(ReservationChange(reservation_id, {"min": 2, "max": 2}),))
    )
    *_, (_, _, (current, new)) = witness.asked
    assert [len(names) for names in hosts_in(current) + hosts_in(new)] == [1, 2]

    added = world.leases.add_reservation(OWNER, lease.id, reservation(1, 1))
    *_, (_, _, (current, new)) = witness.asked
    assert [len(names) for names in hosts_in(new)] == [2, 1]
    world.leases.drop_reservation(OWNER, lease.id, added.reservations[0].id)
    *_, (_, _, (current, new)) = witness.asked
    assert [len(names) for names in hosts_in(current)] == [2, 1]
    assert [len(names) for names in hosts_in(new)] == [1]
    assert len(witness.asked) == 4
    world.leases.drop_reservation(OWNER, lease.id, added.reservations[0].id)  # again
    assert len(witness.asked) == 4


def test_filters_judge_changes_of_running_leases(world: World, witness: Witness):
    lease = world.book(1, hours=4)
    added = world.leases.add_reservation(OWNER, lease.id, reservation(1, 1))
    world.pass_time(HOUR)
    witness.asked.clear()
    world.leases.drop_reservation(OWNER, lease.id, added.reservations[1].id)
    [(_, _, (current, new))] = witness.asked
    assert [len(names) for names in hosts_in(current)] == [1, 1]
    assert [len(names) for names in hosts_in(new)] == [1]
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=world.clock.now()))  # given back before its time
    *_, (_, _, (_, new)) = witness.asked
    assert new["end_date"] == datetime.fromisoformat("2030-01-01T11:00")


def test_refused_change_changes_nothing(world: World, witness: Witness):
    lease = world.book(1, start=1)
    witness.refuse()
    with pytest.raises(Denied):
        world.leases.update(OWNER, lease.id, LeaseChange(name="longer", ends_at=lease.ends_at + HOUR))
    assert world.leases.get(OWNER, lease.id) == lease


def test_booking_equals_the_judged_request(world: World, witness: Witness):
    """While the filter thinks, another request books the judged host."""
    others: list[str] = []

    def answer() -> None:
        if not others:
            [[requested]] = hosts_in(witness.asked[0][2][0])
            others.append(requested)
            world.book(1, start=1, name="other", hypervisor_properties=f'["==", "$hypervisor_hostname", "{requested}"]')

    witness.answer = answer
    lease = world.book(1, start=1)
    mine = [values for what, _, (values,) in witness.asked if values["id"] == lease.id]
    assert len(mine) == 2
    assert hosts_in(mine[0]) != hosts_in(mine[1])
    assert hosts_in(mine[1]) == [world.hosts_of(lease.id)]


def test_filters_are_asked_a_limited_number_of_times(world: World, witness: Witness):
    lease = world.book(1, start=1, hours=1)
    renamed = 0

    def answer() -> None:
        nonlocal renamed
        renamed += 1
        world.leases.update(OWNER, lease.id, LeaseChange(name=f"other {renamed}"))

    witness.answer = answer
    with pytest.raises(TooManyConflicts):
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
    assert world.leases.get(OWNER, lease.id).ends_at == lease.ends_at


@pytest.mark.parametrize(("seconds", "asked"), [(60.0, 5), (0.0, 1)])
def test_filters_are_asked_again_until_the_time_is_over(tmp_path: Path, witness: Witness, seconds: float, asked: int):
    """Another request changes the lease four times while the filters think."""
    url = url_in(tmp_path)
    with open_world(url, filters={"Witness": witness}, answer_seconds=seconds) as world:
        lease = world.book(1, start=1, hours=1)
        witness.asked.clear()

        def answer() -> None:
            if len(witness.asked) < 5:
                world.leases.update(OWNER, lease.id, LeaseChange(name=f"other {len(witness.asked)}"))

        witness.answer = answer
        longer = LeaseChange(ends_at=lease.ends_at + HOUR)
        if seconds:
            assert world.leases.update(OWNER, lease.id, longer).name == "other 4"
        else:
            with pytest.raises(TooManyConflicts):
                world.leases.update(OWNER, lease.id, longer)
    assert len(witness.asked) == asked


# --- how long


def bounded(world_url: str, **options: object) -> Any:
    conf = new_config()
    for name, value in {"max_lease_duration": 7200, **options}.items():
        conf.set_override(name, value, group="enforcement")
    return open_world(world_url, filters={"MaxLeaseDurationFilter": MaxLeaseDurationFilter(conf)})


def test_lease_longer_than_the_limit_is_denied(tmp_path: Path):
    with bounded(url_in(tmp_path)) as world:
        lease = world.book(1, hours=2)
        words = (
            "Lease duration of 7260 seconds must be less than or equal to the maximum lease duration of 7200 seconds."
        )
        with pytest.raises(NotPermitted) as refused:
            world.book(1, hours=2 + 1 / 60)
        assert (refused.value.message, refused.value.field) == (words, "end_date")
        with pytest.raises(InvalidParameter) as too_long:
            world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + timedelta(minutes=1)))
        assert (too_long.value.message, too_long.value.field) == (words, "end_date")


def test_lease_longer_than_a_newer_limit_may_be_shortened(tmp_path: Path):
    url = url_in(tmp_path)
    with bounded(url, max_lease_duration=-1) as world:
        lease = world.book(1, hours=5)
        world.service.components.filters["MaxLeaseDurationFilter"].conf.set_override(
            "max_lease_duration", 7200, group="enforcement"
        )
        shorter = world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at - HOUR))
        assert shorter.ends_at == lease.ends_at - HOUR
        with pytest.raises(InvalidParameter):
            world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at))


def test_exempt_projects_have_no_duration_limit(tmp_path: Path):
    exempt = [OWNER.project_id]
    with bounded(url_in(tmp_path), max_lease_duration_exempt_project_ids=exempt) as world:
        assert world.book(1, hours=100).status is LeaseStatus.PENDING
        with pytest.raises(NotPermitted):
            world.book(1, hours=100, actor=ADMIN)


# --- which


def test_filters_are_loaded_by_name():
    conf = new_config()
    conf.set_override("enabled_filters", ["MaxLeaseDurationFilter"], group="enforcement")
    assert [type(opened) for opened in open_filters(conf).values()] == [MaxLeaseDurationFilter]
    conf.set_override("enabled_filters", ["NoSuchFilter"], group="enforcement")
    with pytest.raises(ConfigurationError, match="NoSuchFilter"):
        open_filters(conf)
