"""``tenure-status upgrade check``, as an operator types it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing

import pytest

from tenure.store import schema
from tests.cmd.conftest import Site

SUCCESS, WARNING, FAILURE, UNCHECKED = 0, 1, 2, 255


def check(site: Site, *, code: int) -> dict[str, tuple[int, str | None]]:
    """Return the result and the details of each check; the exit code is the worst result."""
    done = site.run("tenure-status", "upgrade", "check", "--json")
    assert (done.returncode, done.stderr) == (code, "")
    results = {check["check"]: (check["result"], check["details"]) for check in json.loads(done.stdout)["checks"]}
    assert max(result for result, _ in results.values()) == code
    return results


def test_all_checks_pass(site: Site):
    with site.service(hosts=3):
        pass
    assert check(site, code=SUCCESS) == {
        "Database": (SUCCESS, None),
        "Cloud": (SUCCESS, "3 hosts"),
        "Regions": (SUCCESS, None),
        "Resource types": (SUCCESS, None),
        "Policy file": (SUCCESS, None),
    }


@pytest.mark.filterwarnings("ignore:the 'ALL' constant is deprecated:DeprecationWarning")  # oslo.upgradecheck uses it
def test_default_output_is_a_table(site: Site):
    site.configure(connection="")
    done = site.run("tenure-status", "upgrade", "check")
    assert (done.returncode, done.stderr) == (FAILURE, "")
    cells = [line.strip("| ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert cells[:4] == [
        "Upgrade Check Results",
        "Check: Database",
        "Result: Failure",
        "Details: [database] connection is not set",
    ]


@pytest.mark.parametrize("revision", [None, "0020"])
def test_a_schema_that_can_be_upgraded_is_a_warning(site: Site, revision: str | None):
    if revision:
        assert site.run("tenure-manage", "db", "upgrade").returncode == 0
        site.set_revision(revision)
    said = f"the schema is at {revision or 'nothing'}, this release needs {schema.head()}: run tenure-manage db upgrade"
    assert check(site, code=WARNING)["Database"] == (WARNING, said)


def test_the_schema_of_a_newer_release_is_a_failure(site: Site):
    assert site.run("tenure-manage", "db", "upgrade").returncode == 0
    site.set_revision("9999")
    result, said = check(site, code=FAILURE)["Database"]
    assert result == FAILURE
    assert said == "the schema is at 9999, which this release does not know: a newer release or another program made it"


def test_a_schema_changed_by_hand_is_a_failure(site: Site):
    assert site.run("tenure-manage", "db", "upgrade").returncode == 0
    with closing(sqlite3.connect(site.folder / "tenure.db")) as db, db:
        db.execute("ALTER TABLE resources ADD COLUMN note TEXT")
    result, said = check(site, code=FAILURE)["Database"]
    assert result == FAILURE
    assert said is not None
    assert said.startswith("the schema was changed by hand: ('remove_column'")


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        ("mysql+pymysql://tenure:hunter2@127.0.0.1:port/tenure", "[database] connection is no URL; "),
        ("mysql+pymysql://tenure:hunter2@127.0.0.1:1/tenure", "the database cannot be used: Can't connect "),
        ("postgresql+psycopg://tenure:hunter2@127.0.0.1:1/tenure", "the database cannot be used: connection failed: "),
    ],
)
def test_a_database_that_cannot_be_used_is_a_failure(site: Site, connection: str, said: str):
    site.configure(connection=connection)
    results = check(site, code=FAILURE)
    result, details = results["Database"]
    assert result == FAILURE
    assert details is not None
    assert details.startswith(said)
    assert "hunter2" not in str(results)


def test_a_cloud_that_cannot_be_used_is_a_failure(site: Site):
    site.configure(more="[simulated]\npath = /nonexistent/cloud.db\n")
    said = "[simulated] path /nonexistent/cloud.db cannot be used: unable to open database file"
    assert check(site, code=FAILURE)["Cloud"] == (FAILURE, said)


def test_a_policy_in_json_is_a_failure(site: Site):
    (site.folder / "policy.json").write_text('{"admin": "role:admin"}')
    site.configure(more=f"[oslo_policy]\npolicy_file = {site.folder / 'policy.json'}\n")
    result, said = check(site, code=FAILURE)["Policy file"]
    assert result == FAILURE
    assert said is not None
    assert "JSON-formatted" in said


def test_checks_that_cannot_be_made_are_not_taken_for_a_warning(site: Site):
    done = site.run("tenure-status", "--config-file", "/nonexistent.conf", "upgrade", "check")
    assert (done.returncode, done.stdout) == (UNCHECKED, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("tenure-status: Failed to find some config files: /nonexistent.conf; ")


@pytest.mark.parametrize("arguments", [[], ["upgrade"], ["upgrade", "start"]])
def test_a_command_that_does_not_exist_is_refused(site: Site, arguments: Sequence[str]):
    done = site.run("tenure-status", *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("tenure-status")


def test_an_unknown_resource_type_is_a_failure(site: Site):
    assert site.run("tenure-manage", "db", "upgrade").returncode == 0
    site.configure(more="[manager]\nenabled_types = physical.host.plugin, dummy.vm.plugin\n")
    result, said = check(site, code=FAILURE)["Resource types"]
    assert result == FAILURE
    assert said is not None
    assert said.startswith("[manager] enabled_types: there is no 'dummy.vm.plugin', only ")
