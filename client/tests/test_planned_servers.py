"""Servers that are made at the start of their leases: booked, listed and shown, against a server of API 1.4."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import (
    BootRequest,
    EmptyText,
    Forbidden,
    Lease,
    NeedsNewerServer,
    NotFound,
    NotUnique,
    ReservationChange,
    ReservationRequest,
)
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)
FLAVOR = "1"
BODY: dict[str, Any] = {"server": {"flavorRef": FLAVOR, "user_data": "c2VjcmV0"}}


@pytest.fixture(autouse=True)
def hosts(server: FakeServer) -> None:
    for name in ("c1", "c2"):
        server.add_host(name)


@pytest.fixture
def boot(tmp_path: Path) -> str:
    """A file that has the request of a server."""
    path = tmp_path / "web.json"
    path.write_text(json.dumps(BODY))
    return str(path)


def book(server: FakeServer, name: str, *servers: str) -> Lease:
    """Book servers of these names, for an hour that starts in an hour."""
    wanted = [ReservationRequest.server(flavor_id=FLAVOR, server_name=named) for named in servers]
    start = server.now + HOUR
    return server.client().leases.create(
        name, start=start, end=start + HOUR, reservations=wanted, boot=BootRequest(BODY, "2.60")
    )


def sent(server: FakeServer) -> Any:
    """Return the body of the last request that had a body."""
    return next(request.body for request in reversed(server.requests) if request.body is not None)


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.errors
    found: list[dict[str, Any]] = json.loads(outcome.output)
    return found


def create(tenure: Run, *options: str, name: str = "web") -> Outcome:
    reservation = f"resource_type=virtual:server,flavor_id={FLAVOR},server_name={name}"
    return tenure("lease", "create", "later", "--reservation", reservation, "--start", "+1h", "--for", "1h", *options)


# The library


def test_servers_are_booked_listed_and_made_at_the_start(server: FakeServer) -> None:
    client = server.client()
    lease = book(server, "later", "web", "db")
    assert sent(server)["boot"] == {"request": BODY, "microversion": "2.60"}
    planned = {found.name: found for found in client.planned_servers.list()}
    assert planned.keys() == {"web", "db"}
    web = planned["web"]
    assert (web.lease_id, web.lease_name, web.lease_status) == (lease.id, "later", "PENDING")
    assert (web.start_date, web.end_date) == (lease.start_date, lease.end_date)
    assert (web.flavor_id, web.flavor["vcpus"], web.server_id) == (FLAVOR, 1, None)
    assert client.planned_servers.get(web.id) == web

    server.advance(timedelta(hours=1, minutes=10))
    assert list(client.planned_servers.list()) == []
    made = client.planned_servers.get(web.id)
    assert made.server_id is not None
    assert client.planned_servers.find(web.id) == made


def test_planned_servers_are_found_by_a_name_that_only_one_has(server: FakeServer) -> None:
    planned = server.client().planned_servers
    [web] = book(server, "first", "web").reservations
    assert planned.find("web") == planned.find(web.id)
    book(server, "second", "web")
    with pytest.raises(NotUnique, match="Several planned servers are named 'web'"):
        planned.find("web")
    with pytest.raises(NotFound, match="There is no planned server 'db'"):
        planned.find("db")
    with pytest.raises(EmptyText):
        planned.find("")


def test_further_pages_are_fetched() -> None:
    with FakeServer(now=BEGINNING, page_size=2) as server:
        server.add_host("c1")
        names = [f"web-{number}" for number in range(5)]
        book(server, "later", *names)
        assert sorted(found.name for found in server.client().planned_servers.list()) == names
        assert [request.path for request in server.requests].count("/v1/planned-servers") == 3


def test_a_planned_server_can_be_renamed(server: FakeServer) -> None:
    client = server.client()
    lease = book(server, "later", "web")
    client.leases.update(lease.id, reservations=[ReservationChange(lease.reservations[0].id, {"server_name": "front"})])
    assert [found.name for found in client.planned_servers.list()] == ["front"]


def test_the_flavor_is_sent_if_it_is_known(server: FakeServer) -> None:
    flavor: dict[str, Any] = {"id": FLAVOR, "name": "tiny", "vcpus": 1, "ram": 512, "disk": 1}
    assert BootRequest(BODY, flavor=flavor).to_wire() == {"request": BODY, "microversion": "2.1", "flavor": flavor}
    assert "c2VjcmV0" not in repr(BootRequest(BODY))


@pytest.mark.parametrize("versions", [("1.0",), ("1.0", "1.1", "1.2", "1.3")])
def test_older_server_is_named(versions: tuple[str, ...]) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        server.add_host("c1")
        with pytest.raises(NeedsNewerServer, match=r"making servers at the start of a lease came with API 1\.4"):
            book(server, "later", "web")
        with pytest.raises(NeedsNewerServer, match=r"made at the start of a lease came with API 1\.4"):
            list(server.client().planned_servers.list())
        assert server.leases == {}


def test_servers_of_another_project_are_refused_to_members() -> None:
    with FakeServer(now=BEGINNING, roles=("member", "reader")) as server:
        planned = server.client().planned_servers
        assert list(planned.list()) == []
        with pytest.raises(Forbidden):
            list(planned.list(project_id="other-project"))


# The command line


def test_a_server_is_booked_and_shown(server: FakeServer, tenure: Run, boot: str) -> None:
    made = create(tenure, "--boot", boot, "--boot-microversion", "2.90", "-f", "json")
    assert made.code == 0, made.errors
    [reservation] = json.loads(made.output)["reservations"]
    assert (reservation["server_name"], reservation["server_id"]) == ("web", None)
    assert "c2VjcmV0" not in made.output
    assert sent(server)["boot"] == {"request": BODY, "microversion": "2.90"}

    [row] = rows(tenure("planned", "server", "list", "-f", "json"))
    assert row == {
        "id": reservation["id"],
        "name": "web",
        "lease_name": "later",
        "start_date": "2027-03-01T10:30:00Z",
        "end_date": "2027-03-01T11:30:00Z",
        "lease_status": "PENDING",
    }
    shown = tenure("planned", "server", "show", "web", "-f", "json")
    assert json.loads(shown.output)["flavor"]["vcpus"] == 1
    assert "| vcpus=1" in tenure("planned", "server", "show", "web", "-c", "flavor").output

    server.advance(timedelta(hours=1, minutes=10))
    assert rows(tenure("planned", "server", "list", "-f", "json")) == []
    server_id = tenure("planned", "server", "show", reservation["id"], "-f", "value", "-c", "server_id")
    assert len(server_id.output) == 37
    assert tenure("planned", "server", "show", "web").code == 1


def test_the_request_may_come_from_the_standard_input(
    server: FakeServer, tenure: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(BODY)))
    assert create(tenure, "--boot", "-").code == 0
    assert sent(server)["boot"] == {"request": BODY, "microversion": "2.1"}


def test_a_dry_run_keeps_no_request(server: FakeServer, tenure: Run, boot: str) -> None:
    tried = create(tenure, "--boot", boot, "--dry-run", "-f", "json")
    assert json.loads(tried.output)["reservations"][0]["server_name"] == "web"
    assert list(server.client().planned_servers.list()) == []


def test_a_refusal_names_the_command_with_the_file(server: FakeServer, tenure: Run, boot: str) -> None:
    everything = [ReservationRequest.hosts(2)]
    server.client().leases.create("all", start=BEGINNING + HOUR, end=BEGINNING + 2 * HOUR, reservations=everything)
    refused = create(tenure, "--boot", boot, "--boot-microversion", "2.90")
    assert refused.code == 1
    assert f" --boot {boot} --boot-microversion 2.90" in refused.errors


def test_the_list_is_narrowed_down(server: FakeServer, tenure: Run) -> None:
    book(server, "later", "web-1", "web-2", "web-3")
    listed = ("planned", "server", "list", "-f", "value", "-c", "name")
    assert len(tenure(*listed, "--limit", "2").output.splitlines()) == 2
    assert len(tenure(*listed, "--project", "fake-project").output.splitlines()) == 3
    refused = tenure(*listed, "--project", "other-project")
    assert (refused.code, refused.output) == (1, "")
    assert "No project has the id or the name 'other-project'" in refused.errors


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("{", ("--boot",), "is not JSON"),
        ("[]", ("--boot",), "is no object such as"),
        (None, ("--boot",), "No such file or directory"),
        ("{}", ("--boot",), "has an object named server"),
        (None, ("--boot-microversion",), "give --boot, too"),
        (None, (), "made only with a boot of the lease"),
    ],
)
def test_a_wrong_request_is_refused(
    server: FakeServer, tenure: Run, tmp_path: Path, text: str | None, options: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "boot.json"
    if text is not None:
        path.write_text(text)
    refused = create(tenure, *(word for option in options for word in (option, str(path))))
    assert (refused.code, refused.output) == (1, "")
    assert said in refused.errors
    assert server.leases == {}
