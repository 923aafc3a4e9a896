"""Servers that are made at the start of their leases, by requests that are kept until then."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tenure.drivers.simulated import Fault, FaultKind
from tests.api.rig import Api, open_api
from tests.api.test_reserved_servers import LARGE, PROJECT, TINY, pass_hours, reservation, status

SECRET = "c2VjcmV0"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The API at 1.4, with four hosts for reservations and none in general use."""
    with open_api(tmp_path) as opened:
        yield opened.using(version="1.4")


def boot(flavor: str = TINY, **server: Any) -> dict[str, Any]:
    return {
        "request": {"server": {"name": "web", "flavorRef": flavor, "user_data": SECRET, **server}},
        "microversion": "2.60",
    }


def body_of(api: Api, *names: str, start: float = 1, flavor: str = TINY, **fields: Any) -> dict[str, Any]:
    reservations = [reservation(flavor_id=flavor, server_name=name) for name in names]
    given = {"boot": boot(flavor), "reservations": reservations, **fields}
    return {name: value for name, value in api.lease_body(start=start, **given).items() if value is not None}


def made(api: Api) -> dict[str, str | None]:
    """The servers of the cloud, by name, with the pools of their hosts."""
    world = api.world.cloud.world
    return {server.name: world.host(server.host).belongs_to for server in world.servers()}


def test_a_server_is_made_at_the_start_and_deleted_at_the_end(api: Api) -> None:
    lease = api.post("/v1/leases", body_of(api, "web")).json["lease"]
    [shown] = lease["reservations"]
    assert (lease["status"], shown["server_name"], shown["server_id"]) == ("PENDING", "web", None)
    assert made(api) == {}

    pass_hours(api, 1.2)
    assert made(api) == {"web": "freepool"}
    [server] = api.world.cloud.world.servers()
    [shown] = api.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"]
    assert shown["server_id"] == server.id
    assert server.metadata["tenure:reservation"] == shown["id"]

    pass_hours(api, 1)
    assert status(api, lease) == "TERMINATED"
    assert made(api) == {}


def test_a_lease_of_several_servers_makes_each(api: Api) -> None:
    api.post("/v1/leases", body_of(api, "web-1", "web-2", "web-3", start=0))
    pass_hours(api, 0.2)
    assert made(api) == dict.fromkeys(("web-1", "web-2", "web-3"), "freepool")


def test_the_largest_choice_with_room_is_taken(api: Api) -> None:
    choices = [
        {"reservations": [reservation(flavor_id=LARGE, server_name=f"web-{n}") for n in range(count)]}
        for count in (100, 20, 2)
    ]
    lease = api.post("/v1/leases", body_of(api, flavor=LARGE, any_of=choices, reservations=None)).json["lease"]
    pass_hours(api, 1.2)
    assert len(made(api)) == len(lease["reservations"]) == (100, 20, 2)[lease["choice"]]


def test_a_lease_that_has_waited_makes_its_server(api: Api) -> None:
    everything = api.book(start=1, hours=1, reservations=[{"resource_type": "physical:host", "min": 4, "max": 4}])
    body = body_of(api, "web", if_full="wait", start_date=None, end_date=None, duration=3600)
    body["latest"] = api.lease_body(start=1.4)["start_date"]
    body["earliest"] = api.lease_body(start=1)["start_date"]
    lease = api.post("/v1/leases", body).json["lease"]
    assert lease["status"] == "WAITING"
    assert SECRET not in str(lease)
    api.delete(f"/v1/leases/{everything['id']}")
    pass_hours(api, 1.6)
    assert made(api) == {"web": "freepool"}


@pytest.mark.parametrize("choices", [1, 2])
def test_neither_a_booking_nor_its_refusal_asks_for_the_flavor_that_it_describes(api: Api, choices: int) -> None:
    """The boot waits in Nova for the answer: Nova may have no process left to be asked."""
    described = {**boot(), "flavor": {"id": TINY, "name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1}}
    wanted = {"reservations": [reservation(flavor_id=TINY, server_name="web")]}
    fields = {"boot": described} if choices == 1 else {"boot": described, "any_of": [wanted] * 2, "reservations": None}
    api.world.cloud.inject(Fault(FaultKind.BUSY, "fetch", count=None))
    assert api.post("/v1/leases", body_of(api, "web", start=3, **fields)).status_code == 201
    everything = [{"resource_type": "physical:host", "min": 4, "max": 4}]
    api.book(start=1, hours=1, reservations=everything)
    refused = api.post("/v1/leases", body_of(api, "web", start=1, **fields))
    assert refused.status_code == 409
    assert refused.json["details"]["alternatives"]


@pytest.mark.parametrize("prefer", ["return=minimal", "respond-async, Return=Minimal", "return=representation"])
def test_a_refusal_that_is_wanted_short_costs_no_search(api: Api, prefer: str) -> None:
    """The middleware of Nova's API shows no alternatives."""
    api.book(start=1, hours=1, reservations=[{"resource_type": "physical:host", "min": 4, "max": 4}])
    refused = api.post("/v1/leases", body_of(api, "web"), headers={"Prefer": prefer})
    assert (refused.status_code, refused.json["details"]["proven"]) == (409, True)
    assert ("alternatives" in refused.json["details"]) == (prefer == "return=representation")


def test_the_request_is_shown_to_nobody_and_forgotten(api: Api) -> None:
    answer = api.post("/v1/leases", body_of(api, "web"))
    lease = answer.json["lease"]
    shown = [answer, api.get(f"/v1/leases/{lease['id']}"), api.get("/v1/leases"), api.using("admin").get("/v1/leases")]
    assert not [said for said in shown if SECRET in said.text]
    assert kept(api) == [lease["id"]]
    pass_hours(api, 1.2)
    assert kept(api) == []
    with api.world.db.read() as tx:
        written = [
            str(row) for table in ("outbox", "history") for row in tx.session.execute(text(f"SELECT * FROM {table}"))
        ]
    assert len(written) > 3
    assert not [row for row in written if SECRET in row]


def test_the_request_of_a_deleted_lease_is_forgotten(api: Api) -> None:
    lease = api.post("/v1/leases", body_of(api, "web")).json["lease"]
    api.delete(f"/v1/leases/{lease['id']}")
    assert kept(api) == []
    pass_hours(api, 1.2)
    assert made(api) == {}


def test_the_request_of_a_hold_that_runs_out_is_forgotten(api: Api) -> None:
    lease = api.post("/v1/leases", body_of(api, "web", hold_for=60)).json["lease"]
    assert kept(api) == [lease["id"]]
    api.world.pass_time(timedelta(minutes=2))
    assert api.get("/v1/leases").json["leases"] == []
    assert kept(api) == []


def test_a_server_whose_lease_cannot_start_is_listed_until_the_lease_is_deleted(api: Api) -> None:
    lease = api.post("/v1/leases", body_of(api, "web")).json["lease"]
    api.world.cloud.inject(Fault(FaultKind.REFUSED, "ensure_started", count=None))
    pass_hours(api, 2.5)
    assert status(api, lease) == "ERROR"
    [shown] = api.get("/v1/planned-servers").json["planned_servers"]
    assert (shown["name"], shown["lease_status"]) == ("web", "ERROR")
    with api.world.db.read() as tx:
        assert tx.session.execute(text("SELECT request FROM boots")).scalars().all() == ["{}"]
    api.delete(f"/v1/leases/{lease['id']}")
    pass_hours(api, 0.2)
    assert (planned(api), kept(api)) == ([], [])


def test_a_server_whose_flavor_asks_for_what_is_not_counted_is_not_made(api: Api) -> None:
    """Its booking has described the flavor without that."""
    specs = {"pci_passthrough:alias": "gpu:1"}
    api.world.cloud.world.instances.add_flavor("with-gpu", vcpus=1, ram=512, disk=1, extra_specs=specs)
    sizes = {"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}
    described = {"id": "with-gpu", "name": "with-gpu", "extra_specs": {}, **sizes}
    body = body_of(api, "web", flavor="with-gpu", boot={**boot("with-gpu"), "flavor": described})
    lease = api.post("/v1/leases", body).json["lease"]
    pass_hours(api, 1.9)
    assert made(api) == {}
    failed = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert (failed["status"], "pci_passthrough:alias" in failed["status_reason"]) == ("ERROR", True), failed


def kept(api: Api) -> list[str]:
    """The leases of which a request is kept."""
    with api.world.db.read() as tx:
        return list(tx.session.execute(text("SELECT lease_id FROM boots")).scalars())


def test_a_server_can_be_renamed_before_it_is_made(api: Api) -> None:
    lease = api.post("/v1/leases", body_of(api, "web")).json["lease"]
    [shown] = lease["reservations"]
    renamed = api.put(f"/v1/leases/{lease['id']}", {"reservations": [{"id": shown["id"], "server_name": "front"}]})
    assert renamed.json["lease"]["reservations"][0]["server_name"] == "front"
    pass_hours(api, 1.2)
    assert made(api) == {"front": "freepool"}


@pytest.mark.parametrize(
    ("change", "field"),
    [({"server_name": ""}, "server_name"), ({"server_id": "8d3b0d3e"}, "server_id")],
)
def test_a_server_that_will_be_made_stays_so(api: Api, change: dict[str, str], field: str) -> None:
    lease = api.post("/v1/leases", body_of(api, "web")).json["lease"]
    [shown] = lease["reservations"]
    refused = api.put(f"/v1/leases/{lease['id']}", {"reservations": [{"id": shown["id"], **change}]})
    assert refused.status_code == 400
    assert refused.json["field"] == f"reservations[0].{field}"


def test_a_start_while_the_cloud_fails_makes_one_server(api: Api) -> None:
    lease = api.post("/v1/leases", body_of(api, "web", start=0, end_date=api.lease_body(hours=5)["end_date"])).json
    api.world.cloud.inject(Fault(FaultKind.LOST_REPLY, "ensure_started"))
    pass_hours(api, 0.5)
    assert status(api, lease["lease"]) == "ACTIVE"
    assert made(api) == {"web": "freepool"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"boot": None}, "reservations[0].server_name"),
        ({"boot": {"request": {}}}, "boot.request"),
        ({"boot": {"request": {"server": {"name": "x"}}}}, "boot.request"),
        ({"boot": {"request": {"server": {"flavorRef": LARGE}}}}, "reservations[0].flavor_id"),
        ({"boot": {"request": {"server": {"flavorRef": TINY}}, "microversion": "latest"}}, "boot.microversion"),
        ({"boot": {"request": {"server": {"flavorRef": TINY, "x": "x" * 300_000}}}}, "boot.request"),
        ({"reservations": [reservation(flavor_id=TINY)]}, "boot"),
        (
            {"reservations": [reservation(vcpus=1, memory_mb=1, disk_gb=1, server_name="a")]},
            "reservations[0].flavor_id",
        ),
    ],
)
@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_what_does_not_belong_together_is_refused(api: Api, fields: dict[str, Any], field: str, query: str) -> None:
    refused = api.post(f"/v1/leases{query}", body_of(api, "web", **fields))
    assert (refused.status_code, refused.json["field"]) == (400, field), refused.json
    assert kept(api) == []


@pytest.mark.parametrize("begins", [0, 5])
def test_a_reservation_that_is_added_later_gets_no_server(api: Api, begins: float) -> None:
    """The kept request is for servers of another flavor, or is not kept any more."""
    lease = api.post("/v1/leases", body_of(api, "web", start=begins)).json["lease"]
    pass_hours(api, 0.2)
    added = {**reservation(flavor_id=TINY), "server_name": "extra"}
    refused = api.post(f"/v1/leases/{lease['id']}/reservations", added)
    assert (refused.status_code, refused.json["field"]) == (400, "server_name")


@pytest.mark.parametrize(
    "wrong", [{"metadata": "abc"}, {"tags": 5}, {"os:scheduler_hints": "abc"}, {"OS-SCH-HNT:scheduler_hints": []}]
)
def test_a_request_that_cannot_be_marked_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    refused = api.post("/v1/leases", body_of(api, "web", boot=boot(**wrong)))
    assert (refused.status_code, refused.json["field"]) == (400, "boot.request")
    assert next(iter(wrong)) in refused.json["error_message"]


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_earlier_versions_do_not_know_it(api: Api, version: str) -> None:
    earlier = api.using(version=version)
    for body in (body_of(api, "web", boot=None), body_of(api, boot=boot())):
        assert earlier.post("/v1/leases", body).status_code == 400
    lease = api.post("/v1/leases", body_of(api, "web")).json["lease"]
    assert "server_name" not in earlier.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]


def planned(api: Api, query: str = "") -> list[str]:
    """The names of the servers that are still to be made."""
    return [server["name"] for server in api.get(f"/v1/planned-servers{query}").json["planned_servers"]]


def test_servers_are_listed_until_they_are_made(api: Api) -> None:
    soon = api.post("/v1/leases", body_of(api, "a-1", "a-2", start=1)).json["lease"]
    api.world.pass_time(timedelta(seconds=1))
    api.post("/v1/leases", body_of(api, "b", start=10))
    assert planned(api)[0] == "b"
    assert sorted(planned(api)) == ["a-1", "a-2", "b"]
    [first, second] = soon["reservations"]
    shown = api.get(f"/v1/planned-servers/{first['id']}").json["planned_server"]
    assert (shown["name"], shown["server_id"], shown["lease_id"]) == ("a-1", None, soon["id"])
    assert (shown["lease_status"], shown["flavor_id"], shown["start_date"]) == ("PENDING", TINY, soon["start_date"])

    pass_hours(api, 1.2)
    assert planned(api) == ["b"]
    servers = {server.name: server.id for server in api.world.cloud.world.servers()}
    for one in (first, second):
        shown = api.get(f"/v1/planned-servers/{one['id']}").json["planned_server"]
        assert shown["server_id"] == servers[shown["name"]]


def test_pages_of_planned_servers_have_each_once(api: Api) -> None:
    names = [f"web-{number}" for number in range(5)]
    api.post("/v1/leases", body_of(api, *names))
    seen, address = [], "/v1/planned-servers?limit=2"
    while address:
        page = api.get(address).json
        seen += [server["name"] for server in page["planned_servers"]]
        links = page.get("planned_servers_links")
        address = links[0]["href"].partition("/v1")[2] if links else ""
        address = f"/v1{address}" if address else ""
    assert sorted(seen) == names


def test_planned_servers_are_shown_to_their_project_and_administrators(api: Api) -> None:
    lease = api.post("/v1/leases", body_of(api, "web")).json["lease"]
    address = f"/v1/planned-servers/{lease['reservations'][0]['id']}"
    stranger, admin = api.using("other", version="1.4"), api.using("admin", version="1.4")
    assert planned(stranger) == []
    assert stranger.get(address).status_code == 404
    assert stranger.get(f"/v1/planned-servers?project_id={PROJECT}").status_code == 403
    assert stranger.get(f"/v1/planned-servers?marker={lease['reservations'][0]['id']}").status_code == 400
    assert planned(admin) == planned(admin, f"?project_id={PROJECT}") == ["web"]
    assert admin.get(address).status_code == 200
    assert api.get(f"/v1/planned-servers/{lease['id']}").status_code == 404
    assert api.using(version="1.3").get("/v1/planned-servers").status_code == 404
