"""Random verbs, faults, foreign servers and threads: reservations of parts of hosts get all their units."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudBusy, CloudRefused, Command, ResourceRef
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tenure.testing.rig import command_of
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import patience

HOST = "physical:host"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
FLEET = [ResourceRef(str(number), f"sim-host-{number:03d}") for number in range(1, 5)]
RESERVATIONS = ("r-1", "r-2", "r-3")

reservations = st.sampled_from(RESERVATIONS)
some_units = st.dictionaries(st.sampled_from(FLEET), st.integers(1, 3), max_size=3)
affinities = st.sampled_from([None, True, False])
verbs = st.sampled_from(["ensure_prepared", "ensure_started", "before_end", "ensure_ended"])

#: What each of these deletes.
_DELETED_BY = {"delete_flavor": "flavor", "delete_aggregate": "aggregate", "delete_class": "resource class"}


def project_of(reservation_id: str) -> str:
    return f"project-of-{reservation_id}"


def command_for(
    reservation_id: str,
    units: dict[ResourceRef, int],
    affinity: bool | None = None,
    trust_id: str | None = None,
) -> Command:
    made = command_of(
        *units, reservation_id=reservation_id, project_id=project_of(reservation_id), resource_type="virtual:instance"
    )
    return replace(
        made,
        parameters={"vcpus": 1, "memory_mb": 64, "disk_gb": 1, "amount": sum(units.values()), "affinity": affinity},
        units={resource.external_id: count for resource, count in units.items()},
        trust_id=trust_id,
    )


class AnyInterleavingOfParts(RuleBasedStateMachine):
    """Reservations of instances come and go in any order, while calls break off and strangers meddle anywhere."""

    @initialize()
    def open(self) -> None:
        self.cloud = SimulatedCloud.create(hosts=len(FLEET), clock=SimulatedClock(NOW))
        self.trusts = {
            reservation_id: self.cloud.delegate(Actor("u", project_of(reservation_id), frozenset({"member"})))
            for reservation_id in RESERVATIONS
        }
        self.foreign: set[str] = set()
        #: The hosts that each reservation has had since its last end, as the ledger knows them.
        self.had: dict[str, set[ResourceRef]] = {reservation: set() for reservation in RESERVATIONS}
        for host in FLEET:
            self.cloud.ensure_registered(HOST, host)

    def teardown(self) -> None:
        self.cloud.close()

    @rule(verb=verbs, effects=st.integers(0, 9), lost=st.booleans())
    def break_off(self, verb: str, effects: int, lost: bool) -> None:
        self.cloud.inject(Fault(FaultKind.LOST_REPLY if lost else FaultKind.BUSY, verb, after_effects=effects))

    @rule(reservation=reservations)
    def hold_servers(self, reservation: str) -> None:
        self.cloud.inject(Fault(FaultKind.SLOW, reservation_id=reservation))

    @rule()
    def clear_faults(self) -> None:
        self.cloud.clear_faults()

    @rule(reservation=reservations, affinity=affinities)
    def prepare(self, reservation: str, affinity: bool | None) -> None:
        try:
            self.cloud.ensure_prepared(command_for(reservation, {}, affinity, self.trusts[reservation]))
        except CloudBusy:
            return
        self.check_group(reservation, affinity)

    @rule(reservation=reservations, units=some_units, affinity=affinities)
    def start(self, reservation: str, units: dict[ResourceRef, int], affinity: bool | None) -> None:
        """As the manager does: a change of the affinity is prepared before."""
        command = command_for(reservation, units, affinity, self.trusts[reservation])
        command = replace(command, returning=tuple(self.had[reservation] - units.keys()))
        self.had[reservation] |= units.keys()
        try:
            self.cloud.ensure_prepared(command)
            progress = self.cloud.ensure_started(command)
        except CloudBusy:
            return
        found = self.cloud.world.instances.units(reservation)
        assert found.items() >= command.units.items()
        self.check_group(reservation, affinity)
        if progress.done:
            assert found == command.units
            assert self.cloud.drift(HOST, [command], []) == []
            used = Counter(server.host for server in self.cloud.world.servers() if server.reservation_id == reservation)
            assert all(count <= found.get(host, 0) for host, count in used.items())

    def check_group(self, reservation: str, affinity: bool | None) -> None:
        named = f"reservation:{reservation}"
        groups = [group for group in self.cloud.world.instances.server_groups().values() if group.name == named]
        policies = [] if affinity is None else ["affinity" if affinity else "anti-affinity"]
        assert [group.policy for group in groups] == policies

    def last_command(self, reservation: str) -> Command:
        """The command to end the reservation."""
        return command_for(reservation, dict.fromkeys(self.had[reservation], 1), trust_id=self.trusts[reservation])

    @rule(reservation=reservations)
    def end(self, reservation: str) -> None:
        try:
            progress = self.cloud.ensure_ended(self.last_command(reservation))
        except CloudBusy:
            return
        assert progress.done is (reservation not in self.cloud.held(HOST))
        if progress.done:
            assert self.cloud.world.instances.traces(reservation) == frozenset()

    @rule(reservation=reservations)
    def snapshot(self, reservation: str) -> None:
        try:
            self.cloud.before_end(self.last_command(reservation), "snapshot")
        except CloudBusy:
            return

    @rule(reservation=reservations)
    def boot(self, reservation: str) -> None:
        before = Counter(server.host for server in self.cloud.world.servers() if server.reservation_id == reservation)
        try:
            booted = self.cloud.world.instances.boot(project_of(reservation), reservation)
        except CloudRefused:
            return
        host = {server.id: server.host for server in self.cloud.world.servers()}[booted]
        assert before[host] < self.cloud.world.instances.units(reservation)[host]

    @rule(host=st.sampled_from(FLEET))
    def force(self, host: ResourceRef) -> None:
        self.foreign.add(self.cloud.world.force_server("stranger", host.external_id))

    @rule(
        reservation=reservations,
        meddle=st.sampled_from(["delete_flavor", "delete_aggregate", "delete_class", "delete_groups", "give_access"]),
    )
    def meddle(self, reservation: str, meddle: str) -> None:
        world = self.cloud.world.instances
        if meddle == "delete_groups":
            for group in world.server_groups():
                world.delete_group(group)
        elif meddle == "give_access":
            if reservation in world.flavors():
                world.give_access(reservation, "stranger")
        elif _DELETED_BY[meddle] in world.traces(reservation):
            getattr(world, meddle)(reservation)

    @rule(reservation=reservations, host=st.sampled_from(FLEET), added=st.booleans())
    def move_host(self, reservation: str, host: ResourceRef, added: bool) -> None:
        world = self.cloud.world.instances
        if reservation in world.aggregates():
            (world.add_to_aggregate if added else world.take_from_aggregate)(reservation, host.external_id)

    @invariant()
    def foreign_servers_live(self) -> None:
        assert self.foreign <= {server.id for server in self.cloud.world.servers()}

    @invariant()
    def every_host_stays_in_the_pool(self) -> None:
        assert self.cloud.world.pool() == {host.external_id for host in FLEET}

    @invariant()
    def nothing_is_done_twice(self) -> None:
        done = Counter(
            (effect.kind, effect.reservation_id, effect.subject)
            for effect in self.cloud.world.journal()
            if effect.kind in (EffectKind.SERVER_DELETED, EffectKind.IMAGE_MADE)
        )
        assert all(count == 1 for count in done.values())

    @rule()
    def settle(self) -> None:
        """Once faults are gone, one call each takes everything back."""
        self.cloud.clear_faults()
        for reservation in RESERVATIONS:
            assert self.cloud.ensure_ended(self.last_command(reservation)).done
            self.had[reservation].clear()
            assert self.cloud.world.instances.traces(reservation) == frozenset()
        assert {server.id for server in self.cloud.world.servers()} == self.foreign
        assert list(self.cloud.held(HOST)) == []


AnyInterleavingOfParts.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestAnyInterleavingOfParts = pytest.mark.slow(AnyInterleavingOfParts.TestCase)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cloud.db"
    with SimulatedCloud.create(path, hosts=len(FLEET)) as cloud:
        for host in FLEET:
            cloud.ensure_registered(HOST, host)
    return path


@pytest.mark.races
def test_concurrent_starts_make_each_flavor_and_aggregate_once_and_an_end_takes_all(path: Path):
    """Nova lets several server groups have one name: concurrent starts may make several of them."""
    ready = threading.Barrier(16)
    once = {EffectKind.FLAVOR_MADE, EffectKind.AGGREGATE_MADE, EffectKind.CLASS_MADE, EffectKind.HOST_ADDED}

    with SimulatedCloud(path) as cloud, ThreadPoolExecutor(16) as pool:

        def command_of_owner(reservation_id: str) -> Command:
            owner = Actor("u", project_of(reservation_id), frozenset({"member"}))
            return command_for(
                reservation_id, {FLEET[0]: 2, FLEET[1]: 1}, affinity=True, trust_id=cloud.delegate(owner)
            )

        commands = [command_of_owner("r-0"), command_of_owner("r-1")]

        def work(index: int) -> bool:
            ready.wait()
            return cloud.ensure_started(commands[index % 2]).done

        assert all(call.result() for call in [pool.submit(work, index) for index in range(16)])
        made = Counter((effect.kind, effect.host) for effect in cloud.world.journal("r-0") if effect.kind in once)
        assert {kind for kind, _ in made} == once
        assert set(made.values()) == {1}
        assert cloud.world.instances.units("r-1") == {"1": 2, "2": 1}
        for started in commands:
            assert cloud.ensure_ended(started).done
            assert cloud.world.instances.traces(started.reservation_id) == frozenset()
        assert cloud.world.groups() == {} == cloud.world.instances.aggregates()


@pytest.mark.races
def test_an_end_removes_all_leftovers_of_a_concurrent_start_and_end(path: Path):
    command = command_for("r-1", {FLEET[0]: 2, FLEET[1]: 1})
    ready = threading.Barrier(2, timeout=patience())

    def work(verb: Callable[[Command], object]) -> None:
        for _ in range(30):
            ready.wait()
            try:
                verb(command)
            except (CloudBusy, CloudRefused):  # what the other verb has just deleted is not found
                continue

    with SimulatedCloud(path) as cloud, ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(work, verb) for verb in (cloud.ensure_started, cloud.ensure_ended)]:
            call.result()
        assert cloud.ensure_ended(command).done
        assert cloud.world.instances.traces("r-1") == frozenset()
        assert cloud.ensure_started(command).done
        assert cloud.drift(HOST, [command], []) == []


@pytest.mark.parametrize("effects", range(1, 8))
def test_the_next_end_removes_all_of_a_start_overtaken_by_an_end(path: Path, effects: int):
    command = command_for("r-1", {FLEET[0]: 2, FLEET[1]: 1})
    with SimulatedCloud(path) as cloud, ThreadPoolExecutor() as pool:
        cloud.inject(Fault(FaultKind.BLOCK, "ensure_started", after_effects=effects))
        start = pool.submit(cloud.ensure_started, command)
        assert cloud.wait_until_blocked(timeout_seconds=patience())
        assert cloud.ensure_ended(command).done
        cloud.clear_faults()
        with suppress(CloudBusy, CloudRefused):
            start.result(timeout=patience())
        with pytest.raises(CloudRefused):
            cloud.world.instances.boot(project_of("r-1"), "r-1")
        traces = cloud.world.instances.traces("r-1")
        assert set(cloud.held(HOST)) == ({"r-1"} if traces else set())
        assert cloud.ensure_ended(command).done
        assert cloud.world.instances.traces("r-1") == frozenset()


@pytest.mark.races
def test_two_reservations_want_the_same_address(path: Path):
    """Never do two have it at once; each that gets it gives it back."""
    ready = threading.Barrier(4)

    with SimulatedCloud(path) as cloud, ThreadPoolExecutor(4) as pool:
        network = cloud.world.addresses.public
        found = cloud.look_up("virtual:floatingip", f"{network}/203.0.113.10")
        address = ResourceRef(found.external_id, found.name)

        def work(number: int) -> int:
            project = f"project-{number}"
            command = command_of(
                address, reservation_id=f"r-{number}", project_id=project, resource_type="virtual:floatingip"
            )
            command = replace(command, parameters={"network_id": network})
            got = 0
            ready.wait()
            for _ in range(20):
                try:
                    cloud.ensure_started(command)
                except CloudBusy:
                    continue
                got += 1
                assert cloud.world.addresses.floating_ips()["203.0.113.10"].project_id == project
                assert cloud.ensure_ended(command).done
            return got

        assert sum(call.result() for call in [pool.submit(work, number) for number in range(4)]) >= 1
        assert list(cloud.held("virtual:floatingip")) == []
