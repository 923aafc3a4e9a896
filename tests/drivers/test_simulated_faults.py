"""What can be made to go wrong in the simulated cloud goes as wrong as it was asked to, and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.domain.address import address_id
from tenure.drivers.contract import CloudBusy, CloudRefused, Group, ResourceRef
from tenure.drivers.simulated import Fault, FaultKind
from tenure.drivers.simulated.faults import VERBS
from tenure.testing.rig import OWNER, command_of
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import patience

HOST = "physical:host"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOSTS = [ResourceRef(str(number), f"sim-host-{number:03d}") for number in range(1, 5)]


class Sleeper:
    """Remembers how long it was asked to sleep, and does not."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(NOW)


@pytest.fixture
def sleeper() -> Sleeper:
    return Sleeper()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cloud.db"


@pytest.fixture
def cloud(path: Path, clock: SimulatedClock, sleeper: Sleeper) -> Iterator[SimulatedCloud]:
    with SimulatedCloud.create(path, hosts=4, clock=clock, sleep=sleeper) as cloud:
        for host in HOSTS:
            cloud.ensure_registered(HOST, host)
        yield cloud


def test_latency_sleeps_for_the_requested_number_of_calls(cloud: SimulatedCloud, sleeper: Sleeper):
    cloud.inject(Fault(FaultKind.LATENCY, "check", seconds=2.5, count=2))
    for _ in range(3):
        cloud.check(HOST)
    assert sleeper.slept == [2.5, 2.5]
    assert cloud.faults() == {}


def test_the_next_calls_fail_for_now(cloud: SimulatedCloud):
    cloud.inject(Fault(FaultKind.BUSY, "ensure_started", count=3, reason="nova is overloaded"))
    command = command_of(HOSTS[0], resource_type=HOST)
    for _ in range(3):
        with pytest.raises(CloudBusy, match="nova is overloaded"):
            cloud.ensure_started(command)
        assert cloud.world.groups() == {}
    cloud.ensure_started(command)
    assert cloud.world.groups()["r-1"].hosts == ("1",)


def test_a_failure_for_good_lasts_until_it_is_cleared(cloud: SimulatedCloud):
    fault = cloud.inject(Fault(FaultKind.REFUSED, "ensure_started", count=None))
    command = command_of(HOSTS[0], resource_type=HOST)
    for _ in range(5):
        with pytest.raises(CloudRefused):
            cloud.ensure_started(command)
    cloud.clear_faults(fault)
    cloud.ensure_started(command)


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        (Fault(FaultKind.BUSY), True),
        (Fault(FaultKind.BUSY, "ensure_started"), True),
        (Fault(FaultKind.BUSY, "ensure_ended"), False),
        (Fault(FaultKind.BUSY, reservation_id="r-1"), True),
        (Fault(FaultKind.BUSY, reservation_id="r-2"), False),
        (Fault(FaultKind.BUSY, lease_name="a lease"), True),
        (Fault(FaultKind.BUSY, lease_name="another"), False),
        (Fault(FaultKind.BUSY, host="2"), True),
        (Fault(FaultKind.BUSY, host="sim-host-002"), True),
        (Fault(FaultKind.BUSY, host="3"), False),
        (Fault(FaultKind.BUSY, "ensure_started", reservation_id="r-1", host="3"), False),
    ],
)
def test_a_fault_strikes_only_matching_calls(cloud: SimulatedCloud, fault: Fault, struck: bool):
    cloud.inject(fault)
    command = command_of(*HOSTS[:2], resource_type=HOST)
    if struck:
        with pytest.raises(CloudBusy):
            cloud.ensure_started(command)
    else:
        cloud.ensure_started(command)
        assert list(cloud.faults().values()) == [fault]


def test_a_fault_can_wait_for_effects(cloud: SimulatedCloud):
    """Before the first host comes the group is made, keeps the zones of the four, and these leave them."""
    cloud.inject(Fault(FaultKind.BUSY, "ensure_started", after_effects=7))
    with pytest.raises(CloudBusy):
        cloud.ensure_started(command_of(*HOSTS, resource_type=HOST))
    assert len(cloud.world.groups()["r-1"].hosts) == 1


def test_a_call_that_was_struck_changes_nothing_more(cloud: SimulatedCloud):
    """The driver can change nothing after the fault, as if its process had died."""
    cloud.inject(Fault(FaultKind.REFUSED, "ensure_unregistered", after_effects=1))
    cloud.inject(Fault(FaultKind.REFUSED, "ensure_registered", after_effects=1))
    with pytest.raises(CloudRefused):
        cloud.ensure_unregistered(HOST, HOSTS[0])
    with pytest.raises(CloudRefused):
        cloud.ensure_registered(HOST, HOSTS[0])
    assert "1" in cloud.world.pool()


def test_a_call_with_a_lost_reply_has_all_its_effects(cloud: SimulatedCloud):
    cloud.inject(Fault(FaultKind.LOST_REPLY, "ensure_started"))
    with pytest.raises(CloudBusy, match="lost reply"):
        cloud.ensure_started(command_of(*HOSTS, resource_type=HOST))
    assert cloud.world.groups()["r-1"].hosts == ("1", "2", "3", "4")


def test_servers_vanish_when_the_time_has_come(cloud: SimulatedCloud, clock: SimulatedClock):
    command = command_of(*HOSTS[:2], resource_type=HOST)
    cloud.ensure_started(command)
    cloud.world.boot_server(OWNER, reservation_id="r-1")
    cloud.inject(Fault(FaultKind.SLOW, "ensure_ended", until=NOW + timedelta(seconds=20)))

    progress = cloud.ensure_ended(command)
    assert (progress.done, str(progress.reason)) == (False, "1 server is still being deleted.")
    assert [(server.vanishing, server.host) for server in cloud.world.servers()] == [(True, "1")]
    assert cloud.world.groups()["r-1"].hosts == ("1",)

    clock.advance(timedelta(seconds=19))
    assert not cloud.ensure_ended(command).done
    clock.advance(timedelta(seconds=1))
    assert cloud.ensure_ended(command).done
    assert cloud.world.servers() == []
    assert cloud.world.groups() == {}


def test_a_slow_teardown_of_a_host_does_not_slow_another(cloud: SimulatedCloud):
    cloud.inject(Fault(FaultKind.SLOW, "ensure_ended", host="1"))
    for number, host in enumerate(HOSTS[:2]):
        command = command_of(host, reservation_id=f"r-{number}", resource_type=HOST)
        cloud.ensure_started(command)
        assert cloud.ensure_ended(command).done is (number == 1)


def test_a_blocked_call_stands_still_until_it_is_released(cloud: SimulatedCloud):
    fault = cloud.inject(Fault(FaultKind.BLOCK, "ensure_started", after_effects=1))
    command = command_of(HOSTS[0], resource_type=HOST)
    with ThreadPoolExecutor() as pool:
        call = pool.submit(cloud.ensure_started, command)
        assert cloud.wait_until_blocked(timeout_seconds=patience())
        assert not call.done()
        assert cloud.world.groups()["r-1"].hosts == ()
        cloud.check(HOST)  # nobody else is held
        cloud.clear_faults(fault)
        call.result(timeout=patience())
    assert cloud.world.groups()["r-1"].hosts == ("1",)


def test_a_block_holds_the_requested_number_of_calls(cloud: SimulatedCloud):
    cloud.inject(Fault(FaultKind.BLOCK, "check", count=2))
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(cloud.check, HOST) for _ in range(2)]
        assert cloud.wait_until_blocked(2, timeout_seconds=patience())
        cloud.check(HOST)
        cloud.clear_faults()
        for call in calls:
            call.result(timeout=patience())


def test_no_call_is_blocked_without_a_fault(cloud: SimulatedCloud):
    assert not cloud.wait_until_blocked(timeout_seconds=0.001)


def test_faults_come_from_another_opening_of_the_file(cloud: SimulatedCloud, path: Path):
    with SimulatedCloud(path) as other:
        other.inject(Fault(FaultKind.BUSY, "check"))
        with pytest.raises(CloudBusy):
            cloud.check(HOST)
        assert other.faults() == {}
        other.inject(Fault(FaultKind.BLOCK, "check"))
        with ThreadPoolExecutor() as pool:
            call = pool.submit(cloud.check, HOST)
            assert cloud.wait_until_blocked(timeout_seconds=patience())
            other.clear_faults()
            call.result(timeout=patience())


@pytest.mark.races
def test_many_calls_at_once_are_struck_no_more_often_than_asked(cloud: SimulatedCloud):
    cloud.inject(Fault(FaultKind.BUSY, "check", count=50))
    ready = threading.Barrier(16)

    def failures() -> int:
        ready.wait()
        failed = 0
        for _ in range(20):
            try:
                cloud.check(HOST)
            except CloudBusy:
                failed += 1
        return failed

    with ThreadPoolExecutor(16) as pool:
        counts = [pool.submit(failures) for _ in range(16)]
        assert sum(count.result() for count in counts) == 50
    assert cloud.faults() == {}


@pytest.mark.parametrize(
    "nonsense",
    [
        {"verb": "ensure_strated"},
        {"count": 0},
        {"seconds": -1.0},
        {"after_effects": -1},
        {"until": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is refused
    ],
)
def test_a_fault_that_could_never_strike_is_refused(nonsense: dict[str, object]):
    with pytest.raises(ValueError):
        Fault(FaultKind.BUSY, **nonsense)  # type: ignore[arg-type]  # each is right but for one


def test_a_fault_can_be_meant_for_an_address(cloud: SimulatedCloud):
    network = cloud.world.addresses.public
    first, second = (ResourceRef(address_id(network, address), address) for address in ("203.0.113.10", "203.0.113.11"))
    cloud.inject(Fault(FaultKind.BUSY, host=first.name, after_effects=1))
    commands = [
        replace(
            command_of(address, reservation_id=f"r-{number}", resource_type="virtual:floatingip"),
            parameters={"network_id": network},
        )
        for number, address in enumerate((first, second))
    ]
    with pytest.raises(CloudBusy):
        cloud.ensure_started(commands[0])
    cloud.ensure_started(commands[1])
    found = cloud.world.addresses.floating_ips()
    assert found[first.name].tags == frozenset()
    assert found[second.name].tags == {"blazar", "reservation:r-1"}


def test_every_verb_can_be_struck(cloud: SimulatedCloud):
    command = command_of(HOSTS[0], resource_type=HOST)
    calls: dict[str, Callable[[], object]] = {
        "missing_services": lambda: cloud.missing_services(HOST),
        "discover": lambda: cloud.discover(HOST),
        "look_up": lambda: cloud.look_up(HOST, "1"),
        "ensure_registered": lambda: cloud.ensure_registered(HOST, HOSTS[0]),
        "ensure_unregistered": lambda: cloud.ensure_unregistered(HOST, HOSTS[0]),
        "ensure_prepared": lambda: cloud.ensure_prepared(command),
        "ensure_started": lambda: cloud.ensure_started(command),
        "make_way": lambda: cloud.make_way(command, deadline=NOW),
        "before_end": lambda: cloud.before_end(command, "snapshot"),
        "ensure_ended": lambda: cloud.ensure_ended(command),
        "servers": lambda: cloud.servers(NOW),
        "held": lambda: cloud.held(HOST),
        "remaining": lambda: cloud.remaining("virtual:volume", []),
        "check": lambda: cloud.check(HOST),
        "drift": lambda: cloud.drift(HOST, [], []),
        "fetch": lambda: cloud.fetch("flavor", "1", Actor("u", OWNER)),
        "delegate": lambda: cloud.delegate(Actor("u", OWNER, frozenset({"member"}))),
        "revoke": lambda: cloud.revoke("no-such-trust"),
        "identify": lambda: cloud.identify(Group.USERS, "a-user"),
    }
    assert set(calls) == VERBS
    for verb, call in calls.items():
        cloud.inject(Fault(FaultKind.BUSY, verb))
        with pytest.raises(CloudBusy, match=verb):
            call()
        call()
