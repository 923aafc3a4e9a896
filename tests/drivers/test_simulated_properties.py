"""Random sequences of verbs, faults and restarts: the cloud ends in the state of the last command."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudBusy, Command, ResourceRef
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tenure.testing.rig import command_of
from tests.support.simulated import NoValidHost, SimulatedCloud

HOST = "physical:host"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
FLEET = [ResourceRef(str(number), f"sim-host-{number:03d}") for number in range(1, 6)]
RESERVATIONS = ("r-1", "r-2", "r-3")

reservations = st.sampled_from(RESERVATIONS)
some_hosts = st.lists(st.sampled_from(FLEET), unique=True, max_size=4)
verbs = st.sampled_from(["ensure_started", "before_end", "ensure_ended", "ensure_registered"])


def project_of(reservation_id: str) -> str:
    return f"project-of-{reservation_id}"


def command_for(reservation_id: str, hosts: list[ResourceRef]) -> Command:
    return command_of(*hosts, reservation_id=reservation_id, project_id=project_of(reservation_id), resource_type=HOST)


def owner_of(reservation_id: str) -> Actor:
    return Actor("u", project_of(reservation_id), frozenset({"member"}))


class AnyInterleaving(RuleBasedStateMachine):
    """Reservations come and go in any order, while calls break off anywhere."""

    @initialize()
    def open(self) -> None:
        self.cloud = SimulatedCloud.create(hosts=len(FLEET), clock=SimulatedClock(NOW))
        self.foreign: set[str] = set()
        #: The hosts that each reservation has had since its last end, as the ledger knows them.
        self.had: dict[str, set[ResourceRef]] = {reservation: set() for reservation in RESERVATIONS}
        self.trusts = {reservation: self.cloud.delegate(owner_of(reservation)) for reservation in RESERVATIONS}
        for host in FLEET:
            self.cloud.ensure_registered(HOST, host)

    def teardown(self) -> None:
        self.cloud.close()

    @rule(verb=verbs, effects=st.integers(0, 5))
    def break_off(self, verb: str, effects: int) -> None:
        self.cloud.inject(Fault(FaultKind.BUSY, verb, after_effects=effects))

    @rule(verb=verbs)
    def lose_reply(self, verb: str) -> None:
        self.cloud.inject(Fault(FaultKind.LOST_REPLY, verb))

    @rule(reservation=reservations)
    def hold_servers(self, reservation: str) -> None:
        self.cloud.inject(Fault(FaultKind.SLOW, reservation_id=reservation))

    @rule()
    def clear_faults(self) -> None:
        self.cloud.clear_faults()

    @rule(reservation=reservations, hosts=some_hosts)
    def start(self, reservation: str, hosts: list[ResourceRef]) -> None:
        returning = tuple(self.had[reservation] - set(hosts))
        self.had[reservation] |= set(hosts)
        try:
            progress = self.cloud.ensure_started(replace(command_for(reservation, hosts), returning=returning))
        except CloudBusy:
            return
        group = self.cloud.world.groups()[reservation]
        expected = {host.external_id for host in hosts}
        lingering = set(group.hosts) - expected
        assert expected <= set(group.hosts)
        # A host that was given up stays in the group only while the reservation's servers vanish on it, or others'
        # servers run on it.
        servers = self.cloud.world.servers()
        assert lingering <= {
            server.host
            for server in servers
            if server.id in self.foreign or (server.vanishing and server.reservation_id == reservation)
        }
        # Nova keeps a host from its zone while a server runs there, also a host that others took out of the group.
        blocked = {host.external_id for host in returning} & {server.host for server in servers} - set(group.hosts)
        assert not (progress.done and lingering)
        assert progress.done or lingering or blocked
        assert group.project_id == project_of(reservation)

    @rule(reservation=reservations)
    def end(self, reservation: str) -> None:
        try:
            progress = self.cloud.ensure_ended(command_for(reservation, list(self.had[reservation])))
        except CloudBusy:
            return
        assert progress.done is (reservation not in self.cloud.held(HOST))

    @rule(reservation=reservations)
    def snapshot(self, reservation: str) -> None:
        try:
            command = replace(command_for(reservation, list(self.had[reservation])), trust_id=self.trusts[reservation])
            self.cloud.before_end(command, "snapshot")
        except CloudBusy:
            return

    @rule(reservation=reservations)
    def boot(self, reservation: str) -> None:
        try:
            self.cloud.world.boot_server(project_of(reservation), reservation_id=reservation)
        except NoValidHost:
            return

    @rule(host=st.sampled_from(FLEET))
    def force(self, host: ResourceRef) -> None:
        self.foreign.add(self.cloud.world.force_server("stranger", host.external_id))

    @rule(host=st.sampled_from(FLEET))
    def take_out(self, host: ResourceRef) -> None:
        self.cloud.world.take_out(host.external_id)

    @rule(reservation=reservations)
    def drop_group(self, reservation: str) -> None:
        self.cloud.world.drop_group(reservation)

    @rule(host=st.sampled_from(FLEET))
    def register(self, host: ResourceRef) -> None:
        try:
            self.cloud.ensure_registered(HOST, host)
        except CloudBusy:
            return

    @invariant()
    def foreign_servers_live(self) -> None:
        assert self.foreign <= {server.id for server in self.cloud.world.servers()}

    @invariant()
    def nothing_is_done_twice(self) -> None:
        done = Counter(
            (effect.kind, effect.reservation_id, effect.subject)
            for effect in self.cloud.world.journal()
            if effect.kind in (EffectKind.SERVER_DELETED, EffectKind.IMAGE_MADE)
        )
        assert all(count == 1 for count in done.values())

    @invariant()
    def the_journal_adds_up(self) -> None:
        """What the journal says was taken and not returned is what is held, but for what others took away."""
        taken: dict[str, str] = {}
        for effect in self.cloud.world.journal():
            if effect.kind == EffectKind.HOST_TAKEN:
                assert effect.host is not None
                assert effect.reservation_id is not None
                taken[effect.host] = effect.reservation_id
            elif effect.kind in (EffectKind.HOST_RETURNED, EffectKind.HOST_POOLED):
                taken.pop(effect.host or "", None)
        held = {host: group.reservation_id for group in self.cloud.world.groups().values() for host in group.hosts}
        assert held.items() <= taken.items()

    @rule()
    def settle(self) -> None:
        """Once faults and foreign servers are gone, one call each brings everything to where it belongs."""
        self.cloud.clear_faults()
        for server in self.cloud.world.servers():
            if server.id in self.foreign:
                self.cloud.world.delete_server(server.id)
        self.foreign.clear()
        for reservation in RESERVATIONS:
            assert self.cloud.ensure_ended(command_for(reservation, list(self.had[reservation]))).done
            self.had[reservation].clear()
        for host in FLEET:
            self.cloud.ensure_registered(HOST, host)
        assert self.cloud.world.pool() == {host.external_id for host in FLEET}
        assert self.cloud.world.servers() == []
        assert list(self.cloud.held(HOST)) == []


AnyInterleaving.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyInterleaving = pytest.mark.slow(AnyInterleaving.TestCase)


def test_a_host_is_given_up_while_its_servers_are_going():
    """Chance finds this order once in hundreds of runs; it is tried in each."""
    state = AnyInterleaving()
    state.open()
    try:
        state.hold_servers("r-1")
        state.start("r-1", [FLEET[0]])
        state.boot("r-1")
        state.start("r-1", [])
        assert state.cloud.world.groups()["r-1"].hosts
        state.settle()
    finally:
        state.teardown()


def test_a_server_on_a_host_that_others_took_out_delays_its_return():
    """Chance finds this order once in hundreds of runs; it is tried in each."""
    state = AnyInterleaving()
    state.open()
    try:
        state.start("r-1", [FLEET[0]])
        state.boot("r-1")
        state.take_out(FLEET[0])
        state.start("r-1", [])
        [server] = state.cloud.world.servers()
        progress = state.cloud.ensure_started(replace(command_for("r-1", []), returning=(FLEET[0],)))
        assert (progress.done, server.id in str(progress.reason)) == (False, True)
        state.settle()
    finally:
        state.teardown()


@given(
    st.lists(
        st.tuples(st.sampled_from(["ensure_started", "ensure_ended"]), st.integers(0, 6), st.booleans()),
        max_size=6,
    ),
    some_hosts,
)
def test_a_start_with_any_faults_and_retries_has_each_effect_once(
    faults: list[tuple[str, int, bool]], hosts: list[ResourceRef]
):
    with SimulatedCloud.create(hosts=len(FLEET), clock=SimulatedClock(NOW)) as cloud:
        for verb, effects, lost in faults:
            kind = FaultKind.LOST_REPLY if lost else FaultKind.BUSY
            cloud.inject(Fault(kind, verb, after_effects=effects))
        for call in (cloud.ensure_started, cloud.ensure_ended):
            for _ in range(len(faults) + 1):
                try:
                    call(command_for("r-1", hosts))
                except CloudBusy:
                    continue
                break
        changes = [effect for effect in cloud.world.journal("r-1") if effect.kind != EffectKind.GROUP_CHANGED]
        kinds = Counter((effect.kind, effect.host) for effect in changes)
        expected = {(EffectKind.GROUP_MADE, None), (EffectKind.GROUP_REMOVED, None)} | {
            (kind, host.external_id) for kind in (EffectKind.HOST_TAKEN, EffectKind.HOST_RETURNED) for host in hosts
        }
        assert kinds == dict.fromkeys(expected, 1)
        assert list(cloud.held(HOST)) == []
