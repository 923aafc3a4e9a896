"""Our own client against the real service, as ``tenure`` and as ``openstack reservation``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.support.standalone import BIN, Standalone

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]

LEASES_OF_ONE_HOST = ("--hosts", "1", "--for", "2h")


def runner(service: Standalone, *program: str) -> Run:
    def run(*arguments: str, cloud: str = "tenure-admin", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / program[0]), *program[1:], *arguments],
            env={**service.environment(cloud), "OS_RESERVATION_CLIENT": "tenure"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def client(service: Standalone) -> Run:
    return runner(service, "tenure")


def document(done: subprocess.CompletedProcess[str]):
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", [["tenure"], ["openstack", "reservation"]], ids=" ".join)
def test_a_lease_from_its_booking_to_its_history(service: Standalone, program: list[str]):
    client = runner(service, *program)
    made = client("lease", "create", "bio", *LEASES_OF_ONE_HOST, "--wait", "-f", "json", cloud="tenure-demo")
    lease = document(made)
    assert (lease["status"], lease["name"]) == ("ACTIVE", "bio")
    [host] = document(client("lease", "hosts", "bio", "-f", "json", cloud="tenure-demo"))
    assert host["status"] == "held"
    client("lease", "set", "bio", "--prolong-for", "1h", "--name", "chem", cloud="tenure-demo")
    longer = document(client("lease", "show", "chem", "-f", "json", cloud="tenure-demo"))
    assert longer["end_date"] > lease["end_date"]
    ended = client("lease", "set", "chem", "--end", "now", "--wait", cloud="tenure-demo")
    assert "Updated lease: chem" in ended.stdout
    actions = [row["action"] for row in document(client("lease", "history", "chem", "-f", "json", cloud="tenure-demo"))]
    assert actions[0] == "create"
    assert {"start", "update", "end"} <= set(actions)
    client("lease", "delete", "chem", "--wait", cloud="tenure-demo")
    assert document(client("lease", "list", "-f", "json", cloud="tenure-demo")) == []


def test_a_lease_that_is_booked_ahead(client: Run):
    lease = document(
        client("lease", "create", "course", "--hosts", "1-2", "--with", "vcpus>=2", "--start", "+1h", "-f", "json")
    )
    assert lease["status"] == "PENDING"
    [reservation] = lease["reservations"]
    grown = f"id={reservation['id']},min=2,max=3"
    client("lease", "set", "course", "--reservation", grown, "--defer-by", "10m")
    held = document(client("lease", "hosts", "course", "-f", "json"))
    assert [row["status"] for row in held] == ["planned"] * len(held)
    assert 2 <= len(held) <= 3
    pending = document(client("lease", "list", "--status", "PENDING", "-f", "json"))
    assert [row["id"] for row in pending] == [lease["id"]]
    mine = document(client("allocation", "list", "host", "--lease-id", lease["id"], "-f", "json"))
    assert len([row for row in mine if row["reservations"]]) == len(held)
    client("lease", "reservation", "drop", "course", reservation["id"])
    assert document(client("lease", "hosts", "course", "-f", "json")) == []
    client("lease", "delete", "course")


def test_a_refusal_says_how_far_the_hosts_came(client: Run):
    refused = client("lease", "create", "big", "--hosts", "4", "--with", "vcpus>=100000", code=1)
    assert "Not enough hosts available" in refused.stderr
    assert "of those, match the properties       0" in refused.stderr
    assert "409 NotEnoughResources" in refused.stderr


def test_what_is_wrong_is_named(client: Run):
    wrong = client("lease", "create", "late", "--hosts", "1", "--start-date", "2020-01-01 00:00", code=1)
    assert "start_date" in wrong.stderr
    assert "no lease" in client("lease", "show", "nothing", code=1).stderr.lower()


def test_hosts_and_their_properties(client: Run):
    hosts = document(client("host", "list", "-f", "json"))
    assert [host["hypervisor_hostname"] for host in hosts] == [f"sim-host-00{number}" for number in range(1, 6)]
    client("host", "set", "sim-host-002", "--extra", "rack=r7")
    assert document(client("host", "show", "sim-host-002", "-f", "json"))["properties"]["rack"] == "r7"
    assert "r7" in client("host", "property", "show", "rack").stdout
    client("host", "property", "set", "rack", "--private")
    public = document(client("host", "property", "list", "-f", "json"))
    assert "rack" not in {one["property"] for one in public}
    client("host", "unset", "sim-host-002", "--extra", "rack")
    client("host", "delete", "sim-host-005")
    assert len(document(client("host", "list", "-f", "json"))) == 4
    created = document(client("host", "create", "sim-host-005", "--extra", "gpu=a100", "-f", "json"))
    assert created["properties"]["gpu"] == "a100"


def test_a_member_sees_the_leases_of_his_project_only(client: Run):
    client("lease", "create", "theirs", *LEASES_OF_ONE_HOST)
    assert document(client("lease", "list", "-f", "json", cloud="tenure-demo")) == []
    client("lease", "show", "theirs", cloud="tenure-demo", code=1)
    assert "403" in client("host", "list", cloud="tenure-demo", code=1).stderr
