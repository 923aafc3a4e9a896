"""python-blazarclient 4.6.0, unchanged, as ``openstack reservation``, as ``blazar`` and as a library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from blazarclient import client as blazar_client
from blazarclient import exception as blazar_exception
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tests.support.commands import document, in_minutes
from tests.support.forking import run_forked
from tests.support.standalone import Standalone
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

Run = Callable[..., str]


def run(service: Standalone, program: list[str], *arguments: str, fails: bool = False) -> str:
    environ = {**service.environment("tenure-admin"), "OS_RESERVATION_CLIENT": "blazar"}
    done = run_forked(*program, *arguments, env=environ)
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
    reservation_id = json.loads(shown["reservations"])["id"]
    for change in (
        ["--name", "lab"],
        ["--prolong-for", "1h"],
        ["--reduce-by", "30m"],
        ["--defer-by", "10m"],
        ["--advance-by", "5m"],
        ["--end-date", in_minutes(240)],
        ["--start-date", in_minutes(90)],
        ["--reservation", f"id={reservation_id},min=2,max=2"],
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
    assert "rack" in {row["property"] for row in properties}
    assert "r7" in openstack("host", "property", "show", "rack")
    assert "Updated host property" in openstack("host", "property", "set", "--private", "rack")
    visible = document(openstack("host", "property", "list", "-f", "json"))
    assert "rack" not in {row["property"] for row in visible}
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


def create(openstack: Run, name: str, *reservations: str, start: int = 60, end: int = 180) -> dict[str, Any]:
    """A lease of these reservations, as that client shows it; its reservations as data."""
    options = [option for reservation in reservations for option in ("--reservation", reservation)]
    dates = ("--start-date", in_minutes(start), "--end-date", in_minutes(end))
    return read_lease(openstack("lease", "create", "-f", "json", *dates, *options, name))


def read_lease(text: str) -> dict[str, Any]:
    """A lease as that client prints it: it writes reservations one below the other, each as JSON."""
    lease: dict[str, Any] = document(text)
    decoder, rest, reservations = json.JSONDecoder(), lease["reservations"].strip(), []
    while rest:
        reservation, end = decoder.raw_decode(rest)
        reservations.append(reservation)
        rest = rest[end:].strip()
    return {**lease, "reservations": reservations}


def test_instances(openstack: Run):
    lease = create(
        openstack,
        "web",
        "resource_type=virtual:instance,vcpus=2,memory_mb=4096,disk_gb=20,amount=2,affinity=False",
    )
    [reservation] = lease["reservations"]
    assert {name: reservation[name] for name in ("vcpus", "memory_mb", "disk_gb", "amount", "affinity")} == {
        "vcpus": 2,
        "memory_mb": 4096,
        "disk_gb": 20,
        "amount": 2,
        "affinity": False,
    }
    assert reservation["flavor_id"] == reservation["id"]
    change = "amount=3,affinity=True,vcpus=1,memory_mb=1024,disk_gb=0,resource_properties="
    assert "Updated lease" in openstack("lease", "set", "--reservation", f"id={reservation['id']},{change}", "web")
    [changed] = read_lease(openstack("lease", "show", "-f", "json", "web"))["reservations"]
    assert [changed[name] for name in ("amount", "affinity", "vcpus", "disk_gb")] == [3, True, 1, 0]
    assert [row["name"] for row in document(openstack("lease", "list", "-f", "json"))] == ["web"]
    assert "Deleted lease" in openstack("lease", "delete", "web")


def test_instances_of_a_flavor(openstack: Run):
    lease = create(openstack, "web", "resource_type=flavor:instance,flavor_id=3,amount=2,affinity=None")
    [reservation] = lease["reservations"]
    assert (reservation["amount"], reservation["vcpus"], reservation["memory_mb"]) == (2, 2, 4096)
    assert json.loads(reservation["resource_properties"])["name"] == "m1.medium"
    assert "Updated lease" in openstack("lease", "set", "--reservation", f"id={reservation['id']},amount=4", "web")
    [changed] = read_lease(openstack("lease", "show", "-f", "json", "web"))["reservations"]
    assert changed["amount"] == 4
    assert "Deleted lease" in openstack("lease", "delete", "web")


def test_unavailable_reservations_are_refused_with_a_reason(blazar: Run):
    dates = ("--start-date", in_minutes(60), "--end-date", in_minutes(180))
    for reservation, reason in (
        ("resource_type=flavor:instance,flavor_id=nope,amount=1", "Flavor nope could not be found"),
        ("resource_type=flavor:instance,flavor_id=3,amount=100000", "Not enough instances available"),
        ("resource_type=virtual:instance,vcpus=1,memory_mb=1,disk_gb=1,amount=1,affinity=perhaps", "affinity"),
        (f"resource_type=virtual:floatingip,network_id={PUBLIC_NETWORK}", "Not enough floating IPs available"),
    ):
        refused = blazar("lease-create", *dates, "--reservation", reservation, "no", fails=True)
        assert reason in refused


def test_every_floating_ip_command(openstack: Run):
    made = document(openstack("floatingip", "create", "-f", "json", PUBLIC_NETWORK, "203.0.113.20"))
    openstack("floatingip", "create", PUBLIC_NETWORK, "203.0.113.21")
    assert (made["floating_ip_address"], made["floating_network_id"]) == ("203.0.113.20", PUBLIC_NETWORK)
    listed = document(openstack("floatingip", "list", "-f", "json", "--sort-by", "floating_ip_address"))
    assert [row["floating_ip_address"] for row in listed] == ["203.0.113.20", "203.0.113.21"]
    assert document(openstack("floatingip", "show", "-f", "json", made["id"]))["reservable"] is True
    refused = openstack("floatingip", "create", PUBLIC_NETWORK, "203.0.113.150", fails=True)
    assert "allocation_pools" in refused
    assert "Deleted floatingip" in openstack("floatingip", "delete", made["id"])
    assert len(document(openstack("floatingip", "list", "-f", "json"))) == 1
    assert "not found" in openstack("floatingip", "show", made["id"], fails=True)


def test_addresses(openstack: Run, blazar: Run):
    for last in (20, 21, 22):
        blazar("floatingip-create", PUBLIC_NETWORK, f"203.0.113.{last}")
    of_network = f"resource_type=virtual:floatingip,network_id={PUBLIC_NETWORK}"
    lease = create(openstack, "web", f'{of_network},amount=2,required_floatingips=["203.0.113.22"]')
    [reservation] = lease["reservations"]
    assert (reservation["amount"], reservation["required_floatingips"]) == (2, ["203.0.113.22"])
    change = f"id={reservation['id']},amount=1,required_floatingips=[]"
    assert "Updated lease" in openstack("lease", "set", "--reservation", change, "web")
    [changed] = read_lease(openstack("lease", "show", "-f", "json", "web"))["reservations"]
    assert (changed["amount"], changed["required_floatingips"]) == (1, [])
    assert create(openstack, "one", of_network)["reservations"][0]["amount"] == 1  # that client's default


def test_all_types_in_one_lease(openstack: Run, blazar: Run):
    blazar("floatingip-create", PUBLIC_NETWORK, "203.0.113.20")
    lease = create(
        openstack,
        "lab",
        "resource_type=physical:host,min=1,max=1",
        "resource_type=virtual:instance,vcpus=1,memory_mb=1024,disk_gb=1,amount=2",
        "resource_type=flavor:instance,flavor_id=2,amount=1",
        f"resource_type=virtual:floatingip,network_id={PUBLIC_NETWORK}",
    )
    assert sorted(reservation["resource_type"] for reservation in lease["reservations"]) == [
        "flavor:instance",
        "physical:host",
        "virtual:floatingip",
        "virtual:instance",
    ]
    openstack("lease", "set", "--prolong-for", "1h", "--name", "labs", "lab")
    longer = read_lease(openstack("lease", "show", "-f", "json", "labs"))
    assert longer["end_date"] > lease["end_date"]
    [row] = document(openstack("floatingip", "list", "-f", "json"))
    assert "reserved" in openstack("floatingip", "delete", row["id"], fails=True)
    openstack("lease", "delete", "labs")
    openstack("floatingip", "delete", row["id"])


def test_the_old_script_has_floating_ips_and_all_types(blazar: Run):
    blazar("floatingip-create", PUBLIC_NETWORK, "203.0.113.20")
    listed = blazar("floatingip-list")
    assert "203.0.113.20" in listed
    [number] = re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", listed)[:1]
    assert "203.0.113.20" in blazar("floatingip-show", number)
    blazar(
        "lease-create",
        "--reservation",
        "resource_type=virtual:instance,vcpus=1,memory_mb=1024,disk_gb=1,amount=1",
        "--reservation",
        f"resource_type=virtual:floatingip,network_id={PUBLIC_NETWORK}",
        "--start-date",
        in_minutes(10),
        "--end-date",
        in_minutes(30),
        "old",
    )
    shown = blazar("lease-show", "old")
    assert "virtual:instance" in shown
    assert "virtual:floatingip" in shown
    assert "Deleted lease" in blazar("lease-delete", "old")
    assert "Deleted floatingip" in blazar("floatingip-delete", number)


def test_the_library_starts_and_ends_all_types(library):
    made = library.floatingip.create(PUBLIC_NETWORK, "203.0.113.20")
    assert library.floatingip.get(made["id"])["floating_ip_address"] == "203.0.113.20"
    lease = library.lease.create(
        "lab",
        "now",
        in_minutes(120),
        [
            {
                "resource_type": "virtual:instance",
                "vcpus": 1,
                "memory_mb": 1024,
                "disk_gb": 1,
                "amount": 2,
                "affinity": True,
                "resource_properties": "",
            },
            {"resource_type": "flavor:instance", "flavor_id": "2", "amount": 1, "affinity": "None"},
            {
                "resource_type": "virtual:floatingip",
                "network_id": PUBLIC_NETWORK,
                "amount": 1,
                "required_floatingips": ["203.0.113.20"],
            },
        ],
        [],
    )
    wait_for_status(library, lease["id"], "ACTIVE")
    started = {
        reservation["resource_type"]: reservation for reservation in library.lease.get(lease["id"])["reservations"]
    }
    assert {reservation["status"] for reservation in started.values()} == {"active"}
    assert started["virtual:instance"]["aggregate_id"] is not None
    assert started["virtual:instance"]["server_group_id"] is not None
    assert started["flavor:instance"]["server_group_id"] is None
    more = [{"id": started["virtual:instance"]["id"], "amount": 3}]
    library.lease.update(lease["id"], reservations=more)
    wait_for_status(library, lease["id"], "ACTIVE")
    with pytest.raises(blazar_exception.BlazarClientException):
        library.lease.update(lease["id"], reservations=[{"id": started["virtual:instance"]["id"], "amount": 1}])
    end(library, lease["id"])
    wait_for_status(library, lease["id"], "TERMINATED")
    library.floatingip.delete(made["id"])
    assert library.floatingip.list() == []


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
    assert [lease["id"] for lease in library.lease.list(sort_by="name")] == [lease["id"]]
    longer = library.lease.update(lease["id"], prolong_for="1h", name="yours")
    assert longer["name"] == "yours"
    assert longer["status"] == "PENDING"
    assert longer["end_date"] > lease["end_date"]
    for change in ({"reduce_by": "30m"}, {"defer_by": "10m"}, {"advance_by": "5m"}, {"end_date": in_minutes(300)}):
        library.lease.update(lease["id"], **change)
    grown = library.lease.update(lease["id"], reservations=[{"id": lease["reservations"][0]["id"], "min": 2, "max": 2}])
    assert grown["reservations"][0]["max"] == 2
    assert len(library.allocation.list("os-hosts")) == 5
    number = next(
        allocation["resource_id"] for allocation in library.allocation.list("os-hosts") if allocation["reservations"]
    )
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
    wait_for_status(library, lease["id"], "ACTIVE")
    end(library, lease["id"])
    wait_for_status(library, lease["id"], "TERMINATED")


def end(library, lease_id: str) -> None:
    """End a lease in the present minute, and again in the next one if the request arrived only then."""
    while True:
        minute = in_minutes(0)
        try:
            library.lease.update(lease_id, end_date=minute)
        except blazar_exception.BlazarClientException:
            if minute == in_minutes(0):
                raise
        else:
            return


def wait_for_status(library, lease_id: str, status: str) -> None:
    wait_for(f"the lease to be {status}", lambda: library.lease.get(lease_id)["status"] == status)
