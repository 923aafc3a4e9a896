"""Two regions over HTTP: the same ids and names in both, and every type of reservation in the one that is not home."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tenure.domain.volume import pool_id
from tenure.drivers.simulated import Fault, FaultKind
from tenure.engine.default_leases import DefaultLeases, DefaultTerms
from tenure.services.leases.default_leases import DefaultLeaseBook
from tests.api.rig import ADDRESS, FLAVORS, HOSTS, INSTANCES, NETWORK, Api, api_over
from tests.support.regions import NORTH, SOUTH, Regions, open_regions
from tests.support.simulated import Server, SimulatedCloud

POOL = "sim-storage@fast#nvme"
VOLUMES = {"resource_type": "virtual:volume", "amount": 2, "size_gb": 30, "volume_type": "fast"}
PROJECT = "demo-project"
TINY = "1"


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    with open_regions(tmp_path) as opened:
        yield opened


@pytest.fixture
def api(regions: Regions, tmp_path: Path) -> Api:
    return api_over(regions, tmp_path).using(version="1.2")


def made(result: Any, status: int = 201) -> Any:
    assert result.status_code == status, result.text
    [document] = result.json.values()
    return document


def shown(api: Api, lease: dict[str, Any]) -> dict[str, Any]:
    lease = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    return lease


def servers(cloud: SimulatedCloud) -> dict[str, Server]:
    return {server.id: server for server in cloud.world.servers()}


class TestIds:
    def test_hosts_are_listed_by_region(self, admin: Api) -> None:
        def ids(query: str) -> list[str]:
            return [host["id"] for host in made(admin.get(f"/v1/os-hosts{query}"), 200)]

        assert ids("") == ["1", "2", "south:1", "south:2"]
        assert ids("?region=north") == ["1", "2"]
        assert ids("?region=south") == ["south:1", "south:2"]
        assert ids("?region=south&hypervisor_hostname=sim-host-002") == ["south:2"]
        first = admin.get("/v1/os-hosts?region=south&limit=1").json
        assert "region=south" in first["hosts_links"][0]["href"]
        assert ids("?region=south&limit=1&marker=south:1") == ["south:2"]

    @pytest.mark.parametrize("region", ["west", "south:1", "a b"])
    def test_an_unknown_region_is_refused(self, admin: Api, region: str) -> None:
        answer = admin.get(f"/v1/os-hosts?region={quote(region)}")
        assert (answer.status_code, answer.json.get("field")) == (400, "region"), answer.text

    def test_before_1_2_there_is_no_such_filter(self, admin: Api) -> None:
        answer = admin.using(version="1.1").get("/v1/os-hosts?region=south")
        assert (answer.status_code, answer.json["error_message"]) == (400, "region is not known here.")
        assert len(made(admin.using(version="1.0").get("/v1/os-hosts?region=south"), 200)) == 4  # as of any query

    def test_an_id_of_another_region_is_taken_by_every_door(self, admin: Api) -> None:
        path = "/v1/os-hosts/south:1"
        assert made(admin.get(path), 200)["region"] == SOUTH
        assert made(admin.put(path, {"properties": {"rack": "r1"}}), 200)["properties"]["rack"] == "r1"
        assert "rack" not in made(admin.get("/v1/os-hosts/1"), 200)["properties"]
        lease = admin.using("demo").book(reservations=[{**HOSTS, "region": SOUTH, "max": 2, "min": 2}])
        parts = made(admin.get("/v1/os-hosts/allocations"), 200)
        assert {allocation["resource_id"]: len(allocation["reservations"]) for allocation in parts} == {
            "1": 0,
            "2": 0,
            "south:1": 1,
            "south:2": 1,
        }
        assert made(admin.get(f"{path}/allocation"), 200)["resource_id"] == "south:1"
        leased = made(admin.using("demo").get(f"/v1/leases/{lease['id']}/hosts"), 200)
        assert {host["id"] for host in leased} == {"south:1", "south:2"}
        assert admin.post(f"{path}/disable", {"reason": "dusty"}).json["host"]["enabled"] is False
        assert admin.post(f"{path}/enable", {}).json["host"]["enabled"] is True
        [stays] = admin.post(f"{path}/reallocate", {}).json["reservations"]
        assert stays["moves_to"] is None  # there is no other host in the south, and those of the north are none for it
        assert admin.delete(path).status_code == 409
        assert admin.using("demo").delete(f"/v1/leases/{lease['id']}").status_code == 204
        assert admin.delete(path).status_code == 204
        assert admin.get("/v1/os-hosts/1").status_code == 200
        assert made(admin.post("/v1/os-hosts", {"name": "sim-host-001", "region": SOUTH}))["id"] == "south:1"

    def test_addresses_and_pools_of_the_same_name_are_distinct_by_region(self, regions: Regions, admin: Api) -> None:
        address = {"floating_network_id": NETWORK, "floating_ip_address": ADDRESS}
        pool = {"name": POOL, "capacity_gb": 100}
        for path, body, id in (("floatingips", address, None), ("volume-pools", pool, pool_id(POOL))):
            here = made(admin.post(f"/v1/{path}", body))
            there = made(admin.post(f"/v1/{path}", {**body, "region": SOUTH}))
            assert here["id"] == (id or here["id"])
            assert (here["region"], there["region"]) == (NORTH, SOUTH)
            assert there["id"].startswith("south:")
            assert made(admin.get(f"/v1/{path}?region=south"), 200) == [there]
            for verb in ("disable", "enable"):
                assert admin.post(f"/v1/{path}/{there['id']}/{verb}", {}).status_code == 200
            assert made(admin.get(f"/v1/{path}/{there['id']}/allocation"), 200)["resource_id"] == there["id"]
            assert admin.delete(f"/v1/{path}/{there['id']}").status_code == 204
            assert made(admin.get(f"/v1/{path}"), 200) == [here]

    def test_groups_of_hosts_may_be_called_the_same_in_both(self, regions: Regions, api: Api) -> None:
        both = api.book(start=0, reservations=[HOSTS, {**HOSTS, "region": SOUTH}])
        mine = both["reservations"][1]["id"]
        regions.cloud.world.drop_group(mine)  # nothing of that name is there
        regions.engine.settle()
        assert mine in regions.south.world.groups()
        assert regions.service.reconciler.run() == 0


class TestTypes:
    """Each type in the region that is not home."""

    def test_hosts_instances_flavors_addresses_and_volumes(self, regions: Regions, admin: Api) -> None:
        api = admin.using("demo")
        made(admin.post("/v1/volume-pools", {"name": POOL, "capacity_gb": 100, "region": SOUTH}))
        address = {"floating_network_id": NETWORK, "floating_ip_address": ADDRESS}
        made(admin.post("/v1/floatingips", {**address, "region": SOUTH}))
        addresses = {"resource_type": "virtual:floatingip", "network_id": NETWORK, "amount": 1}
        requested = [HOSTS, INSTANCES, FLAVORS, addresses, VOLUMES]
        lease = api.book(start=0, reservations=[{**body, "region": SOUTH} for body in requested])
        regions.engine.settle()
        lease = shown(api, lease)
        assert (lease["status"], {reservation["region"] for reservation in lease["reservations"]}) == (
            "ACTIVE",
            {SOUTH},
        )
        hosts, instances, flavors, _, volumes = (reservation["id"] for reservation in lease["reservations"])
        assert set(regions.south.world.groups()) == {hosts}
        assert {instances, flavors} <= regions.south.world.instances.aggregates().keys()
        assert {volume.project_id for volume in regions.south.world.volumes.all().values()} == {PROJECT}
        assert volumes not in regions.cloud.world.groups()
        assert regions.cloud.world.groups() == {}
        assert regions.cloud.world.instances.aggregates() == {}
        assert regions.cloud.world.volumes.all() == {}
        assert regions.service.reconciler.run() == 0
        regions.pass_time(timedelta(hours=1, minutes=1))
        assert shown(api, lease)["status"] == "TERMINATED"
        assert regions.south.world.groups() == {}
        assert regions.south.world.instances.aggregates() == {}
        assert regions.south.world.volumes.all() == {}

    def test_a_server(self, regions: Regions, api: Api) -> None:
        regions.south.world.add_host("general")
        server_id = regions.south.world.instances.boot(PROJECT, TINY)
        requested = {"resource_type": "virtual:server", "server_id": server_id}
        refused = api.post("/v1/leases", api.lease_body(reservations=[requested]))
        assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].server_id")
        assert refused.json["error_message"].startswith("Region north: ")  # where it was looked for
        lease = api.book(reservations=[{**requested, "region": SOUTH}])
        regions.engine.settle()
        assert servers(regions.south)[server_id].shelved
        regions.pass_time(timedelta(hours=1.5))
        assert shown(api, lease)["status"] == "ACTIVE"
        assert regions.south.world.host(servers(regions.south)[server_id].host).belongs_to == "freepool"
        regions.pass_time(timedelta(hours=1))
        assert shown(api, lease)["status"] == "TERMINATED"
        assert server_id not in servers(regions.south)

    def test_servers_booted_without_a_lease_get_a_lease_in_their_region(self, regions: Regions, api: Api) -> None:
        booted: dict[str, str] = {}
        for name, cloud in ((NORTH, regions.cloud), (SOUTH, regions.south)):
            cloud.world.add_host("general")
            if booted:  # no two servers of real clouds have the same id
                cloud.world.delete_server(cloud.world.instances.boot(PROJECT, TINY))
            booted[name] = cloud.world.instances.boot(PROJECT, TINY, name=f"of-{name}")
        terms = DefaultTerms("virtual:server")
        components = regions.service.components
        defaults = DefaultLeases(
            regions.leases, DefaultLeaseBook(components.db), components.driver, regions.clock, terms
        )
        regions.cloud.inject(Fault(FaultKind.BUSY, verb="servers"))
        assert [defaults.run().given for _ in range(3)] == [1, 1, 0]  # first of the region that answers
        found = {
            lease["reservations"][0]["region"]: lease["reservations"][0]
            for lease in api.get("/v1/leases").json["leases"]
        }
        assert {name: reservation["server_id"] for name, reservation in found.items()} == booted
        regions.south.world.delete_server(booted[SOUTH])
        defaults.run()
        regions.pass_time(timedelta(minutes=1))
        left = [lease["reservations"][0]["region"] for lease in api.get("/v1/leases").json["leases"]]
        assert left == [NORTH]


class TestRefusals:
    @pytest.mark.parametrize("order", [(NORTH, SOUTH), (SOUTH, NORTH)])
    def test_without_room_in_a_region_nothing_is_booked_in_the_other(
        self, regions: Regions, api: Api, order: tuple[str, str]
    ) -> None:
        other, full = order
        api.book(reservations=[{**HOSTS, "min": 2, "max": 2, "region": full}])
        before = api.dump()
        requested = [{**HOSTS, "region": other}, {**HOSTS, "region": full}]
        refused = api.post("/v1/leases", api.lease_body(reservations=requested))
        assert (refused.status_code, refused.json["field"]) == (409, "reservations[1].min")
        assert api.dump() == before
        assert regions.free() == (2, 2)
        api.book(reservations=[{**HOSTS, "min": 2, "max": 2, "region": other}])

    def test_a_region_that_does_not_answer_is_named(self, regions: Regions, admin: Api) -> None:
        regions.south.inject(Fault(FaultKind.BUSY, count=None))
        refused = admin.post("/v1/os-hosts", {"name": "sim-host-001", "region": SOUTH})
        assert refused.status_code == 503
        assert "Region south" in refused.json["error_message"]
        api = admin.using("demo")
        refused = api.post("/v1/leases", api.lease_body(reservations=[{**FLAVORS, "region": SOUTH}]))
        assert refused.status_code == 503
        assert "Region south" in refused.json["error_message"]
        lease = api.book(start=0, reservations=[HOSTS, {**HOSTS, "region": SOUTH}])
        regions.engine.settle()
        assert shown(api, lease)["status_reason"].startswith("Region south: ")
        assert regions.free()[0] == 1  # what is at home is there

    def test_a_reservation_stays_in_its_region(self, api: Api) -> None:
        lease = api.book(reservations=[{**HOSTS, "region": SOUTH}])
        change = {"reservations": [{"id": lease["reservations"][0]["id"], "region": NORTH}]}
        refused = api.put(f"/v1/leases/{lease['id']}", change)
        assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].region")
