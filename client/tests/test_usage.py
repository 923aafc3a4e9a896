"""``usage`` and ``client.usage``, in this process against a server of API 1.3."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import BadRequest, Forbidden, NeedsNewerServer, ReservationRequest
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def leases(server: FakeServer) -> None:
    """Two hosts for three hours, of which two are over, and a lease to come."""
    for name in ("c1", "c2"):
        server.add_host(name)
    wanted = [ReservationRequest.hosts(2)]
    create = server.client().leases.create
    create("bio", start=BEGINNING, end=BEGINNING + 3 * HOUR, reservations=wanted)
    create("next", start=BEGINNING + 5 * HOUR, end=BEGINNING + 6 * HOUR, reservations=wanted)
    server.advance(2 * HOUR)


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.errors
    found: list[dict[str, Any]] = json.loads(outcome.output)
    return found


def test_last_30_days_are_shown(tenure: Run) -> None:
    assert rows(tenure("usage", "-f", "json")) == [
        {
            "project_id": "fake-project",
            "resource_type": "physical:host",
            "resource_class": "WHOLE",
            "booked_hours": 4.0,
            "held_hours": 4.0,
        }
    ]


def test_period_is_sent(tenure: Run) -> None:
    [row] = rows(tenure("usage", "host", "--from", "2027-03-01T10:30:00Z", "--to", "+1d", "-f", "json"))
    assert (row["booked_hours"], row["held_hours"]) == (6.0, 2.0)
    assert rows(tenure("usage", "instance", "-f", "json")) == []
    assert rows(tenure("usage", "--from", "2027-01-01", "--to", "2027-02-01", "-f", "json")) == []


def test_accounts_for_programs(tenure: Run) -> None:
    outcome = tenure("usage", "--to", "+1d", "-f", "csv")
    [row] = csv.DictReader(io.StringIO(outcome.output))
    assert (row["resource_class"], row["booked_hours"], row["held_hours"]) == ("WHOLE", "8.0", "4.0")
    assert tenure("usage", "-f", "value", "-c", "booked_hours", "-c", "used_hours").output == "4.0 None\n"


def test_administrator_may_name_a_project(tenure: Run) -> None:
    assert len(rows(tenure("usage", "--project", "fake-project", "-f", "json"))) == 1
    refused = tenure("usage", "--project", "other-project")
    assert (refused.code, refused.output) == (1, "")
    assert "No project has the id or the name 'other-project'" in refused.errors


def test_accounts_of_another_project_are_refused_to_members() -> None:
    with FakeServer(now=BEGINNING, roles=("member", "reader")) as server:
        usage = server.client().usage
        assert usage.show(start=BEGINNING, end=BEGINNING + DAY).sums == ()
        with pytest.raises(Forbidden):
            usage.show(start=BEGINNING, end=BEGINNING + DAY, project_id="other-project")


def test_period_that_ends_before_it_starts_is_refused(server: FakeServer, tenure: Run) -> None:
    refused = tenure("usage", "--from", "+1d")
    assert refused.code == 1
    assert "The period must end after it starts." in refused.errors
    with pytest.raises(BadRequest):
        server.client().usage.show(start=BEGINNING, end=BEGINNING)


def test_library_returns_the_accounts(server: FakeServer) -> None:
    usage = server.client().usage.show(
        start=BEGINNING, end=BEGINNING + DAY, project_id="fake-project", resource_type="physical:host"
    )
    assert (usage.start_date, usage.end_date) == (BEGINNING, BEGINNING + DAY)
    [row] = usage.sums
    assert (row.project_id, row.region, row.resource_class) == ("fake-project", None, "WHOLE")
    assert (row.booked_hours, row.held_hours, row.used_hours) == (8.0, 4.0, None)


@pytest.mark.parametrize("versions", [("1.0",), ("1.0", "1.1", "1.2")])
def test_older_server_is_named(versions: tuple[str, ...]) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        usage = server.client().usage
        with pytest.raises(NeedsNewerServer, match=r"seeing what was used came with API 1\.3"):
            usage.show(start=BEGINNING, end=BEGINNING + DAY)
