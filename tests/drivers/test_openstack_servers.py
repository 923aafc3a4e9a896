"""What the driver of OpenStack clouds does for reserved servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.domain.period import Period
from tenure.drivers.contract import (
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Command,
    Progress,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import connect
from tenure.drivers.reserved_servers import SERVER
from tenure.testing.rig import command_of
from tests.drivers.contracts.servers import Found, ServerContract, ServerRig, broken_off, reserved, to_be_made
from tests.drivers.rigs import HOST, IN_PROCESS, FakeRig, options_of, ref, registered
from tests.support.openstack import NEIGHBOUR, OWNER, POOL, FakeOpenStack, Flavor, Server

START = datetime(2030, 1, 1, 10, 0, tzinfo=UTC)
#: Layouts know the aggregates of reservations by ids of this form.
RESERVATION = str(uuid.UUID(int=1))


class FakeServerRig(FakeRig):
    def now(self) -> datetime:
        return self.clock.now()

    def found(self, server: str) -> Found | None:
        found = self.cloud.servers.get(server)
        if found is None or found.status == "DELETED":
            return None
        hosts = {host.service_host: host.id for host in self.cloud.hosts.values()}
        return Found(hosts.get(found.host), found.status == "SHUTOFF", dict(found.metadata))

    def boot_small(self, project_id: str, metadata: Mapping[str, str] | None = None) -> str:
        small = Flavor("1", "m1.small", vcpus=1, ram=512, disk=1)
        place = self.service(self.resources()[-1])
        tags = ["tenure:reserved"] if metadata and "tenure:reserved" in metadata else []
        if metadata and "tenure:lease" in metadata:
            tags.append(f"tenure:lease={metadata['tenure:lease']}")
        server = Server(
            "mine", place, project_id, metadata=dict(metadata or {}), tags=tags, flavor=small, created=self.now()
        )
        self.cloud.servers[server.id] = server
        return server.id

    def small(self) -> str:
        self.cloud.flavors["1"] = Flavor("1", "m1.small", vcpus=1, ram=512, disk=1)
        return "1"

    def write(self, server: str, metadata: Mapping[str, str]) -> None:
        self.cloud.servers[server].metadata.update(metadata)

    def enlarge(self, server: str) -> None:
        self.cloud.servers[server].flavor = Flavor("3", "m1.medium", vcpus=2, ram=512, disk=1)

    def shelve(self, server: str) -> None:
        found = self.cloud.servers[server]
        found.status, found.host = "SHELVED_OFFLOADED", ""

    def delete(self, server: str) -> None:
        """It is listed for a while among what changed."""
        found = self.cloud.servers[server]
        found.status, found.host, found.updated = "DELETED", "", self.now()

    def close_to(self, resource: ResourceRef) -> None:
        self.cloud.closed_hosts.add(self.service(resource))
        provider = self.cloud.provider_named(resource.name)
        assert provider is not None
        provider.inventories["MEMORY_MB"]["max_unit"] = 1


class TestServers(ServerContract):
    @pytest.fixture
    def rig(self, transport: str) -> Iterator[ServerRig]:
        with FakeOpenStack() as cloud:
            rig = FakeServerRig(cloud, transport)
            yield rig
            rig.close()


@pytest.mark.parametrize("false", [{"tenure:reservation": str(uuid.UUID(int=2))}, {}], ids=["marks", "age"])
def test_no_server_of_another_reservation_or_from_before_the_start_is_taken_for_a_made_one(
    cloud: FakeOpenStack, false: dict[str, str]
):
    rig = FakeServerRig(cloud, IN_PROCESS)
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    first = cloud.servers[broken_off(rig, waiting)]
    rig.delete(first.id)
    liar = rig.boot_small(rig.owner, {**first.metadata, **false})
    cloud.servers[liar].created -= timedelta(0) if false else timedelta(hours=1)
    made = str(until_done(rig.driver.ensure_started, waiting).effects["server_id"])
    assert made not in {first.id, liar}
    rig.close()


def test_a_made_server_is_found_though_the_clocks_differ(cloud: FakeOpenStack):
    rig = FakeServerRig(cloud, IN_PROCESS)
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    first = cloud.servers[broken_off(rig, waiting)]
    first.created -= timedelta(minutes=2)
    assert until_done(rig.driver.ensure_started, waiting).effects["server_id"] == first.id
    assert list(cloud.servers) == [first.id]
    rig.close()


def test_a_server_that_nova_has_just_created_is_found(cloud: FakeOpenStack):
    """As long as nothing of it was changed, Nova does not list it among what was changed since some time."""
    rig = FakeServerRig(cloud, IN_PROCESS)
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    first = cloud.servers[broken_off(rig, waiting)]
    first.status, first.updated = "BUILD", datetime(1970, 1, 1, tzinfo=UTC)  # Nova's database has NULL
    assert not rig.driver.ensure_started(waiting).done
    assert list(cloud.servers) == [first.id]
    rig.close()


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_key_of_a_boot_opens_nothing_once_the_server_is_known(cloud: FakeOpenStack, is_answered: bool):
    """Its owner reads the key in the hints of the server while that is being made."""
    rig = FakeServerRig(cloud, IN_PROCESS)
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    if is_answered:
        assert not rig.driver.ensure_started(waiting).done
    else:
        broken_off(rig, waiting)
    [server] = cloud.servers.values()
    another = replace(server, id=str(uuid.uuid4()), host="", hints=dict(server.hints))
    assert cloud.admits(another, rig.service(host)) is not is_answered
    server.status = "BUILD"
    rig.driver.ensure_started(waiting)
    assert not cloud.admits(another, rig.service(host))
    assert cloud.admits(server, rig.service(host))
    server.status = "ERROR"
    with pytest.raises(ResourceOccupied):
        rig.driver.ensure_started(waiting)
    assert not cloud.admits(another, rig.service(host))
    assert not rig.driver.ensure_started(waiting).done
    [second] = cloud.servers.values()
    assert second.hints["tenure:boot"] != server.hints["tenure:boot"]
    assert not cloud.admits(another, rig.service(host))
    assert until_done(rig.driver.ensure_started, waiting).effects["server_id"] == second.id
    rig.close()


@pytest.mark.parametrize(
    "specs",
    [
        {"blazar:preemptible": "true"},
        {"trait:CUSTOM_FAST": "required"},
        {"trait:COMPUTE_NODE": "forbidden"},
        {"hw:cpu_thread_policy": "isolate"},
        {"capabilities:hypervisor_type": "s== other"},
        {"aggregate_instance_extra_specs:disk": "fast"},
    ],
)
def test_a_server_is_made_only_by_the_demands_that_were_booked(cloud: FakeOpenStack, specs: dict[str, str]):
    """A booking may have described the flavor without them."""
    rig = FakeServerRig(cloud, IN_PROCESS)
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    cloud.flavors["1"].extra_specs.update(specs)
    [name] = specs
    with pytest.raises(CloudRefused, match=name):
        rig.driver.ensure_started(waiting)
    assert not cloud.servers
    cloud.flavors["1"].extra_specs.clear()
    source = {"id": "1", "vcpus": 1, "ram": 512, "disk": 1, "extra_specs": {**specs, "trait:CUSTOM_SLOW": "forbidden"}}
    until_done(rig.driver.ensure_started, replace(waiting, parameters={**waiting.parameters, "source": source}))
    rig.close()


def test_a_server_that_was_booted_without_tags_gets_them(cloud: FakeOpenStack):
    """Nova takes none at the microversion of the request; a later resize would not be seen."""
    rig = FakeServerRig(cloud, IN_PROCESS)
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    assert waiting.boot is not None
    waiting = replace(waiting, boot=replace(waiting.boot, microversion="2.37"))
    command = replace(waiting, effects=until_done(rig.driver.ensure_started, waiting).effects, boot=None)
    [server] = cloud.servers.values()
    assert set(server.tags) == {"tenure:reserved", f"tenure:lease={command.lease_id}"}
    rig.enlarge(server.id)
    [drift] = rig.driver.drift(HOST, [command], [])
    assert "VCPU" in drift.text
    rig.close()


def made_twice(cloud: FakeOpenStack, rig: FakeServerRig, **more: Any) -> tuple[Command, Server, Server]:
    """A running reservation, its server, and one of a boot without an answer that Nova has handled later."""
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    waiting = replace(waiting, parameters={**waiting.parameters, "at_end": "shelve"})
    command = replace(waiting, effects=until_done(rig.driver.ensure_started, waiting).effects, boot=None)
    [server] = cloud.servers.values()
    late = replace(server, **{"id": str(uuid.uuid4()), "metadata": dict(server.metadata), **more})
    cloud.servers[late.id] = late
    return command, server, late


@pytest.mark.parametrize("more", [{}, {"status": "ERROR", "host": ""}], ids=["runs", "has no host"])
@pytest.mark.parametrize("nova", ["2.103", "2.96"])
def test_a_server_of_a_boot_that_nova_handles_late_is_found_and_deleted(nova: str, more: dict[str, Any]):
    with FakeOpenStack(nova=nova) as cloud:
        rig = FakeServerRig(cloud, IN_PROCESS)
        command, server, _ = made_twice(cloud, rig, **more)
        [drift] = rig.driver.drift(HOST, [command], [])
        assert (drift.reservation_id, drift.lasts) == (command.reservation_id, False)
        until_done(rig.driver.ensure_started, command)
        assert list(cloud.servers) == [server.id]
        assert not rig.driver.drift(HOST, [command], [])
        rig.close()


def test_a_server_of_a_late_boot_is_deleted_at_the_end(cloud: FakeOpenStack):
    rig = FakeServerRig(cloud, IN_PROCESS)
    command, server, _ = made_twice(cloud, rig)
    until_done(rig.driver.ensure_ended, command)
    assert list(cloud.servers) == [server.id]
    rig.close()


def test_a_server_of_a_late_boot_is_deleted_with_a_start_that_failed(cloud: FakeOpenStack):
    """The ledger does not know yet which server was made, since another one of the lease was not."""
    rig = FakeServerRig(cloud, IN_PROCESS)
    command, _, _ = made_twice(cloud, rig)
    until_done(rig.driver.ensure_ended, replace(command, effects={}, parameters={}, is_over=True))
    assert not cloud.servers
    rig.close()


@pytest.mark.parametrize("adopted", [False, True])
def test_a_copy_on_another_host_stays_where_nova_shows_no_hints(adopted: bool):
    """Its owner has copied the marks of a server; no host but the reserved one is open to a boot with the key."""
    with FakeOpenStack(nova="2.96") as cloud:
        rig = FakeServerRig(cloud, IN_PROCESS)
        [host] = reserved(rig)
        waiting = to_be_made(rig, host)
        if not adopted:
            broken_off(rig, waiting)
        progress = until_done(rig.driver.ensure_started, waiting) if adopted else None
        [server] = cloud.servers.values()
        copied = replace(server, id=str(uuid.uuid4()), metadata=dict(server.metadata), host="elsewhere")
        cloud.servers[copied.id] = copied
        progress = progress or until_done(rig.driver.ensure_started, waiting)
        assert progress.effects["server_id"] == server.id
        command = replace(waiting, effects=progress.effects, boot=None)
        assert not rig.driver.drift(HOST, [command], [])
        until_done(rig.driver.ensure_ended, command)
        assert copied.id in cloud.servers
        rig.close()


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"created": datetime.now(UTC) + timedelta(minutes=20)}, id="booted when the key had run out"),
        pytest.param({"created": datetime.now(UTC) - timedelta(hours=1)}, id="booted before the start"),
        pytest.param({"project_id": NEIGHBOUR}, id="of another project"),
        pytest.param({"hints": {}}, id="booted without the key"),
    ],
)
def test_a_server_to_which_the_owner_has_copied_the_marks_stays(cloud: FakeOpenStack, more: dict[str, Any]):
    rig = FakeServerRig(cloud, IN_PROCESS)
    command, server, copied = made_twice(cloud, rig, **more)
    assert not rig.driver.drift(HOST, [command], [])
    until_done(rig.driver.ensure_started, command)
    until_done(rig.driver.ensure_ended, command)
    assert set(cloud.servers) == {server.id, copied.id}
    rig.close()


@pytest.mark.parametrize(("microversion", "error"), [("2.999", CloudRefused), ("2.60", CloudBusy)])
def test_a_boot_at_a_microversion_that_nova_does_not_have_is_not_repeated(
    cloud: FakeOpenStack, microversion: str, error: type[Exception]
):
    """It may only be repeated if Nova has the microversion: some of its services are being upgraded then."""
    rig = FakeServerRig(cloud)
    [host] = reserved(rig)
    waiting = to_be_made(rig, host)
    assert waiting.boot is not None
    refusal = 406, {"computeFault": {"code": 406, "message": "Version is not supported by the API."}}
    cloud.instead = lambda seen: refusal if (seen.method, seen.path) == ("POST", "/v2.1/servers") else None
    with pytest.raises((CloudRefused, CloudBusy)) as refused:
        rig.driver.ensure_started(replace(waiting, boot=replace(waiting.boot, microversion=microversion)))
    assert (type(refused.value) is CloudRefused) == (error is CloudRefused)
    assert "is not supported" in str(refused.value)
    rig.close()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(datetime(2030, 1, 1, 9, 0, tzinfo=UTC))


@pytest.fixture
def driver(cloud: FakeOpenStack, clock: SimulatedClock):
    with connect(options_of(cloud), clock=clock) as driver:
        yield driver


def boot(cloud: FakeOpenStack, **more: Any) -> Server:
    """A server in general use, on the last host."""
    [*_, host] = cloud.hosts.values()
    server = Server(**{"name": "mine", "host": host.service_host, "project_id": OWNER, **more})
    cloud.servers[server.id] = server
    return server


def command_for(*hosts: ResourceRef, server: Server | None = None, **more: Any) -> Command:
    named = {} if server is None else {"server_id": server.id}
    parameters = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1, "at_end": "delete", **named, **more}
    plain = command_of(*hosts, reservation_id=RESERVATION, resource_type=SERVER)
    return replace(plain, parameters=parameters, starts_at=START, units={host.external_id: 1 for host in hosts})


def adopted(command: Command) -> Command:
    return replace(command, effects={"adopted_server_id": command.parameters["server_id"]})


def until_done(verb: Any, command: Command) -> Progress:
    """What the verb says in the end; more than a few calls are too many."""
    progresses: list[Progress] = []
    while len(progresses) < 6:
        progresses.append(verb(command))
        if progresses[-1].done:
            return progresses[-1]
    raise AssertionError(progresses[-1])


@pytest.mark.parametrize("keeps_shelved", [False, True])
def test_a_server_is_marked_shelved_and_woken_on_its_host(
    cloud: FakeOpenStack, driver: OpenStackCloud, keeps_shelved: bool
):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    cloud.keeps_shelved = keeps_shelved
    command = command_for(host, server=server)
    assert driver.ensure_prepared(replace(command, resources=())).effects == {"adopted_server_id": server.id}
    assert server.status in {"SHELVED", "SHELVED_OFFLOADED"}
    assert server.metadata == {
        "tenure:lease": command.lease_id,
        "tenure:reservation": RESERVATION,
        "tenure:reserved": "true",
        "tenure:at_end": "delete",
        "tenure:ends_at": f"{command.ends_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    assert set(server.tags) == {"tenure:reserved", f"tenure:lease={command.lease_id}"}
    assert driver.ensure_prepared(replace(command, resources=())).done

    progress = until_done(driver.ensure_started, command)
    place = next(iter(cloud.hosts.values()))
    assert (server.status, server.host) == ("ACTIVE", place.service_host)
    group = cloud.aggregate(RESERVATION)
    assert group is not None
    assert (group.hosts, group.metadata["tenure:server"]) == ([place.service_host], server.id)
    assert progress.effects["aggregate_id"] == group.number
    assert list(driver.held(HOST)) == [RESERVATION]
    assert not driver.drift(HOST, [command], ())


def test_a_running_server_moves_to_its_host_when_the_start_has_come(
    cloud: FakeOpenStack, driver: OpenStackCloud, clock: SimulatedClock
):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    clock.set(START)
    assert driver.ensure_prepared(command_for(server=server)).done
    assert server.status == "ACTIVE"
    first = driver.ensure_started(command_for(host, server=server))
    assert (first.done, first.awaited) == (False, True)
    until_done(driver.ensure_started, command_for(host, server=server))
    assert server.host == next(iter(cloud.hosts.values())).service_host


def test_a_host_where_nova_cannot_wake_a_server_is_named(cloud: FakeOpenStack, driver: OpenStackCloud):
    first, second = registered(driver, cloud, 2)
    server = boot(cloud, status="SHELVED_OFFLOADED", host="")
    command = command_for(first, server=server)
    for _ in range(2):
        assert not driver.ensure_started(command).done
        server.status, server.host = "SHELVED_OFFLOADED", ""  # the compute service could not
        with pytest.raises(ResourceOccupied, match="could not unshelve") as refused:
            driver.ensure_started(command)
        assert list(refused.value.resources) == [first.external_id]
        assert server.status == "SHELVED_OFFLOADED"  # so that it can be woken elsewhere
    until_done(driver.ensure_started, command_for(second, server=server))
    assert server.host == cloud.host(second.external_id).service_host


@pytest.mark.parametrize("status", ["PAUSED", "SUSPENDED"])
def test_an_evacuation_refused_for_the_servers_state_is_retried(
    cloud: FakeOpenStack, driver: OpenStackCloud, status: str
):
    first, second = registered(driver, cloud, 2)
    server = boot(cloud)
    until_done(driver.ensure_started, command_for(first, server=server))
    cloud.host(first.external_id).state, server.status = "down", status
    with pytest.raises(CloudBusy, match="evacuate"):
        driver.ensure_started(command_for(second, server=server))


def test_a_server_of_a_host_that_is_down_is_rebuilt_on_another(cloud: FakeOpenStack, driver: OpenStackCloud):
    first, second = registered(driver, cloud, 2)
    server = boot(cloud)
    until_done(driver.ensure_started, command_for(first, server=server))
    cloud.host(first.external_id).state = "down"
    until_done(driver.ensure_started, command_for(second, server=server))
    assert server.host == cloud.host(second.external_id).service_host
    assert cloud.aggregate(RESERVATION).hosts == [server.host]  # type: ignore[union-attr]  # it is there


def test_a_server_shelved_by_its_owner_is_not_woken(cloud: FakeOpenStack, driver: OpenStackCloud):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(host, server=server)
    until_done(driver.ensure_started, command)
    server.status, server.host = "SHELVED_OFFLOADED", ""
    assert driver.ensure_started(command).done
    assert server.status == "SHELVED_OFFLOADED"


@pytest.mark.parametrize(
    ("at_end", "status"), [("delete", None), ("snapshot", None), ("stop", "SHUTOFF"), ("shelve", "SHELVED_OFFLOADED")]
)
def test_the_end_follows_at_end(cloud: FakeOpenStack, driver: OpenStackCloud, at_end: str, status: str | None):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(host, server=server, at_end=at_end)
    until_done(driver.ensure_prepared, command)
    until_done(driver.ensure_started, command)
    until_done(driver.ensure_ended, adopted(command))

    assert (cloud.servers[server.id].status if status else None) == status
    assert (server.id in cloud.servers) == (status is not None)
    assert cloud.aggregate(RESERVATION) is None
    assert not list(driver.held(HOST))
    assert (server.metadata, server.tags) == ({}, []) or at_end in {"delete", "snapshot"}
    assert driver.ensure_ended(adopted(replace(command, is_over=True))).done


def test_a_server_that_is_stopped_leaves_its_reserved_host(cloud: FakeOpenStack, driver: OpenStackCloud):
    """The room there is promised to others."""
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(host, server=server, at_end="stop")
    until_done(driver.ensure_started, command)
    reserved = server.host
    until_done(driver.ensure_ended, adopted(command))
    assert (server.status, server.host == reserved, server.metadata) == ("SHUTOFF", False, {})


def test_a_stopped_server_without_another_host_is_shelved(cloud: FakeOpenStack, driver: OpenStackCloud):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(host, server=server, at_end="stop")
    until_done(driver.ensure_started, command)
    cloud.has_room = False
    until_done(driver.ensure_ended, adopted(command))
    assert (server.status, server.metadata) == ("SHELVED_OFFLOADED", {})


def test_a_server_in_its_place_is_stopped_where_it_is(cloud: FakeOpenStack, driver: OpenStackCloud):
    server = boot(cloud)
    place, command = server.host, command_for(server=server, at_end="stop", in_place=True)
    until_done(driver.ensure_started, command)
    until_done(driver.ensure_ended, adopted(command))
    assert (server.status, server.host) == ("SHUTOFF", place)


@pytest.mark.parametrize("at_end", ["stop", "shelve"])
@pytest.mark.parametrize("status", ["PAUSED", "SUSPENDED", "RESCUE", "VERIFY_RESIZE", "SHELVED", "ERROR"])
def test_no_state_of_a_server_keeps_it_on_reserved_room(
    cloud: FakeOpenStack, driver: OpenStackCloud, at_end: str, status: str
):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = adopted(command_for(host, server=server, at_end=at_end))
    until_done(driver.ensure_started, command)
    reserved, server.status = server.host, status
    if status == "ERROR":
        with pytest.raises(CloudBusy, match="ERROR"):
            driver.ensure_ended(command)
    until_done(driver.ensure_ended, command)
    assert server.host != reserved
    assert server.status in {"SHELVED_OFFLOADED", "SHUTOFF" if at_end == "stop" else ""}


def test_a_spared_server_only_leaves_its_room(cloud: FakeOpenStack, driver: OpenStackCloud):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = adopted(command_for(host, server=server, at_end="delete"))
    until_done(driver.ensure_started, command)
    until_done(driver.ensure_ended, replace(command, spared=True))
    assert (server.status, server.metadata) == ("SHELVED_OFFLOADED", {})


@pytest.mark.parametrize("status", ["ACTIVE", "VERIFY_RESIZE", "RESCUE", "ERROR"])
def test_a_spared_server_in_general_use_is_unchanged(cloud: FakeOpenStack, driver: OpenStackCloud, status: str):
    registered(driver, cloud, 1)
    server = boot(cloud, status=status)
    until_done(driver.ensure_ended, replace(adopted(command_for(server=server)), spared=True))
    assert server.status == status


def test_a_lease_ends_where_there_is_no_pool(cloud: FakeOpenStack, driver: OpenStackCloud):
    server = boot(cloud)
    command = command_for(server=server, at_end="shelve", in_place=True)
    until_done(driver.ensure_started, command)
    [pool] = [aggregate for aggregate in cloud.aggregates.values() if aggregate.name == POOL]
    del cloud.aggregates[pool.number]
    until_done(driver.ensure_ended, adopted(command))
    assert server.status == "SHELVED_OFFLOADED"


def test_a_server_of_another_project_is_refused(cloud: FakeOpenStack, driver: OpenStackCloud):
    server = boot(cloud, project_id=NEIGHBOUR)
    with pytest.raises(CloudRefused):
        driver.ensure_prepared(command_for(server=server))
    until_done(driver.ensure_ended, adopted(command_for(server=server)))
    assert server.id in cloud.servers


@pytest.mark.parametrize("refused", ["before it is woken", "when it is woken"])
@pytest.mark.parametrize("has_room", [True, False])
def test_a_server_refused_for_a_reservation_is_unchanged(
    cloud: FakeOpenStack, driver: OpenStackCloud, refused: str, has_room: bool
):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    before = replace(command_for(host), effects={})
    assert driver.ensure_started(before).done
    named = command_for(host, server=server)
    assert not driver.ensure_started(named).done
    if refused == "when it is woken":
        until_done(driver.ensure_started, named)
    cloud.has_room = has_room
    until_done(driver.ensure_started, replace(before, withdrawn=named.parameters))
    group = cloud.aggregate(RESERVATION)
    assert group is not None
    assert "tenure:server" not in group.metadata
    assert server.host not in group.hosts
    assert (server.status, server.metadata == {}) == (("ACTIVE", True) if has_room else ("SHELVED_OFFLOADED", False))
    assert driver.ensure_started(replace(before, withdrawn=named.parameters)).done


def test_a_server_shows_the_end_of_its_lease(cloud: FakeOpenStack, driver: OpenStackCloud):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(host, server=server)
    until_done(driver.ensure_started, command)
    longer = replace(command, ends_at=command.ends_at + timedelta(days=1))
    assert driver.ensure_started(longer).done
    assert server.metadata["tenure:ends_at"] == f"{longer.ends_at:%Y-%m-%dT%H:%M:%SZ}"
    assert server.status == "ACTIVE"


def test_marks_of_an_earlier_lease_do_not_keep_a_server_asleep(cloud: FakeOpenStack, driver: OpenStackCloud):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(host, server=server)
    until_done(driver.ensure_started, command)
    server.status, server.host, server.actions = "SHELVED_OFFLOADED", "", ["shelve"]
    server.metadata["tenure:reservation"] = str(uuid.UUID(int=2))
    until_done(driver.ensure_started, command)
    assert server.status == "ACTIVE"


@pytest.mark.parametrize(("status", "goes"), [("ACTIVE", True), ("SHELVED_OFFLOADED", True), ("ERROR", False)])
def test_a_server_of_a_failed_confirmation_is_deleted_unless_in_error(
    cloud: FakeOpenStack, driver: OpenStackCloud, status: str, goes: bool
):
    server = marked(cloud, status=status)
    command = replace(command_for(server=server), is_over=True, provisional=HOLD)
    until_done(driver.ensure_ended, command)
    assert (server.id not in cloud.servers) is goes


#: When the lease of a command waited to be confirmed, and a moment in it.
HOLD = Period(START - timedelta(minutes=30), START - timedelta(minutes=25))
BOOTED = HOLD.start + timedelta(minutes=1)


def marked(cloud: FakeOpenStack, *, tagged: bool = True, **more: Any) -> Server:
    """A server that says it was booted for the reservation."""
    command = command_for()
    metadata = {"tenure:lease": command.lease_id, "tenure:reservation": RESERVATION, "tenure:reserved": "true"}
    tags = ["tenure:reserved", f"tenure:lease={command.lease_id}"] if tagged else []
    return boot(cloud, **{"created": BOOTED, "updated": BOOTED, "metadata": metadata, "tags": tags, **more})


@pytest.mark.parametrize("tagged", [True, False])
def test_a_server_of_an_unconfirmed_hold_is_deleted(cloud: FakeOpenStack, driver: OpenStackCloud, tagged: bool):
    orphan = marked(cloud, tagged=tagged)
    assert list(driver.held(HOST)) == ([RESERVATION] if tagged else [])
    until_done(driver.ensure_ended, replace(command_for(), is_over=True, provisional=HOLD))
    assert orphan.id not in cloud.servers
    assert not list(driver.held(HOST))


@pytest.mark.parametrize(
    ("hold", "server"),
    [
        pytest.param(HOLD, {"created": HOLD.start - timedelta(minutes=1)}, id="booted before"),
        pytest.param(HOLD, {"created": HOLD.end + timedelta(hours=1)}, id="booted long after"),
        pytest.param(None, {}, id="no hold"),
        pytest.param(HOLD, {"project_id": NEIGHBOUR}, id="of another project"),
    ],
)
def test_false_marks_do_not_get_a_server_deleted(
    cloud: FakeOpenStack, driver: OpenStackCloud, hold: Period | None, server: dict[str, Any]
):
    liar = marked(cloud, **server)
    assert list(driver.held(HOST)) == [RESERVATION]
    until_done(driver.ensure_ended, replace(command_for(), is_over=True, provisional=hold))
    assert (liar.status, liar.metadata, liar.tags) == ("ACTIVE", {}, [])


@pytest.mark.slow
def test_the_end_of_a_lease_deletes_only_its_own_server(cloud: FakeOpenStack, driver: OpenStackCloud):
    [host] = registered(driver, cloud, 1)
    server, liar = boot(cloud), marked(cloud)
    command = command_for(host, server=server)
    until_done(driver.ensure_started, command)
    until_done(driver.ensure_ended, adopted(command))
    assert (server.id in cloud.servers, liar.id in cloud.servers) == (False, True)


def test_servers_without_reservation_are_not_read(cloud: FakeOpenStack, driver: OpenStackCloud):
    for _ in range(20):
        boot(cloud)
    marked(cloud)
    cloud.page = 5
    cloud.seen.clear()
    assert list(driver.held(HOST)) == [RESERVATION]
    lists = [request for request in cloud.seen if request.path.endswith("/servers/detail")]
    assert [sorted(request.params.keys() - {"all_tenants", "limit", "soft_deleted"}) for request in lists] == [["tags"]]


def test_a_server_with_the_most_tags_allowed_is_reserved(cloud: FakeOpenStack, driver: OpenStackCloud):
    server = boot(cloud, tags=[f"mine-{number}" for number in range(50)])
    assert driver.ensure_prepared(command_for(server=server)).done
    assert server.metadata["tenure:reservation"] == RESERVATION
    assert len(server.tags) == 50


def test_the_end_of_a_lease_spares_an_unadopted_server(cloud: FakeOpenStack, driver: OpenStackCloud):
    server = boot(cloud, metadata={"tenure:reservation": RESERVATION, "mine": "too"})
    assert driver.ensure_ended(replace(command_for(server=server), is_over=True)).done
    assert (server.status, server.metadata) == ("ACTIVE", {"mine": "too"})


def test_a_server_shelved_at_the_end_is_not_held(cloud: FakeOpenStack, driver: OpenStackCloud):
    server = boot(cloud)
    command = command_for(server=server, at_end="shelve")
    until_done(driver.ensure_prepared, command)
    until_done(driver.ensure_ended, adopted(replace(command, is_over=True)))
    assert server.status == "SHELVED_OFFLOADED"
    assert not list(driver.held(HOST))


def test_a_server_is_shown_to_its_own_project_only(cloud: FakeOpenStack, driver: OpenStackCloud):
    server = boot(cloud)
    facts = driver.fetch("server", server.id, Actor("u", OWNER))
    assert (facts["project_id"], facts["flavor"]["vcpus"]) == (OWNER, 1)  # type: ignore[index]  # it is a document
    for reference, project in ((server.id, NEIGHBOUR), (str(uuid.uuid4()), OWNER), ("..", OWNER)):
        with pytest.raises(CloudNotFound):
            driver.fetch("server", reference, Actor("u", project))


def test_a_server_that_is_broken_or_gone_cannot_be_prepared(cloud: FakeOpenStack, driver: OpenStackCloud):
    broken, gone = boot(cloud, status="ERROR"), boot(cloud)
    del cloud.servers[gone.id]
    for server in (broken, gone):
        with pytest.raises(CloudRefused):
            driver.ensure_prepared(command_for(server=server))
    building = boot(cloud, status="BUILD")
    assert not driver.ensure_prepared(command_for(server=building)).done


def test_a_changed_aggregate_is_drift_and_mended(cloud: FakeOpenStack, driver: OpenStackCloud):
    first, _ = registered(driver, cloud, 2)
    server = boot(cloud)
    command = command_for(first, server=server)
    until_done(driver.ensure_started, command)
    group = cloud.aggregate(RESERVATION)
    assert group is not None
    for change in (
        lambda: group.metadata.update({"tenure:server": "another"}),
        lambda: group.hosts.append(cloud.host(ref(cloud, 2).external_id).service_host),
        group.hosts.clear,
    ):
        change()
        assert [drift.reservation_id for drift in driver.drift(HOST, [command], ())] == [RESERVATION]
        until_done(driver.ensure_started, command)
        assert not driver.drift(HOST, [command], ())


def test_a_server_resized_beyond_its_booking_is_drift(cloud: FakeOpenStack, driver: OpenStackCloud):
    """While it is on its reserved host; elsewhere it takes nothing of what is promised to others."""
    [host] = registered(driver, cloud, 1)
    server = boot(cloud, flavor=Flavor("1", "m1.small", vcpus=1, ram=512, disk=1))
    command = command_for(host, server=server)
    until_done(driver.ensure_started, command)
    assert not driver.drift(HOST, [command], ())
    server.flavor = Flavor("2", "m1.big", vcpus=4, ram=512, disk=1)
    [drift] = driver.drift(HOST, [command], ())
    assert (drift.reservation_id, drift.lasts, "4 VCPU instead of 1" in drift.text) == (RESERVATION, True, True)
    server.host = list(cloud.hosts.values())[-1].service_host
    assert not driver.drift(HOST, [command], ())


def test_changed_servers_are_listed_except_reserved_ones(cloud: FakeOpenStack, driver: OpenStackCloud):
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    mine = boot(cloud)
    old = since - timedelta(hours=1)
    changed = boot(cloud, created=old)
    boot(cloud, created=old, updated=old)
    boot(cloud, created=old, updated=old, status="DELETED")
    boot(cloud, status="BUILD")
    boot(cloud, task="deleting")
    gone = boot(cloud, created=old, status="DELETED", host="")
    says_so = boot(cloud, metadata={"tenure:reservation": RESERVATION})
    [host] = registered(driver, cloud, 1)
    held = command_of(host, resource_type=HOST, reservation_id=str(uuid.UUID(int=3)))
    assert driver.ensure_started(held).done
    boot(cloud, host=cloud.host(host.external_id).service_host)
    boot(cloud, hints={"reservation": RESERVATION})
    boot(
        cloud, flavor=Flavor(RESERVATION, "x", extra_specs={"aggregate_instance_extra_specs:reservation": RESERVATION})
    )
    found = {server.server_id: server for server in driver.servers(since).servers}
    assert found.keys() == {mine.id, changed.id, gone.id, says_so.id}
    assert (found[mine.id].user_id, found[mine.id].reservation_id) == (f"user-of-{OWNER}", None)
    assert found[says_so.id].reservation_id == RESERVATION
    assert [server.server_id for server in found.values() if server.is_gone] == [gone.id]


def test_a_server_in_its_place_is_not_listed_as_held(cloud: FakeOpenStack, driver: OpenStackCloud):
    """Where each server has a lease of itself these are all servers of the cloud."""
    registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(server=server, in_place=True, at_end="shelve")
    until_done(driver.ensure_prepared, command)
    until_done(driver.ensure_started, command)
    assert server.tags == [f"tenure:lease={command.lease_id}"]
    assert not list(driver.held(HOST))
    mine = replace(command_for(server=server), reservation_id=str(uuid.UUID(int=4)), lease_id="mine")
    until_done(driver.ensure_prepared, mine)  # that other gives way
    assert list(driver.held(HOST)) == [mine.reservation_id]
    assert set(server.tags) == {"tenure:reserved", "tenure:lease=mine"}


def test_a_shelved_server_is_recognised_by_its_vm_state(cloud: FakeOpenStack, driver: OpenStackCloud):
    [host] = registered(driver, cloud, 1)
    server = boot(cloud)
    command = command_for(host, server=server)
    until_done(driver.ensure_prepared, command)
    cloud.shows_reserved = True  # as what is set before Nova's API may
    until_done(driver.ensure_started, command)
    assert server.status == "ACTIVE"


def test_a_failed_deletion_is_requested_again(cloud: FakeOpenStack):
    """The end of a lease whose server is on a host that died would wait for ever otherwise."""
    clock = SimulatedClock(datetime.now(UTC))
    with connect(options_of(cloud), clock=clock) as driver:
        (host,) = registered(driver, cloud, 1)
        server = boot(cloud)
        command = adopted(command_for(host, server=server))
        until_done(driver.ensure_prepared, command)
        until_done(driver.ensure_started, command)
        cloud.held = True

        def deletions() -> int:
            return sum("forceDelete" in (seen.body or {}) for seen in cloud.seen)

        for _ in range(3):
            assert not driver.ensure_ended(command).done
        assert deletions() == 1
        clock.advance(timedelta(minutes=3))
        driver.ensure_ended(command)
        assert deletions() == 2
