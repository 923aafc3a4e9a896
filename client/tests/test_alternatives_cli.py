"""What a refused ``lease create`` names in its place."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import ReservationRequest
from tenureclient.testing import FakeServer
from tenureclient.wire import JsonValue

HOUR = timedelta(hours=1)
LATER = {"start_date": "2027-03-01T14:30:00Z", "end_date": "2027-03-01T17:30:00Z"}
ADDRESSES = ("--network", "net", "--address", "203.0.113.5", "--address", "203.0.113.6")


@pytest.fixture(autouse=True)
def hosts(server: FakeServer) -> None:
    """A host with one kind of GPU, and three with another."""
    for number, gpu in enumerate(("a100", "v100", "v100", "v100")):
        server.add_host(f"c{number}", properties={"gpu": gpu})


def book(server: FakeServer, count: int, *, start: int = 3, hours: int = 2) -> None:
    begin = BEGINNING + start * HOUR
    wanted = [ReservationRequest.hosts(count)]
    server.client().leases.create("other", start=begin, end=begin + hours * HOUR, reservations=wanted)


def alternatives(outcome: Outcome) -> dict[str, str]:
    """Return the command of each alternative, by its description."""
    assert (outcome.code, outcome.output) == (1, "")
    _, found, listed = outcome.errors.partition("\nPossible instead:\n")
    lines = [line.strip() for line in listed.splitlines()]
    assert bool(lines) is bool(found)
    return dict(zip([line.removesuffix(":") for line in lines[::2]], lines[1::2], strict=True))


def test_a_refusal_is_followed_by_commands_that_book(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    refused = tenure("lease", "create", "my lease", "--hosts", "3", "--start", "+1h", "--for", "3h")
    assert refused.errors.splitlines()[0].startswith("Not enough hosts available: 3 asked for")
    found = alternatives(refused)
    begin = "tenure lease create 'my lease' --hosts"
    assert found == {
        "a later start: 2027-03-01 15:30 CET to 2027-03-01 18:30 CET": (
            f"{begin} 3 --start 2027-03-01T14:30:00Z --end 2027-03-01T17:30:00Z"
        ),
        "an earlier end: 2027-03-01 13:30 CET, after 2h": (f"{begin} 3 --start +1h --end 2027-03-01T12:30:00Z"),
        "a smaller amount: 2 hosts": f"{begin} 2 --start +1h --for 3h",
    }
    for command in found.values():
        booked = tenure(*shlex.split(command)[1:])
        assert booked.code == 0, booked.errors
        assert tenure("lease", "delete", "my lease").code == 0


def test_everything_else_stays_as_it_was_typed(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    typed = (
        "--hosts 3-4 --with 'vcpus>=2 or gpu=a100' --extra-spec 'capabilities:vcpus=>= 1' --before-end-action"
        " notify --start-date '2027-03-01 10:30' --end-date '2027-03-01 13:30' --event a=b --hold 30m"
        " -f json -c id --max-width 80"
    )
    found = alternatives(tenure("lease", "create", "bio", *shlex.split(typed)))
    expected = f"tenure lease create bio {typed.replace('3-4', '2')}"
    command = found["a smaller amount: 2 hosts"]
    assert sorted(shlex.split(command)) == sorted(shlex.split(expected))
    later = next(command for description, command in found.items() if "later" in description)
    assert "-date" not in later
    for command in found.values():
        outcome = tenure(*shlex.split(command)[1:])
        assert outcome.code == 0, outcome.errors
        tenure("lease", "delete", json.loads(outcome.output)["id"])


def test_moments_of_the_lease_move_with_a_later_start(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    refused = tenure(
        *(
            "lease",
            "create",
            "bio",
            "--hosts",
            "3",
            "--start",
            "+1h",
            "--for",
            "9h",
            "--before-end",
            "+9h30m",
        ),
        *("--notify", "+7h", "half way", "--notify", "+10h", "over"),
    )
    later, fewer = alternatives(refused).values()
    assert (
        "--before-end 2027-03-01T23:00:00Z --notify 2027-03-01T20:30:00Z 'half way'"
        " --notify 2027-03-01T23:30:00Z over" in later
    )
    assert "--before-end +9h30m --notify +7h 'half way' --notify +10h over" in fewer
    for command in (later, fewer):
        outcome = tenure(*shlex.split(command)[1:])
        assert outcome.code == 0, outcome.errors
        tenure("lease", "delete", "bio")


def test_moments_of_the_lease_move_with_an_earlier_end(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    refused = tenure(
        *(
            "lease",
            "create",
            "bio",
            "--hosts",
            "3",
            "--start",
            "+1h",
            "--for",
            "3h",
            "--before-end",
            "+2h45m",
        ),
        *("--notify", "+2h", "half way"),
    )
    earlier, _ = alternatives(refused).values()
    assert "--before-end 2027-03-01T11:15:00Z --notify +2h 'half way'" in earlier
    outcome = tenure(*shlex.split(earlier)[1:])
    assert outcome.code == 0, outcome.errors


def test_a_moment_before_a_much_earlier_end_is_left_out(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    refused = tenure(
        *("lease", "create", "bio", "--hosts", "3", "--start", "+1h", "--for", "9h", "--before-end", "+2h")
    )
    earlier, _ = alternatives(refused).values()
    assert earlier == "tenure lease create bio --hosts 3 --start +1h --end 2027-03-01T12:30:00Z"


@pytest.mark.parametrize("option", ["--wait", "--dry-run"])
def test_waits_and_dry_runs_have_alternatives_too(server: FakeServer, tenure: Run, option: str) -> None:
    book(server, 2)
    refused = tenure("lease", "create", "bio", "--hosts", "3", "--for", "6h", option)
    assert alternatives(refused)["a smaller amount: 2 hosts"] == (
        f"tenure lease create bio --hosts 2 --for 6h {option}"
    )


def test_another_kind_is_a_condition(server: FakeServer, tenure: Run) -> None:
    found = alternatives(tenure("lease", "create", "bio", "--hosts", "2", "--with", "gpu=a100"))
    assert found["another kind: gpu=v100"] == "tenure lease create bio --hosts 2 --with gpu=v100"
    full = (
        "resource_type=physical:host,min=1",
        'resource_type=physical:host,min=2,resource_properties=["==", "$gpu", "a100"]',
    )
    refused = tenure("lease", "create", "bio", "--reservation", full[0], "--reservation", full[1])
    command = alternatives(refused)["another kind of number 2: gpu=v100"]
    assert tenure(*shlex.split(command)[1:]).code == 0


def test_the_changed_reservation_is_found_among_several(server: FakeServer, tenure: Run) -> None:
    size = ("--instances", "9", "--vcpus", "1", "--ram", "1g", "--anti-affinity")
    found = alternatives(tenure("lease", "create", "bio", "--hosts", "1", *size))
    assert found["a smaller amount of number 2: 3 instances"] == (
        "tenure lease create bio --hosts 1 --instances 3 --vcpus 1 --ram 1024 --anti-affinity"
    )


def refuse(server: FakeServer, *offered: dict[str, JsonValue]) -> None:
    """Refuse the next lease with these alternatives."""
    server.refuse_next(
        409,
        "NotEnoughResources",
        "Not enough.",
        alternatives=[{**LATER, **alternative} for alternative in offered],
    )


@pytest.mark.parametrize(
    ("options", "offered"),
    [
        (("--hosts", "9"), {"change": "colour"}),
        (("--hosts", "9"), {"change": "amount", "reservation": 1, "amount": 2}),
        (("--hosts", "9"), {"change": "amount", "reservation": 0}),
        (ADDRESSES, {"change": "amount", "reservation": 0, "amount": 1}),
        (("--server", "x"), {"change": "amount", "reservation": 0, "amount": 2}),
        (
            ("--instances", "2", "--flavor", "3"),
            {"change": "kind", "reservation": 0, "resource_properties": '["==", "$gpu", "v100"]'},
        ),
    ],
)
def test_an_alternative_without_a_command_is_left_out(
    server: FakeServer, tenure: Run, options: tuple[str, ...], offered: dict[str, JsonValue]
) -> None:
    refuse(server, offered, {"change": "start"})
    [description] = alternatives(tenure("lease", "create", "bio", *options))
    assert description.startswith("a later start")


def test_without_commands_nothing_is_named(server: FakeServer, tenure: Run) -> None:
    refuse(server, {"change": "colour"})
    assert alternatives(tenure("lease", "create", "bio", "--hosts", "9")) == {}


@pytest.mark.parametrize(
    ("options", "position", "changed"),
    [
        (("--floating-ips", "3", *ADDRESSES), 0, ("--floating-ips 2", "2 floating IPs")),
        (("--volumes", "3", "--size", "1"), 0, ("--volumes 2", "2 volumes")),
        (("--volumes", "3", "--size", "1", "--floating-ips", "1", "--network", "n"), 1, ("--volumes 2",)),
        (("--instances", "3", "--flavor", "1", "--server", "x"), 0, ("--instances 2", "of number 1")),
        (
            ("--server", "x", "--reservation", "resource_type=virtual:volume,amount=3,size_gb=1"),
            1,
            ("--reservation resource_type=virtual:volume,amount=2,size_gb=1",),
        ),
    ],
)
def test_every_type_has_its_amount(
    server: FakeServer, tenure: Run, options: tuple[str, ...], position: int, changed: tuple[str, ...]
) -> None:
    refuse(server, {"change": "amount", "reservation": position, "amount": 2})
    [(description, command)] = alternatives(tenure("lease", "create", "bio", *options)).items()
    assert all(text in f"{description}: {command}" for text in changed)


def test_control_characters_are_shown(server: FakeServer, tenure: Run) -> None:
    condition = json.dumps(["==", "$gpu", "\x1b[2J"])
    refuse(server, {"change": "kind", "reservation": 0, "resource_properties": condition})
    errors = tenure("lease", "create", "bio", "--hosts", "2", "--with", "gpu=a100").errors
    assert "another kind" in errors
    assert "\x1b" not in errors


def test_an_older_server_names_none(tenure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(now=BEGINNING, versions=("1.0", "1.1", "1.2")) as server:
        server.add_host("c1")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        refused = tenure("lease", "create", "bio", "--hosts", "2")
        assert "Not enough hosts available" in refused.errors
        assert alternatives(refused) == {}


def test_dates_are_in_whole_seconds(server: FakeServer, tenure: Run) -> None:
    book(server, 4, start=1, hours=1)
    server.advance(timedelta(microseconds=345678))
    notified = ("--notify", "+2h", "save")
    later, *_ = alternatives(tenure("lease", "create", "bio", "--hosts", "1", "--for", "2h", *notified)).values()
    assert later == (
        "tenure lease create bio --hosts 1 --start 2027-03-01T11:30:00Z --end 2027-03-01T13:30:00Z"
        " --notify 2027-03-01T13:30:00Z save"
    )
