"""``lease create`` with an open start, and with choices, against a server of API 1.3."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from typing import Any

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import ReservationRequest
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)
OPEN = "--for 2h --earliest now"


@pytest.fixture(autouse=True)
def hosts(server: FakeServer) -> None:
    """A host with one kind of GPU, and three with another."""
    for number, gpu in enumerate(("a100", "v100", "v100", "v100")):
        server.add_host(f"c{number}", properties={"gpu": gpu})


def book(server: FakeServer, *conditions: str, hours: int = 3) -> None:
    """Book a host from now on."""
    wanted = [ReservationRequest.hosts(1, conditions=conditions)]
    server.client().leases.create("other", start=BEGINNING, end=BEGINNING + hours * HOUR, reservations=wanted)


def create(tenure: Run, options: str) -> Outcome:
    return tenure("lease", "create", "bio", *shlex.split(options))


def lease(outcome: Outcome) -> dict[str, Any]:
    assert outcome.code == 0, outcome.errors
    found: dict[str, Any] = json.loads(outcome.output)
    return found


def test_a_lease_gets_the_first_period_that_fits(server: FakeServer, tenure: Run) -> None:
    book(server, "gpu=a100")
    booked = lease(create(tenure, "--hosts 1 --with gpu=a100 --for 2h --within 1d --earliest now -f json"))
    assert (booked["start_date"], booked["end_date"]) == ("2027-03-01T12:30:00Z", "2027-03-01T14:30:00Z")
    assert "choice" not in booked


def test_days_and_times_of_the_start_are_sent(server: FakeServer, tenure: Run) -> None:
    options = "--on wed --between 09:00-17:00 --time-zone Europe/Berlin -f json"
    booked = lease(create(tenure, f"--hosts 1 {options}"))
    assert (booked["start_date"], booked["end_date"]) == ("2027-03-03T08:00:00Z", "2027-03-04T08:00:00Z")


def test_the_first_choice_that_fits_is_booked(server: FakeServer, tenure: Run) -> None:
    book(server, "gpu=a100")
    choices = "--hosts 1 --with gpu=a100 --or --hosts 2 --with gpu=v100 --or --instances 1 --flavor 3"
    booked = lease(create(tenure, f"{choices} --for 2h -f json"))
    assert booked["choice"] == 1
    # Within a window, the choice that comes first is preferred to an earlier start.
    assert lease(create(tenure, f"{choices} {OPEN} -f json"))["choice"] == 0


def test_options_before_a_choice_do_not_count_for_the_next(server: FakeServer, tenure: Run) -> None:
    sizes = "--vcpus 1 --ram 512"
    choices = f"--instances 2 {sizes} --affinity --or --instances 2 {sizes} --anti-affinity --or --hosts 1"
    lease(create(tenure, f"{choices} -f json"))
    body: Any = server.requests[-1].body
    first, second, third = (choice["reservations"][0] for choice in body["any_of"])
    assert (first["affinity"], second["affinity"]) == (True, False)
    assert third["resource_type"] == "physical:host"


def test_a_dry_run_shows_the_period_and_the_choice(server: FakeServer, tenure: Run) -> None:
    book(server, "gpu=a100")
    tried = lease(create(tenure, f"--hosts 9 --or --hosts 1 --with gpu=a100 {OPEN} --within 1d --dry-run -f json"))
    assert (tried["choice"], tried["start_date"]) == (1, "2027-03-01T12:30:00Z")


def test_the_commands_below_a_refusal_book(server: FakeServer, tenure: Run) -> None:
    book(server, "gpu=a100")
    refused = create(tenure, f"--hosts 4 --or --hosts 9 {OPEN} --within 1h")
    assert refused.code == 1
    text, _, listed = refused.errors.partition("\nPossible instead:\n")
    assert "No later start is possible until 2027-03-01 10:30 UTC." in text
    assert "The other choices (1) are not possible either." in text
    commands = [line.strip() for line in listed.splitlines()[1::2]]
    assert commands == [
        "tenure lease create bio --hosts 4 --start 2027-03-01T12:30:00Z --end 2027-03-01T14:30:00Z",
        "tenure lease create bio --hosts 3 --for 2h --earliest now --within 1h",
    ]
    for command in commands:
        assert tenure(*shlex.split(command)[1:]).code == 0
        assert tenure("lease", "delete", "bio").code == 0


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ("--hosts 1 --start +1h --within 1d", "--start"),
        ("--hosts 1 --end +3h --latest +1h", "--end"),
        ("--hosts 1 --before-end +3h --on mon", "--before-end"),
        ("--hosts 1 --notify +3h go --earliest +1h", "--notify"),
        ("--hosts 1 --on someday", "--on"),
        ("--hosts 1 --within 1d --latest +1d", "--latest"),
        ("--hosts 1 --or --for 1h", "Say what to reserve"),
        ("--or --hosts 1", "Say what to reserve"),
        ("--instances 1 --vcpus 1 --ram 1g --affinity --anti-affinity", "--anti-affinity"),
        ("--server a --server-flavor 3", "--server-flavor"),
    ],
)
def test_options_that_contradict_each_other_are_named(
    server: FakeServer, tenure: Run, options: str, option: str
) -> None:
    refused = create(tenure, options)
    assert refused.code != 0
    assert option in refused.errors
    assert not any(request.method == "POST" for request in server.requests)
