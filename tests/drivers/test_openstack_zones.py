"""What the driver of OpenStack clouds does with hosts that operators have put into availability zones."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from tenure.domain.requirement import AGGREGATE_METADATA
from tenure.drivers.contract import CloudBusy, CloudRefused, Command, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import HttpTransport, connect
from tenure.testing.rig import command_of
from tests.drivers.rigs import HOST, command_for, ended, options_of, ref, registered
from tests.support.meddling import Wire
from tests.support.openstack import NEIGHBOUR, OWNER, POOL, FakeOpenStack, Flavor, Seen, Server

#: More than any verb here changes.
MOST_CHANGES = 60
#: The zones of the cloud's hosts; compute-4 has its by two aggregates, compute-5 and compute-6 are in none.
RACKS = {
    "rack-1": ("east", ("compute-1", "compute-2")),
    "rack-2": ("west", ("compute-3", "compute-4")),
    "ssd": ("west", ("compute-4",)),
}
HOMES = {name: set(hosts) for name, (_, hosts) in RACKS.items()}


@pytest.fixture(params=["2.103", "2.96"], ids=["newer", "older"])
def nova(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add_racks(cloud: FakeOpenStack) -> None:
    for name, (zone, hosts) in RACKS.items():
        cloud.add_aggregate(name, zone, hosts)


@pytest.fixture
def cloud(cloud: FakeOpenStack) -> FakeOpenStack:
    add_racks(cloud)
    return cloud


@pytest.fixture
def hosts(cloud: FakeOpenStack, driver: OpenStackCloud) -> list[ResourceRef]:
    """All six, registered."""
    return registered(driver, cloud, 6)


def members(cloud: FakeOpenStack, name: str) -> set[str]:
    aggregate = cloud.aggregate(name)
    return set() if aggregate is None else set(aggregate.hosts)


def homes(cloud: FakeOpenStack) -> dict[str, set[str]]:
    return {name: members(cloud, name) for name in RACKS}


def without(*hosts: str) -> dict[str, set[str]]:
    """Where the hosts of zones are while these are reserved."""
    return {name: members - set(hosts) for name, members in HOMES.items()}


def zones(driver: OpenStackCloud) -> list[object]:
    """The zones of the hosts, in the order of their numbers."""
    return [host.facts["availability_zone"] for host in driver.discover(HOST)]


ZONES = ["east", "east", "west", "west", "nova", "nova"]


class TestRegistering:
    def test_leaves_a_host_in_its_zone(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        driver.ensure_registered(HOST, ref(cloud, 1))
        assert (homes(cloud), members(cloud, POOL)) == (HOMES, {"compute-1"})
        assert driver.look_up(HOST, "1").facts["availability_zone"] == "east"
        assert driver.drift(HOST, [], [ref(cloud, 1)]) == []
        driver.ensure_unregistered(HOST, ref(cloud, 1))
        assert (homes(cloud), members(cloud, POOL)) == (HOMES, set())

    @pytest.mark.parametrize(
        ("name", "refusal"),
        [(POOL, "freepool"), ("6f1c0d9a-52be-4c37-8e0d-41a7b3f92c58", "looks like a reservation")],
    )
    def test_refuses_a_zone_that_is_not_a_host_s_own(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, name: str, refusal: str
    ):
        aggregate = cloud.aggregate(name) or cloud.add_aggregate(name, None, ("compute-5",))
        aggregate.metadata["availability_zone"] = "north"
        with pytest.raises(CloudRefused, match=refusal):
            driver.ensure_registered(HOST, ref(cloud, 5))
        assert members(cloud, POOL) == set()


def tiers(driver: OpenStackCloud) -> list[object]:
    """The metadata of the aggregates of the first hosts, without those that have none."""
    found = (host.facts.get(AGGREGATE_METADATA) for host in driver.discover(HOST))
    return [json.loads(str(metadata)) if metadata is not None else None for metadata in found]


class TestMetadataOfAggregates:
    def test_is_that_of_all_aggregates_of_the_operator_also_while_the_host_is_reserved(
        self, cloud: FakeOpenStack, driver: OpenStackCloud
    ):
        east = cloud.aggregate("rack-1")
        assert east is not None
        east.metadata |= {"tier": "gold, silver", "filter_tenant_id": "someone"}
        cloud.add_aggregate("fast-disks", None, ("compute-1", "compute-5")).metadata |= {"tier": "fast", "ssd": "true"}
        expected = tiers(driver)
        assert expected[0] == {"availability_zone": ["east"], "ssd": ["true"], "tier": ["fast", "gold", "silver"]}
        assert expected[4] == {"ssd": ["true"], "tier": ["fast"]}
        assert expected[5] is None
        hosts = registered(driver, cloud, 6)
        assert tiers(driver) == expected
        command = command_for(hosts[0], hosts[4], hosts[5])
        driver.ensure_started(command)
        assert "compute-1" not in east.hosts
        assert tiers(driver) == expected
        assert driver.look_up(HOST, hosts[0].external_id) in driver.discover(HOST)
        assert ended(driver, command).done
        assert tiers(driver) == expected

    def test_is_known_of_a_cloud_without_zones(self, cloud: FakeOpenStack):
        with connect(options_of(cloud, az_aware=False)) as driver:
            assert tiers(driver)[0] == {"availability_zone": ["east"]}


class TestReserving:
    def test_swaps_the_zone_and_brings_it_back(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        command = command_for(hosts[0], hosts[3], hosts[5])
        assert zones(driver) == ZONES
        driver.ensure_started(command)
        assert homes(cloud) == without("compute-1", "compute-4")
        assert members(cloud, "r-1") == {"compute-1", "compute-4", "compute-6"}
        assert all(cloud.boot(host, OWNER, "r-1") for host in members(cloud, "r-1"))
        assert zones(driver) == ZONES
        assert driver.drift(HOST, [command], [hosts[1], hosts[2], hosts[4]]) == []
        assert ended(driver, command).done
        assert (homes(cloud), driver.held(HOST)) == (HOMES, [])
        assert len(members(cloud, POOL)) == 6
        assert zones(driver) == ZONES

    def test_swaps_the_zone_also_without_zones_as_facts(self, cloud: FakeOpenStack):
        with connect(options_of(cloud, az_aware=False)) as driver:
            driver.ensure_registered(HOST, ref(cloud, 1))
            driver.ensure_started(command_for(ref(cloud, 1)))
            assert cloud.boot("compute-1", OWNER, "r-1")
            assert set(zones(driver)) == {""}
            assert ended(driver, command_for(ref(cloud, 1))).done
            assert homes(cloud) == HOMES

    def test_keeps_where_a_host_was_before_it_is_taken(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        numbers = {name: aggregate.number for name in RACKS if (aggregate := cloud.aggregate(name)) is not None}

        def look(seen: Seen) -> None:
            if "remove_host" in (seen.body or {}):
                group = cloud.aggregate("r-1")
                assert group is not None
                kept.append({key: value for key, value in group.metadata.items() if key.startswith("tenure:home:")})

        kept: list[dict[str, str]] = []
        cloud.observe = look
        driver.ensure_started(command_for(hosts[0], hosts[3], hosts[4]))
        assert kept[0] == {
            "tenure:home:compute-1": f"{numbers['rack-1']}",
            "tenure:home:compute-4": f"{numbers['rack-2']},{numbers['ssd']}",
        }

    def test_gives_back_a_host_removed_from_the_command(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        driver.ensure_started(command_for(hosts[0], hosts[2]))
        replaced = replace(command_for(hosts[2], hosts[3]), returning=(hosts[0],))
        assert driver.ensure_started(replaced).done
        assert homes(cloud) == without("compute-3", "compute-4")
        group = cloud.aggregate("r-1")
        assert group is not None
        assert "tenure:home:compute-1" not in group.metadata
        assert driver.drift(HOST, [replaced], [hosts[0]]) == []
        assert ended(driver, replaced).done
        assert homes(cloud) == HOMES

    def test_never_opens_a_host_to_everybody(self, nova: str):
        with FakeOpenStack(nova=nova) as cloud, connect(options_of(cloud)) as driver:
            add_racks(cloud)
            hosts = registered(driver, cloud, 4)
            opened: list[str] = []

            def look(seen: Seen) -> None:
                with cloud.objects.lock:
                    opened.extend(host for host in cloud.hosts if host < "compute-5" and is_open(cloud, host))

            cloud.observe = look
            driver.ensure_started(command_for(*hosts[:3]))
            driver.ensure_started(command_for(*hosts[1:]))
            assert ended(driver, command_for(*hosts[1:])).done
            assert (homes(cloud), opened) == (HOMES, [])

    def test_schedulers_know_all_hosts_in_the_end(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        """The last message about a rack is sent when no other change of it is under way."""
        rack = cloud.aggregate("rack-1")
        assert rack is not None

        def verbs() -> list[str]:
            path = f"/v2.1/os-aggregates/{rack.number}/action"
            return [next(iter(seen.body)) for seen in cloud.seen if seen.path == path]

        driver.ensure_started(command_for(*hosts[:2]))
        assert verbs() == ["remove_host", "remove_host", "set_metadata"]
        cloud.seen.clear()
        assert ended(driver, command_for(*hosts[:2])).done
        assert verbs() == ["add_host", "add_host", "set_metadata"]

    def test_waits_for_a_pool_that_has_a_zone(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        """Its operator is to take that away: the host would have two, or be open to everybody."""
        pool = cloud.aggregate(POOL)
        assert pool is not None
        pool.metadata["availability_zone"] = "idle"
        with pytest.raises(CloudBusy, match="idle"):
            driver.ensure_started(command_for(hosts[4]))
        assert members(cloud, POOL) >= {"compute-5"}

    def test_of_parts_leaves_hosts_in_their_zones(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        parameters = {"amount": 2, "vcpus": 1, "memory_mb": 512, "disk_gb": 1, "affinity": None}
        units = {hosts[2].external_id: 1, hosts[3].external_id: 1}
        asked = command_of(*hosts[2:4], resource_type="virtual:instance")
        command = replace(asked, parameters=parameters, units=units)
        driver.ensure_started(command)
        assert (homes(cloud), members(cloud, "r-1")) == (HOMES, {"compute-3", "compute-4"})
        assert zones(driver) == ZONES
        assert ended(driver, command).done
        assert (homes(cloud), driver.held(HOST)) == (HOMES, [])


def is_open(cloud: FakeOpenStack, host: str) -> bool:
    """Whether a host is closed by nothing."""
    closing = [aggregate for aggregate in cloud.aggregates.values() if aggregate.name not in RACKS]
    return not any(host in aggregate.hosts for aggregate in closing)


class Broken:
    """A cloud of two zones whose driver is killed after some change, and then replaced by another."""

    def __init__(self, cloud: FakeOpenStack) -> None:
        self.cloud = cloud
        self.opened: list[str] = []
        self.hosts: list[ResourceRef] = []
        self.first, self.second = command_for(), command_for()

    def run(self, verb: str, changes: int, *, lose: bool, undone: bool) -> bool:
        """Whether the verb was broken off after so many changes; what follows has completed or undone it."""
        with connect(options_of(self.cloud)) as driver:
            self.hosts = registered(driver, self.cloud, 4)
            self.first = command_for(*self.hosts[:3])
            self.second = replace(command_for(*self.hosts[2:]), returning=tuple(self.hosts[:2]))
            if verb != "start":
                driver.ensure_started(self.first)
                assert all(self.cloud.boot(f"compute-{number}", OWNER, "r-1") for number in (1, 2, 3))
        self.cloud.observe = self._look
        wire = Wire()
        transport = HttpTransport(options_of(self.cloud))
        transport.session.mount("http://", wire)
        with OpenStackCloud(options_of(self.cloud), transport) as driver:
            broken = self._break(driver, wire, verb, changes, lose)
        with connect(options_of(self.cloud)) as driver:
            self._complete(driver, verb, undone)
        self.cloud.observe = lambda _seen: None
        assert (homes(self.cloud), self.opened) == (HOMES, [])
        assert members(self.cloud, POOL) == {"compute-1", "compute-2", "compute-3", "compute-4"}
        return broken

    def _break(self, driver: OpenStackCloud, wire: Wire, verb: str, changes: int, lose: bool) -> bool:
        wire.enter(verb)
        if lose:
            wire.lose = changes
        else:
            wire.arm(verb, changes)
        try:
            self._call(driver, verb)
        except CloudBusy:
            return True
        return False

    def _call(self, driver: OpenStackCloud, verb: str) -> None:
        match verb:
            case "start":
                driver.ensure_started(self.first)
            case "change":
                for _ in range(3):
                    driver.ensure_started(self.second)
            case _:
                assert ended(driver, self.first).done

    def _complete(self, driver: OpenStackCloud, verb: str, undone: bool) -> None:
        assert zones(driver) == ZONES
        last = self.second if verb == "change" else self.first
        if not undone:
            self._call(driver, verb)
        if verb != "end" and not undone:
            reserved = {self.cloud.host(host.external_id).service_host for host in last.resources}
            assert homes(self.cloud) == without(*reserved)
            assert members(self.cloud, "r-1") == reserved
            assert zones(driver) == ZONES
            assert driver.drift(HOST, [last], [host for host in self.hosts if host not in last.resources]) == []
        assert ended(driver, last).done
        assert driver.held(HOST) == []

    def _look(self, seen: Seen) -> None:
        with self.cloud.objects.lock:
            self.opened += [host for host in self.cloud.hosts if host < "compute-5" and is_open(self.cloud, host)]


class TestDying:
    """A manager may die between any two requests; the next attempt, by whomever, loses no zone."""

    @pytest.mark.parametrize("undone", [False, True], ids=["completed", "undone"])
    @pytest.mark.parametrize("verb", ["start", pytest.param("change", marks=pytest.mark.slow)])
    def test_no_zone_is_lost_at_any_moment(self, verb: str, undone: bool):
        self._break_everywhere(verb, undone=undone)

    @pytest.mark.slow
    def test_no_zone_is_lost_when_an_end_breaks_off(self):
        self._break_everywhere("end")

    @pytest.mark.slow
    @pytest.mark.parametrize("verb", ["start", "change", "end"])
    def test_lost_answers_change_no_result(self, verb: str):
        self._break_everywhere(verb, lose=True)

    def _break_everywhere(self, verb: str, *, undone: bool = False, lose: bool = False) -> None:
        for changes in range(MOST_CHANGES):
            with FakeOpenStack() as cloud:
                add_racks(cloud)
                broken = Broken(cloud).run(verb, changes, lose=lose, undone=undone)
                assert cloud.surprises == []
            if not broken:
                break
        assert 8 < changes < MOST_CHANGES - 1

    def test_another_reservation_does_not_take_a_host_before_its_return(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        first, second = command_for(hosts[0]), command_for(hosts[0], reservation_id="r-2")
        driver.ensure_started(first)
        cloud.instead = lambda seen: (503, {}) if _is_move(cloud, seen, "add_host", "rack-1") else None
        with pytest.raises(CloudBusy):
            ended(driver, first)
        assert (members(cloud, "r-1"), homes(cloud)) == (set(), without("compute-1"))
        with pytest.raises(CloudBusy, match="not released yet by reservation r-1"):
            driver.ensure_started(second)
        cloud.instead = lambda _seen: None
        assert ended(driver, first).done
        assert driver.ensure_started(second).done
        assert ended(driver, second).done
        assert homes(cloud) == HOMES

    def test_an_end_leaves_a_host_to_the_reservation_that_took_it(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        first, second = command_for(hosts[0]), command_for(hosts[0], reservation_id="r-2")
        cloud.instead = lambda seen: (503, {}) if _is_move(cloud, seen, "remove_host", "rack-1") else None
        with pytest.raises(CloudBusy):
            driver.ensure_started(first)
        cloud.instead = lambda _seen: None
        assert driver.ensure_started(second).done
        assert ended(driver, first).done
        assert members(cloud, "r-2") == {"compute-1"}
        assert ended(driver, second).done
        assert homes(cloud) == HOMES

    @pytest.mark.slow
    def test_two_workers_may_start_and_end_the_same(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        with connect(options_of(cloud)) as other, ThreadPoolExecutor(2) as threads:
            hosts = registered(driver, cloud, 4)
            for number in range(8):
                command = command_for(*hosts, reservation_id=f"r-{number}")
                for work in (_started, _ended):
                    done = [threads.submit(partial(work, worker, command)) for worker in (driver, other)]
                    assert all(call.result() for call in done)
                assert (homes(cloud), driver.held(HOST)) == (HOMES, [])


def _started(driver: OpenStackCloud, command: Command) -> bool:
    return _settled(lambda: driver.ensure_started(command).done)


def _ended(driver: OpenStackCloud, command: Command) -> bool:
    return _settled(lambda: driver.ensure_ended(command).done)


def _settled(attempt: Callable[[], bool]) -> bool:
    """Whether it comes to an end with as much patience as the engine has."""
    for _ in range(5):
        try:
            if attempt():
                return True
        except CloudBusy:
            continue
    return False


def _is_move(cloud: FakeOpenStack, seen: Seen, verb: str, rack: str) -> bool:
    aggregate = cloud.aggregate(rack)
    return aggregate is not None and verb in (seen.body or {}) and f"/{aggregate.number}/" in seen.path


class TestReturning:
    """What operators and others do to zones while hosts are reserved."""

    @pytest.fixture
    def command(self, driver: OpenStackCloud, hosts: list[ResourceRef]) -> Command:
        command = command_for(hosts[0])
        driver.ensure_started(command)
        return command

    def test_an_aggregate_that_is_gone(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command, caplog: pytest.LogCaptureFixture
    ):
        rack = cloud.aggregate("rack-1")
        assert rack is not None
        del cloud.aggregates[rack.number]
        assert zones(driver)[0] == "nova"
        assert ended(driver, command).done
        assert members(cloud, POOL) >= {"compute-1"}
        assert [text for text in caplog.messages if "compute-1" in text and str(rack.number) in text]

    def test_an_aggregate_deleted_during_the_end(self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command):
        def vanish(seen: Seen) -> None:
            rack = cloud.aggregate("rack-1")
            if rack is not None and _is_move(cloud, seen, "add_host", "rack-1"):
                cloud.aggregates.pop(rack.number)

        cloud.observe = vanish
        assert _ended(driver, command)
        assert members(cloud, POOL) >= {"compute-1"}

    def test_an_aggregate_without_its_zone_still_gets_the_host(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command, caplog: pytest.LogCaptureFixture
    ):
        rack = cloud.aggregate("rack-1")
        assert rack is not None
        rack.metadata.clear()
        assert ended(driver, command).done
        assert homes(cloud) == HOMES
        assert [text for text in caplog.messages if "compute-1" in text and "rack-1" in text]

    def test_an_aggregate_with_another_name_or_zone(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        rack = cloud.aggregate("rack-1")
        assert rack is not None
        rack.name, rack.metadata["availability_zone"] = "row-1", "north"
        assert zones(driver)[0] == "north"
        assert ended(driver, command).done
        assert set(rack.hosts) == {"compute-1", "compute-2"}

    def test_a_host_that_was_put_elsewhere_stays_there(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command, caplog: pytest.LogCaptureFixture
    ):
        group, rack = cloud.aggregate("r-1"), cloud.aggregate("rack-2")
        assert group is not None
        assert rack is not None
        group.hosts.clear()
        rack.hosts.append("compute-1")
        assert ended(driver, command).done
        assert "compute-1" in rack.hosts
        assert "compute-1" not in members(cloud, "rack-1")
        assert [text for text in caplog.messages if "compute-1" in text and "west" in text]

    def test_preemptible_servers_that_come_between_are_removed(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        spot = Flavor("spot", "spot", 1, 512, 1, is_public=True, extra_specs={"blazar:preemptible": "true"})
        cloud.flavors["spot"] = spot

        def sneak(seen: Seen) -> None:
            if _is_move(cloud, seen, "add_host", "rack-1"):
                cloud.observe = lambda _seen: None
                assert cloud.boot_with("compute-1", NEIGHBOUR, "spot")

        cloud.observe = sneak
        assert not driver.ensure_ended(command).done
        assert ended(driver, command).done
        assert (homes(cloud), cloud.servers) == (HOMES, {})

    def test_servers_of_others_that_come_between_are_waited_for(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        def sneak(seen: Seen) -> None:
            if _is_move(cloud, seen, "add_host", "rack-1"):
                cloud.observe = lambda _seen: None
                cloud.servers["forced"] = Server("forced", "compute-1", NEIGHBOUR, id="forced")

        cloud.observe = sneak
        progress = driver.ensure_ended(command)
        assert not progress.done
        assert "forced" in str(progress.reason)
        assert driver.held(HOST) == ["r-1"]
        del cloud.servers["forced"]
        assert ended(driver, command).done
        assert homes(cloud) == HOMES

    def test_a_host_that_is_gone_is_not_waited_for(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, command: Command
    ):
        cloud.remove_host("1")
        assert ended(driver, command).done
        assert driver.held(HOST) == []


class TestDrift:
    @pytest.fixture
    def away(self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]) -> ResourceRef:
        """A free host that has not come back into its zone, while its reservation has another."""
        driver.ensure_started(command_for(*hosts[:2]))
        group, pool = cloud.aggregate("r-1"), cloud.aggregate(POOL)
        assert group is not None
        assert pool is not None
        group.hosts.remove("compute-1")
        pool.hosts.append("compute-1")
        return hosts[0]

    def test_a_free_host_outside_of_its_zone_is_seen_and_mended(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef], away: ResourceRef
    ):
        command = command_for(hosts[1])
        found = [(drift.reservation_id, drift.resource, drift.text) for drift in driver.drift(HOST, [command], [away])]
        assert found == [(None, away, "node-1.lab is not in its availability zone east")]
        driver.ensure_registered(HOST, away)
        assert driver.drift(HOST, [command], [away]) == []
        assert homes(cloud) == without("compute-2")
        assert ended(driver, command).done
        assert homes(cloud) == HOMES

    def test_a_host_is_back_in_its_zone_before_general_use(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, away: ResourceRef
    ):
        driver.ensure_unregistered(HOST, away)
        assert homes(cloud) == without("compute-2")
        assert "compute-1" not in members(cloud, POOL)

    def test_a_reserved_host_that_was_put_back_is_taken_again(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, hosts: list[ResourceRef]
    ):
        command = command_for(hosts[0])
        driver.ensure_started(command)
        group, rack = cloud.aggregate("r-1"), cloud.aggregate("rack-1")
        assert group is not None
        assert rack is not None
        group.hosts.clear()
        rack.hosts.append("compute-1")
        assert [drift.resource for drift in driver.drift(HOST, [command], [])] == [hosts[0]]
        assert driver.ensure_started(command).done
        assert (homes(cloud), members(cloud, "r-1")) == (without("compute-1"), {"compute-1"})
        assert ended(driver, command).done
        assert homes(cloud) == HOMES
