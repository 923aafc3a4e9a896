"""Arrangements of plans that are outdated before they are carried out, since others change the same resources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tenure import deadlines
from tenure.deadlines import Deadline
from tenure.domain.errors import NotEnoughResources, Unavailable
from tenure.planning.exact import Answer
from tests.support import ledger
from tests.support.engines import rebuild
from tests.support.interrupting import after_exact_searches, before_exact_searches
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
        rebuild(world, rules=replace(world.service.components.rules, exact_time=timedelta(minutes=1)))
        yield world


def outdate(
    world: World, monkeypatch: pytest.MonkeyPatch, times: int, change: Callable[[int], object] | None = None
) -> list[Answer]:
    """Change something before each of the next arrangements is carried out; return the list of all arrangements.

    ``change`` is called with the number of earlier arrangements; by default, a resource of each arrangement changes.
    """
    change = change or (lambda number: world.resources.update(ADMIN, HOST, "1", {"turn": str(number)}))
    found: list[Answer] = []

    def change_before(answer: Answer) -> None:
        if answer.snapshot is not None:
            if len(found) < times:
                change(len(found))
            found.append(answer)

    after_exact_searches(monkeypatch, change_before)
    return found


def test_request_succeeds_after_outdated_arrangements(world: World, monkeypatch: pytest.MonkeyPatch):
    """After two, what the arrangement is about is locked first, so that nothing can outdate it again."""
    found = outdate(world, monkeypatch, 2)
    lease = world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert world.units(lease) == [("sim-host-001", 1)]
    assert len(found) == 3


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


def test_an_arrangement_for_which_no_time_is_left_is_not_carried_out(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock, before = [0.0], ledger.holdings(url_in(tmp_path))
    outdate(world, monkeypatch, 1, lambda _number: clock.__setitem__(0, 2.0))
    with deadlines.within(Deadline(1.0, 1.0, seconds=lambda: clock[0])), pytest.raises(Unavailable):
        world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert ledger.holdings(url_in(tmp_path)) == before


def test_a_refusal_stays_a_refusal_if_the_exact_search_has_no_time(world: World, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    before_exact_searches(monkeypatch, lambda: clock.__setitem__(0, 2.0))
    with (
        deadlines.within(Deadline(1.0, 1.0, seconds=lambda: clock[0])),
        pytest.raises(NotEnoughResources) as refused,
    ):
        world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert refused.value.is_undecided
    assert not refused.value.is_proven


def test_a_refusal_stays_a_refusal_whatever_the_exact_search_raises(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail() -> None:
        raise ZeroDivisionError("of the search")

    before_exact_searches(monkeypatch, fail)
    with pytest.raises(NotEnoughResources) as refused:
        world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert refused.value.is_undecided
    assert "ZeroDivisionError: of the search" in caplog.text
