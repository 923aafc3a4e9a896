"""Arrangements of plans that are outdated before they are made, since others change the same resources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import deadlines
from tenure.deadlines import Deadline
from tenure.domain.errors import NotEnoughResources
from tenure.services.planning.arrangements import Arrangements, Search
from tests.support import ledger
from tests.support.engines import rebuild
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation, url_in

FIRST_HOST = '["==", "$rack", "a"]'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A cloud whose first host becomes free only if two plans move, one after the other."""
    with open_world(tmp_path, hosts=3) as world:
        world.resize(4, 4, 6)
        world.resources.update(ADMIN, HOST, "1", {"rack": "a"})
        for host, vcpus in ((1, 4), (3, 4), (2, 1)):
            world.reserve_on(host, instance_reservation(1, vcpus=vcpus), start=1)
        rebuild(world, rules=replace(world.service.parts.rules, exact_time=timedelta(minutes=1)))
        yield world


def outdate(
    world: World, monkeypatch: pytest.MonkeyPatch, times: int, change: Callable[[int], object] | None = None
) -> list[Search]:
    """Change something before each of the next arrangements is made; return the list of all arrangements.

    ``change`` is called with the number of earlier arrangements; by default, a resource of each arrangement changes.
    """
    find = Arrangements.find
    change = change or (lambda number: world.resources.update(ADMIN, HOST, "1", {"turn": str(number)}))
    found: list[Search] = []

    def find_and_change(arrangements: Arrangements, *given: Any, **named: Any) -> Search:
        search = find(arrangements, *given, **named)
        if search.arrangement is not None:
            if len(found) < times:
                change(len(found))
            found.append(search)
        return search

    monkeypatch.setattr(Arrangements, "find", find_and_change)
    return found


def test_request_succeeds_after_several_outdated_arrangements(world: World, monkeypatch: pytest.MonkeyPatch):
    found = outdate(world, monkeypatch, 5)
    lease = world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert world.units(lease) == [("sim-host-001", 1)]
    assert len(found) == 6


def test_refusal_after_many_outdated_arrangements_is_not_proven(world: World, monkeypatch: pytest.MonkeyPatch):
    found = outdate(world, monkeypatch, 1000)
    with pytest.raises(NotEnoughResources) as refused:
        world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert not refused.value.is_proven
    assert 5 < len(found) < 20


def test_deletion_of_a_lease_that_is_to_move_outdates_an_arrangement(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The plan of the deleted lease is the newest: SQLite gives its id to the first plan that the arrangement moves."""
    url = url_in(tmp_path)
    [newest] = (lease_id for lease_id, lease in ledger.leases(url).items() if lease.hosts == ("2",))
    found = outdate(world, monkeypatch, 1, lambda _number: world.leases.delete(OWNER, newest))
    lease = world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert found
    assert world.units(lease) == [("sim-host-001", 1)]
    assert ledger.faults(url) == []


def test_a_refusal_stays_a_refusal_if_no_time_is_left_for_the_arrangement(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    clock = [0.0]
    outdate(world, monkeypatch, 1, lambda _number: clock.__setitem__(0, 2.0))
    with (
        deadlines.within(Deadline(1.0, 1.0, seconds=lambda: clock[0])),
        pytest.raises(NotEnoughResources) as refused,
    ):
        world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert not refused.value.is_proven


def test_a_refusal_stays_a_refusal_whatever_the_exact_search_raises(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_given: Any, **_named: Any) -> Search:
        raise ZeroDivisionError("of the search")

    monkeypatch.setattr(Arrangements, "find", fail)
    with pytest.raises(NotEnoughResources) as refused:
        world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert refused.value.is_undecided
    assert "ZeroDivisionError: of the search" in caplog.text
