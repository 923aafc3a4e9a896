"""The commands do what was typed, and say what they did."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from conftest import Run
from tenureclient.testing import FakeServer


def dates_of(tenure: Run, name: str) -> tuple[str, str]:
    lease = json.loads(tenure("lease", "show", name, "-f", "json").output)
    return lease["start_date"], lease["end_date"]


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        (["--start", "tomorrow 9am"], "2027-03-02T08:00:00Z", "2027-03-03T08:00:00Z"),
        (["--start", "tomorrow 9am", "--for", "2h"], "2027-03-02T08:00:00Z", "2027-03-02T10:00:00Z"),
        (
            ["--start", "tomorrow 9am", "--end", "tomorrow 11am"],
            "2027-03-02T08:00:00Z",
            "2027-03-02T10:00:00Z",
        ),
        (["--for", "2h"], "2027-03-01T10:30:00Z", "2027-03-01T12:30:00Z"),
        (["--start", "now"], "2027-03-01T09:30:00Z", "2027-03-02T09:30:00Z"),
    ],
)
def test_a_moved_start_keeps_the_length(
    server: FakeServer, tenure: Run, options: list[str], start: str, end: str
) -> None:
    server.add_host("c1")
    assert tenure("lease", "create", "w1", "--hosts", "1", "--start", "+1h", "--for", "24h").code == 0
    outcome = tenure("lease", "set", "w1", *options)
    assert outcome.code == 0, outcome.errors
    assert dates_of(tenure, "w1") == (start, end)
    first, second = outcome.output.splitlines()
    assert first == "Updated lease: w1"
    assert second.startswith("  now from 2027-03-")


def test_options_of_blazar_move_only_their_date(server: FakeServer, tenure: Run) -> None:
    """As with python-blazarclient; the new dates are said."""
    server.add_host("c1")
    assert tenure("lease", "create", "w1", "--hosts", "1", "--start", "+1h", "--for", "24h").code == 0
    outcome = tenure("lease", "set", "w1", "--defer-by", "2h")
    assert dates_of(tenure, "w1") == ("2027-03-01T12:30:00Z", "2027-03-02T10:30:00Z")
    assert outcome.output == "Updated lease: w1\n  now from 2027-03-01 13:30 CET to 2027-03-02 11:30 CET\n"
    assert tenure("lease", "set", "w1", "--name", "w2").output == "Updated lease: w1\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["lease", "prolong", "w1", "--for", "2h"],
        ["availability", "--for", "2h"],
        ["lease", "list", "--stat", "ACTIVE"],
        ["lease", "delete", "w1", "--wai"],
        ["lease", "list", "--form", "json"],
        ["--os-tok", "x", "lease", "list"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_options_are_not_abbreviated(tenure: Run, arguments: list[str]) -> None:
    outcome = tenure(*arguments)
    assert outcome.code == 2
    assert "--format" not in outcome.errors.partition("error:")[2]


def test_no_command_takes_abbreviations() -> None:
    for command in importlib.metadata.entry_points(group="tenure.commands"):
        assert command.load()(None, None).get_parser("tenure").allow_abbrev is False, command.name


def test_a_lease_that_starts_now_cannot_wait(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    assert tenure("lease", "create", "w1", "--hosts", "1", "--for", "1d").code == 0
    outcome = tenure("lease", "create", "w2", "--hosts", "1", "--for", "2h", "--wait-if-full")
    assert outcome.code == 1
    assert "a duration" not in outcome.errors
    assert "--within" in outcome.errors
    later = tenure("lease", "create", "w2", "--hosts", "1", "--for", "2h", "--within", "2h", "--wait-if-full")
    assert later.code == 0, later.errors


@pytest.mark.parametrize("condition", ["memory>=500g", "memory_mb>=500g"])
def test_too_much_memory_is_answered_with_memory(server: FakeServer, tenure: Run, condition: str) -> None:
    server.add_host("c1", memory_mb=65536, properties={"gpu": "a100"})
    server.add_host("c2", memory_mb=16384, properties={"gpu": "v100"})
    outcome = tenure("lease", "create", "w1", "--hosts", "1", "--with", condition, "--for", "2h")
    assert outcome.code == 1
    assert "memory_mb" in outcome.errors
    assert "gpu=" not in outcome.errors
    if condition.startswith("memory_mb"):
        assert "65536" in outcome.errors
