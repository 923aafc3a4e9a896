"""Both clients as users have them: signed in at Keystone, with the address of the service from the catalogue."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.commands import document, in_minutes
from tests.support.forking import run_forked
from tests.support.site import Site
from tests.support.waiting import wait_for

Run = Callable[..., str]


def runner(site: Site, plugin: str, *program: str) -> Run:
    """A function that runs a command as an account; its output, or what it says where it ``fails``."""

    def run(*arguments: str, by: str = "admin", fails: bool = False) -> str:
        account = {**site.cloud.openrc, "OS_USERNAME": by, "OS_PROJECT_NAME": by, "PATH": os.environ["PATH"]}
        environ = {**account, "HOME": os.environ.get("HOME", "/"), "OS_RESERVATION_CLIENT": plugin}
        done = run_forked(*program, *arguments, env=environ)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_every_host_command_of_blazarclient(site: Site):
    openstack = runner(site, "blazar", "openstack", "reservation")
    created = document(openstack("host", "create", "-f", "json", "--extra", "gpu=a100", "compute-1"))
    assert (created["hypervisor_hostname"], created["gpu"], created["vcpus"]) == ("compute-1", "a100", 8)
    number = str(created["id"])
    assert "compute-1" in openstack("host", "list")
    shown = document(openstack("host", "show", "-f", "json", "compute-1"))
    assert (str(shown["id"]), shown["service_name"]) == (number, "compute-1")
    assert "Updated host" in openstack("host", "set", "--extra", "rack=r7", "compute-1")
    assert document(openstack("host", "show", "-f", "json", number))["rack"] == "r7"
    properties = document(openstack("host", "property", "list", "-f", "json", "--detail", "--all"))
    assert {"gpu", "rack"} <= {row["property"] for row in properties}
    assert "r7" in openstack("host", "property", "show", "rack")
    assert "Updated host property" in openstack("host", "property", "set", "--private", "rack")
    assert "rack" not in {row["property"] for row in document(openstack("host", "property", "list", "-f", "json"))}
    # Its plugin has no class for `host unset`, which its own shell has.
    assert "Updated host" in runner(site, "blazar", "blazar")("host-unset", "--extra", "rack", "compute-1")
    assert "rack" not in document(openstack("host", "show", "-f", "json", number))
    assert [row["resource_id"] for row in document(openstack("allocation", "list", "-f", "json", "host"))] == [number]
    assert "Deleted host" in openstack("host", "delete", "compute-1")
    assert document(openstack("host", "list", "-f", "json")) == []


def test_every_lease_command_of_blazarclient(site: Site):
    site.register("compute-1", "compute-2")
    openstack = runner(site, "blazar", "openstack", "reservation")
    created = document(
        openstack(
            *["lease", "create", "-f", "json", "--start-date", in_minutes(60), "--end-date", in_minutes(180)],
            *["--before-end-date", in_minutes(120)],
            *["--reservation", 'resource_type=physical:host,min=1,max=2,hypervisor_properties=[">=", "$vcpus", "2"]'],
            "course",
            by="demo",
        )
    )
    assert created["status"] == "PENDING"
    assert [row["name"] for row in document(openstack("lease", "list", "-f", "json", by="demo"))] == ["course"]
    number = json.loads(document(openstack("lease", "show", "-f", "json", "course", by="demo"))["reservations"])["id"]
    for change in (
        ["--name", "lab", "--prolong-for", "1h"],
        ["--defer-by", "10m"],
        ["--end-date", in_minutes(300)],
        ["--reservation", f"id={number},min=2,max=2"],
    ):
        assert "Updated lease" in openstack("lease", "set", *change, created["id"], by="demo")
    assert json.loads(document(openstack("lease", "show", "-f", "json", "lab"))["reservations"])["min"] == 2
    booked = document(openstack("allocation", "list", "-f", "json", "--lease-id", created["id"], "host"))
    assert len([row for row in booked if row["reservations"]]) == 2
    assert created["id"] in openstack("allocation", "show", "-f", "json", "host", str(booked[0]["resource_id"]))
    assert document(openstack("lease", "list", "-f", "json", by="other")) == []
    assert "Deleted lease" in openstack("lease", "delete", "lab", by="demo")
    assert document(openstack("lease", "list", "-f", "json")) == []


def test_a_lease_by_blazarclient_has_its_host_and_gives_it_back(site: Site):
    site.register("compute-1")
    openstack = runner(site, "blazar", "openstack", "reservation")
    times = ["--start-date", "now", "--end-date", in_minutes(60)]
    openstack("lease", "create", *times, "--reservation", "resource_type=physical:host,min=1,max=1", "now", by="demo")

    def shown() -> Any:
        return document(openstack("lease", "show", "-f", "json", "now", by="demo"))

    wait_for("the lease to be active", lambda: shown()["status"] == "ACTIVE")
    reservation = json.loads(shown()["reservations"])["id"]
    assert site.nova.members(reservation) == {"compute-1"}
    openstack("lease", "delete", "now", by="demo")
    wait_for("the host to be given back", lambda: reservation not in site.nova.aggregates())


def test_every_host_command_of_ours(site: Site):
    tenure = runner(site, "tenure", "tenure")
    created = document(tenure("host", "create", "compute-1", "--extra", "gpu=a100", "-f", "json"))
    assert (created["hypervisor_hostname"], created["properties"]) == ("compute-1", {"gpu": "a100"})
    assert [host["id"] for host in document(tenure("host", "list", "-f", "json"))] == [created["id"]]
    tenure("host", "set", "compute-1", "--extra", "rack=r7")
    assert document(tenure("host", "show", "compute-1", "-f", "json"))["properties"]["rack"] == "r7"
    assert "r7" in tenure("host", "property", "show", "rack")
    tenure("host", "property", "set", "rack", "--private")
    assert "rack" not in {row["property"] for row in document(tenure("host", "property", "list", "-f", "json"))}
    tenure("host", "unset", "compute-1", "--extra", "rack")
    assert document(tenure("host", "show", "compute-1", "-f", "json"))["properties"] == {"gpu": "a100"}
    assert [row["resource_id"] for row in document(tenure("allocation", "list", "host", "-f", "json"))] == [
        created["id"]
    ]
    assert created["id"] in tenure("allocation", "show", "host", created["id"], "-f", "json")
    assert "403" in tenure("host", "list", by="demo", fails=True)
    tenure("host", "delete", "compute-1")
    assert document(tenure("host", "list", "-f", "json")) == []


@pytest.mark.parametrize("program", [pytest.param("tenure", marks=pytest.mark.long), "openstack reservation"])
def test_every_lease_command_of_ours(site: Site, program: str):
    site.register("compute-1", "compute-2")
    client = runner(site, "tenure", *program.split())
    lease = document(client("lease", "create", "bio", "--hosts", "1", "--for", "2h", "--wait", "-f", "json", by="demo"))
    assert lease["status"] == "ACTIVE"
    [reservation] = lease["reservations"]
    [host] = document(client("lease", "hosts", "bio", "-f", "json", by="demo"))
    assert host["status"] == "held"
    assert len(site.nova.members(reservation["id"]) or ()) == 1
    client("lease", "set", "bio", "--reservation", f"id={reservation['id']},min=2,max=2", "--wait", by="demo")
    assert site.nova.members(reservation["id"]) == {"compute-1", "compute-2"}
    client("lease", "set", "bio", "--prolong-for", "1h", "--name", "chem", by="demo")
    longer = document(client("lease", "show", "chem", "-f", "json", by="demo"))
    assert longer["end_date"] > lease["end_date"]
    [listed] = document(client("lease", "list", "--status", "ACTIVE", "-f", "json", by="demo"))
    assert listed["id"] == lease["id"]
    client("lease", "reservation", "drop", "chem", reservation["id"], by="demo")
    wait_for("the hosts to be given back", lambda: reservation["id"] not in site.nova.aggregates())
    client("lease", "set", "chem", "--end", "now", by="demo")
    ended = document(client("lease", "wait", "chem", "--until", "TERMINATED", "-f", "json", by="demo"))
    assert ended["status"] == "TERMINATED"
    actions = {row["action"] for row in document(client("lease", "history", "chem", "-f", "json", by="demo"))}
    assert {"create", "start", "update", "end"} <= actions
    client("lease", "show", "chem", by="other", fails=True)
    client("lease", "delete", "chem", "--wait", by="demo")
    assert document(client("lease", "list", "-f", "json", by="demo")) == []
