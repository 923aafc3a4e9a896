"""``lease prolong --max``, and until when ``lease show`` says that a lease may be prolonged."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from conftest import BEGINNING, Run
from tenureclient import ReservationRequest
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def host(server: FakeServer) -> None:
    server.add_host("c1")


def test_a_lease_is_prolonged_as_far_as_it_goes(server: FakeServer, tenure: Run) -> None:
    begin = BEGINNING + 8 * HOUR
    wanted = [ReservationRequest.hosts(1)]
    server.client().leases.create("other", start=begin, end=begin + HOUR, reservations=wanted)
    assert tenure("lease", "create", "bio", "--hosts", "1", "--for", "2h").code == 0
    shown = tenure("lease", "show", "bio", "-f", "json", "-c", "may_end_at")
    assert json.loads(shown.output) == {"may_end_at": "2027-03-01T17:30:00Z"}
    tried = tenure("lease", "prolong", "bio", "--max", "--dry-run", "-f", "json")
    assert json.loads(tried.output)["end_date"] == "2027-03-01T17:30:00Z"
    prolonged = tenure("lease", "prolong", "bio", "--max")
    assert prolonged.output == "Prolonged lease: bio, until 2027-03-01 18:30 CET\n", prolonged.errors
    again = tenure("lease", "prolong", "bio", "--max")
    assert (again.code, again.output) == (1, "")
    assert "bio cannot keep its resources beyond its end, 2027-03-01 18:30 CET" in again.errors
    assert "try --by with --dry-run" in again.errors


def test_a_lease_without_a_limit_needs_an_end(server: FakeServer, tenure: Run) -> None:
    assert tenure("lease", "create", "bio", "--hosts", "1", "--for", "2h").code == 0
    refused = tenure("lease", "prolong", "bio", "--max")
    assert (refused.code, refused.output) == (1, "")
    assert "nothing limits the end of lease bio" in refused.errors
    assert "--by 12h" in refused.errors
    assert "lease set --end DATE" in refused.errors
    assert "may_end_at" not in tenure("lease", "show", "bio").output
    server.advance(3 * HOUR)
    assert "bio is TERMINATED; only a lease that is PENDING" in tenure("lease", "prolong", "bio", "--max").errors


def test_either_a_length_or_the_maximum_is_given(tenure: Run) -> None:
    for options in ([], ["--by", "1h", "--max"]):
        assert tenure("lease", "prolong", "bio", *options).code == 2


def test_the_maximum_needs_a_newer_server(tenure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(now=BEGINNING, versions=("1.0", "1.1", "1.2")) as server:
        server.add_host("c1")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        assert tenure("lease", "create", "bio", "--hosts", "1").code == 0
        assert "came with API 1.3 of Tenure" in tenure("lease", "prolong", "bio", "--max").errors
        assert tenure("lease", "prolong", "bio", "--by", "1h").code == 0
