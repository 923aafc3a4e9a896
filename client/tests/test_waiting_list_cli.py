"""``lease create --wait-if-full``, against a server of API 1.3."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from typing import Any

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import Lease, NeedsNewerServer, ReservationRequest
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)
LATER = "--hosts 1 --start '2027-03-01 12:30' --for 2h"


@pytest.fixture
def taken(server: FakeServer) -> Lease:
    """A lease of the only host."""
    server.add_host("c0")
    wanted = [ReservationRequest.hosts(1)]
    return server.client().leases.create("other", start=BEGINNING, end=BEGINNING + 24 * HOUR, reservations=wanted)


def create(tenure: Run, options: str) -> Outcome:
    return tenure("lease", "create", "bio", *shlex.split(options))


def shown(outcome: Outcome) -> dict[str, Any]:
    assert outcome.code == 0, outcome.errors
    found: dict[str, Any] = json.loads(outcome.output)
    return found


def test_a_lease_waits_until_there_is_room(server: FakeServer, tenure: Run, taken: Lease) -> None:
    outcome = create(tenure, f"{LATER} --wait-if-full -f json")
    lease = shown(outcome)
    assert lease["status"] == "WAITING"
    assert lease["waiting"]["confirm_within"] is None
    assert lease["waiting"]["choices"][0][0]["resource_type"] == "physical:host"
    assert "waiting list" in outcome.errors
    server.client().leases.delete(taken.id)
    server.advance(timedelta(minutes=1))
    booked = shown(tenure("lease", "show", "bio", "-f", "json"))
    assert booked["status"] == "PENDING"
    assert "waiting" not in booked


def test_the_table_says_what_a_lease_waits_for(server: FakeServer, tenure: Run, taken: Lease) -> None:
    choices = "--hosts 1 --or --hosts 2"
    for _ in range(2):
        options = "--for 2h --earliest '2027-03-01 12:00' --within 4h --wait-if-full --confirm-within 90m"
        assert create(tenure, f"{choices} {options}").code == 0
    leases = json.loads(tenure("lease", "list", "--status", "waiting", "-f", "json").output)
    output = tenure("lease", "show", leases[0]["id"]).output
    for part in ("until 2027-03-01", "to be confirmed within 1h30m", "for", "or", "physical:host", "min=2"):
        assert part in output


def test_the_library_has_what_a_lease_waits_for(server: FakeServer, taken: Lease) -> None:
    leases = server.client().leases
    start = BEGINNING + 2 * HOUR
    lease = leases.create(
        "bio",
        start=start,
        end=start + HOUR,
        reservations=[ReservationRequest.hosts(1)],
        wait_if_full=True,
        confirm_within=HOUR,
    )
    assert lease.waiting is not None
    assert (lease.waiting.latest, lease.waiting.confirm_within, lease.waiting.ahead) == (start, HOUR, None)
    again = leases.get(lease.id)
    assert again.waiting is not None
    assert again.waiting.ahead == 0
    [[wanted]] = again.waiting.choices
    assert wanted["min"] == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--confirm-within 1h", "--confirm-within"),
        ("--wait-if-full --hold 10m", "--hold"),
        ("--wait-if-full", "a lease that starts now cannot wait"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    server: FakeServer, tenure: Run, taken: Lease, options: str, named: str
) -> None:
    outcome = create(tenure, f"--hosts 1 --for 1h {options}")
    assert outcome.code == 1
    assert named in outcome.errors


def test_an_older_server_is_not_asked_to_let_a_lease_wait() -> None:
    with (
        FakeServer(now=BEGINNING, versions=("1.0", "1.1", "1.2")) as server,
        pytest.raises(NeedsNewerServer, match="waiting list"),
    ):
        server.client().leases.create(
            "bio",
            start=BEGINNING + HOUR,
            end=BEGINNING + 2 * HOUR,
            reservations=[ReservationRequest.hosts(1)],
            wait_if_full=True,
        )


def test_every_command_shows_that_a_lease_waits(server: FakeServer, tenure: Run, taken: Lease) -> None:
    assert create(tenure, f"{LATER} --wait-if-full").code == 0
    listed = json.loads(tenure("lease", "list", "-f", "json").output)
    assert {lease["name"]: lease["status"] for lease in listed} == {"bio": "WAITING", "other": "ACTIVE"}
    for status, names in (("WAITING", ["bio"]), ("CREATING", [])):
        found = json.loads(tenure("lease", "list", "--status", status, "-f", "json").output)
        assert [lease["name"] for lease in found] == names
    entries = json.loads(tenure("lease", "history", "bio", "-f", "json").output)
    assert entries[-1]["to_status"] == "WAITING"
    reads = {request.path for request in server.requests if request.method == "GET" and request.version != "1.4"}
    assert reads == set()


def test_every_read_asks_for_what_the_newest_version_shows(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    server.add_floatingip("203.0.113.20")
    server.add_volume_pool("storage-1@lvm#lvm")
    assert create(tenure, "--hosts 1 --for 1h").code == 0
    for command in (
        "lease list",
        "lease show bio",
        "lease hosts bio",
        "lease floatingips bio",
        "lease history bio",
        "lease reservation list bio",
        "host list",
        "host show c1",
        "host property list",
        "floatingip list",
        "volume pool list",
        "planned server list",
        "allocation list host",
        "allocation show host c1",
        "limits show",
        "usage",
        "availability",
    ):
        before = len(server.requests)
        assert tenure(*command.split()).code == 0, command
        assert {request.version for request in server.requests[before:]} == {"1.4"}, command
