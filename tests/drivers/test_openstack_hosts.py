"""What the driver of OpenStack clouds does to hosts, servers and images, beyond the contract of drivers."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pytest

from tenure.api.auth import TokenUser
from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.drivers.contract import (
    CloudBusy,
    CloudError,
    CloudRefused,
    Command,
    Group,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import HttpTransport, connect
from tenure.drivers.openstack.options import OpenStackOptions
from tests.drivers.rigs import HOST, command_for, ended, options_of, ref, registered
from tests.support.meddling import Wire
from tests.support.openstack import (
    NEIGHBOUR,
    OWNER,
    OWNER_KEY,
    POOL,
    SERVICE_USER,
    FakeOpenStack,
    Provider,
    Seen,
    Server,
    inventory,
)
from tests.support.waiting import patience

T = TypeVar("T")


@pytest.fixture(params=["2.103", "2.96"], ids=["newer", "older"])
def nova(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def service(cloud: FakeOpenStack, host: ResourceRef) -> str:
    return cloud.host(host.external_id).service_host


def members(cloud: FakeOpenStack, name: str) -> set[str]:
    aggregate = cloud.aggregate(name)
    return set() if aggregate is None else set(aggregate.hosts)


def trusting(cloud: FakeOpenStack, driver: OpenStackCloud, command: Command) -> Command:
    token = cloud.issue("an-owner", OWNER, ("member",))
    return replace(command, trust_id=driver.delegate(Actor("an-owner", OWNER, frozenset({"member"}), token=token)))


def patient_options(cloud: FakeOpenStack) -> OpenStackOptions:
    """The options of a driver whose requests may be held until another request comes."""
    return options_of(cloud, request_timeout=timedelta(seconds=patience()))


def at_once(cloud: FakeOpenStack, *calls: Callable[[], T]) -> list[T]:
    """Return the results of both calls. Neither changes the cloud before the other is about to change it."""
    meeting = threading.Barrier(2, timeout=patience())
    guard, changes = threading.Lock(), count()

    def meet(seen: Seen) -> None:
        if seen.method != "GET" and not seen.path.endswith("/auth/tokens"):
            with guard:
                number = next(changes)
            if number < 2:
                meeting.wait()

    cloud.observe = meet
    try:
        with ThreadPoolExecutor(2) as threads:
            results = [future.result() for future in [threads.submit(call) for call in calls]]
    finally:
        cloud.observe = lambda _seen: None
    assert next(changes) >= 2
    assert not meeting.broken
    return results


class TestDescribing:
    def test_a_host_has_the_facts_of_nova_and_placement(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        found = driver.look_up(HOST, "node-2.lab")
        assert found == next(host for host in driver.discover(HOST) if host.name == "node-2.lab")
        assert dict(found.facts) == {
            "vcpus": 8,
            "cpu_info": '{"arch": "x86_64", "topology": {"cores": 4}}',
            "hypervisor_type": "QEMU",
            "hypervisor_version": 8002002,
            "hypervisor_hostname": "node-2.lab",
            "service_name": "compute-2",
            "memory_mb": 16384,
            "local_gb": 200,
            "availability_zone": "nova",
        }
        assert dict(found.capacity) == {"VCPU": 32, "MEMORY_MB": 15872, "DISK_GB": 200}
        # One server has no more than the processors that are there.
        assert found.limits == {"VCPU": {"min": 1, "max": 8, "step": 1}}
        assert found.traits == {"COMPUTE_NODE", "HW_CPU_X86_AVX2"}

    def test_inventories_of_nested_providers_count_for_the_host(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        root = next(provider for provider in cloud.providers.values() if provider.name == "node-3.lab")
        cards = {"CUSTOM_GPU": {"total": 4, "reserved": 1, "allocation_ratio": 1.0}}
        for number in range(2):
            card = Provider(f"gpu-{number}", root.uuid, cards, ["CUSTOM_A100"])
            cloud.providers[card.uuid] = card
        driver.ensure_registered(HOST, ref(cloud, 3))
        own = next(provider for provider in cloud.providers.values() if provider.name == "blazar_node-3.lab")
        own.inventories["CUSTOM_RESERVATION_X"] = {"total": 9, "reserved": 0, "allocation_ratio": 1.0}
        found = driver.look_up(HOST, "node-3.lab")
        assert (found.capacity["CUSTOM_GPU"], "CUSTOM_A100" in found.traits) == (6, True)
        # A server gets one of them at a time: two could be of different cards.
        assert found.limits["CUSTOM_GPU"] == {"min": 1, "max": 1, "step": 1}
        assert json.loads(str(found.facts["foreign_traits"])) == {
            "CUSTOM_GPU": {"COMPUTE_NODE": 1, "HW_CPU_X86_AVX2": 1},
            **{name: {"CUSTOM_A100": 1} for name in ("DISK_GB", "MEMORY_MB", "VCPU")},
        }
        assert "CUSTOM_RESERVATION_X" not in found.capacity
        assert found in driver.discover(HOST)

    def test_a_host_without_room_is_described_like_the_others(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        before = driver.discover(HOST)
        cloud.full.add("node-4.lab")
        assert driver.discover(HOST) == before

    def test_a_host_that_placement_does_not_know_has_its_sizes(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.providers.clear()
        assert driver.look_up(HOST, "node-1.lab").capacity["VCPU"] == 8
        assert [host.traits for host in driver.discover(HOST)] == [frozenset()] * 6

    def test_zones_are_those_of_the_operator(self, cloud: FakeOpenStack):
        cloud.add_aggregate("rack-1", "az-1", ("compute-1",))
        cloud.add_aggregate("ssd", None, ("compute-1", "compute-2"))
        with connect(options_of(cloud)) as driver:
            hosts = registered(driver, cloud, 0) or [ref(cloud, 2)]
            driver.ensure_registered(HOST, hosts[0])
            driver.ensure_started(command_for(hosts[0]))
            zones = {host.name: host.facts["availability_zone"] for host in driver.discover(HOST)}
        assert (zones["node-1.lab"], zones["node-2.lab"], zones["node-3.lab"]) == ("az-1", "nova", "nova")
        with connect(options_of(cloud, az_aware=False)) as driver:
            assert {host.facts["availability_zone"] for host in driver.discover(HOST)} == {""}

    def test_lists_are_read_to_the_end(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.page = 2
        assert len(driver.discover(HOST)) == len(driver.check(HOST)) == 6
        hosts = registered(driver, cloud, 1)
        driver.ensure_started(command_for(hosts[0]))
        servers = {cloud.boot(service(cloud, hosts[0]), OWNER, "r-1") for _ in range(5)}
        assert ended(driver, command_for(hosts[0])).done
        assert servers.isdisjoint(cloud.servers)

    def test_takes_one_call_for_each_further_host(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        def calls() -> int:
            cloud.seen.clear()
            driver.discover(HOST)
            return len(cloud.seen)

        calls()
        before = calls()
        for number in range(20):
            cloud.add_host(f"more-{number}.lab")
        assert calls() == before + 20

    def test_limits_are_those_that_bind(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        root = cloud.provider("node-3.lab")
        root.inventories["CUSTOM_SLOT"] = inventory(100, reserved=10, max_unit=1000, min_unit=10, step_size=5)
        root.inventories["CUSTOM_NONE"] = inventory(4, reserved=4)
        for number, step in enumerate((2, 3)):
            cards = {"VGPU": inventory(6, step_size=step)}
            cloud.provide(Provider(f"gpu-{number}", root.uuid, cards))
        found = driver.look_up(HOST, "node-3.lab")
        assert (found.capacity["CUSTOM_SLOT"], found.capacity["VGPU"], found.capacity["CUSTOM_NONE"]) == (90, 12, 0)
        assert found.limits == {
            "CUSTOM_SLOT": {"min": 10, "max": 90, "step": 5},
            "VCPU": {"min": 1, "max": 8, "step": 1},
            "VGPU": {"min": 1, "max": 1, "step": 6},  # so nothing, as one unit is no multiple of the steps
        }
        assert found in driver.discover(HOST)

    def test_names_the_reason_of_an_unhealthy_host(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.host("1").state = "down"
        cloud.host("2").status, cloud.host("2").reason = "disabled", "new memory"
        health = driver.check(HOST)
        assert (health["1"].reason, health["1"].works) == ("The hypervisor is down.", False)
        assert (health["2"].reason, health["2"].works) == ("The compute service is disabled: new memory", True)
        assert health["3"].well


class TestRegistering:
    def test_makes_the_pool_where_there_is_none(self):
        with FakeOpenStack(pool=False) as cloud, connect(options_of(cloud)) as driver:
            host = ref(cloud, 1)
            driver.ensure_registered(HOST, host)
            pool = cloud.aggregate(POOL)
            assert pool is not None
            assert (list(pool.hosts), pool.metadata) == (["compute-1"], {})

    def test_concurrent_registrations_make_one_pool(self):
        with FakeOpenStack(pool=False) as cloud, connect(options_of(cloud)) as driver:

            def overtake(seen: Seen) -> None:
                if (seen.method, seen.path) == ("POST", "/v2.1/os-aggregates"):
                    cloud.add_aggregate(POOL)

            cloud.observe = overtake
            driver.ensure_registered(HOST, ref(cloud, 1))
            assert [aggregate.name for aggregate in cloud.aggregates.values()] == [POOL]
            assert members(cloud, POOL) == {"compute-1"}

    def test_a_deleted_pool_is_made_again(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        held, free = registered(driver, cloud, 2)
        command = command_for(held)
        driver.ensure_started(command)
        pool = cloud.aggregate(POOL)
        assert pool is not None
        del cloud.aggregates[pool.number]
        (drift,) = driver.drift(HOST, [command], [free])
        assert (drift.reservation_id, drift.resource) == (None, free)
        assert ended(driver, command).done
        driver.ensure_registered(HOST, free)
        assert members(cloud, POOL) == {"compute-1", "compute-2"}
        assert driver.drift(HOST, [], [held, free]) == []

    def test_that_placement_refuses_leaves_no_host_in_the_pool(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.instead = lambda seen: (403, {}) if (seen.method, seen.path) == ("POST", "/resource_providers") else None
        with pytest.raises(CloudRefused):
            driver.ensure_registered(HOST, ref(cloud, 1))
        assert members(cloud, POOL) == set()

    def test_a_deleted_provider_is_made_again_also_under_a_host_in_use(
        self, cloud: FakeOpenStack, driver: OpenStackCloud
    ):
        held, free = registered(driver, cloud, 2)
        driver.ensure_started(command_for(held))
        for number in [key for key, one in cloud.providers.items() if one.name.startswith("blazar_")]:
            del cloud.providers[number]
        drifts = driver.drift(HOST, [command_for(held)], [free])
        assert {(drift.reservation_id, drift.resource) for drift in drifts} == {(None, held), (None, free)}
        for host in (held, free):
            driver.ensure_registered(HOST, host)
        assert driver.drift(HOST, [command_for(held)], [free]) == []
        assert members(cloud, POOL) == {service(cloud, free)}

    def test_without_placement_aggregates_are_still_checked(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        pool = cloud.aggregate(POOL)
        assert pool is not None
        pool.hosts.clear()
        cloud.instead = lambda seen: (503, {}) if seen.service == "placement" else None
        (drift,) = driver.drift(HOST, [], [host])
        assert drift.resource == host

    def test_uses_the_name_of_the_service_and_makes_a_provider(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        driver.ensure_registered(HOST, ref(cloud, 1))
        assert members(cloud, POOL) == {"compute-1"}
        root = next(provider for provider in cloud.providers.values() if provider.name == "node-1.lab")
        own = next(provider for provider in cloud.providers.values() if provider.name == "blazar_node-1.lab")
        assert own.parent == root.uuid
        # Nova's computes would stumble over a provider that went.
        driver.ensure_unregistered(HOST, ref(cloud, 1))
        assert members(cloud, POOL) == set()
        assert own.uuid in cloud.providers

    def test_is_given_up_when_a_server_came_at_the_last_moment(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        def sneak(seen: Seen) -> None:
            if seen.method == "POST" and "add_host" in (seen.body or {}):
                cloud.force("compute-1", NEIGHBOUR)

        cloud.observe = sneak
        with pytest.raises(ResourceOccupied):
            driver.ensure_registered(HOST, ref(cloud, 1))
        assert members(cloud, POOL) == set()
        assert len(cloud.servers) == 1

    def test_waits_for_placement(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.providers.clear()
        with pytest.raises(CloudBusy, match="Placement does not know"):
            driver.ensure_registered(HOST, ref(cloud, 1))

    def test_concurrent_registrations_both_succeed(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        with ThreadPoolExecutor(4) as threads:
            for _ in range(4):
                list(threads.map(lambda _: driver.ensure_registered(HOST, ref(cloud, 1)), range(4)))
        assert members(cloud, POOL) == {"compute-1"}
        assert sum(provider.name == "blazar_node-1.lab" for provider in cloud.providers.values()) == 1


class TestMoving:
    def test_no_host_is_ever_open_to_everybody(self, nova: str):
        """Not before, while or after hosts come and go, are given up, and are put back."""
        with FakeOpenStack(nova=nova) as cloud, connect(options_of(cloud)) as driver:
            hosts = registered(driver, cloud, 4)
            looks = 0
            opened: list[tuple[str, str]] = []

            def look(seen: Seen) -> None:
                nonlocal looks
                looks += 1
                with cloud.objects.lock:
                    pools = [
                        aggregate for aggregate in cloud.aggregates.values() if aggregate.name == POOL or aggregate.zone
                    ]
                    opened.extend(
                        (host.name, seen.path)
                        for host in hosts
                        if not any(service(cloud, host) in pool.hosts for pool in pools)
                    )

            cloud.observe = look
            driver.ensure_started(command_for(*hosts[:3]))
            assert cloud.boot(service(cloud, hosts[1]), OWNER, "r-1")
            driver.ensure_started(command_for(*hosts[1:]))
            driver.ensure_started(command_for(hosts[0], reservation_id="r-2"))
            assert ended(driver, command_for(*hosts[1:])).done
            assert ended(driver, command_for(hosts[0], reservation_id="r-2")).done
            assert members(cloud, POOL) == {service(cloud, host) for host in hosts}
            assert looks > 30
            assert opened == []

    def test_schedulers_know_all_hosts_in_the_end(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """Each message has the aggregate as its request saw it; concurrent requests do not see each other's changes."""
        before: dict[str, frozenset[str]] = {}
        remembered: dict[str, frozenset[str]] = {}

        def hear(seen: Seen) -> None:
            """What a scheduler remembers, where everything that can be is done side by side."""
            with cloud.objects.lock:
                for aggregate in cloud.aggregates.values():
                    if seen.path != f"/v2.1/os-aggregates/{aggregate.number}/action":
                        continue
                    ((verb, values),) = seen.body.items()
                    old = before.get(aggregate.name, frozenset())
                    match verb:
                        case "add_host":
                            remembered[aggregate.name] = old | {values["host"]}
                        case "remove_host":
                            remembered[aggregate.name] = old - {values["host"]}
                        case _:
                            remembered[aggregate.name] = frozenset(aggregate.hosts)

        def done(call: Callable[[], object]) -> None:
            before.clear()
            before.update({aggregate.name: frozenset(aggregate.hosts) for aggregate in cloud.aggregates.values()})
            call()

        hosts = registered(driver, cloud, 5)
        cloud.observe = hear
        done(lambda: driver.ensure_started(command_for(*hosts[:4])))
        assert remembered["r-1"] == members(cloud, "r-1")
        done(lambda: driver.ensure_started(command_for(*hosts[2:4])))
        assert remembered["r-1"] == members(cloud, "r-1")
        assert remembered[POOL] == members(cloud, POOL)
        done(lambda: driver.ensure_started(command_for(*hosts)))
        assert remembered["r-1"] == members(cloud, "r-1")
        done(lambda: driver.ensure_ended(command_for(*hosts)))
        assert remembered[POOL] == members(cloud, POOL) == {service(cloud, host) for host in hosts}

    def test_the_aggregate_has_the_metadata_of_blazars_filter(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        hosts = registered(driver, cloud, 2)
        driver.ensure_started(command_for(hosts[0], reservation_id="6d1c"))
        group = cloud.aggregate("6d1c")
        assert group is not None
        assert group.hosts == ["compute-1"]
        assert group.metadata == {"availability_zone": "blazar_6d1c", OWNER_KEY: OWNER}
        assert members(cloud, POOL) == {"compute-2"}

    def test_names_are_the_operators(self, cloud: FakeOpenStack):
        cloud.add_aggregate("set-aside")
        options = options_of(cloud, freepool_name="set-aside", owner_key="mine:owner", zone_prefix="lease_")
        with connect(options) as driver:
            host = ref(cloud, 1)
            driver.ensure_registered(HOST, host)
            assert members(cloud, "set-aside") == {"compute-1"}
            driver.ensure_started(command_for(host))
            group = cloud.aggregate("r-1")
            assert group is not None
            assert group.metadata == {"availability_zone": "lease_r-1", "mine:owner": OWNER}
            assert driver.held(HOST) == ["r-1"]
            assert driver.ensure_ended(command_for(host)).done
            assert members(cloud, "set-aside") == {"compute-1"}

    def test_aggregates_of_others_are_left_alone(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.add_aggregate("ssd", None, ("compute-1",))
        cloud.add_aggregate("rack-7", "az-7", ("compute-6",))
        driver.ensure_registered(HOST, ref(cloud, 1))
        driver.ensure_started(command_for(ref(cloud, 1)))
        assert driver.held(HOST) == ["r-1"]
        assert ended(driver, command_for(ref(cloud, 1))).done
        assert ended(driver, command_for(reservation_id="rack-7")).done
        assert ended(driver, command_for(reservation_id=POOL)).done
        assert members(cloud, "ssd") == {"compute-1"}
        assert members(cloud, "rack-7") == {"compute-6"}
        assert members(cloud, POOL) == {"compute-1"}

    @pytest.mark.parametrize("zone", [None, "zone-1"])
    def test_a_group_without_zone_and_owner_is_known_by_its_name(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, zone: str | None
    ):
        (host,) = registered(driver, cloud, 1)
        command = command_for(host, reservation_id=str(uuid.uuid4()))
        for call in (lambda: driver.ensure_started(command), lambda: ended(driver, command)):
            driver.ensure_started(command)
            group = cloud.aggregate(command.reservation_id)
            assert group is not None
            group.metadata = {"availability_zone": zone} if zone else {}
            assert call().done
            assert driver.drift(HOST, [command], []) == [] or driver.drift(HOST, [], [host]) == []
        assert members(cloud, POOL) == {"compute-1"}
        assert cloud.aggregate(command.reservation_id) is None

    def test_servers_on_a_foreign_host_survive(self, nova: str):
        """A host in general use, with servers of the same project, is put into the reservation."""
        with FakeOpenStack(nova=nova) as cloud, connect(options_of(cloud)) as driver:
            (host,) = registered(driver, cloud, 1)
            driver.ensure_started(command_for(host))
            group = cloud.aggregate("r-1")
            assert group is not None
            group.hosts.append("compute-2")
            server = cloud.force("compute-2", OWNER)
            driver.ensure_started(command_for(host))
            assert set(cloud.servers) == {server}
            del cloud.servers[server]
            assert driver.ensure_started(command_for(host)).done
            # It was never registered, so it is in general use again.
            assert (group.hosts, members(cloud, POOL)) == (["compute-1"], set())

    def test_a_group_that_vanishes_meanwhile_is_made_again(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)

        def vanish(seen: Seen) -> None:
            group = cloud.aggregate("r-1")
            if group is not None and "set_metadata" in (seen.body or {}):
                cloud.aggregates.pop(group.number)

        cloud.observe = vanish
        with pytest.raises(CloudBusy, match="deleted meanwhile"):
            driver.ensure_started(command_for(host))
        cloud.observe = lambda _seen: None
        assert driver.ensure_started(command_for(host)).done
        assert cloud.boot("compute-1", OWNER, "r-1")

    @pytest.mark.slow
    def test_two_workers_may_start_and_end_the_same(self, nova: str):
        """Each has read how hosts are spread before either changes that."""
        with (
            FakeOpenStack(nova=nova) as cloud,
            connect(patient_options(cloud)) as driver,
        ):
            hosts = registered(driver, cloud, 4)
            with connect(patient_options(cloud)) as other:
                for number in range(5):
                    command = command_for(*hosts, reservation_id=f"r-{number}")
                    for progress in at_once(
                        cloud, *(partial(each.ensure_started, command) for each in (driver, other))
                    ):
                        assert progress.done
                    group = cloud.aggregate(f"r-{number}")
                    assert group is not None
                    assert len(group.hosts) == 4
                    assert members(cloud, POOL) == set()
                    for progress in at_once(cloud, *(partial(ended, each, command) for each in (driver, other))):
                        assert progress.done
                    assert driver.held(HOST) == []
                    assert len(members(cloud, POOL)) == 4

    def test_exactly_one_of_two_concurrent_reservations_gets_a_host(self):
        """Zones see to it: Nova does not put a host into two of them. Each has seen the host free before."""

        def start(reservation_id: str) -> bool:
            try:
                driver.ensure_started(command_for(host, reservation_id=reservation_id))
            except CloudBusy:
                return False
            return True

        with (
            FakeOpenStack() as cloud,
            connect(patient_options(cloud)) as driver,
        ):
            (host,) = registered(driver, cloud, 1)
            for number in range(8):
                names = [f"a-{number}", f"b-{number}"]
                outcomes = at_once(cloud, *(partial(start, name) for name in names))
                assert sorted(outcomes) == [False, True]
                assert [members(cloud, name) == {"compute-1"} for name in names] == outcomes
                for name in names:
                    assert ended(driver, command_for(host, reservation_id=name)).done

    def test_a_host_occupied_at_the_end_stays_closed(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        assert cloud.boot("compute-1", OWNER, "r-1")
        group = cloud.aggregate("r-1")
        assert group is not None
        group.hosts.clear()
        with pytest.raises(CloudBusy, match="availability zone would change"):
            driver.ensure_started(command_for(host))
        assert members(cloud, POOL) == {"compute-1"}
        assert ended(driver, command_for(host)).done
        assert cloud.servers == {}

    @pytest.mark.parametrize("verb", ["start", "end", "snapshot", "register"])
    def test_lost_answers_change_no_result(self, nova: str, verb: str):
        """The change that the answer was about has happened; the next call finds that, and does the rest."""
        with FakeOpenStack(nova=nova) as cloud:
            transport = HttpTransport(options_of(cloud))
            wire = Wire()
            transport.session.mount("http://", wire)
            with OpenStackCloud(options_of(cloud), transport) as driver:
                for lost in range(30):
                    if not self._lose(cloud, driver, wire, verb, lost):
                        break
        assert 1 < lost < 29

    def _lose(self, cloud: FakeOpenStack, driver: OpenStackCloud, wire: Wire, verb: str, lost: int) -> bool:
        """Whether there was an answer of that number to lose."""
        hosts = [ref(cloud, number) for number in (1, 2)]
        if verb != "register":
            registered(driver, cloud, 2)
        command = trusting(cloud, driver, command_for(*hosts, reservation_id=f"{verb}-{lost}"))
        if verb in ("end", "snapshot"):
            driver.ensure_started(command)
            for host in hosts:
                assert cloud.boot(service(cloud, host), OWNER, command.reservation_id)

        def call() -> None:
            match verb:
                case "start":
                    driver.ensure_started(command)
                case "end":
                    assert ended(driver, command).done
                case "snapshot":
                    assert driver.before_end(command, "snapshot").done
                case _:
                    registered(driver, cloud, 2)

        wire.lose = lost
        try:
            call()
            happened = wire.lose is None
            assert not happened
        except CloudBusy:
            happened = True
        wire.lose = None
        call()
        match verb:
            case "start":
                assert members(cloud, command.reservation_id) == {"compute-1", "compute-2"}
                assert members(cloud, POOL) == set()
            case "end":
                assert (cloud.servers, driver.held(HOST)) == ({}, [])
                assert members(cloud, POOL) == {"compute-1", "compute-2"}
            case "snapshot":
                assert len(cloud.images) == 2
            case _:
                assert members(cloud, POOL) == {"compute-1", "compute-2"}
        assert ended(driver, command).done
        cloud.images.clear()
        if verb == "register":
            for host in hosts:
                driver.ensure_unregistered(HOST, host)
        return happened


class TestEnding:
    def test_closes_the_reservation_first(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        cloud.boot("compute-1", OWNER, "r-1")
        cloud.held = True
        assert not driver.ensure_ended(command_for(host)).done
        assert cloud.boot("compute-1", OWNER, "r-1") is None
        # A lease that is prolonged at the last moment gets it back.
        driver.ensure_started(command_for(host))
        assert cloud.boot("compute-1", OWNER, "r-1")
        group = cloud.aggregate("r-1")
        assert group is not None
        assert group.metadata == {"availability_zone": "blazar_r-1", OWNER_KEY: OWNER}

    def test_names_the_host_kept_by_nova(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """As of one whose compute service was deleted with the aggregates as they were."""
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        cloud.instead = lambda seen: (404, {}) if "remove_host" in (seen.body or {}) else None
        progress = driver.ensure_ended(command_for(host))
        assert "compute-1" in str(progress.reason)
        assert progress.look_again_after >= timedelta(seconds=30)
        cloud.instead = lambda _seen: None
        assert ended(driver, command_for(host)).done

    @pytest.mark.parametrize("broken_off", [False, True])
    def test_needs_only_the_id_and_former_hosts(self, nova: str, broken_off: bool):
        with FakeOpenStack(nova=nova) as cloud, connect(options_of(cloud)) as driver:
            hosts = registered(driver, cloud, 2)
            driver.ensure_started(command_for(*hosts))
            for host in hosts:
                assert cloud.boot(service(cloud, host), OWNER, "r-1")
            if broken_off:
                cloud.held = True
                assert not driver.ensure_ended(command_for(*hosts)).done
                cloud.let_go()
                cloud.force("compute-1", OWNER, reservation="r-1")
            unknown = replace(
                command_for(), project_id="", user_id="", lease_id="", lease_name="", returning=tuple(hosts)
            )
            assert ended(driver, unknown).done
            assert cloud.servers == {}
            assert members(cloud, POOL) == {"compute-1", "compute-2"}
            assert driver.held(HOST) == []

    def test_a_failed_deletion_is_requested_again(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """As on a host that died: Nova then deletes the server by itself."""
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        cloud.boot("compute-1", OWNER, "r-1")
        cloud.held = True
        assert not driver.ensure_ended(command_for(host)).done
        clock = SimulatedClock(datetime.now(UTC))
        with connect(options_of(cloud), clock=clock) as later:
            cloud.lose_pending()
            clock.advance(timedelta(seconds=60))
            assert not later.ensure_ended(command_for(host)).done
            assert len(cloud.servers) == 1
            clock.advance(timedelta(seconds=90))
            assert later.ensure_ended(command_for(host)).done
            assert cloud.servers == {}

    def test_servers_that_can_be_brought_back_are_deleted_for_good(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        hidden = Server("web", "compute-1", OWNER, {"reservation": "r-1"}, status="SOFT_DELETED")
        cloud.servers[hidden.id] = hidden
        assert ended(driver, command_for(host)).done
        assert cloud.servers == {}
        assert members(cloud, POOL) == {"compute-1"}
        foreign = Server("web", "compute-1", NEIGHBOUR, status="SOFT_DELETED")
        cloud.servers[foreign.id] = foreign
        with pytest.raises(ResourceOccupied):
            driver.ensure_started(command_for(host))
        assert list(cloud.servers) == [foreign.id]

    def test_hints_may_be_lists(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        cloud.force("compute-1", OWNER, reservation=["r-0", "r-1"])
        assert ended(driver, command_for(host)).done
        assert cloud.servers == {}

    def test_an_aggregate_that_fills_again_is_not_deleted(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))

        def sneak(seen: Seen) -> None:
            if seen.method == "DELETE":
                cloud.observe = lambda _seen: None
                group = cloud.aggregate("r-1")
                assert group is not None
                group.hosts.append("compute-5")

        cloud.observe = sneak
        progress = driver.ensure_ended(command_for(host))
        assert not progress.done
        assert "not empty" in str(progress.reason)
        assert ended(driver, command_for(host)).done


class TestSnapshots:
    @pytest.fixture
    def command(self, cloud: FakeOpenStack, driver: OpenStackCloud) -> Command:
        (host,) = registered(driver, cloud, 1)
        command = trusting(cloud, driver, command_for(host))
        driver.ensure_started(command)
        return command

    def test_belong_to_the_owner_and_name_reservation_and_server(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        server = cloud.boot("compute-1", OWNER, "r-1")
        assert driver.before_end(command, "snapshot").done
        (image,) = cloud.images.values()
        assert (image["name"], image["owner"]) == ("reserved_web", OWNER)
        assert (image["tenure_reservation_id"], image["tenure_server_id"]) == ("r-1", server)

    def test_of_servers_that_have_no_disk_are_left_out(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        broken = Server("broken", "compute-1", OWNER, {"reservation": "r-1"}, status="ERROR")
        stopped = Server("stopped", "compute-1", OWNER, {"reservation": "r-1"}, status="SHUTOFF")
        guest = Server("guest", "compute-1", NEIGHBOUR, {"reservation": "r-1"})
        cloud.servers |= {server.id: server for server in (broken, stopped, guest)}
        assert driver.before_end(command, "snapshot").done
        assert [image["name"] for image in cloud.images.values()] == ["reserved_stopped"]

    def test_that_failed_are_made_again(self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command):
        cloud.boot("compute-1", OWNER, "r-1")
        assert driver.before_end(command, "snapshot").done
        (image,) = cloud.images.values()
        image["status"] = "killed"
        assert driver.before_end(command, "snapshot").done
        assert [image["status"] for image in cloud.images.values()] == ["killed", "active"]

    def test_without_a_task_in_nova_are_not_awaited(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        server = cloud.boot("compute-1", OWNER, "r-1")
        cloud.held = True
        clock = SimulatedClock(datetime.now(UTC))
        with connect(options_of(cloud), clock=clock) as later:
            assert not later.before_end(command, "snapshot").done
            clock.advance(timedelta(minutes=10))
            assert not later.before_end(command, "snapshot").done  # Nova is still at it
            cloud.servers[server or ""].task = None
            assert later.before_end(command, "snapshot").done
            assert len(cloud.images) == 1

    def test_of_the_previous_lease_do_not_count(self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command):
        cloud.boot("compute-1", OWNER, "r-1")
        assert driver.before_end(command, "snapshot").done
        assert ended(driver, command).done
        following = trusting(cloud, driver, command_for(*command.resources, reservation_id="r-2"))
        driver.ensure_started(following)
        cloud.boot("compute-1", OWNER, "r-2")
        assert driver.before_end(following, "snapshot").done
        assert len(cloud.images) == 2

    def test_wait_while_the_server_is_busy(self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command):
        server = cloud.boot("compute-1", OWNER, "r-1")
        cloud.servers[server or ""].task = "resize_prep"
        progress = driver.before_end(command, "snapshot")
        assert not progress.done
        assert "web" in str(progress.reason)
        cloud.servers[server or ""].task = None
        assert driver.before_end(command, "snapshot").done

    def test_that_the_owner_may_not_have_are_refused(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        cloud.boot("compute-1", OWNER, "r-1")
        cloud.instead = lambda seen: (
            (403, {"forbidden": {"code": 403, "message": "Quota exceeded"}})
            if "createImage" in (seen.body or {})
            else None
        )
        with pytest.raises(CloudRefused, match="Quota exceeded"):
            driver.before_end(command, "snapshot")

    def test_need_a_trust(self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command):
        cloud.boot("compute-1", OWNER, "r-1")
        with pytest.raises(CloudRefused, match="did not trust"):
            driver.before_end(replace(command, trust_id=None), "snapshot")
        for trust in cloud.trusts.values():
            trust["broken"] = True
        with pytest.raises(CloudRefused, match="trust of the lease's owner does not work"):
            driver.before_end(command, "snapshot")


class TestIdentities:
    def test_are_found_by_id_or_by_name(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        ada, bob = (TokenUser(f"u-{name}", name, f"p-{name}", "physics", (), "") for name in ("ada", "bob"))
        cloud.accounts = (ada, bob)
        assert driver.identify(Group.USERS, "u-ada") == ["u-ada"]
        assert driver.identify(Group.USERS, "bob") == ["u-bob"]
        assert driver.identify(Group.PROJECTS, "physics") == ["p-ada", "p-bob"]
        assert driver.identify(Group.PROJECTS, "p-bob") == ["p-bob"]

    @pytest.mark.parametrize("reference", ["u-eve", "Ada", "..", "a/b?c=d", "ä", "a b", "+"])
    def test_that_are_unknown_are_none(self, cloud: FakeOpenStack, driver: OpenStackCloud, reference: str):
        cloud.accounts = (TokenUser("u-ada", "ada", "p-ada", "physics", (), ""),)
        assert driver.identify(Group.USERS, reference) == []

    def test_with_any_characters_in_their_names_are_found(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.accounts = (TokenUser("u-ada", "a+b/c d&é", "p-ada", "physics", (), ""),)
        assert driver.identify(Group.USERS, "a+b/c d&é") == ["u-ada"]


class TestTrusts:
    def test_equal_those_of_blazar(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        roles = ("member", "reader")
        actor = Actor("an-owner", OWNER, frozenset(roles), token=cloud.issue("an-owner", OWNER, roles))
        trust = cloud.trusts[driver.delegate(actor)]
        del trust["id"]
        assert trust == {
            "trustor_user_id": "an-owner",
            "trustee_user_id": SERVICE_USER,
            "project_id": OWNER,
            "impersonation": True,
            "roles": [{"name": "member"}, {"name": "reader"}],
        }

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"token": None}, r"^A trust needs a token of a project\.$"),
            ({"project_id": ""}, r"^A trust needs a token of a project\.$"),
            ({"roles": frozenset()}, r"^A trust needs a role in the project\.$"),
            ({"roles": frozenset({"admin"})}, "Keystone"),
            ({"token": "of-nobody"}, "Keystone"),
            ({"user_id": "somebody-else"}, "should match the trustor"),
        ],
    )
    def test_of_callers_without_permission_are_refused(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, change: dict[str, Any], message: str
    ):
        actor = Actor(
            "an-owner", OWNER, frozenset({"member"}), token=cloud.issue("an-owner", OWNER, ("member", "reader"))
        )
        with pytest.raises(CloudRefused, match=message):
            driver.delegate(replace(actor, **change))
        assert cloud.trusts == {}

    def test_are_revoked_as_the_owner_without_permission_of_our_own(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        command = trusting(cloud, driver, command_for())
        assert command.trust_id is not None
        cloud.only_trustors_delete = True
        driver.revoke(command.trust_id)
        assert cloud.trusts == {}

    def test_that_are_broken_and_undeletable_are_left_alone(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        command = trusting(cloud, driver, command_for())
        assert command.trust_id is not None
        cloud.only_trustors_delete = True
        cloud.trusts[command.trust_id]["broken"] = True
        driver.revoke(command.trust_id)
        assert set(cloud.trusts) == {command.trust_id}


class TestDrift:
    def test_takes_the_same_number_of_calls_for_any_number_of_commands(
        self, cloud: FakeOpenStack, driver: OpenStackCloud
    ):
        hosts = registered(driver, cloud, 6)
        commands = [command_for(host, reservation_id=f"r-{number}") for number, host in enumerate(hosts)]
        for command in commands:
            driver.ensure_started(command)

        def calls(looked_at: list[Command]) -> int:
            cloud.seen.clear()
            assert driver.drift(HOST, looked_at, []) == []
            return len(cloud.seen)

        assert calls(commands[:1]) == calls(commands) == 3

    def test_of_zone_pool_and_provider_is_seen_and_mended(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        first, second = registered(driver, cloud, 2)
        command = command_for(first)
        driver.ensure_started(command)
        group, pool = cloud.aggregate("r-1"), cloud.aggregate(POOL)
        assert group is not None
        assert pool is not None
        group.metadata["availability_zone"] = "somewhere"
        pool.hosts.append("compute-1")
        del cloud.providers[cloud.provider("blazar_node-2.lab").uuid]
        found = {
            (drift.reservation_id, drift.resource, drift.text) for drift in driver.drift(HOST, [command], [second])
        }
        assert found == {
            ("r-1", None, "the aggregate of reservation r-1 has another availability_zone"),
            ("r-1", first, "node-1.lab is in the pool as well"),
            (None, second, "node-2.lab has no provider for reservations in Placement"),
        }
        driver.ensure_started(command)
        driver.ensure_registered(HOST, second)
        assert driver.drift(HOST, [command], [second]) == []


def test_a_call_after_the_end_is_refused(cloud: FakeOpenStack):
    driver = connect(options_of(cloud))
    driver.check(HOST)
    driver.close()
    driver.close()
    with pytest.raises(CloudError):
        driver.check(HOST)
