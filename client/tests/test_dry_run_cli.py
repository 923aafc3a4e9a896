"""``--dry-run`` of the commands that make or change a lease."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import Lease
from tenureclient.testing import FakeServer


def tried(outcome: Outcome) -> dict[str, Any]:
    """Return the answer of a dry run."""
    assert outcome.code == 0, outcome.errors
    found: dict[str, Any] = json.loads(outcome.output)
    assert found["unasked_filters"] == []
    return found


@pytest.fixture
def lease(server: FakeServer, tenure: Run) -> Lease:
    """A lease of a host and instances, on three hosts."""
    for number in range(3):
        server.add_host(f"c{number}")
    made = tenure(
        *("lease", "create", "bio", "--hosts", "1", "--start", "+1h", "--for", "2h"),
        *("--instances", "2", "--vcpus", "1", "--ram", "1g"),
    )
    assert made.code == 0, made.errors
    [lease] = server.leases.values()
    return lease


def test_a_new_lease_is_shown_with_its_cost(server: FakeServer, lease: Lease, tenure: Run) -> None:
    arguments = ("lease", "create", "gpu", "--hosts", "1-2", "--for", "45m", "--dry-run")
    shown = tried(tenure(*arguments, "-f", "json"))
    assert (shown["name"], shown["status"], shown["end_date"]) == ("gpu", "PENDING", "2027-03-01T10:15:00Z")
    assert shown["reservations"][0]["max"] == 2
    assert shown["cost"] == [{"name": "hosts", "amount": 2, "hours": 2, "hours_before": 0}]
    assert {"name": "leases", "limit": -1, "used": 1, "would_use": 2} in shown["limits"]
    table = tenure(*arguments).output
    assert "| hosts: 2 at a time, 2 hours " in table
    assert " leases: 1 used, would be 2 (no limit) " in table
    assert "instances" not in table
    assert list(server.leases) == [lease.id]


def test_a_refusal_is_the_usual_one(lease: Lease, tenure: Run) -> None:
    for arguments in (["lease", "create", "gpu"], ["lease", "reservation", "add", "bio"]):
        refused = tenure(*arguments, "--hosts", "9", "--dry-run")
        assert (refused.code, refused.output) == (1, "")
        assert "can be reserved at all               3" in refused.errors


def test_changes_are_shown_and_not_made(server: FakeServer, lease: Lease, tenure: Run) -> None:
    host, instances = lease.reservations
    dry = ("--dry-run", "-f", "json")
    for arguments in (["set", "bio", "--prolong-for", "3h"], ["prolong", "bio", "--by", "3h"]):
        longer = tried(tenure("lease", *arguments, *dry))
        assert longer["end_date"] == "2027-03-01T15:30:00Z"
        assert longer["cost"][0] == {"name": "hosts", "amount": 1, "hours": 5, "hours_before": 2}
    more = tried(tenure("lease", "set", "bio", "--reservation", f"id={host.id},min=2,max=2", *dry))
    assert more["cost"][0]["amount"] == 2
    added = tried(tenure("lease", "reservation", "add", "bio", "--hosts", "1", *dry))
    assert (len(added["reservations"]), added["cost"][0]["amount"]) == (3, 2)
    dropped = tried(tenure("lease", "reservation", "drop", "bio", instances.id, *dry))
    assert {cost["name"]: cost["amount"] for cost in dropped["cost"]} == {"hosts": 1, "instances": 0}
    table = tenure("lease", "set", "bio", "--prolong-for", "3h", "--dry-run").output
    assert "hosts: 1 at a time, 5 hours (2 without the change)" in table
    assert server.leases == {lease.id: lease}


def test_without_a_dry_run_a_line_is_printed_whatever_the_format(lease: Lease, tenure: Run) -> None:
    assert tenure("lease", "set", "bio", "--prolong-for", "1h").output.startswith("Updated lease: bio\n")
    assert tenure("lease", "prolong", "bio", "--by", "1h").output == "Prolonged lease: bio\n"
    reservation_id = lease.reservations[1].id
    dropped = tenure("lease", "reservation", "drop", "bio", reservation_id, "-f", "json")
    assert dropped.output == f"Dropped reservation: {reservation_id}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["lease", "create", "gpu", "--hosts", "1"],
        ["lease", "set", "bio", "--name", "other"],
        ["lease", "reservation", "add", "bio", "--hosts", "1"],
    ],
)
def test_a_dry_run_is_not_waited_for(lease: Lease, tenure: Run, arguments: list[str]) -> None:
    outcome = tenure(*arguments, "--dry-run", "--wait")
    assert outcome.code == 1
    assert "--wait waits for nothing" in outcome.errors


@pytest.mark.parametrize("versions", [("1.0",), ("1.0", "1.1"), ("1.0", "1.1", "1.2")])
def test_an_older_server_is_named_and_books_nothing(
    versions: tuple[str, ...], tenure: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        server.add_host("c1")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        outcome = tenure("lease", "create", "bio", "--hosts", "1", "--dry-run")
        assert outcome.code == 1
        assert "a dry run of a request for a lease came with API 1.3" in outcome.errors
        assert server.leases == {}
