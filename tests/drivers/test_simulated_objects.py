"""Objects of a simulated cloud, kept in a file that several processes may have open."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.drivers.contract import CloudBusy
from tenure.drivers.openstack.requests import Circumstances, Request, Unauthorized
from tenure.drivers.simulated.openstack import objects
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.service import ApiRequest, Refused
from tenure.drivers.simulated.openstack.state import Flavor, FloatingIP, Server
from tenure.drivers.simulated.openstack.transport import SERVICE, InProcess

CIRCUMSTANCES = Circumstances("ensure_started", 30.0)
MAKE_POOL = Request("compute", "POST", "/os-aggregates", {"aggregate": {"name": "freepool", "availability_zone": None}})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cloud.db"


def pools(cloud: OpenStack) -> list[str]:
    sent = InProcess(cloud, lambda _token: None).send(Request("compute", "GET", "/os-aggregates"), CIRCUMSTANCES)
    return [aggregate["name"] for aggregate in sent["aggregates"]]


def test_objects_of_every_kind_of_field_are_the_same_after_a_restart(path: Path):
    server = Server("web", "compute-1", "a-project", {"group": ["g"]}, flavor=Flavor("1", "m1", projects={"a", "b"}))
    cloud = OpenStack(path)
    with cloud.objects.change():
        cloud.servers[server.id] = server
        cloud.classes["CUSTOM_GPU"] = True
    cloud.objects.close()
    reopened = OpenStack(path)
    with reopened.objects.look():
        assert reopened.servers == {server.id: server}
        assert reopened.classes == {"CUSTOM_GPU": True}


def test_a_request_through_one_process_is_seen_through_another(path: Path):
    first, second = OpenStack(path), OpenStack(path)
    assert pools(second) == []
    made = InProcess(first, lambda _token: None).send(MAKE_POOL, CIRCUMSTANCES)
    assert pools(second) == ["freepool"]
    InProcess(second, lambda _token: None).send(
        Request("compute", "DELETE", f"/os-aggregates/{made['aggregate']['id']}"), CIRCUMSTANCES
    )
    assert pools(first) == []


def test_each_number_is_given_once_across_processes(path: Path):
    first, second = OpenStack(path), OpenStack(path)
    numbers: list[int] = []
    for cloud in (first, second, first):
        with cloud.objects.change():
            numbers.append(cloud.add_aggregate(f"rack-{len(numbers)}").number)
    assert numbers == [1, 2, 3]


def test_a_change_that_fails_changes_nothing(path: Path):
    cloud = OpenStack(path)
    with cloud.objects.change():
        pool = cloud.add_aggregate("freepool")

    def fail() -> None:
        with cloud.objects.change():
            cloud.add_aggregate("rack")
            pool.hosts.append("compute-1")
            cloud.aggregates.save(pool.number)
            raise Refused(409, "Conflict")

    with pytest.raises(Refused):
        fail()
    for seen in (cloud, OpenStack(path)):
        with seen.objects.look():
            assert {aggregate.name: aggregate.hosts for aggregate in seen.aggregates.values()} == {"freepool": []}


def test_an_object_that_cannot_be_written_is_not_kept_in_memory_either(path: Path):
    cloud = OpenStack(path)

    def fail() -> None:
        with cloud.objects.change():
            cloud.servers["a-server"] = Server("\ud800", "", "a-project", id="a-server")
            cloud.servers["\ud800"] = Server("name", "", "a-project", id="\ud800")

    with pytest.raises(ValueError, match="surrogates not allowed"):
        fail()
    for seen in (cloud, OpenStack(path)):
        with seen.objects.look():
            assert not seen.servers
            assert not seen.servers_of("a-project")
    with cloud.objects.change():
        cloud.servers["a-server"] = Server("name", "", "a-project", id="a-server")
    other = OpenStack(path)
    with other.objects.look():
        assert [server.name for server in other.servers_of("a-project")] == ["name"]


def test_the_file_forgets_what_was_deleted_long_ago(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(objects, "REMEMBERED", 5)
    monkeypatch.setattr(objects, "_TRIMMED_EVERY", 10)
    cloud, other = OpenStack(path), OpenStack(path)
    for number in range(20):
        with cloud.objects.change():
            cloud.servers[f"server-{number}"] = Server("name", "", "a-project", id=f"server-{number}")
        with cloud.objects.change():
            cloud.forget_server(f"server-{number}")
            del cloud.deleted_servers[f"server-{number}"]
        with other.objects.look():
            assert not other.servers
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM object").fetchone()[0] < 16


def test_the_journal_keeps_the_newest_entries(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(objects, "JOURNALED", 5)
    monkeypatch.setattr(objects, "_TRIMMED_EVERY", 10)
    cloud = OpenStack(path)
    with cloud.objects.change():
        for number in range(20):
            cloud.objects.append(str(number).encode())
    assert [int(entry) for _, entry in cloud.objects.journal()] == [15, 16, 17, 18, 19]


def test_changes_of_many_threads_and_processes_are_all_kept(path: Path):
    clouds = [OpenStack(path) for _ in range(3)]

    def tag(number: int) -> None:
        cloud = clouds[number % len(clouds)]
        with cloud.objects.change():
            cloud.floating_ips["an-address"].tags.append(f"tag-{number}")
            cloud.floating_ips.save("an-address")

    with clouds[0].objects.change():
        clouds[0].floating_ips["an-address"] = FloatingIP("a-network", "203.0.113.7", "a-project")
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(tag, range(60)))
    with clouds[1].objects.look():
        assert sorted(clouds[1].floating_ips["an-address"].tags) == sorted(f"tag-{number}" for number in range(60))


def test_an_answer_shares_nothing_with_the_state():
    cloud = OpenStack()
    cloud.add_aggregate("freepool")
    _, answer = cloud.answer(ApiRequest("compute", "GET", "/os-aggregates"), SERVICE)
    answer["aggregates"][0]["metadata"]["blazar:owner"] = "somebody-else"
    assert [aggregate.metadata for aggregate in cloud.aggregates.values()] == [{}]


def test_a_change_is_refused_for_now_while_another_process_makes_one(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(objects, "_LOCK_TIMEOUT_SECONDS", 0.01)
    first, second = OpenStack(path), OpenStack(path)
    with first.objects.change():
        with pytest.raises(CloudBusy, match="busy with other requests"):
            InProcess(second, lambda _token: None).send(MAKE_POOL, CIRCUMSTANCES)
        first.add_aggregate("freepool")
    assert pools(second) == ["freepool"]


def test_a_token_of_no_account_and_a_trust_that_is_gone_are_refused():
    transport = InProcess(OpenStack(), lambda _token: None)
    for request in (replace(MAKE_POOL, token="forged"), replace(MAKE_POOL, owner=transport.owner("gone"))):
        with pytest.raises(Unauthorized):
            transport.send(request, CIRCUMSTANCES)
    with pytest.raises(Unauthorized):
        transport.log_in(transport.owner("gone"), CIRCUMSTANCES)
