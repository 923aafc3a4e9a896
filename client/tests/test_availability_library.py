"""Availability, searches and dry runs in the library."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from conftest import BEGINNING
from tenureclient import (
    NOW,
    Alternative,
    BadRequest,
    Client,
    Forbidden,
    Lease,
    NeedsNewerServer,
    NotEnoughResources,
    ReservationChange,
    ReservationRequest,
    StartWindow,
)
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ONE, TWO = ReservationRequest.hosts(1), ReservationRequest.hosts(2)


def add_hosts(server: FakeServer) -> None:
    """Add two hosts with a GPU in one zone, and a larger one without in another."""
    for name in ("c1", "c2"):
        server.add_host(name, availability_zone="az-1", properties={"gpu": "a100"})
    server.add_host("c3", vcpus=16, availability_zone="az-2")


def book(client: Client, *, start: timedelta, length: timedelta, wanted: ReservationRequest = ONE) -> Lease:
    begin = BEGINNING + start
    return client.leases.create("bio", start=begin, end=begin + length, reservations=[wanted])


def test_capacity_is_shown_over_time(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    book(client, start=HOUR, length=HOUR, wanted=TWO)
    timeline = client.availability.show(end=BEGINNING + DAY)
    assert (timeline.resource_type, timeline.resource_class) == ("physical:host", "WHOLE")
    assert (timeline.start_date, timeline.end_date) == (BEGINNING, BEGINNING + DAY)
    [group] = timeline.groups
    assert (group.resources, group.total, group.least_available) == (3, 3, 1)
    amounts = [(step.start_date - BEGINNING, step.reserved, step.available) for step in group.steps]
    assert amounts == [(0 * HOUR, 0, 3), (HOUR, 2, 1), (2 * HOUR, 0, 3)]
    coarse = client.availability.show(end=BEGINNING + DAY, step=6 * HOUR)
    assert (coarse.step, coarse.groups[0].steps[0].available) == (6 * HOUR, 1)


def test_resources_are_selected_and_grouped(server: FakeServer) -> None:
    add_hosts(server)
    show = server.client().availability.show
    kinds = {group.properties.get("gpu"): group for group in show(group_by="kind").groups}
    assert kinds["a100"].total == 2
    assert kinds[None].capacity["VCPU"] == 16
    zones = {group.availability_zone: group.total for group in show(group_by="zone").groups}
    assert zones == {"az-1": 2, "az-2": 1}
    assert show(conditions=["gpu=a100"]).groups[0].total == 2
    assert show(availability_zone="az-2").groups[0].total == 1
    assert show(required_traits=["CUSTOM_FAST", "CUSTOM_NEW"]).groups[0].total == 0
    assert show(forbidden_traits=["CUSTOM_FAST"]).groups[0].total == 3
    assert show("virtual:instance", resource_class="MEMORY_MB").groups[0].total == 3 * 16384
    assert show(group_by="project").groups == ()
    with pytest.raises(BadRequest, match="region"):
        show(region="nowhere")


def test_pages_of_resources_are_joined(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenureclient.availability._PAGE", 2)
    add_hosts(server)
    timeline = server.client().availability.show(group_by="resource")
    assert [group.resource_name for group in timeline.groups] == ["c1", "c2", "c3"]
    assert not timeline.more
    assert server.requests[-1].query["marker"] == timeline.groups[1].resource_id


def test_groups_of_projects_have_no_total(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    book(client, start=HOUR, length=HOUR)
    [group] = client.availability.show(group_by="project").groups
    assert (group.project_id, group.total, group.least_available) == ("fake-project", None, None)
    assert [(step.reserved, step.available) for step in group.steps] == [(0, None), (1, None), (0, None)]


def test_members_do_not_see_resources() -> None:
    with FakeServer(now=BEGINNING, roles=("member", "reader")) as server:
        add_hosts(server)
        show = server.client().availability.show
        assert show().groups[0].total == 3
        with pytest.raises(Forbidden):
            show(group_by="resource")


def test_the_first_periods_are_found(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    book(client, start=0 * HOUR, length=2 * HOUR, wanted=TWO)
    found = client.offers.first([TWO], StartWindow(duration=3 * HOUR, earliest=NOW), limit=2)
    assert found.is_complete
    assert [offer.start_date for offer in found.offers] == [BEGINNING + 2 * HOUR, BEGINNING + 5 * HOUR]
    assert (found.offers[0].end_date, found.offers[0].left_over) == (BEGINNING + 5 * HOUR, (1,))
    wednesday = client.offers.first(
        [ONE],
        StartWindow(
            duration=HOUR,
            earliest=BEGINNING,
            latest=BEGINNING + 7 * DAY,
            weekdays=["wed"],
            starts_after=time(9),
            starts_before=time(17),
            time_zone="Europe/Berlin",
        ),
        limit=1,
    )
    assert wednesday.offers[0].start_date == datetime(2027, 3, 3, 8, tzinfo=UTC)
    assert client.offers.first([ReservationRequest.hosts(9)], StartWindow(duration=HOUR)).offers == ()


def test_a_lease_gets_the_first_period_of_a_window(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    book(client, start=0 * HOUR, length=2 * HOUR, wanted=TWO)
    window = StartWindow(duration=3 * HOUR, earliest=NOW)
    lease = client.leases.create("bio", window=window, reservations=[TWO])
    assert (lease.start_date, lease.end_date) == (BEGINNING + 2 * HOUR, BEGINNING + 5 * HOUR)
    assert lease.choice is None


def test_a_lease_gets_the_first_choice_that_fits(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    book(client, start=0 * HOUR, length=2 * HOUR, wanted=TWO)
    choices = [[TWO], [ONE]]
    lease = client.leases.create("bio", start=NOW, end=BEGINNING + HOUR, any_of=choices)
    assert lease.choice == 1
    assert lease.reservations[0].parameters["min"] == 1
    dry_run = client.leases.create("bio", window=StartWindow(duration=HOUR), any_of=choices, dry_run=True)
    assert dry_run.lease.choice == 0


@pytest.mark.parametrize("dates", [{}, {"start": NOW}, {"window": StartWindow(duration=HOUR), "start": NOW}])
def test_a_lease_has_both_dates_or_a_window(server: FakeServer, dates: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a window in place of both"):
        server.client().leases.create("bio", reservations=[ONE], **dates)


def test_the_longest_and_the_largest_lease_are_found(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    book(client, start=4 * HOUR, length=HOUR, wanted=TWO)
    longest = client.offers.longest([TWO], start=NOW)
    assert (longest.start_date, longest.end_date) == (BEGINNING, BEGINNING + 4 * HOUR)
    assert client.offers.longest([ONE]).end_date is None
    with pytest.raises(NotEnoughResources):
        client.offers.longest([TWO], start=BEGINNING + 4 * HOUR)
    largest = client.offers.largest(ONE, start=NOW, end=BEGINNING + 5 * HOUR)
    assert (largest.amount, sum(largest.availability_zones.values())) == (1, 1)
    assert client.offers.largest(ONE, end=BEGINNING + HOUR).availability_zones == {"az-1": 2, "az-2": 1}


def test_a_dry_run_books_nothing(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    tried = client.leases.create("bio", start=NOW, end=BEGINNING + 2 * HOUR, reservations=[TWO], dry_run=True)
    assert (tried.lease.name, tried.lease.end_date) == ("bio", BEGINNING + 2 * HOUR)
    [cost] = tried.cost
    assert (cost.name, cost.amount, cost.hours, cost.hours_before) == ("hosts", 2, 4, 0)
    limits = {limit.name: (limit.limit, limit.used, limit.would_use) for limit in tried.limits}
    assert limits["hosts"] == (-1, 0, 2)
    assert tried.unasked_filters == ()
    assert server.leases == {}
    with pytest.raises(NotEnoughResources):
        client.leases.create(
            "bio",
            start=NOW,
            end=BEGINNING + HOUR,
            reservations=[ReservationRequest.hosts(4)],
            dry_run=True,
        )


def test_a_dry_run_changes_nothing(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    lease = book(client, start=HOUR, length=HOUR)
    reservation_id = lease.reservations[0].id
    before = client.leases.get(lease.id)
    longer = client.leases.update(lease.id, end=BEGINNING + 4 * HOUR, dry_run=True)
    assert (longer.lease.end_date, longer.cost[0].hours, longer.cost[0].hours_before) == (
        BEGINNING + 4 * HOUR,
        3,
        1,
    )
    more = ReservationChange(reservation_id, {"min": 2, "max": 2})
    assert client.leases.update(lease.id, reservations=[more], dry_run=True).cost[0].amount == 2
    added = client.leases.add_reservation(lease.id, TWO, dry_run=True)
    assert (len(added.lease.reservations), added.cost[0].amount) == (2, 3)
    dropped = client.leases.drop_reservation(lease.id, reservation_id, dry_run=True)
    assert dropped.cost[0].amount == 0
    assert client.leases.get(lease.id) == before


OLDER = [("1.0",), ("1.0", "1.1"), ("1.0", "1.1", "1.2")]


@pytest.mark.parametrize("versions", OLDER)
def test_an_older_server_is_not_asked_for_a_dry_run(versions: tuple[str, ...]) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        add_hosts(server)
        lease = book(server.client(), start=HOUR, length=HOUR)
        reservation_id = lease.reservations[0].id
        del server.requests[:]
        # A client that has not yet had an answer does not know the version.
        calls: list[Any] = [
            lambda leases: leases.create("x", start=NOW, end=BEGINNING + HOUR, dry_run=True),
            lambda leases: leases.update(lease.id, name="x", dry_run=True),
            lambda leases: leases.add_reservation(lease.id, ONE, dry_run=True),
            lambda leases: leases.drop_reservation(lease.id, reservation_id, dry_run=True),
        ]
        for call in calls:
            with pytest.raises(NeedsNewerServer, match=r"a dry run .* came with API 1\.3"):
                call(server.client().leases)
        assert {request.method for request in server.requests} == {"GET"}


@pytest.mark.parametrize("versions", OLDER)
def test_an_older_server_has_no_availability(versions: tuple[str, ...]) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        client = server.client()
        with pytest.raises(NeedsNewerServer, match=r"availability over time came with API 1\.3"):
            client.availability.show()
        with pytest.raises(NeedsNewerServer, match=r"searching for periods .* came with API 1\.3"):
            client.offers.first([ONE], StartWindow(duration=HOUR))
        with pytest.raises(NeedsNewerServer, match=r"a lease with an open start.* came with API 1\.3"):
            client.leases.create("bio", window=StartWindow(duration=HOUR), reservations=[ONE])
        assert list(client.leases.list()) == []


def refusal(client: Client, count: int, *, start: timedelta, length: timedelta) -> NotEnoughResources:
    with pytest.raises(NotEnoughResources) as refused:
        book(client, start=start, length=length, wanted=ReservationRequest.hosts(count))
    return refused.value


def test_a_refusal_has_alternatives(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    book(client, start=3 * HOUR, length=2 * HOUR)
    error = refusal(client, 3, start=HOUR, length=3 * HOUR)
    assert error.is_proven is True
    start = BEGINNING + HOUR
    assert error.alternatives == (
        Alternative("start", BEGINNING + 5 * HOUR, BEGINNING + 8 * HOUR),
        Alternative("end", start, BEGINNING + 3 * HOUR),
        Alternative("amount", start, start + 3 * HOUR, reservation=0, amount=2),
    )
    with pytest.raises(NotEnoughResources) as tried:
        client.leases.create(
            "bio",
            start=start,
            end=start + 3 * HOUR,
            reservations=[ReservationRequest.hosts(3)],
            dry_run=True,
        )
    assert tried.value.alternatives == error.alternatives


@pytest.mark.parametrize("versions", OLDER)
def test_a_refusal_of_an_older_server_has_no_alternatives(versions: tuple[str, ...]) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        server.add_host("c1")
        error = refusal(server.client(), 2, start=HOUR, length=HOUR)
        assert (error.alternatives, error.is_proven) == ((), None)


def test_unreadable_alternatives_do_not_hide_the_refusal() -> None:
    error = NotEnoughResources("Not enough hosts available", details={"alternatives": [{"change": "start"}]})
    assert error.alternatives == ()


def test_a_lease_says_until_when_it_may_be_prolonged(server: FakeServer) -> None:
    add_hosts(server)
    client = server.client()
    lease = book(client, start=HOUR, length=HOUR, wanted=ReservationRequest.hosts(3))
    assert client.leases.get(lease.id).may_end_at is None
    book(client, start=5 * HOUR, length=HOUR, wanted=ReservationRequest.hosts(3))
    assert client.leases.get(lease.id).may_end_at == BEGINNING + 5 * HOUR
    assert client.leases.look_ahead(lease.id).may_end_at == BEGINNING + 5 * HOUR


@pytest.mark.parametrize("versions", OLDER)
def test_an_older_server_does_not_look_ahead(versions: tuple[str, ...]) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        server.add_host("c1")
        client = server.client()
        lease = book(client, start=HOUR, length=HOUR)
        assert client.leases.get(lease.id).may_end_at is None
        with pytest.raises(NeedsNewerServer, match=r"the latest possible end of a lease came with API 1\.3"):
            client.leases.look_ahead(lease.id)
