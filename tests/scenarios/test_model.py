"""The whole service against a small model of it.

Hypothesis generates requests, faults, restarts and steps of time, and drives manager, engine, clock and cloud with
them. The model predicts the results. It knows periods, and the hosts or instances of hosts that leases were seen to
have, but not how the service finds them. After each step the service is compared with the model.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tenure.domain.errors import TenureError
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tenure.store import schema
from tenure.store.database import Database
from tests.support import ledger
from tests.support.engines import MINUTE, POINTS, SECOND, Checkpoints, Killed, assert_all_in_pool
from tests.support.lengths import times
from tests.support.world import NOW, OWNER, World, open_world, reservation

#: Few hosts and many leases, so that most requests conflict with other leases.
HOSTS = 2
HOST_IDS = tuple(str(index + 1) for index in range(HOSTS))
LEASES = 8
#: The number of instances of ``SIZE`` for which a host has room.
ROOM = 2
SIZE: dict[str, object] = {"vcpus": 32 // ROOM, "memory_mb": 1024, "disk_gb": 1, "resource_properties": ""}
#: The time after which every temporary fault is over, with the retries that it caused, and after which servers that
#: have vanished are missed: a driver looks for them every 30 seconds or more often.
QUIET = 31 * SECOND
CLAIM = 60 * SECOND

minutes = st.integers(0, 8)
amounts = st.tuples(st.integers(1, HOSTS + 1), st.integers(0, 1)).map(lambda pair: (pair[0], pair[0] + pair[1]))
leases = st.integers(0, LEASES - 1)
FAULTS = st.sampled_from([FaultKind.BUSY, FaultKind.LOST_REPLY])
EVENTS = ("start_lease", "update_lease", "before_end_lease", "end_lease")


@dataclass
class Known:
    """A lease in the model. Times are minutes after the beginning."""

    lease_id: str
    reservation_id: str
    start: int
    end: int
    minimum: int
    maximum: int
    deleted: bool = False
    #: Whether the cloud refuses its start permanently.
    refused: bool = False
    #: The minute at which its servers vanish, at the earliest.
    slow_until: int = 0
    #: The hosts that it was seen to have.
    hosts: frozenset[str] = frozenset()
    #: Whether it is of ``minimum`` instances instead of hosts.
    instances: bool = False
    #: The units that it was seen to have, by host.
    units: Mapping[str, int] = field(default_factory=dict)
    servers: set[str] = field(default_factory=set)
    #: The verbs with a temporary fault for it, past or future.
    faulty: set[str] = field(default_factory=set)


@cache
def template() -> Path:
    """Return an empty database, which is created once."""
    path = Path(tempfile.mkdtemp(prefix="tenure-model-")) / "tenure.db"
    db = Database(f"sqlite:///{path}")
    schema.upgrade(db)
    db.close()
    return path


class ServiceMachine(RuleBasedStateMachine):
    """Requests, faults, restarts and time, in any order."""

    world: World

    @initialize(first=st.lists(st.tuples(minutes, st.integers(1, 15), amounts, st.booleans()), min_size=2, max_size=5))
    def begin(self, first: list[tuple[int, int, tuple[int, int], bool]]) -> None:
        self.stack = ExitStack()
        rng = random.Random(0)  # the choice of hosts depends on the ids of leases: failures must be repeatable
        self.stack.enter_context(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)))
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-model-")))
        shutil.copy(template(), folder / "tenure.db")
        self.url = f"sqlite:///{folder / 'tenure.db'}"
        self.checkpoints = Checkpoints()
        self.world = self.stack.enter_context(open_world(self.url, hosts=HOSTS, checkpoint=self.checkpoints))
        self.all: list[Known] = []
        for delay, length, amount, instances in first:
            self.create(delay, length, amount, instances)
            self.all_invariants_hold()

    # --- the rules: users

    @precondition(lambda self: len(self.living()) < LEASES)
    @rule(delay=minutes, length=st.integers(1, 15), amount=amounts, instances=st.booleans())
    def create(self, delay: int, length: int, amount: tuple[int, int], instances: bool) -> None:
        start = self.minute + delay
        end = start + length
        minimum, maximum = amount
        if instances:
            self.create_parts(start, end, sum(amount))
            return
        free = self.free(start, end)
        request = LeaseRequest("lease", at(start), at(end), reservations=(reservation(minimum, maximum),))
        made = self.ask(lambda: self.world.leases.create(OWNER, request))
        if made is None:
            assert len(free) < minimum or self.overdue(), f"{self.refusal} while {sorted(free)} are free"
            return
        self.all.append(Known(made.id, made.reservations[0].id, start, end, minimum, maximum))
        assert len(self.units_of(self.all[-1])) >= min(maximum, len(free)) or self.overdue()

    def create_parts(self, start: int, end: int, amount: int) -> None:
        room = sum(self.rooms(start, end).values())
        asked = ReservationRequest("virtual:instance", {**SIZE, "amount": amount, "affinity": None})
        request = LeaseRequest("lease", at(start), at(end), reservations=(asked,))
        made = self.ask(lambda: self.world.leases.create(OWNER, request))
        if made is None:
            assert room < amount or self.overdue(), f"{self.refusal} while there is room for {room}"
            return
        self.all.append(Known(made.id, made.reservations[0].id, start, end, amount, amount, instances=True))

    @precondition(lambda self: self.living())
    @rule(index=leases, start=st.none() | minutes, end=st.none() | minutes, amount=st.none() | amounts)
    def change(self, index: int, start: int | None, end: int | None, amount: tuple[int, int] | None) -> None:
        self.update(self.pick(index), start, end, amount)

    def update(self, known: Known, start: int | None, end: int | None, amount: tuple[int, int] | None) -> None:
        wanted_start = known.start if start is None else self.minute + start
        wanted_end = known.end if end is None else self.minute + end
        wanted_minimum, wanted_maximum = amount or (known.minimum, known.maximum)
        parameters: dict[str, object] = {"min": wanted_minimum, "max": wanted_maximum}
        if known.instances:
            wanted_minimum = wanted_maximum
            parameters = {"amount": wanted_maximum}
        change = LeaseChange(
            starts_at=None if start is None else at(wanted_start),
            ends_at=None if end is None else at(wanted_end),
            reservations=(ReservationChange(known.reservation_id, parameters),) if amount else (),
        )
        if change.is_empty:
            return
        expected = self.judge(known, wanted_start, wanted_end, wanted_minimum, wanted_maximum, resized=bool(amount))
        before = self.shown(known)
        done = self.ask(lambda: self.world.leases.update(OWNER, known.lease_id, change))
        if done is None:
            assert expected is not True, f"{self.refusal}: {known} to {change} at {self.minute}"
            if not self.interrupted:
                assert self.shown(known) == before
            return
        assert expected is not False, f"granted: {known} to {change}"
        known.start, known.end = wanted_start, wanted_end
        known.minimum, known.maximum = wanted_minimum, wanted_maximum

    @precondition(lambda self: self.living())
    @rule(index=leases, longer=st.integers(1, 10))
    def extend(self, index: int, longer: int) -> None:
        """The most frequent change, with the most conflicts."""
        known = self.pick(index)
        self.update(known, None, known.end + longer - self.minute, None)

    @precondition(lambda self: self.living())
    @rule(index=leases)
    def rename(self, index: int) -> None:
        known = self.pick(index)
        name = f"renamed at {self.world.clock.now()}"
        if self.ask(lambda: self.world.leases.update(OWNER, known.lease_id, LeaseChange(name=name))) is not None:
            assert self.world.leases.get(OWNER, known.lease_id).name == name
        else:
            assert self.status(known) == "TERMINATING"

    @precondition(lambda self: self.living())
    @rule(index=leases)
    def delete(self, index: int) -> None:
        known = self.pick(index)
        known.deleted = True
        self.ask(lambda: self.world.leases.delete(OWNER, known.lease_id) or True)

    @precondition(lambda self: self.living())
    @rule(index=leases)
    def boot_a_server(self, index: int) -> None:
        known = self.pick(index)
        if self.status(known) != "ACTIVE":
            return
        if not known.instances:
            server = self.world.cloud.world.boot_server(OWNER.project_id, reservation_id=known.reservation_id)
            known.servers.add(server)
        elif len(known.servers) < sum(known.units.values()):
            known.servers.add(self.world.cloud.world.instances.boot(OWNER.project_id, known.reservation_id))

    # --- the rules: the service and the cloud

    @rule(step=st.integers(1, 12))
    def time_passes(self, step: int) -> None:
        self.pass_time(step * MINUTE)

    @rule()
    def the_process_is_restarted(self) -> None:
        self.world.restart()

    @rule(event=st.sampled_from(EVENTS), point=st.sampled_from(POINTS))
    def the_process_will_be_killed(self, event: str, point: str) -> None:
        self.checkpoints.kill_at(f"{event}:{point}")

    @precondition(lambda self: self.living())
    @rule(index=leases, kind=FAULTS, verb=st.sampled_from(["ensure_started", "ensure_ended"]), count=st.integers(1, 3))
    def the_cloud_will_fail_for_a_while(self, index: int, kind: FaultKind, verb: str, count: int) -> None:
        known = self.pick(index)
        if verb in known.faulty:
            return  # three failures are retried, six in a row could be too many
        known.faulty.add(verb)
        self.world.cloud.inject(Fault(kind, verb=verb, reservation_id=known.reservation_id, count=count))

    @precondition(lambda self: self.to_start())
    @rule(index=leases, after_effects=st.integers(0, 2))
    def the_cloud_will_refuse_a_start(self, index: int, after_effects: int) -> None:
        """The refusal comes before any effect in the cloud, after some, or after all."""
        waiting = self.to_start()
        known = waiting[index % len(waiting)]
        known.refused = True
        self.world.cloud.inject(
            Fault(
                FaultKind.REFUSED,
                verb="ensure_started",
                reservation_id=known.reservation_id,
                count=None,
                after_effects=after_effects,
            )
        )

    @precondition(lambda self: self.living())
    @rule(index=leases, length=st.integers(1, 10))
    def servers_of_a_lease_will_vanish_late(self, index: int, length: int) -> None:
        known = self.pick(index)
        if known.slow_until == 0 and self.status(known) in {"PENDING", "ACTIVE"}:
            known.slow_until = max(known.end, self.minute) + length
            self.world.cloud.inject(
                Fault(
                    FaultKind.SLOW,
                    verb="ensure_ended",
                    reservation_id=known.reservation_id,
                    until=at(known.slow_until),
                )
            )

    # --- the invariants

    @invariant()
    def all_invariants_hold(self) -> None:
        self.settle()
        assert ledger.faults(self.url) == []
        self.every_lease_has_its_due_status()
        self.no_leases_share_a_host()
        self.the_cloud_agrees_with_the_leases()

    def every_lease_has_its_due_status(self) -> None:
        overdue = self.overdue()
        for known in self.all:
            known.units = {} if self.over(known) else self.units_of(known)
            known.hosts = frozenset() if known.instances else frozenset(known.units)
            status = self.status(known)
            allowed = self.allowed(known, bool(overdue))
            assert status in allowed, f"{status}, not one of {allowed}: {known} at {self.minute}"
            if status in {"PENDING", "ACTIVE"} and known.end > max(known.start, self.minute):
                assert known.minimum <= sum(known.units.values()) <= known.maximum, known

    def no_leases_share_a_host(self) -> None:
        living = [known for known in self.all if not self.over(known) and self.status(known) in {"PENDING", "ACTIVE"}]
        for known, other in combinations(living, 2):
            if known.start < other.end and other.start < known.end:
                assert not known.hosts & other.hosts, (known, other)

    def the_cloud_agrees_with_the_leases(self) -> None:
        groups = self.world.cloud.world.groups()
        held = [host for group in groups.values() for host in group.hosts]
        assert sorted([*held, *self.world.cloud.world.pool()]) == list(HOST_IDS)
        servers = {server.id for server in self.world.cloud.world.servers()}
        for known in self.all:
            status = self.status(known)
            if status == "ACTIVE" and known.instances:
                assert self.world.cloud.world.instances.units(known.reservation_id) == known.units
                assert known.servers <= servers
            elif status == "ACTIVE":
                assert set(groups[known.reservation_id].hosts) == known.hosts
                assert groups[known.reservation_id].project_id == OWNER.project_id
                assert known.servers <= servers
            elif not self.is_being_taken_back(known, status):
                assert known.reservation_id not in groups
                assert not self.world.cloud.world.instances.traces(known.reservation_id)
                assert not known.servers & servers

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.checkpoints.forget()
            last = max((max(known.end, known.slow_until) for known in self.all), default=self.minute)
            self.pass_time((max(0, last - self.minute) + 60) * MINUTE)
            self.settle()
            self.every_lease_has_its_due_status()
            assert_all_in_pool(self.world)
            assert ledger.faults(self.url) == []
            holders: dict[str | None, str | None] = {}
            for effect in self.world.cloud.world.journal():
                if effect.kind == EffectKind.HOST_TAKEN:
                    assert holders.get(effect.host) is None, effect
                    holders[effect.host] = effect.reservation_id
                elif effect.kind == EffectKind.HOST_RETURNED:
                    assert holders.pop(effect.host) == effect.reservation_id
            deleted = [
                effect.subject
                for effect in self.world.cloud.world.journal()
                if effect.kind == EffectKind.SERVER_DELETED
            ]
            assert sorted(map(str, deleted)) == sorted(server for known in self.all for server in known.servers)
        finally:
            self.stack.close()

    # --- the model

    def allowed(self, known: Known, overdue: bool) -> set[str]:
        """Return the statuses that the lease may have now."""
        slow = known.slow_until > self.minute
        if known.deleted:
            return {"DELETED", "DELETING"} if slow else {"DELETED"}
        if self.minute < known.start and known.end > self.minute:
            return {"PENDING"}
        if self.minute < known.end:
            if known.refused:
                return {"ERROR", "PENDING"} if overdue else {"ERROR"}
            return {"ACTIVE", "PENDING"} if overdue else {"ACTIVE"}
        over = {"TERMINATED", "TERMINATING"} if slow else {"TERMINATED"}
        return over | {"ERROR"} if known.refused else over

    def is_being_taken_back(self, known: Known, status: str) -> bool:
        """Whether the cloud may still have effects of the lease; after a failed start only if its servers are slow."""
        return status in {"TERMINATING", "DELETING"} or (status == "ERROR" and known.slow_until > self.minute)

    def judge(self, known: Known, start: int, end: int, minimum: int, maximum: int, *, resized: bool) -> bool | None:
        """Whether the change must be granted (True) or refused (False); None if the model does not know."""
        status = self.status(known)
        if status in {"TERMINATED", "ERROR", "TERMINATING"} or known.end < self.minute:
            return False
        if start != known.start and (known.start < self.minute or start < self.minute or status == "ACTIVE"):
            return False
        if end < start or (end != known.end and end < self.minute):
            return False
        if self.overdue() or known.refused:
            return None
        if end <= max(start, self.minute):  # the lease will have no more resources
            return None if resized else True
        if known.instances:
            return self.judge_parts(known, start, end, maximum, resized=resized, running=status != "PENDING")
        others = self.free(start, end, ignoring=known)
        if status == "PENDING":
            return True if len(others) >= minimum else None
        if resized and len(known.hosts) > maximum:
            return False
        if not known.hosts <= others:
            return None
        missing = max(0, minimum - len(known.hosts)) if resized else 0
        return True if len(others - known.hosts) >= missing else None

    def judge_parts(
        self, known: Known, start: int, end: int, amount: int, *, resized: bool, running: bool
    ) -> bool | None:
        rooms = self.rooms(start, end, ignoring=known)
        if not running:
            return True if sum(rooms.values()) >= amount else None
        own = sum(known.units.values())
        if resized and amount < own:
            return False
        if any(rooms[host] < units for host, units in known.units.items()):
            return None
        return True if sum(rooms.values()) >= (amount if resized else own) else None

    def rooms(self, start: int, end: int, *, ignoring: Known | None = None) -> dict[str, int]:
        """Return the number of instances for which each host has room, by the last look at the leases."""
        others = [known for known in self.all if known is not ignoring and not self.over(known)]

        def room(host: str, minute: int) -> int:
            there = [known for known in others if known.start <= minute < known.end and host in known.units]
            whole = any(not known.instances for known in there)
            return 0 if whole else ROOM - sum(known.units[host] for known in there)

        return {host: min(room(host, minute) for minute in range(start, end)) for host in HOST_IDS}

    def free(self, start: int, end: int, *, ignoring: Known | None = None) -> frozenset[str]:
        """Return the hosts that no lease was seen to have between these minutes."""
        taken = {
            host
            for known in self.all
            if known is not ignoring and not self.over(known) and known.start < end and start < known.end
            for host in known.units
        }
        return frozenset(HOST_IDS) - taken

    def over(self, known: Known) -> bool:
        """Whether the lease has no resources, and will have none."""
        return known.deleted or known.end <= self.minute or self.status(known) == "ERROR"

    def overdue(self) -> list[Known]:
        """Return the leases that are over and still have hosts in the cloud."""
        there = {*self.world.cloud.world.groups(), *self.world.cloud.world.instances.flavors()}
        overdue = [known for known in self.all if known.reservation_id in there and self.over(known)]
        assert all(known.slow_until > self.minute for known in overdue), overdue
        return overdue

    # --- access to the service

    @property
    def minute(self) -> int:
        return int((self.world.clock.now() - NOW) / MINUTE)

    asked_at = NOW
    interrupted = False
    refusal: TenureError | None = None

    def living(self) -> list[Known]:
        if not hasattr(self, "all"):
            return []
        return [known for known in self.all if not known.deleted and known.end + 5 > self.minute]

    def to_start(self) -> list[Known]:
        """Return the leases whose start is in the future and will not be refused."""
        return [known for known in self.living() if known.start > self.minute and not known.refused]

    def pick(self, index: int) -> Known:
        living = self.living()
        return living[index % len(living)]

    def status(self, known: Known) -> str:
        with self.world.db.read() as tx:
            lease = tx.leases.get(known.lease_id, deleted=True)
        assert lease is not None, f"{known} is lost"
        return lease.status.value

    def units_of(self, known: Known) -> dict[str, int]:
        """Return the present or planned units of the lease, by the id of the host."""
        with self.world.db.read() as tx:
            allocations, _ = tx.allocations.with_versions([known.reservation_id])
            hosts = tx.resources.by_ids({allocation.resource_id for allocation in allocations})
        units: Counter[str] = Counter()
        for allocation in allocations:
            units[hosts[allocation.resource_id].external_id] += allocation.units
        return dict(units)

    def shown(self, known: Known) -> tuple[Any, ...]:
        lease = self.world.leases.get(OWNER, known.lease_id)
        return (
            lease.name,
            lease.starts_at,
            lease.ends_at,
            lease.reservations[0].parameters,
            [(event.event_type, event.due_at) for event in lease.events if event.event_type.value != "update_lease"],
            self.units_of(known),
        )

    def ask(self, operation: Callable[[], Any]) -> Any:
        """Return the answer, None for a refusal, or True if the process is killed during the request."""
        self.interrupted, self.refusal = False, None
        self.asked_at = self.world.clock.now()
        try:
            return operation()
        except Killed:
            self.after_a_kill()
            return True
        except TenureError as refusal:
            self.refusal = refusal
            return None

    def pass_time(self, step: timedelta) -> None:
        end = self.world.clock.now() + step
        try:
            self.world.pass_until(end)
        except Killed:
            self.after_a_kill()
            self.pass_time(max(timedelta(0), end - self.world.clock.now()))

    def after_a_kill(self) -> None:
        """Restart the service; it waits until the claim of the killed process has expired."""
        self.interrupted = True
        self.world.restart()
        self.pass_time(CLAIM)
        self.asked_at = self.world.clock.now()  # the retries of the new process begin now

    def settle(self) -> None:
        """Wait for the retries of the last request, of events taken over after a kill, and of due events."""
        while True:
            now = self.world.clock.now()
            quiet_at = max(now.replace(second=0, microsecond=0), self.asked_at) + QUIET
            if now >= quiet_at:
                return
            self.pass_time(quiet_at - now)


def at(minute: int):
    return NOW + minute * MINUTE


#: An example takes about a second; ``make test`` runs more of them.
EXAMPLES = 8 if settings().max_examples <= 100 else times(10, 50)


TestService = pytest.mark.slow(ServiceMachine.TestCase)
TestService.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    phases=set(Phase) - {Phase.explain},  # this phase traces every line, which takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
