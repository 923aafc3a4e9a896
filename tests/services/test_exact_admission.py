"""A lease is refused if and only if no arrangement of what has not started admits it: against an exact solver."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from ortools.sat.python import cp_model

from tenure.domain.allocation import Demand, Spread
from tenure.domain.capacity import Capacity
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState, Lease
from tenure.domain.listing import ListedResource
from tenure.domain.period import Period
from tenure.domain.request import ReservationRequest
from tenure.planning import cp_sat
from tenure.planning.exact import Answer
from tenure.services.planning.demands import demand_of
from tests.support import ledger
from tests.support.engines import rebuild
from tests.support.interrupting import after_exact_searches, without_exact_answers
from tests.support.world import (
    ADMIN,
    HOST,
    OWNER,
    World,
    flavor_reservation,
    instance_reservation,
    open_world,
    reservation,
)

HOUR = timedelta(hours=1)


class Load(StrEnum):
    """What the leases of a history ask for."""

    HOSTS = "hosts"  # of several kinds, with cleaning time
    INSTANCES = "instances"  # of several sizes, beside hosts
    CLASSES = "classes"  # instances of flavors that take amounts of several resource classes
    MIXED = "mixed"  # hosts and instances in one lease, with cleaning time


RACK, TWO_RACKS = '["==", "$rack", "a"]', '["in", "$rack", "a", "b"]'
CLEANING_TIME = timedelta(minutes=90)
CLEANED = {Load.HOSTS, Load.MIXED}
#: VCPUs, MiB of memory and GPUs of the hosts, and of an instance of each flavor.
HOST_SIZES = ((4, 8192, 2), (4, 4096, 0), (6, 8192, 1), (8, 6144, 0))
FLAVORS = {"plain": (2, 1024, 0), "wide": (1, 4096, 0), "gpu": (1, 1024, 1), "two-gpus": (3, 2048, 2)}


def open_site(folder: Path) -> Any:
    return open_world(folder, hosts=4)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_site(tmp_path) as world:
        yield prepared(world)


def prepared(world: World, load: Load = Load.INSTANCES) -> World:
    """Give the hosts sizes and kinds of their own, and the search for arrangements all the time it takes."""
    world.resize(4, 4, 6, 8)
    for host, rack in (("1", "a"), ("2", "a"), ("3", "b")):
        world.resources.update(ADMIN, HOST, host, {"rack": rack})
    if load is Load.CLASSES:
        world.set_capacities(
            *(
                Capacity({"VCPU": vcpus, "MEMORY_MB": memory, "DISK_GB": 1000, "CUSTOM_GPU": gpus})
                for vcpus, memory, gpus in HOST_SIZES
            )
        )
        for flavor, (vcpus, memory, gpus) in FLAVORS.items():
            specs = {"resources:CUSTOM_GPU": str(gpus)} if gpus else {}
            world.cloud.world.instances.add_flavor(flavor, vcpus=vcpus, ram=memory, disk=1, extra_specs=specs)
    cleaning_time = CLEANING_TIME if load in CLEANED else timedelta(0)
    rules = replace(world.service.components.rules, exact_time=timedelta(minutes=1), cleaning_time=cleaning_time)
    rebuild(world, rules=rules)
    return world


class Demander:
    """Random leases of hosts and instances, some of which start and end."""

    def __init__(self, world: World, seed: int, load: Load = Load.INSTANCES) -> None:
        self.world = world
        self.dice = random.Random(seed)  # a test's randomness is not for security
        self.load = load
        self.leases: list[Lease] = []
        self.asked = self.refused = 0

    def requested(self) -> tuple[ReservationRequest, ...]:
        if self.load is Load.MIXED:
            return (self._hosts(1), self._instances())
        if self.load is Load.CLASSES:
            return (self._instances_of_flavor(),)
        if self.load is Load.INSTANCES and self.dice.random() < 0.7:
            return (self._instances(),)
        return (self._hosts(3),)

    def _hosts(self, most: int) -> ReservationRequest:
        count = self.dice.randint(1, most)
        kind = self.dice.choice(("", "", RACK, TWO_RACKS) if self.load is Load.HOSTS else ("", "", RACK))
        return reservation(count, count, resource_properties=kind)

    def _instances(self) -> ReservationRequest:
        dice = self.dice
        return instance_reservation(
            dice.randint(1, 4), vcpus=dice.choice((1, 2, 3, 4)), affinity=dice.choice((None, None, True, False))
        )

    def _instances_of_flavor(self) -> ReservationRequest:
        dice = self.dice
        flavor, affinity = dice.choice(sorted(FLAVORS)), dice.choice((None, None, True, False))
        return flavor_reservation(flavor, dice.randint(1, 3), affinity=affinity)

    def step(self) -> None:
        """Ask for a lease, and compare the answer with that of a model of the ledger as it was before."""
        expected, refusal = self.ask()
        assert expected is (refusal is None), self.leases
        assert refusal is None or refusal.is_proven

    def ask(self) -> tuple[bool, NotEnoughResources | None]:
        """Ask for a lease; return whether it was possible, and the refusal."""
        if self.dice.random() < 0.1:
            self.world.pass_time(HOUR)
        if self.leases and self.dice.random() < 0.1:
            self.world.leases.delete(OWNER, self.leases.pop(self.dice.randrange(len(self.leases))).id)
        start, requested = self.dice.randint(1, 8), self.requested()
        hours = self.dice.randint(1, 4)
        begin = self.world.clock.now() + start * HOUR
        cleaning_time = self.world.service.components.rules.cleaning_time
        expected = is_possible(self.world, requested, Period(begin, begin + hours * HOUR + cleaning_time))
        refusal = None
        try:
            self.leases.append(self.world.reserve(*requested, start=start, hours=hours))
        except NotEnoughResources as error:
            refusal = error
        self.asked += 1
        self.refused += refusal is not None
        assert ledger.faults(str(self.world.db.engine.url), now=self.world.clock.now()) == []
        return expected, refusal


def is_possible(world: World, requested: Sequence[ReservationRequest], period: Period) -> bool:
    """Whether everything that has not started can be arranged so that this fits."""
    types = world.service.components.types
    return can_be_arranged(
        world, [Asked(demand_of(types, completed(world, reservation)), period) for reservation in requested]
    )


@dataclass(frozen=True)
class Asked:
    """Units that are to be placed in a period: the least number of a demand, or some; on some hosts or all."""

    demand: Demand
    period: Period
    units: int | None = None
    without: Collection[int] = ()
    only: Collection[int] | None = None


class Taken(NamedTuple):
    """What is taken of a host and does not move."""

    host: int
    period: Period
    amounts: Capacity
    exclusive: bool


def serves(host: ListedResource, demand: Demand) -> bool:
    """Whether a host has what a demand asks for, if nothing else takes it."""
    return demand.expression.matches(host.attributes) and (
        demand.exclusive
        or all(demand.units_together * amount <= host.capacity[name] for name, amount in demand.amounts.items())
    )


def can_be_arranged(
    world: World,
    requested: Sequence[Asked],
    *,
    replaced: Collection[str] = (),
    until: Mapping[str, datetime] = MappingProxyType({}),
) -> bool:
    """Whether everything that has not started can be arranged so that this fits, by a model of its own.

    Plans of ``replaced`` reservations do not count. What reservations hold lasts ``until`` a later end.
    """
    now, types = world.clock.now(), world.service.components.types
    with world.db.read() as tx:
        hosts = {host.id: host for host in tx.ledger.resources() if host.resource_type == HOST}
        uses = [use for use in tx.ledger.uses(now) if use.resource_id in hosts]
        reservations = tx.leases.reservations_by_ids({use.reservation_id for use in uses})
    demands = {reservation_id: demand_of(types, reservation) for reservation_id, reservation in reservations.items()}
    demands |= {f"new {position}": asked.demand for position, asked in enumerate(requested)}
    serving = {
        name: {host.id for host in hosts.values() if host.reservable and serves(host, demand)}
        for name, demand in demands.items()
    }
    fixed, units = list[Taken](), defaultdict[tuple[str, Period], int](int)
    for use in uses:
        if use.state is not AllocationState.PLANNED:
            end = max(use.ends_at, until.get(use.reservation_id, now))
            fixed.append(Taken(use.resource_id, Period(use.starts_at, end), use.amounts, use.exclusive))
        elif use.reservation_id not in replaced:
            units[use.reservation_id, Period(use.starts_at, use.ends_at)] += use.units
    for position, asked in enumerate(requested):
        units[f"new {position}", asked.period] = asked.demand.minimum if asked.units is None else asked.units
        serving[f"new {position}"] -= set(asked.without)
        if asked.only is not None:
            serving[f"new {position}"] &= set(asked.only)
    model = cp_model.CpModel()
    placed: Placed = {}
    for (name, span), count in units.items():
        demand = demands[name]
        together = count if demand.spread is Spread.AFFINITY else 1
        most = {Spread.ANTI_AFFINITY: 1, Spread.ANY: count, Spread.AFFINITY: 1}[demand.spread]
        numbers = {host: model.new_int_var(0, most, "") for host in serving[name]}
        model.add(together * sum(numbers.values()) == count)
        placed[name, span] = {host: together * number for host, number in numbers.items()}
    for instant in {span.start for _, span in units}:
        for host in hosts.values():
            whole = _whole(placed, demands, fixed, host.id, instant)
            model.add(whole <= 1)
            for resource_class, capacity in host.capacity.items():
                parts = _parts(placed, demands, fixed, host.id, instant, resource_class)
                model.add(whole * capacity + parts <= capacity)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return bool(solver.solve(model) in {cp_model.OPTIMAL, cp_model.FEASIBLE})


Placed = dict[tuple[str, Period], dict[int, Any]]


def _whole(placed: Placed, demands: Mapping[str, Demand], fixed: Sequence[Taken], host: int, instant: datetime) -> Any:
    """Return how many allocations take a host as a whole at an instant."""
    current = [use for use in fixed if use.host == host and use.period.contains(instant)]
    return sum(1 for use in current if use.exclusive) + sum(
        numbers[host]
        for (name, span), numbers in placed.items()
        if span.contains(instant) and host in numbers and demands[name].exclusive
    )


def _parts(
    placed: Placed,
    demands: Mapping[str, Demand],
    fixed: Sequence[Taken],
    host: int,
    instant: datetime,
    resource_class: str,
) -> Any:
    """Return how much of a class is taken of a host at an instant by allocations that do not take it as a whole."""
    current = [use for use in fixed if use.host == host and use.period.contains(instant)]
    return sum(use.amounts[resource_class] for use in current if not use.exclusive) + sum(
        numbers[host] * demands[name].amounts[resource_class]
        for (name, span), numbers in placed.items()
        if span.contains(instant) and host in numbers and not demands[name].exclusive
    )


def completed(world: World, requested: ReservationRequest) -> ReservationRequest:
    """Return a request with what the cloud says of its flavor, as the service completes it."""
    flavor = FLAVORS.get(str(requested.parameters.get("flavor_id")))
    if flavor is None:
        return requested
    vcpus, memory, gpus = flavor
    specs = {"resources:CUSTOM_GPU": str(gpus)} if gpus else {}
    described = {
        "id": requested.parameters["flavor_id"],
        "vcpus": vcpus,
        "ram": memory,
        "disk": 1,
        "extra_specs": specs,
    }
    resource_type = world.service.components.types[requested.resource_type]
    return replace(requested, parameters=resource_type.complete(requested.parameters, described))


@pytest.mark.slow
@pytest.mark.parametrize("load", Load)
@pytest.mark.parametrize("with_ortools", [True, False])
def test_an_answer_is_that_of_an_exact_solver(
    world: World, monkeypatch: pytest.MonkeyPatch, load: Load, with_ortools: bool
):
    if not with_ortools:
        monkeypatch.setattr(cp_sat, "is_installed", lambda: False)
    demander = Demander(prepared(world, load), 7, load)
    for _ in range(25 if with_ortools else 15):
        demander.step()
    assert demander.refused > 2
    assert len(demander.leases) > 2


def test_an_arrangement_that_is_outdated_is_made_anew(world: World, monkeypatch: pytest.MonkeyPatch):
    demander = Demander(world, 113)
    interrupted: list[Answer] = []

    def change(found: Answer) -> None:
        """Before an arrangement is used, give the hosts another version."""
        if found.snapshot is None:
            return
        if len(interrupted) % 2 == 0:
            for host in range(1, 5):
                world.resources.update(ADMIN, HOST, str(host), {"turn": str(len(interrupted))})
        interrupted.append(found)

    after_exact_searches(monkeypatch, change)
    for _ in range(40):
        demander.step()
    assert len(interrupted) >= 4  # two requests needed one, and each had it made twice


def test_a_refusal_without_an_answer_of_the_search_is_not_proven(world: World, monkeypatch: pytest.MonkeyPatch):
    without_exact_answers(monkeypatch)
    world.reserve(reservation(2, 2), start=2, hours=4)
    with pytest.raises(NotEnoughResources) as refused:
        world.reserve(instance_reservation(3, affinity=False), start=2, hours=4)
    assert not refused.value.is_proven
    assert not refused.value.is_hopeless


@pytest.mark.long
@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("load", Load)
def test_thousands_of_answers_are_those_of_an_exact_solver(tmp_path: Path, load: Load, batch: int):
    """Compare 250 answers in each of the 16 cases, so 4,000 in all."""
    asked = refused = 0
    for seed in range(5 * batch, 5 * batch + 5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with open_site(folder) as world:
            demander = Demander(prepared(world, load), seed, load)
            for _ in range(50):
                demander.step()
            asked += demander.asked
            refused += demander.refused
    assert asked == 250
    assert 25 < refused < 225
