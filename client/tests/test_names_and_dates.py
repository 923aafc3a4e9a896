"""Names mean living leases; what the commands print, they and all terminals can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from conftest import BEGINNING, Run
from tenureclient.cli.window_options import name_of_zone
from tenureclient.errors import NotFound, NotUnique
from tenureclient.moments import UnreadableMoment, format_moment, parse_moment
from tenureclient.testing import FakeServer

PROGRAM = str(Path(sys.executable).with_name("tenure"))


def test_a_name_means_the_living_lease(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    for _ in range(2):
        assert tenure("lease", "create", "bio", "--hosts", "1", "--for", "1h").code == 0
        server.advance(timedelta(hours=1))
    with pytest.raises(NotUnique):
        server.client().leases.find("bio")
    assert tenure("lease", "create", "bio", "--hosts", "1", "--for", "1h").code == 0
    shown = json.loads(tenure("lease", "show", "bio", "-f", "json").output)
    assert shown["status"] == "ACTIVE"
    assert server.client().leases.find("bio").id == shown["id"]
    assert tenure("lease", "prolong", "bio", "--by", "1h").code == 0
    assert tenure("lease", "delete", "bio").code == 0
    left = [lease.status for lease in server.client().leases.list(name="bio")]
    assert left == ["TERMINATED", "TERMINATED"]


def test_a_name_finds_an_ended_lease_if_there_is_no_other(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    assert tenure("lease", "create", "bio", "--hosts", "1", "--for", "1h").code == 0
    server.advance(timedelta(hours=1))
    assert json.loads(tenure("lease", "show", "bio", "-f", "json").output)["status"] == "TERMINATED"
    with pytest.raises(NotFound):
        server.client().leases.find("chem")


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "Asia/Kolkata", "America/Sao_Paulo", "UTC"])
@pytest.mark.parametrize("moment", [datetime(2027, month, 1, 9, 30, tzinfo=UTC) for month in (1, 7)])
def test_a_date_that_is_shown_can_be_given_back(zone: str, moment: datetime) -> None:
    local = ZoneInfo(zone)
    assert parse_moment(format_moment(moment, local), now=BEGINNING, zone=local) == moment


def test_an_hour_that_comes_twice_can_be_given_back() -> None:
    paris = ZoneInfo("Europe/Paris")
    for moment in (datetime(2027, 10, 31, 0, 30, tzinfo=UTC), datetime(2027, 10, 31, 1, 30, tzinfo=UTC)):
        assert parse_moment(format_moment(moment, paris), now=BEGINNING, zone=paris) == moment


@pytest.mark.parametrize("text", ["2027-03-01 11:30 CEST", "2027-03-01 11:30 EST", "2027-03-01 11:30 XYZ"])
def test_another_zone_by_its_letters_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnreadableMoment, match=text.split()[-1]):
        parse_moment(text, now=BEGINNING, zone=ZoneInfo("Europe/Paris"))


@pytest.mark.parametrize("zone", ["right/Europe/Paris", "posix/Europe/Paris"])
def test_copies_of_zones_are_no_zones(zone: str) -> None:
    with pytest.raises(UnreadableMoment, match="not a time zone"):
        parse_moment(f"2027-03-01 11:30 {zone}", now=BEGINNING)


@pytest.mark.parametrize("zone", ["right/Europe/Paris", "posixrules", "localtime"])
def test_the_zone_of_the_machine_has_a_name_of_the_database(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    assert name_of_zone(None) is None


@pytest.mark.parametrize("zone", ["right/Europe/Paris", "posixrules", "localtime", "Europe/Nowhere", "CET-1"])
def test_the_zone_of_a_window_is_checked(server: FakeServer, tenure: Run, zone: str) -> None:
    outcome = tenure("find", "--hosts", "1", "--for", "1h", "--on", "mon", "--time-zone", zone)
    assert outcome.code == 2
    assert f"'{zone}' is not a time zone" in outcome.errors


def test_addresses_are_listed_as_addresses(server: FakeServer, tenure: Run) -> None:
    for last in (70, 7, 210):
        server.add_floatingip(f"203.0.113.{last}")
    listed = tenure(
        "floatingip", "list", "--sort-by", "floating_ip_address", "-f", "value", "-c", "floating_ip_address"
    )
    assert listed.output.split() == ["203.0.113.7", "203.0.113.70", "203.0.113.210"]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_a_name_outside_the_encoding_of_the_terminal_is_escaped(encoding: str) -> None:
    with FakeServer() as server:
        server.add_host("c1")
        server.add_host("c2")
        environment = {**os.environ, **server.environment(), "PYTHONIOENCODING": encoding}
        for name in ("price-€", "zz-other"):
            command = [PROGRAM, "lease", "create", name, "--hosts", "1", "--for", "1h"]
            assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
        command = [PROGRAM, "lease", "list", "-f", "value", "-c", "name"]
        listed = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert listed.returncode == 0, listed.stderr
        euro = "€" if encoding == "utf-8" else "\\u20ac"
        assert listed.stdout.decode(encoding).split() == [f"price-{euro}", "zz-other"]
        refused = subprocess.run([PROGRAM, "lease", "show", "no-€"], env=environment, capture_output=True, check=False)
        assert refused.returncode == 1
        assert f"no-{euro}" in refused.stderr.decode(encoding)
