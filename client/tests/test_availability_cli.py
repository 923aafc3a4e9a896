"""``availability`` and ``find``, in this process against a server of API 1.3."""

from __future__ import annotations

import csv
import io
import json
import shlex
from datetime import timedelta
from typing import Any

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import ReservationRequest
from tenureclient.cli.command import Surroundings
from tenureclient.cli.shell import TenureShell
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def hosts(server: FakeServer) -> None:
    """Two hosts with a GPU in one zone, and a larger one without in another."""
    for name in ("c1", "c2"):
        server.add_host(name, availability_zone="az-1", properties={"gpu": "a100"})
    server.add_host("c3", vcpus=16, availability_zone="az-2")


def book(server: FakeServer, count: int, *, start: int = 0, hours: int = 2, gpu: bool = True) -> None:
    begin = BEGINNING + start * HOUR
    wanted = ReservationRequest.hosts(count, conditions=["gpu=a100"] if gpu else [])
    server.client().leases.create("other", start=begin, end=begin + hours * HOUR, reservations=[wanted])


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.errors
    found: list[dict[str, Any]] = json.loads(outcome.output)
    return found


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(tenure: Run, surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 60 columns."""
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_a_row_has_the_present_and_the_least_amount(server: FakeServer, tenure: Run) -> None:
    book(server, 1)
    book(server, 2, start=3)
    [row] = rows(tenure("availability", "-f", "json"))
    assert row == {
        "resources": 3,
        "total": 3,
        "reserved": 0,
        "allocated": 1,
        "out_of_order": 0,
        "available": 2,
        "least_available": 1,
    }


def test_groups_have_columns_of_their_own(server: FakeServer, tenure: Run) -> None:
    book(server, 1, start=1)
    kinds = rows(tenure("availability", "--by", "kind", "-f", "json"))
    assert [(kind["properties"], kind["capacity"]["VCPU"], kind["total"]) for kind in kinds] == [
        ({"gpu": "a100"}, 8, 2),
        ({}, 16, 1),
    ]
    zones = rows(tenure("availability", "--by", "zone", "-f", "json"))
    assert [(zone["availability_zone"], zone["least_available"]) for zone in zones] == [
        ("az-1", 1),
        ("az-2", 1),
    ]
    resources = rows(tenure("availability", "--by", "resource", "-f", "json"))
    assert [resource["resource_name"] for resource in resources] == ["c1", "c2", "c3"]
    [project] = rows(tenure("availability", "--by", "project", "-f", "json"))
    assert project == {"project_id": "fake-project", "reserved": 0, "allocated": 0}


def test_steps_are_rows(server: FakeServer, tenure: Run) -> None:
    book(server, 2, start=1)
    outcome = tenure("availability", "--long", "-f", "csv")
    steps = list(csv.DictReader(io.StringIO(outcome.output)))
    assert [(step["start_date"], step["available"]) for step in steps] == [
        ("2027-03-01T09:30:00Z", "3"),
        ("2027-03-01T10:30:00Z", "1"),
        ("2027-03-01T12:30:00Z", "3"),
    ]
    [day, *_] = rows(tenure("availability", "--long", "--step", "1d", "-f", "json"))
    assert day["available"] == 1
    shown = tenure("availability", "--long", "-f", "value", "-c", "start_date", "-c", "resource_class")
    assert shown.output.splitlines()[0] == "WHOLE 2027-03-01T09:30:00Z"


def test_the_selection_is_sent(server: FakeServer, tenure: Run) -> None:
    outcome = tenure(
        *("availability", "instance", "--from", "tomorrow 09:00", "--to", "friday 18:00"),
        *("--class", "MEMORY_MB", "--zone", "az-1", "--with", "gpu=a100"),
        *("--with", '["!=", "$gpu", "v100"]', "--no-trait", "CUSTOM_OLD", "--no-trait", "CUSTOM_SLOW"),
        *("--step", "1h", "--by", "zone", "-f", "json"),
    )
    assert rows(outcome)[0]["total"] == 2 * 16384
    query = dict(server.requests[-1].query)
    assert json.loads(query.pop("resource_properties")) == [
        "and",
        ["==", "$gpu", "a100"],
        ["!=", "$gpu", "v100"],
    ]
    assert query == {
        "resource_type": "virtual:instance",
        "start_date": "2027-03-02T08:00:00Z",
        "end_date": "2027-03-05T17:00:00Z",
        "resource_class": "MEMORY_MB",
        "availability_zone": "az-1",
        "forbidden": "CUSTOM_OLD,CUSTOM_SLOW",
        "step": "3600",
        "group_by": "zone",
        "limit": "1000",
    }
    assert rows(tenure("availability", "--trait", "CUSTOM_FAST", "-f", "json"))[0]["total"] == 0


def test_resources_of_a_region(two_regions: FakeServer, tenure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in two_regions.environment().items():
        monkeypatch.setenv(name, value)
    two_regions.add_host("n1", region="north")
    two_regions.add_host("s1", region="south")
    [row] = rows(tenure("availability", "--region", "south", "-f", "json"))
    assert row["total"] == 1
    kinds = rows(tenure("availability", "--by", "kind", "-f", "json"))
    assert [kind["region"] for kind in kinds] == ["north", "south"]


def test_a_wrong_question_is_refused(tenure: Run) -> None:
    for arguments in (["physical:nothing"], ["--class", "COAL"], ["--region", "nowhere"], ["--to", "-"]):
        assert tenure("availability", *arguments).code == 1
    assert tenure("availability", "--by", "colour").code == 2


def test_a_terminal_shows_a_chart(
    server: FakeServer, terminal: Terminal, surroundings: Surroundings, plain_logging: None
) -> None:
    book(server, 2, start=24, hours=3 * 24)
    shell = TenureShell(surroundings=surroundings, stdout=terminal)
    assert shell.run(["availability", "--by", "zone"]) == 0
    lines = terminal.getvalue().splitlines()
    first = next(line for line in lines if line.startswith("az-1 "))
    second = next(line for line in lines if line.startswith("az-2 "))
    assert set(first[5:]) == {"█", "·"}
    assert second == "az-2 " + 55 * "█"
    assert lines[-1] == "     2027-03-01 10:30 CET               2027-03-08 10:30 CET"
    assert len(first) == len(lines[-1]) == 60


@pytest.mark.parametrize("arguments", [["-f", "json"], ["--long"], ["-c", "total"], ["--by", "project"]])
def test_other_output_has_no_chart(
    server: FakeServer,
    terminal: Terminal,
    surroundings: Surroundings,
    plain_logging: None,
    arguments: list[str],
) -> None:
    assert TenureShell(surroundings=surroundings, stdout=terminal).run(["availability", *arguments]) == 0
    assert "█" not in terminal.getvalue()


def test_a_pipe_gets_no_chart(tenure: Run) -> None:
    assert "█" not in tenure("availability").output


def test_a_member_sees_kinds_and_properties(tenure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(now=BEGINNING, roles=("member", "reader")) as server:
        server.add_host("c1", properties={"gpu": "a100"})
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        assert rows(tenure("availability", "--by", "kind", "-f", "json"))[0]["properties"] == {"gpu": "a100"}
        assert tenure("availability", "--by", "resource").code == 1
        [listed] = rows(tenure("host", "property", "list", "--detail", "-f", "json"))
        assert listed == {"property": "gpu", "private": False, "property_values": ["a100"]}
        assert rows(tenure("host", "property", "list", "--all", "-f", "json")) == [{"property": "gpu"}]


def test_periods_are_listed_with_the_command_to_book_them(server: FakeServer, tenure: Run) -> None:
    book(server, 1, start=0, hours=6)
    outcome = tenure("find", "--hosts", "2", "--with", "gpu=a100", "--for", "3h", "--limit", "2")
    assert outcome.code == 0, outcome.errors
    assert "| 2027-03-01 16:30 CET | 2027-03-01 19:30 CET | 0         |" in outcome.output
    assert outcome.output.splitlines()[-3:] == [
        "To book:",
        "tenure lease create NAME --hosts 2 --with gpu=a100 --start 2027-03-01T15:30:00Z --end 2027-03-01T18:30:00Z",
        "tenure lease create NAME --hosts 2 --with gpu=a100 --start 2027-03-01T18:30:00Z --end 2027-03-01T21:30:00Z",
    ]


def test_the_command_books_the_period(server: FakeServer, tenure: Run) -> None:
    book(server, 1, start=0, hours=6)
    [found] = rows(
        tenure(
            *("find", "--hosts", "2", "--with", "gpu=a100", "--for", "3h", "--limit", "1"),
            *("--name", "my lease", "-f", "json"),
        )
    )
    assert found["left_over"] == [0]
    words = shlex.split(found["command"])
    assert words[0] == "tenure"
    lease = json.loads(tenure(*words[1:], "-f", "json").output)
    assert (lease["name"], lease["start_date"], lease["end_date"]) == (
        "my lease",
        found["start_date"],
        found["end_date"],
    )
    assert tenure("find", "--hosts", "2", "--for", "3h", "--limit", "1", "-f", "value", "-c", "command").output


def test_a_lease_that_fits_now_is_booked_without_a_start(tenure: Run) -> None:
    arguments = ("find", "--hosts", "1", "--for", "90m", "--limit", "1")
    assert tenure(*arguments).output.endswith("To book:\ntenure lease create NAME --hosts 1 --for 1h30m\n")
    # A program runs it at once, and gets exactly what was found.
    assert tenure(*arguments, "-f", "value", "-c", "command").output == (
        "tenure lease create NAME --hosts 1 --start 2027-03-01T09:31:00Z --end 2027-03-01T11:01:00Z\n"
    )


def test_the_times_are_sent(server: FakeServer, tenure: Run) -> None:
    outcome = tenure(
        *("find", "--hosts", "1-2", "--earliest", "tomorrow", "--within", "2w", "--on", "Tue,friday"),
        *("--between", "9:00-17:30", "--limit", "5", "-f", "json"),
    )
    assert len(rows(outcome)) == 4
    body: Any = server.requests[-1].body
    assert {name: value for name, value in body.items() if name != "reservations"} == {
        "duration": 86400,
        "earliest": "2027-03-01T23:00:00Z",
        "latest": "2027-03-15T23:00:00Z",
        "weekdays": ["tue", "fri"],
        "starts_after": "09:00",
        "starts_before": "17:30",
        "time_zone": "Europe/Berlin",
        "limit": 5,
    }
    tenure("find", "--hosts", "1", "--latest", "friday 18:00", "--on", "mon", "--time-zone", "UTC")
    body = server.requests[-1].body
    assert (body["latest"], body["time_zone"]) == ("2027-03-05T17:00:00Z", "UTC")
    tenure("find", "--hosts", "1")
    assert set(server.requests[-1].body or {}) == {"reservations", "duration"}  # type: ignore[arg-type]


def test_times_past_midnight_are_a_night(server: FakeServer, tenure: Run) -> None:
    arguments = ("find", "--hosts", "1", "--for", "1h", "--between", "22:00-02:00", "--time-zone", "UTC")
    [first, second, _] = rows(tenure(*arguments, "-f", "json"))
    body: Any = server.requests[-1].body
    assert (body["starts_after"], body["starts_before"]) == ("22:00", "02:00")
    assert (first["start_date"], second["start_date"]) == ("2027-03-01T22:00:00Z", "2027-03-01T23:00:00Z")
    [saturday] = rows(
        tenure(*arguments, "--on", "fri", "--earliest", "2027-03-06 01:00 UTC", "--limit", "1", "-f", "json")
    )
    assert saturday["start_date"] == "2027-03-06T01:00:00Z"  # the night belongs to Friday


@pytest.mark.parametrize(
    "arguments",
    [
        ["--on", "someday"],
        ["--between", "9-17"],
        ["--between", "09:00"],
        ["--limit", "0"],
        ["--for", "0s"],
        ["--within", "1d", "--latest", "friday"],
    ],
)
def test_a_wrong_search_is_refused(tenure: Run, arguments: list[str]) -> None:
    assert tenure("find", "--hosts", "1", *arguments).code == 2


def test_a_search_needs_a_reservation(tenure: Run) -> None:
    for command in (["find"], ["find", "longest"], ["find", "most", "--to", "+1h"]):
        outcome = tenure(*command)
        assert outcome.code == 1
        assert "Say what to reserve" in outcome.errors


def test_no_period_is_an_empty_list(tenure: Run) -> None:
    outcome = tenure("find", "--hosts", "9", "-f", "json")
    assert rows(outcome) == []
    assert "No period was found" in outcome.errors


@pytest.mark.parametrize(
    "options",
    [
        "--hosts 1-2 --with 'vcpus>=8' --with 'gpu=a100 or gpu=v100' --extra-spec 'capabilities:vcpus=>= 8'",
        "--instances 2 --vcpus 2 --ram 4g --disk 1 --anti-affinity --zone az-1 --before-end-action notify",
        "--reservation resource_type=physical:host,min=1,max=2,vcpus=4",
        """--reservation 'resource_type=physical:host,min=1,resource_properties=[">=", "$vcpus", "8"]'""",
        "--reservation resource_type=virtual:instance,amount=1,vcpus=1,memory_mb=1,disk_gb=0,affinity=none",
    ],
)
def test_the_command_asks_for_the_same(server: FakeServer, tenure: Run, options: str) -> None:
    [found] = rows(tenure("find", *shlex.split(options), "--for", "1h", "--limit", "1", "-f", "json"))
    searched: Any = server.requests[-1].body
    booked = tenure(*shlex.split(found["command"])[1:])
    assert booked.code == 0, booked.errors
    body: Any = next(request.body for request in reversed(server.requests) if request.method == "POST")
    assert body["reservations"] == searched["reservations"]


def test_the_longest_lease_is_shown(server: FakeServer, tenure: Run) -> None:
    book(server, 2, start=6)
    outcome = tenure("find", "longest", "--hosts", "2", "--with", "gpu=a100", "--from", "+1h", "-f", "json")
    assert json.loads(outcome.output) == {
        "start_date": "2027-03-01T10:30:00Z",
        "end_date": "2027-03-01T15:30:00Z",
        "length": "5h",
        "command": "tenure lease create NAME --hosts 2 --with gpu=a100 --start 2027-03-01T10:30:00Z"
        " --end 2027-03-01T15:30:00Z",
    }
    shown = tenure("find", "longest", "--hosts", "2", "--with", "gpu=a100").output
    assert shown.endswith("To book:\ntenure lease create NAME --hosts 2 --with gpu=a100 --end 2027-03-01T15:30:00Z\n")
    endless = json.loads(tenure("find", "longest", "--hosts", "1", "-f", "json").output)
    assert (endless["end_date"], endless["length"], endless["command"]) == (None, None, None)
    refused = tenure("find", "longest", "--hosts", "4")
    assert refused.code == 1
    assert "can be reserved at all" in refused.errors


def test_the_largest_amount_is_shown(server: FakeServer, tenure: Run) -> None:
    book(server, 1, start=1)
    outcome = tenure("find", "most", "--hosts", "1", "--from", "+1h", "--to", "+3h", "-f", "json")
    assert json.loads(outcome.output) == {
        "start_date": "2027-03-01T10:30:00Z",
        "end_date": "2027-03-01T12:30:00Z",
        "amount": 2,
        "availability_zones": {"az-1": 1, "az-2": 1},
        "command": "tenure lease create NAME --hosts 2 --start 2027-03-01T10:30:00Z --end 2027-03-01T12:30:00Z",
    }
    full = "--reservation", "resource_type=physical:host,min=1,max=1"
    command = json.loads(tenure("find", "most", *full, "--to", "+1h", "-f", "json").output)["command"]
    assert "resource_type=physical:host,min=3,max=3" in command
    instances = tenure(
        *("find", "most", "--instances", "1", "--vcpus", "4", "--ram", "1g", "--to", "+1h", "-f", "json")
    )
    assert "--instances 8 --vcpus 4 --ram 1024" in json.loads(instances.output)["command"]
    nothing = tenure("find", "most", "--hosts", "1", "--with", "vcpus>=99", "--to", "+1h", "-f", "json")
    none = json.loads(nothing.output)
    assert (none["amount"], none["command"]) == (0, None)
    assert "No amount fits. Not enough hosts available" in nothing.errors
    length = tenure("find", "most", "--hosts", "1", "--from", "+1h", "--for", "2h", "-f", "json")
    assert json.loads(length.output) == json.loads(outcome.output)
    two = tenure("find", "most", "--hosts", "1", "--reservation", full[1], "--to", "+1h")
    assert "Say one thing to reserve; here are 2." in two.errors


def test_an_older_server_is_named(tenure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(now=BEGINNING, versions=("1.0", "1.1", "1.2")) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for command in (["availability"], ["find", "--hosts", "1"], ["find", "longest", "--hosts", "1"]):
            outcome = tenure(*command)
            assert outcome.code == 1
            assert "came with API 1.3 of Tenure" in outcome.errors
