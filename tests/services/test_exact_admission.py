"""A lease is refused only if no arrangement of what has not started admits it: against an exact solver."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ortools.sat.python import cp_model

from tenure.domain.allocation import Allocation, Demand, Spread
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState, Lease
from tenure.domain.period import Period
from tenure.domain.request import ReservationRequest, ResourceQuery
from tenure.services.planning import cp_sat
from tenure.services.planning.arrangements import Arrangements, Search
from tenure.services.planning.demands import demand_of
from tests.support import ledger
from tests.support.engines import rebuild
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation

HOUR = timedelta(hours=1)


def open_site(folder: Path) -> Any:
    return open_world(folder, hosts=4)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_site(tmp_path) as world:
        yield prepared(world)


def prepared(world: World) -> World:
    """Give the hosts sizes and kinds of their own, and the search for arrangements all the time it takes."""
    world.resize(4, 4, 6, 8)
    for host, rack in (("1", "a"), ("2", "a"), ("3", "b")):
        world.resources.update(ADMIN, HOST, host, {"rack": rack})
    rebuild(world, rules=replace(world.service.parts.rules, exact_time=timedelta(minutes=1)))
    return world


class Demander:
    """Random leases of hosts and instances, some of which start and end."""

    def __init__(self, world: World, seed: int, *, instances: bool) -> None:
        self.world = world
        self.dice = random.Random(seed)  # a test's randomness is not for security
        self.instances = instances
        self.leases: list[Lease] = []
        self.refused = 0

    def wanted(self) -> ReservationRequest:
        dice = self.dice
        if self.instances and dice.random() < 0.7:
            return instance_reservation(
                dice.randint(1, 4), vcpus=dice.choice((1, 2, 3, 4)), affinity=dice.choice((None, None, True, False))
            )
        count = dice.randint(1, 3)
        rack = dice.choice(("", "", '["==", "$rack", "a"]'))
        return reservation(count, count, resource_properties=rack)

    def step(self) -> None:
        """Ask for a lease; if it is refused, prove that there is no arrangement."""
        if self.dice.random() < 0.1:
            self.world.pass_time(HOUR)
        if self.leases and self.dice.random() < 0.1:
            self.world.leases.delete(OWNER, self.leases.pop(self.dice.randrange(len(self.leases))).id)
        start, wanted = self.dice.randint(1, 8), self.wanted()
        hours = self.dice.randint(1, 4)
        refusal = None
        try:
            self.leases.append(self.world.reserve(wanted, start=start, hours=hours))
        except NotEnoughResources as error:
            refusal = error
        if refusal is not None:
            self.refused += 1
            assert refusal.is_proven
            begin = self.world.clock.now() + start * HOUR
            assert not is_possible(self.world, wanted, Period(begin, begin + hours * HOUR))
        assert ledger.faults(str(self.world.db.engine.url), now=self.world.clock.now()) == []


def is_possible(world: World, wanted: ReservationRequest, period: Period) -> bool:
    """Whether everything that has not started can be arranged so that this fits, by a model of its own."""
    now, types = world.clock.now(), world.service.parts.types
    with world.db.read() as tx:
        hosts = {host.id: host for host in tx.resources.page(ResourceQuery(HOST, 100))}
        allocations = tx.allocations.not_over(list(hosts), now=now)
        reservations = tx.leases.reservations_by_ids({allocation.reservation_id for allocation in allocations})
        serving = {
            reservation_id: tx.allocations.matching(demand_of(types, each), list(hosts))
            for reservation_id, each in reservations.items()
        }
        new = demand_of(types, wanted)
        serving["new"] = tx.allocations.matching(new, list(hosts))
    fixed = [each for each in allocations if each.state is not AllocationState.PLANNED]
    units: dict[tuple[str, Period], int] = defaultdict(int)
    for allocation in allocations:
        if allocation.state is AllocationState.PLANNED:
            units[allocation.reservation_id, allocation.period] += allocation.units
    demands = {reservation_id: demand_of(types, each) for reservation_id, each in reservations.items()} | {"new": new}
    units["new", period] = new.minimum
    model = cp_model.CpModel()
    placed: dict[tuple[str, Period], dict[int, Any]] = {}
    for (reservation_id, span), count in units.items():
        demand = demands[reservation_id]
        together = count if demand.spread is Spread.TOGETHER else 1
        most = {Spread.APART: 1, Spread.ANY: count, Spread.TOGETHER: 1}[demand.spread]
        numbers = {host: model.new_int_var(0, most, "") for host in serving[reservation_id]}
        model.add(together * sum(numbers.values()) == count)
        placed[reservation_id, span] = {host: together * number for host, number in numbers.items()}
    for instant in {span.start for _, span in units}:
        for host in hosts.values():
            whole, parts = whole_and_parts(placed, demands, fixed, host.id, instant)
            vcpus = host.capacity["VCPU"]
            model.add(whole * vcpus + parts <= vcpus)
            model.add(whole <= 1)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return bool(solver.solve(model) in {cp_model.OPTIMAL, cp_model.FEASIBLE})


def whole_and_parts(
    placed: dict[tuple[str, Period], dict[int, Any]],
    demands: dict[str, Demand],
    fixed: Sequence[Allocation],
    host: int,
    instant: datetime,
) -> tuple[Any, Any]:
    """Return how many allocations take a host as a whole at an instant, and how many VCPUs others take of it."""
    current = [each for each in fixed if each.resource_id == host and each.period.contains(instant)]
    whole: Any = sum(1 for each in current if each.exclusive)
    parts: Any = sum(each.amounts["VCPU"] for each in current if not each.exclusive)
    for (reservation_id, span), numbers in placed.items():
        if span.contains(instant) and host in numbers:
            if demands[reservation_id].exclusive:
                whole += numbers[host]
            else:
                parts += numbers[host] * demands[reservation_id].amounts["VCPU"]
    return whole, parts


@pytest.mark.parametrize("instances", [False, True])
@pytest.mark.parametrize("with_ortools", [True, False])
def test_a_refusal_is_proven(world: World, monkeypatch: pytest.MonkeyPatch, instances: bool, with_ortools: bool):
    if not with_ortools:
        monkeypatch.setattr(cp_sat, "is_installed", lambda: False)
        rebuild(world)
    demander = Demander(world, 7, instances=instances)
    for _ in range(40):
        demander.step()
    assert demander.refused > 5
    assert len(demander.leases) > 5


def test_an_arrangement_that_is_outdated_is_made_anew(world: World, monkeypatch: pytest.MonkeyPatch):
    demander = Demander(world, 113, instances=True)
    find = Arrangements.find
    interrupted: list[Search] = []

    def find_and_change(self: Arrangements, *given: Any, **named: Any) -> Search:
        """Find an arrangement; before it is used, give the resources that it concerns another version."""
        found = find(self, *given, **named)
        if found.arrangement is not None and len(interrupted) % 2 == 0:
            with world.db.read() as tx:
                hosts = tx.resources.by_ids(found.arrangement.versions)
            for host in hosts.values():
                properties = {**host.properties, "turn": str(len(interrupted))}
                world.resources.update(ADMIN, HOST, host.external_id, properties)
        if found.arrangement is not None:
            interrupted.append(found)
        return found

    monkeypatch.setattr(Arrangements, "find", find_and_change)
    for _ in range(40):
        demander.step()
    assert len(interrupted) >= 4  # two requests needed one, and each had it made twice


def test_a_refusal_without_an_answer_of_the_search_is_not_proven(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Arrangements, "find", lambda *_given, **_named: Search(None, is_proven=False))
    world.reserve(reservation(2, 2), start=2, hours=4)
    with pytest.raises(NotEnoughResources) as refused:
        world.reserve(reservation(3, 3), start=2, hours=4)
    assert not refused.value.is_proven
    assert not refused.value.is_hopeless


@pytest.mark.long
@pytest.mark.parametrize("instances", [False, True])
def test_thousands_of_refusals_are_proven(tmp_path: Path, instances: bool):
    asked = refused = 0
    for seed in range(50):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with open_site(folder) as world:
            demander = Demander(prepared(world), seed, instances=instances)
            for _ in range(40):
                demander.step()
                asked += 1
            refused += demander.refused
    assert asked == 2000
    assert refused > 200
