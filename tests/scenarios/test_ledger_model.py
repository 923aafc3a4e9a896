"""The guarantees of the ledger against a model that tries every placement.

Hypothesis generates leases of several reservations, changes of several values at once, hosts that shrink or fail,
limits of the cloud, a new cleaning time after a restart, and refused changes. After each step:

* no resource is booked twice, and every reservation has allocations as requested;
* a request for no more than the lease has was not refused;
* a refused request fits neither at present, nor after a plan of another lease has moved;
* no due start waits that could be served in this way.

The model reads the rows of the ledger. It does not know how the service chooses.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from tenure.domain.capacity import Capacity
from tenure.domain.errors import LeaseBusy, NotEnoughResources, TenureError
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.period import ENDLESS
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest, ResourceQuery
from tenure.domain.resource import DiscoveredResource, Resource
from tenure.drivers.simulated import Fault, FaultKind
from tenure.planning import greedy
from tenure.services.context import Rules
from tenure.store.tables import AllocationRow
from tests.scenarios.test_model import template
from tests.support import ledger
from tests.support.engines import rebuild
from tests.support.lengths import times
from tests.support.simulated import HostHealth
from tests.support.world import (
    ADMIN,
    HOST,
    OWNER,
    World,
    address_reservation,
    instance_reservation,
    open_world,
    reservation,
)

ADDRESS = "virtual:floatingip"
ADDRESSES = ("203.0.113.10", "203.0.113.11", "203.0.113.12")
#: The initial number of virtual CPUs of each host.
VCPUS = 4
TICK = timedelta(minutes=10)
LEASES = 7


@dataclass(frozen=True)
class Asked:
    """The demand of a reservation in the model."""

    kind: str  # hosts, instances or addresses
    amount: int
    vcpus: int = 0
    affinity: bool | None = None
    rack: str = ""
    names: frozenset[str] = frozenset()
    #: The name of the only acceptable host.
    host: str = ""

    @property
    def request(self) -> ReservationRequest:
        properties = f'["==", "$rack", "{self.rack}"]' if self.rack else ""
        if self.host:
            properties = f'["==", "$hypervisor_hostname", "{self.host}"]'
        if self.kind == "addresses":
            return address_reservation(self.amount, *sorted(self.names))
        if self.kind == "hosts":
            return reservation(self.amount, self.amount, resource_properties=properties)
        return instance_reservation(
            self.amount, vcpus=self.vcpus, affinity=self.affinity, resource_properties=properties
        )

    def with_amount(self, amount: int) -> Asked:
        return replace(self, amount=max(amount, len(self.names)))

    @property
    def change(self) -> dict[str, object]:
        return {"min": self.amount, "max": self.amount} if self.kind == "hosts" else {"amount": self.amount}


@dataclass(frozen=True)
class Use:
    """An allocation in the ledger that is not over."""

    allocation_id: int
    resource_id: int
    reservation_id: str
    start: datetime
    end: datetime
    units: int
    vcpus: int
    whole: bool
    planned: bool

    def overlaps(self, start: datetime, end: datetime) -> bool:
        return self.start < end and start < self.end


@dataclass(frozen=True)
class ModelDemand:
    """A number of units of a demand that need room throughout a period."""

    asked: Asked
    amount: int
    start: datetime
    end: datetime
    reservation_id: str = ""
    only: frozenset[int] | None = None
    without: frozenset[int] = frozenset()


class Room:
    """The room of the resources beside their uses, found by trying every placement."""

    def __init__(self, resources: Mapping[int, Resource], uses: Sequence[Use], late: Collection[int]) -> None:
        self.resources = resources
        self.uses = list(uses)
        self.late = late

    def takes(self, resource: Resource, asked: Asked, units: int) -> bool:
        """Whether the resource matches the demand and is large enough for these units, free or not."""
        if (asked.kind == "addresses") != (resource.resource_type == ADDRESS) or not resource.reservable:
            return False
        if asked.rack and resource.properties.get("rack") != asked.rack:
            return False
        if asked.host and resource.name != asked.host:
            return False
        if asked.kind != "instances":
            return True
        limits = resource.limits.get("VCPU", {})
        return (
            resource.capacity["VCPU"] >= asked.vcpus * units
            and limits.get("min", 1) <= asked.vcpus <= limits.get("max", asked.vcpus)
            and asked.vcpus % limits.get("step", 1) == 0
        )

    def units(self, demand: ModelDemand, resource: Resource) -> int:
        """Return the number of units of the demand for which the resource has room throughout the period."""
        if resource.id in self.late or resource.id in demand.without or not self.takes(resource, demand.asked, 1):
            return 0
        if demand.only is not None and resource.id not in demand.only:
            return 0
        others = [use for use in self.uses if use.resource_id == resource.id and use.overlaps(demand.start, demand.end)]
        if demand.asked.kind != "instances":
            return 0 if others else 1
        if any(use.whole for use in others):
            return 0
        instants = {demand.start, *(use.start for use in others if use.start > demand.start)}
        peak = max(sum(use.vcpus for use in others if use.start <= instant < use.end) for instant in instants)
        return max(0, resource.capacity["VCPU"] - peak) // demand.asked.vcpus

    def placements(self, demand: ModelDemand) -> Iterator[dict[int, int]]:
        """Return every placement of a demand, as units by resource id."""
        rooms = {resource_id: self.units(demand, resource) for resource_id, resource in self.resources.items()}
        rooms = {resource_id: count for resource_id, count in rooms.items() if count}
        if demand.asked.kind != "instances" or demand.asked.affinity is False:
            named = {
                resource_id for resource_id, resource in self.resources.items() if resource.name in demand.asked.names
            } - demand.without
            for chosen in combinations(sorted(rooms), demand.amount):
                if named <= set(chosen):
                    yield dict.fromkeys(chosen, 1)
        elif demand.asked.affinity:
            yield from ({resource_id: demand.amount} for resource_id, count in rooms.items() if count >= demand.amount)
        else:
            yield from _spread(sorted(rooms.items()), demand.amount)

    def fit(self, demands: Sequence[ModelDemand]) -> bool:
        """Whether there is room for all demands together."""
        if not demands:
            return True
        demand, rest = demands[0], demands[1:]
        whole, size = demand.asked.kind != "instances", demand.asked.vcpus
        for placement in self.placements(demand):
            more = [
                Use(-1, resource_id, demand.reservation_id, demand.start, demand.end, count, count * size, whole, False)
                for resource_id, count in placement.items()
            ]
            if Room(self.resources, [*self.uses, *more], self.late).fit(rest):
                return True
        return False

    def could(
        self, demands: Sequence[ModelDemand], asked: Mapping[str, Asked], mine: Collection[str], now: datetime
    ) -> bool:
        """Whether all demands fit at present or, for a single demand, after a plan has moved."""
        if self.fit(demands):
            return True
        return len(demands) == 1 and any(room.fit(demands) for room in self.moved(asked, mine, now))

    def moved(self, asked: Mapping[str, Asked], mine: Collection[str], now: datetime) -> Iterator[Room]:
        """Return the room after each possible move of a plan of another lease to a resource with room for it."""
        for use in self.uses:
            if not use.planned or use.reservation_id in mine or use.reservation_id not in asked:
                continue
            requested = asked[use.reservation_id]
            others = [other for other in self.uses if other is not use]
            siblings = [other for other in others if other.reservation_id == use.reservation_id]
            if self.resources[use.resource_id].name in requested.names:
                continue
            if requested.affinity and siblings:
                continue
            apart = (
                frozenset(sibling.resource_id for sibling in siblings) if requested.affinity is False else frozenset()
            )
            room = Room(self.resources, others, self.late)
            closed = apart | {use.resource_id}
            demand = ModelDemand(
                replace(requested, names=frozenset()), use.units, max(use.start, now), use.end, without=closed
            )
            for resource_id, resource in self.resources.items():
                if room.units(demand, resource) >= use.units:
                    yield Room(self.resources, [*others, replace(use, resource_id=resource_id)], self.late)


def _spread(rooms: Sequence[tuple[int, int]], amount: int) -> Iterator[dict[int, int]]:
    if not amount:
        yield {}
    elif rooms:
        (resource_id, most), rest = rooms[0], rooms[1:]
        for count in range(min(most, amount), -1, -1):
            for others in _spread(rest, amount - count):
                yield {resource_id: count, **others} if count else others


@dataclass
class Known:
    """A lease in the model."""

    lease: Lease
    asked: dict[str, Asked]
    slow: bool = False


hosts = st.builds(Asked, st.just("hosts"), st.integers(1, 2), rack=st.sampled_from(["", "", "r1", "r2"]))
instances = st.builds(
    Asked,
    st.just("instances"),
    st.integers(1, 3),
    vcpus=st.integers(1, VCPUS),
    affinity=st.sampled_from([None, None, True, False]),
    rack=st.sampled_from(["", "", "", "r1"]),
)
addresses = st.frozensets(st.sampled_from(ADDRESSES), max_size=2).flatmap(
    lambda names: st.builds(
        Asked, st.just("addresses"), st.integers(max(1, len(names)), 2), names=st.just(frozenset(names))
    )
)
reservations = st.one_of(instances, instances, hosts, addresses)
delays, lengths = st.integers(0, 4), st.integers(1, 6)
indexes = st.integers(0, LEASES - 1)


class LedgerMachine(RuleBasedStateMachine):
    """Requests, changes of hosts, and time, in any order."""

    HOSTS = 3
    world: World

    @initialize(alike=st.booleans())
    def begin(self, alike: bool) -> None:
        self.stack = ExitStack()
        if alike:  # every lease is planned like a large lease
            self.stack.enter_context(patch.object(greedy, "FEW", 0))
        rng = random.Random(0)  # the choice of hosts depends on the ids of leases: failures must be repeatable
        self.stack.enter_context(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)))
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-ledger-")))
        shutil.copy(template(), folder / "tenure.db")
        self.url = f"sqlite:///{folder / 'tenure.db'}"
        self.site = Rules(replace_after=timedelta(0))
        self.world = self.stack.enter_context(open_world(self.url, hosts=self.HOSTS, rules=self.site))
        self.world.resize(*[VCPUS] * self.HOSTS)
        for number in range(1, self.HOSTS + 1):
            self.world.resources.update(ADMIN, HOST, str(number), {"rack": self.rack(number)})
        for address in ADDRESSES:
            self.world.resources.register(ADMIN, ADDRESS, f"{self.world.cloud.world.addresses.public}/{address}", {})
        self.all: list[Known] = []
        #: Hosts with less capacity than is booked there, since they shrank.
        self.shrunk: set[int] = set()

    def rack(self, number: int) -> str:
        """Return the rack of the host with this number."""
        return "r1" if number % 2 else "r2"

    # --- the rules: users

    @precondition(lambda self: len(self.living()) < LEASES)
    @rule(delay=delays, length=lengths, requested=st.lists(reservations, min_size=1, max_size=3))
    def create(self, delay: int, length: int, requested: list[Asked]) -> None:
        start = self.now + delay * TICK
        end = start + length * TICK
        request = LeaseRequest("lease", start, end, reservations=tuple(asked.request for asked in requested))
        demands = [ModelDemand(asked, asked.amount, start, self.until(end)) for asked in requested]
        lease = self.ask(lambda: self.world.leases.create(OWNER, request), demands)
        if lease is not None:
            ids = [created.id for created in lease.reservations]
            self.all.append(Known(lease, dict(zip(ids, requested, strict=True))))

    @precondition(lambda self: self.living())
    @rule(
        index=indexes,
        end=st.none() | st.integers(-3, 4),
        start=st.none() | st.integers(-1, 3),
        amounts=st.lists(st.none() | st.integers(1, 3), min_size=3, max_size=3),
        refused=st.booleans(),
    )
    def change(self, index: int, end: int | None, start: int | None, amounts: list[int | None], refused: bool) -> None:
        """Change dates and amounts at once; with ``refused`` the cloud refuses the change of a running lease."""
        known = self.pick(index)
        lease = self.world.leases.get(OWNER, known.lease.id)
        running = lease.status is LeaseStatus.ACTIVE
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE} or lease.ends_at <= self.now:
            return
        new_end = lease.ends_at if end is None else lease.ends_at + end * TICK
        new_start = lease.starts_at if start is None or running else lease.starts_at + start * TICK
        if (new_start < self.now and new_start != lease.starts_at) or new_end <= max(new_start, self.now):
            return
        asked = dict(known.asked)
        for reservation_id, amount in zip(known.asked, amounts, strict=False):
            if amount is not None and not (running and amount < asked[reservation_id].amount):
                asked[reservation_id] = asked[reservation_id].with_amount(amount)
        changes = tuple(
            ReservationChange(reservation_id, requested.change)
            for reservation_id, requested in asked.items()
            if requested != known.asked[reservation_id]
        )
        change = LeaseChange(
            starts_at=None if new_start == lease.starts_at else new_start,
            ends_at=None if new_end == lease.ends_at else new_end,
            reservations=changes,
        )
        if change.is_empty:
            return
        less = (
            new_end <= lease.ends_at
            and new_start >= lease.starts_at
            and all(
                requested.amount <= known.asked[reservation_id].amount for reservation_id, requested in asked.items()
            )
        )
        demands = self.demands_of(lease, known, asked, new_start, new_end, running=running)
        if refused and running:
            for reservation_id in [booked.id for booked in lease.reservations]:
                self.world.cloud.inject(
                    Fault(FaultKind.REFUSED, verb="ensure_started", reservation_id=reservation_id, count=1)
                )
        done = self.ask(
            lambda: self.world.leases.update(OWNER, lease.id, change), demands, mine=set(asked), certain=less
        )
        self.world.cloud.clear_faults()
        self.renew_slowness()
        self.world.engine.settle()
        after = self.world.leases.get(OWNER, lease.id)
        if done is not None and after.ends_at == new_end:
            known.asked = asked

    @precondition(lambda self: self.living())
    @rule(index=indexes)
    def delete(self, index: int) -> None:
        self.world.leases.delete(OWNER, self.pick(index).lease.id)
        self.world.engine.settle()

    @precondition(lambda self: self.living())
    @rule(index=indexes, position=st.integers(0, 2))
    def drop(self, index: int, position: int) -> None:
        known = self.pick(index)
        ids = list(known.asked)
        if len(ids) < 2 or self.status(known) not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}:
            return
        dropped = ids[position % len(ids)]
        self.world.leases.drop_reservation(OWNER, known.lease.id, dropped)
        del known.asked[dropped]
        self.world.engine.settle()

    # --- the rules: hosts and the service

    @rule(number=st.integers(1, 3), vcpus=st.integers(1, VCPUS + 2), limit=st.sampled_from([None, None, 1, 2]))
    def a_host_changes(self, number: int, vcpus: int, limit: int | None) -> None:
        """Change the size of a host, and the most virtual CPUs of an instance in the cloud."""
        host = self.host(number)
        limits = {} if limit is None else {"VCPU": {"min": 1, "max": limit, "step": 1}}
        capacity = Capacity({"VCPU": vcpus, "MEMORY_MB": 2**20, "DISK_GB": 1000})
        found = DiscoveredResource(HOST, host.external_id, host.name, capacity, host.facts, limits=limits)
        self.world.db.write(lambda tx: tx.resources.describe(host, found, now=self.now))
        self.world.service.healing.heal()
        self.world.engine.settle()
        self.shrunk.add(host.id)

    @rule(number=st.integers(1, 3), closed=st.booleans())
    def a_host_is_closed_or_opened(self, number: int, closed: bool) -> None:
        if closed:
            self.world.resources.disable(ADMIN, HOST, str(number), reason="repair")
        else:
            self.world.resources.enable(ADMIN, HOST, str(number))

    @rule(number=st.integers(1, 3), health=st.sampled_from(list(HostHealth)))
    def a_host_fails_or_comes_back(self, number: int, health: HostHealth) -> None:
        self.world.cloud.world.mark_host(f"sim-host-{number:03d}", health)
        for _ in range(2):
            self.world.service.health_check.run()
            self.world.clock.advance(timedelta(seconds=1))
        self.world.engine.settle()

    @rule(minutes=st.sampled_from([0, 5, 15]))
    def the_operator_sets_another_cleaning_time(self, minutes: int) -> None:
        self.site = Rules(replace_after=timedelta(0), cleaning_time=timedelta(minutes=minutes))
        rebuild(self.world, rules=self.site)

    @precondition(lambda self: self.living())
    @rule(index=indexes)
    def teardown_of_a_lease_will_hang(self, index: int) -> None:
        self.pick(index).slow = True
        self.renew_slowness()

    @rule()
    def every_teardown_ends(self) -> None:
        for known in self.all:
            known.slow = False
        self.world.cloud.clear_faults()
        self.pass_time(timedelta(minutes=1))

    @rule(ticks=st.integers(1, 4))
    def time_passes(self, ticks: int) -> None:
        self.pass_time(ticks * TICK)

    # --- the invariants

    @invariant()
    def the_ledger_is_sound(self) -> None:
        if not hasattr(self, "all"):
            return
        overbooked = ledger.overbooked(self.url)
        starts = {resource_id: f"resource {resource_id} has" for resource_id in self.shrunk}
        self.shrunk = {
            resource_id for resource_id, text in starts.items() if any(text in fault for fault in overbooked)
        }
        expected = {fault for fault in overbooked for resource_id in self.shrunk if starts[resource_id] in fault}
        assert [fault for fault in ledger.faults(self.url, now=self.now) if fault not in expected] == []

    @invariant()
    def no_start_waits_that_could_be_served(self) -> None:
        if not hasattr(self, "all"):
            return
        for known in self.living():
            lease = self.world.leases.get(OWNER, known.lease.id)
            if lease.status is not LeaseStatus.PENDING or lease.starts_at + timedelta(minutes=1) > self.now:
                continue
            if lease.ends_at <= self.now or "is cleaned until" in str(lease.status_reason):
                continue
            stuck = self.stuck(known)
            have = frozenset(use.resource_id for use in self.uses() if use.reservation_id in known.asked)
            demands = [
                ModelDemand(
                    known.asked[use.reservation_id], use.units, self.now, use.end, use.reservation_id, without=have
                )
                for use in stuck
            ]
            if len(demands) == 1 and known.asked[demands[0].reservation_id].affinity is None:
                room = self.room(without=stuck)
                assert not self.could(room, demands, set(known.asked)), f"{lease} waits at {self.now}"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.cloud.clear_faults()
            self.pass_time(timedelta(days=1))
            self.the_ledger_is_sound()
            assert all(
                self.status(known) in {LeaseStatus.TERMINATED, LeaseStatus.DELETED, LeaseStatus.ERROR}
                for known in self.all
            )
        finally:
            self.stack.close()

    # --- the model

    def demands_of(
        self,
        lease: Lease,
        known: Known,
        asked: Mapping[str, Asked],
        start: datetime,
        end: datetime,
        *,
        running: bool,
    ) -> list[ModelDemand]:
        """Return the additional needs of the lease; none if the model does not know them."""
        if not running:
            return [
                ModelDemand(requested, requested.amount, max(start, self.now), self.until(end), reservation_id)
                for reservation_id, requested in asked.items()
            ]
        if end > lease.ends_at:
            return []
        mine = [use for use in self.uses() if use.reservation_id in asked]
        demands = []
        for reservation_id, requested in asked.items():
            more = requested.amount - known.asked[reservation_id].amount
            have = frozenset(use.resource_id for use in mine if use.reservation_id == reservation_id)
            if more > 0 and requested.names <= {self.resources()[resource_id].name for resource_id in have}:
                apart = have if requested.kind != "instances" or requested.affinity is False else frozenset()
                only = have if requested.affinity else None
                grown = replace(requested, names=frozenset())
                demands.append(ModelDemand(grown, more, self.now, self.until(end), reservation_id, only, apart))
        return demands

    def could(self, room: Room, demands: Sequence[ModelDemand], mine: Collection[str]) -> bool:
        return room.could(demands, self.asked(), mine, self.now)

    def room(self, *, without: Collection[Use] = ()) -> Room:
        uses = self.uses()
        late = {use.resource_id for use in uses if not use.planned and use.end <= self.now}
        return Room(self.resources(), [use for use in uses if use not in without], late)

    def asked(self) -> dict[str, Asked]:
        return {reservation_id: asked for known in self.all for reservation_id, asked in known.asked.items()}

    def stuck(self, known: Known) -> list[Use]:
        """Return the uses of the lease on resources that other leases have not yet given back."""
        uses = self.uses()
        late = {use.resource_id for use in uses if not use.planned and use.end <= self.now}
        return [use for use in uses if use.reservation_id in known.asked and use.resource_id in late]

    # --- access to the service

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def until(self, end: datetime) -> datetime:
        return end + self.site.cleaning_time

    def living(self) -> list[Known]:
        over = {LeaseStatus.TERMINATED, LeaseStatus.DELETED, LeaseStatus.ERROR}
        return [known for known in getattr(self, "all", []) if self.status(known) not in over]

    def pick(self, index: int) -> Known:
        living = self.living()
        return living[index % len(living)]

    def status(self, known: Known) -> LeaseStatus:
        with self.world.db.read() as tx:
            lease = tx.leases.get(known.lease.id, deleted=True)
        assert lease is not None
        return lease.status

    def host(self, number: int) -> Resource:
        with self.world.db.read() as tx:
            found = tx.resources.by_external_id(HOST, str(number))
        assert found is not None
        return found

    def resources(self) -> dict[int, Resource]:
        with self.world.db.read() as tx:
            found = [*tx.resources.page(ResourceQuery(HOST, 100)), *tx.resources.page(ResourceQuery(ADDRESS, 100))]
        return {resource.id: resource for resource in found}

    def uses(self) -> list[Use]:
        with self.world.db.read() as tx:
            rows = tx.session.execute(select(AllocationRow)).scalars().all()
            return [
                Use(
                    row.id,
                    row.resource_id,
                    row.reservation_id,
                    row.starts_at,
                    row.ends_at,
                    row.units,
                    int(row.amounts.get("VCPU", 0)),
                    row.exclusive,
                    row.state == "planned",
                )
                for row in rows
                if row.ends_at > self.now or row.state in {"held", "planned"}
            ]

    def ask(
        self,
        operation: Callable[[], Any],
        demands: Sequence[ModelDemand],
        *,
        mine: Collection[str] = (),
        certain: bool = False,
    ) -> Any:
        """Return the answer, or None for a refusal. The model must agree; a ``certain`` request must be granted."""
        room = self.room(without=[use for use in self.uses() if use.reservation_id in mine and use.planned])
        possible = bool(demands) and self.could(room, demands, mine)
        refusal: TenureError | None = None
        done = None
        try:
            done = operation()
        except TenureError as error:
            refusal = error
        self.world.engine.settle()
        if refusal is None:
            return done
        if isinstance(refusal, NotEnoughResources):
            assert not certain, f"{refusal}, though the request asks for no more"
            assert not possible, f"{refusal}, though it fits: {demands}"
        elif not isinstance(refusal, LeaseBusy):
            assert "undone" in str(refusal) or "refused" in str(refusal), refusal
        return None

    def renew_slowness(self) -> None:
        for known in self.all:
            if known.slow:
                for reservation_id in known.asked:
                    self.world.cloud.inject(
                        Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=reservation_id, until=ENDLESS)
                    )

    def pass_time(self, step: timedelta) -> None:
        """Let time pass in steps of a minute, so that waiting events are retried."""
        end = self.now + step
        while self.now < end:
            self.world.pass_until(min(end, self.now + timedelta(minutes=1) if step <= timedelta(hours=1) else end))


#: An example takes about two seconds; ``make test`` runs more of them.
EXAMPLES = 8 if settings().max_examples <= 100 else times(25, 50)
#: The tests with so many examples each: none of them takes longer than a few minutes.
BATCHES = times(1, 8)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_ledger_agrees_with_the_model_after_any_steps(batch: int) -> None:
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            phases=set(Phase) - {Phase.explain},  # this phase traces every line, which takes minutes
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
