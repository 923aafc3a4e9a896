"""python-blazarclient 4.6.0, unchanged, as ``openstack reservation``, as ``blazar`` and as a library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from blazarclient import client as blazar_client
from blazarclient import exception as blazar_exception
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from tests.support.standalone import BIN, Standalone

pytestmark = pytest.mark.slow

Run = Callable[..., str]


def document(text: str):
    """The JSON in what a command printed; that client puts a sentence before some."""
    return json.loads(text[min(text.find(mark) for mark in "{[" if mark in text) :])


def in_minutes(minutes: int) -> str:
    return f"{datetime.now(UTC) + timedelta(minutes=minutes):%Y-%m-%d %H:%M}"


def run(service: Standalone, program: list[str], *arguments: str, fails: bool = False) -> str:
    done = subprocess.run(
        [str(BIN / program[0]), *program[1:], *arguments],
        env={**service.environment("tenure-admin"), "OS_RESERVATION_CLIENT": "blazar"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture
def openstack(service: Standalone) -> Run:
    return lambda *arguments, **options: run(service, ["openstack", "reservation"], *arguments, **options)


@pytest.fixture
def blazar(service: Standalone) -> Run:
    """The old script, which takes an endpoint and a token as options."""
    options = ["--os-auth-type", "admin_token", "--os-endpoint", service.url, "--os-token", service.token("admin")]
    return lambda *arguments, **kind: run(service, ["blazar", *options], *arguments, **kind)


@pytest.fixture
def library(service: Standalone):
    return blazar_client.Client(session=Session(Token(service.url, service.token("admin"))), service_type="reservation")


def test_every_lease_command(openstack: Run):
    reservation = 'resource_type=physical:host,min=1,max=2,hypervisor_properties=[">=", "$vcpus", "2"]'
    created = document(
        openstack(
            "lease",
            "create",
            "-f",
            "json",
            "--start-date",
            in_minutes(60),
            "--end-date",
            in_minutes(180),
            "--before-end-date",
            in_minutes(120),
            "--reservation",
            reservation,
            "course",
        )
    )
    assert created["status"] == "PENDING"
    assert [row["name"] for row in document(openstack("lease", "list", "-f", "json"))] == ["course"]
    assert document(openstack("lease", "list", "-f", "json", "--sort-by", "end_date"))[0]["id"] == created["id"]
    shown = document(openstack("lease", "show", "-f", "json", "course"))
    assert json.loads(shown["reservations"])["min"] == 1
    number = json.loads(shown["reservations"])["id"]
    for change in (
        ["--name", "lab"],
        ["--prolong-for", "1h"],
        ["--reduce-by", "30m"],
        ["--defer-by", "10m"],
        ["--advance-by", "5m"],
        ["--end-date", in_minutes(240)],
        ["--start-date", in_minutes(90)],
        ["--reservation", f"id={number},min=2,max=2"],
    ):
        assert "Updated lease" in openstack("lease", "set", *change, created["id"])
    changed = document(openstack("lease", "show", "-f", "json", "lab"))
    assert json.loads(changed["reservations"])["min"] == 2
    assert "Deleted lease" in openstack("lease", "delete", "lab")
    assert openstack("lease", "list", "-f", "json").strip() == "[]"


def test_every_host_command(openstack: Run, blazar: Run):
    hosts = document(openstack("host", "list", "-f", "json"))
    assert [host["hypervisor_hostname"] for host in hosts] == [f"sim-host-00{n}" for n in range(1, 6)]
    shown = document(openstack("host", "show", "-f", "json", "sim-host-002"))
    assert shown["id"] in {2, "2"}
    assert "Updated host" in openstack("host", "set", "--extra", "rack=r7", "sim-host-002")
    assert document(openstack("host", "show", "-f", "json", "2"))["rack"] == "r7"
    properties = document(openstack("host", "property", "list", "-f", "json", "--detail", "--all"))
    assert "rack" in {one["property"] for one in properties}
    assert "r7" in openstack("host", "property", "show", "rack")
    assert "Updated host property" in openstack("host", "property", "set", "--private", "rack")
    visible = document(openstack("host", "property", "list", "-f", "json"))
    assert "rack" not in {one["property"] for one in visible}
    openstack("host", "property", "set", "--public", "rack")
    assert "Updated host" in blazar("host-unset", "--extra", "rack", "sim-host-002")
    assert "rack" not in document(openstack("host", "show", "-f", "json", "2"))
    assert "Deleted host" in openstack("host", "delete", "sim-host-005")
    assert len(document(openstack("host", "list", "-f", "json"))) == 4
    created = document(openstack("host", "create", "-f", "json", "--extra", "gpu=a100", "sim-host-005"))
    assert created["gpu"] == "a100"


def test_every_allocation_command(openstack: Run):
    created = document(
        openstack(
            "lease",
            "create",
            "-f",
            "json",
            "--start-date",
            in_minutes(60),
            "--end-date",
            in_minutes(180),
            "--reservation",
            "resource_type=physical:host,min=1,max=1",
            "one",
        )
    )
    listed = document(openstack("allocation", "list", "-f", "json", "host"))
    assert len(listed) == 5
    mine = document(openstack("allocation", "list", "-f", "json", "--lease-id", created["id"], "host"))
    [booked] = [row for row in mine if row["reservations"]]
    shown = openstack("allocation", "show", "-f", "json", "host", str(booked["resource_id"]))
    assert created["id"] in shown


def test_the_old_script(blazar: Run):
    blazar(
        "lease-create",
        "--physical-reservation",
        "min=1,max=1",
        "--start-date",
        in_minutes(10),
        "--end-date",
        in_minutes(30),
        "old",
    )
    assert "old" in blazar("lease-list")
    assert "physical:host" in blazar("lease-show", "old")
    assert "Updated lease" in blazar("lease-update", "--prolong-for", "1h", "old")
    assert "sim-host-001" in blazar("host-list")
    assert "resource_id" in blazar("allocation-list", "host")
    assert "Deleted lease" in blazar("lease-delete", "old")


def test_a_refusal_names_its_reason(openstack: Run):
    refused = openstack(
        "lease",
        "create",
        "--start-date",
        in_minutes(10),
        "--end-date",
        in_minutes(30),
        "--reservation",
        "resource_type=physical:host,min=9,max=9",
        "big",
        fails=True,
    )
    assert "Not enough hosts available" in refused


def test_the_library(library):
    reservation = {
        "resource_type": "physical:host",
        "min": 1,
        "max": 1,
        "hypervisor_properties": "",
        "resource_properties": "",
    }
    lease = library.lease.create("mine", in_minutes(60), in_minutes(120), [reservation], [])
    assert library.lease.get(lease["id"])["name"] == "mine"
    assert [one["id"] for one in library.lease.list(sort_by="name")] == [lease["id"]]
    longer = library.lease.update(lease["id"], prolong_for="1h", name="yours")
    assert longer["name"] == "yours"
    assert longer["status"] == "PENDING"
    assert longer["end_date"] > lease["end_date"]
    for change in ({"reduce_by": "30m"}, {"defer_by": "10m"}, {"advance_by": "5m"}, {"end_date": in_minutes(300)}):
        library.lease.update(lease["id"], **change)
    grown = library.lease.update(lease["id"], reservations=[{"id": lease["reservations"][0]["id"], "min": 2, "max": 2}])
    assert grown["reservations"][0]["max"] == 2
    assert len(library.allocation.list("os-hosts")) == 5
    number = next(one["resource_id"] for one in library.allocation.list("os-hosts") if one["reservations"])
    assert library.allocation.get("os-hosts", number)["resource_id"] == number
    library.lease.delete(lease["id"])
    with pytest.raises(blazar_exception.BlazarClientException) as missing:
        library.lease.get(lease["id"])
    assert missing.value.kwargs["code"] == 404

    host = library.host.get("3")
    assert library.host.update("3", {"rack": "r1"})["rack"] == "r1"
    assert library.host.list_properties(detail=True)
    assert library.host.get_property("rack")["property_values"] == ["r1"]
    assert library.host.set_property("rack", private=True)["private"] is True
    library.host.delete("3")
    assert library.host.create(host["hypervisor_hostname"], rack="r2")["rack"] == "r2"


def test_a_lease_that_starts_now_becomes_active_and_ends(library):
    reservation = {
        "resource_type": "physical:host",
        "min": 2,
        "max": 2,
        "hypervisor_properties": "",
        "resource_properties": "",
    }
    lease = library.lease.create("now", "now", in_minutes(60), [reservation], [])
    assert wait_for(library, lease["id"], "ACTIVE")
    library.lease.update(lease["id"], end_date=in_minutes(0))
    assert wait_for(library, lease["id"], "TERMINATED")


def wait_for(library, lease_id: str, status: str) -> bool:
    """Ask until the lease has that status; bounded by time, not by luck."""
    deadline = datetime.now(UTC) + timedelta(seconds=20)
    while datetime.now(UTC) < deadline:
        if library.lease.get(lease_id)["status"] == status:
            return True
    return False
