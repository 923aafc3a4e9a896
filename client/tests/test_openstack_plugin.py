"""``openstack reservation ...``, in this process.

The environment of the tests may have python-blazarclient or not: the commands are made ours either way.
"""

from __future__ import annotations

import importlib
import json
import logging
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from openstackclient import shell
from openstackclient.common import clientmanager

from conftest import Outcome, Run
from tenureclient import osc
from tenureclient.cli.command import Surroundings
from tenureclient.testing import FakeServer


@pytest.fixture
def openstack(
    server: FakeServer,
    surroundings: Surroundings,
    clean_environment: None,
    plain_logging: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)

    monkeypatch.setenv("OS_RESERVATION_CLIENT", "tenure")
    importlib.reload(osc)  # it decides when it is loaded

    def run(*arguments: str) -> Outcome:
        application: Any = shell.OpenStackShell()
        application.NAME = "openstack"  # and not the name of the test runner
        application.surroundings = surroundings
        try:
            code = application.run(list(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


def test_a_lease_from_beginning_to_end(server: FakeServer, openstack: Run) -> None:
    server.add_host("c1")
    made = openstack(
        *("reservation", "lease", "create", "bio", "--hosts", "1", "--start", "+10m", "--wait", "-f", "json")
    )
    assert made.code == 0, made.errors
    assert json.loads(made.output)["status"] == "ACTIVE"
    assert "starts in 10m" in made.errors
    listed = openstack("reservation", "lease", "list", "-f", "value", "-c", "name", "-c", "status")
    assert listed.output == "bio ACTIVE\n"
    assert openstack("reservation", "lease", "hosts", "bio", "-f", "value", "-c", "id").output == "1\n"
    assert openstack("reservation", "lease", "set", "bio", "--prolong_for", "1h").code == 0
    assert openstack("reservation", "lease", "delete", "bio").output == "Deleted lease: bio\n"
    assert openstack("reservation", "lease", "show", "bio").code == 1


def test_addresses_are_registered_booked_and_added(server: FakeServer, openstack: Run) -> None:
    server.add_network("net", "203.0.113.0/24")
    for address in ("203.0.113.20", "203.0.113.21"):
        assert openstack("reservation", "floatingip", "create", "net", address).code == 0
    wanted = ("--floating-ips", "1", "--network", "net")
    assert openstack("reservation", "lease", "create", "bio", *wanted).code == 0
    added = openstack("reservation", "lease", "reservation", "add", "bio", *wanted, "-f", "json")
    assert json.loads(added.output)["resource_type"] == "virtual:floatingip", added.errors
    listed = openstack("reservation", "lease", "floatingips", "bio", "-f", "value", "-c", "floating_ip_address")
    assert listed.output == "203.0.113.20\n203.0.113.21\n"


def test_a_refusal_is_readable(openstack: Run) -> None:
    refused = openstack("reservation", "lease", "create", "bio", "--hosts", "1")
    assert refused.code == 1
    assert "of those, free for the whole period  0" in refused.errors
    assert "Traceback" not in refused.errors


def test_accounts_are_shown(server: FakeServer, openstack: Run) -> None:
    server.add_host("c1")
    assert openstack("reservation", "lease", "create", "bio", "--hosts", "1", "--for", "2h").code == 0
    server.advance(timedelta(hours=1))
    shown = openstack("reservation", "usage", "-f", "value", "-c", "resource_class", "-c", "held_hours")
    assert shown.output == "WHOLE 1.0\n", shown.errors


def test_planned_servers_are_listed_and_shown(server: FakeServer, openstack: Run, tmp_path: Path) -> None:
    server.add_host("c1")
    (tmp_path / "web.json").write_text('{"server": {"flavorRef": "1"}}')
    wanted = ("--reservation", "resource_type=virtual:server,flavor_id=1,server_name=web", "--start", "+1h")
    booked = openstack("reservation", "lease", "create", "later", *wanted, "--boot", str(tmp_path / "web.json"))
    assert booked.code == 0, booked.errors
    columns = ("-f", "value", "-c", "name", "-c", "lease_status")
    assert openstack("reservation", "planned", "server", "list", *columns).output == "web PENDING\n"
    shown = openstack("reservation", "planned", "server", "show", "web", "-f", "value", "-c", "lease_name")
    assert shown.output == "later\n"


def test_periods_are_found_and_booked(server: FakeServer, openstack: Run) -> None:
    server.add_host("c1")
    shown = openstack("reservation", "availability", "-f", "value", "-c", "total", "-c", "available")
    assert shown.output == "1 1\n"
    wanted = ("--hosts", "1", "-f", "value", "-c", "command")
    found = openstack("reservation", "find", "--earliest", "+1h", "--limit", "1", *wanted)
    assert found.output == (
        "openstack reservation lease create NAME --hosts 1 --start 2027-03-01T10:30:00Z --end 2027-03-02T10:30:00Z\n"
    )
    assert openstack(*found.output.split()[1:]).code == 0
    longest = openstack("reservation", "find", "longest", *wanted)
    assert longest.output == (
        "openstack reservation lease create NAME --hosts 1 --start 2027-03-01T09:31:00Z --end 2027-03-01T10:30:00Z\n"
    )
    most = openstack("reservation", "find", "most", "--hosts", "1", "--to", "+30m", "-f", "value", "-c", "amount")
    assert most.output == "1\n"


def test_a_dry_run_books_nothing(server: FakeServer, openstack: Run) -> None:
    server.add_host("c1")
    lease = ("reservation", "lease")
    outcome = openstack(*lease, "create", "bio", "--hosts", "1", "--for", "2h", "--dry-run", "-f", "json")
    assert json.loads(outcome.output)["cost"][0]["hours"] == 2
    assert server.leases == {}
    openstack(*lease, "create", "bio", "--hosts", "1", "--for", "2h")
    changed = openstack(*lease, "set", "bio", "--prolong-for", "1h", "--dry-run", "-f", "json")
    assert json.loads(changed.output)["cost"][0]["hours"] == 3
    assert openstack(*lease, "set", "bio", "--prolong-for", "1h").output.startswith("Updated lease: bio\n")


def test_a_refusal_names_commands_that_book(server: FakeServer, openstack: Run) -> None:
    server.add_host("c1")
    lease = ("reservation", "lease", "create")
    assert openstack(*lease, "first", "--hosts", "1", "--start", "+2h", "--for", "1h").code == 0
    refused = openstack(*lease, "bio", "--hosts", "1", "--for", "3h", "--wait", "-c", "status", "-f", "value")
    assert (refused.code, refused.output) == (1, "")
    commands = [line.strip() for line in refused.errors.splitlines() if "lease create" in line]
    begin, rest = "openstack reservation lease create bio --hosts 1", "--wait -f value -c status"
    assert commands[:2] == [  # an application that ran before in this process prints them again
        f"{begin} --start 2027-03-01T12:30:00Z --end 2027-03-01T15:30:00Z {rest}",
        f"{begin} --end 2027-03-01T11:30:00Z {rest}",
    ]
    assert openstack(*commands[0].split()[1:]).output == "ACTIVE\n"


def test_the_refusal_of_a_change_names_commands_that_change(server: FakeServer, openstack: Run) -> None:
    server.add_host("c1")
    begin = ("reservation", "lease")
    assert openstack(*begin, "create", "mine", "--hosts", "1", "--for", "1h").code == 0
    assert openstack(*begin, "create", "next", "--hosts", "1", "--start", "+3h").code == 0
    refused = openstack(*begin, "prolong", "mine", "--by", "4h")
    command = refused.errors.splitlines()[-1].strip()
    assert command.startswith("openstack reservation lease set mine --end ")
    assert openstack(*shlex.split(command)[1:]).code == 0


def test_a_lease_is_prolonged_as_far_as_it_goes(server: FakeServer, openstack: Run) -> None:
    server.add_host("c1")
    lease = ("reservation", "lease")
    assert openstack(*lease, "create", "bio", "--hosts", "1", "--for", "1h").code == 0
    assert "nothing limits" in openstack(*lease, "prolong", "bio", "--max").errors
    assert openstack(*lease, "create", "next", "--hosts", "1", "--start", "+5h", "--for", "1h").code == 0
    shown = openstack(*lease, "show", "bio", "-f", "value", "-c", "may_end_at")
    assert shown.output == "2027-03-01T14:30:00Z\n"
    prolonged = openstack(*lease, "prolong", "bio", "--max")
    assert prolonged.output == "Prolonged lease: bio, until 2027-03-01 15:30 CET\n"


def test_help_has_the_examples_and_the_option(openstack: Run) -> None:
    shown = openstack("reservation", "lease", "create", "--help").output
    assert "    openstack reservation lease create bio-42 --hosts 2 --for 3d" in shown
    overview = openstack("--help")
    assert overview.code == 0
    assert "--os-reservation-api-version" in overview.output
    assert "reservation lease reservation drop" in overview.output


@pytest.mark.parametrize("version", ["1", "1.0", "1.1"])
def test_versions_of_the_first_api_are_accepted(openstack: Run, version: str) -> None:
    outcome = openstack("--os-reservation-api-version", version, "reservation", "lease", "list", "-f", "json")
    assert (outcome.code, outcome.output) == (0, "[]\n")


def test_another_version_is_refused(openstack: Run) -> None:
    outcome = openstack("--os-reservation-api-version", "2", "reservation", "lease", "list")
    assert outcome.code == 1
    assert "no reservation API version 2" in outcome.errors


def test_no_command_is_registered_twice(
    openstack: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = [plugin for plugin in clientmanager.PLUGIN_MODULES if plugin.__name__ != "blazarclient.osc.plugin"]
    monkeypatch.setattr(clientmanager, "PLUGIN_MODULES", alone)
    with caplog.at_level(logging.WARNING, logger="cliff"):
        openstack("reservation", "lease", "list")
    assert [record.message for record in caplog.records if "duplicate" in record.message] == []
