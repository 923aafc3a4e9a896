"""In an inventory of many hosts, the exact search considers the part that a request affects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.arrangement import Problem, Solution
from tenure.domain.errors import NotEnoughResources
from tenure.domain.request import ResourceQuery
from tenure.planning import exact
from tenure.planning.cp_sat import CpSatSolver
from tenure.planning.exact import MOST_SITES
from tests.services.test_exact_admission import Demander, Load, prepared
from tests.support import ledger
from tests.support.chains import CASES, RACK_A, RACK_A_OR_B, RACK_B_OR_C, Case, carry_out, crowd, search_for
from tests.support.engines import MINUTE
from tests.support.world import ADMIN, HOST, OWNER, World, open_world, reservation

RACK_B, RACK_C = '["==", "$rack", "b"]', '["==", "$rack", "c"]'


@pytest.fixture
def large(tmp_path: Path) -> Iterator[World]:
    """200 hosts: host 1 of rack a has a plan that can only go to host 2, whose plan can only go to host 3."""
    with open_world(tmp_path, hosts=200) as world:
        search_for(world, MINUTE)
        for host, rack in enumerate("abc", 1):
            world.resources.update(ADMIN, HOST, str(host), {"rack": rack})
        on_2, on_3 = (
            world.reserve(reservation(1, 1, resource_properties=rack), start=2, hours=2) for rack in (RACK_B, RACK_C)
        )
        world.reserve(reservation(1, 1, resource_properties=RACK_A_OR_B), start=2, hours=2, name="first")
        world.leases.delete(OWNER, on_2.id)
        world.reserve(reservation(1, 1, resource_properties=RACK_B_OR_C), start=2, hours=2, name="second")
        world.leases.delete(OWNER, on_3.id)
        for _ in range(15):
            world.book(10, start=1, hours=4)
        yield world


def ask(world: World) -> None:
    world.reserve(reservation(1, 1, resource_properties=RACK_A), start=2, hours=2)


def test_plans_of_many_hosts_are_rearranged(large: World):
    search_for(large, timedelta(0))
    with pytest.raises(NotEnoughResources):
        ask(large)
    search_for(large, MINUTE)
    ask(large)
    assert ledger.faults(str(large.db.engine.url), now=large.clock.now()) == []


def test_a_part_without_an_arrangement_proves_nothing(large: World):
    large.resources.disable(ADMIN, HOST, "3", reason="out of order")
    with pytest.raises(NotEnoughResources) as refused:
        ask(large)
    assert refused.value.is_undecided
    assert not refused.value.is_proven


def test_the_search_has_the_time_that_reading_leaves(large: World, monkeypatch: pytest.MonkeyPatch):
    given: list[float] = []

    def solve(_self: CpSatSolver, _problem: Problem, seconds: float) -> Solution:
        given.append(seconds)
        return Solution(None, is_proven=False)

    monkeypatch.setattr(CpSatSolver, "solve", solve)
    search_for(large, timedelta(minutes=1))
    with pytest.raises(NotEnoughResources):
        ask(large)
    assert len(given) == 1
    assert 0 < given[0] < 60


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name in {"grows", "runs-and-is-prolonged"}],
    ids=lambda case: case.name,
)
def test_plans_of_many_hosts_are_rearranged_for_a_change(tmp_path: Path, case: Case):
    with open_world(tmp_path, hosts=MOST_SITES + 2) as world:
        with world.db.read() as tx:
            assert len(tx.resources.page(ResourceQuery(HOST, 100))) > MOST_SITES
        chain = crowd(world, case)
        search_for(world, timedelta(0))
        with pytest.raises(NotEnoughResources):
            carry_out(world, case, chain)
        search_for(world, MINUTE)
        carry_out(world, case, chain)
        assert ledger.faults(str(world.db.engine.url), now=world.clock.now()) == []


@pytest.mark.slow
@pytest.mark.parametrize("load", Load)
def test_parts_of_random_inventories_prove_nothing(world: World, monkeypatch: pytest.MonkeyPatch, load: Load):
    """Three of four hosts are considered: what is booked fits, and no refusal is proven unless it is hopeless."""
    monkeypatch.setattr(exact, "MOST_SITES", 3)
    demander = Demander(prepared(world, load), 11, load)
    for _ in range(20):
        expected, refusal = demander.ask()
        assert expected or refusal is not None
        assert refusal is None or refusal.is_proven is refusal.is_hopeless
    assert demander.refused > 2
