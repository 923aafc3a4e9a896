"""Our own client against the real service, as ``tenure`` and as ``openstack reservation``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tests.support.forking import run_forked
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]

LEASES_OF_ONE_HOST = ("--hosts", "1", "--for", "2h")


def runner(service: Standalone, *program: str) -> Run:
    def run(*arguments: str, cloud: str = "tenure-admin", code: int = 0) -> subprocess.CompletedProcess[str]:
        environ = {**service.environment(cloud), "OS_RESERVATION_CLIENT": "tenure"}
        done = run_forked(*program, *arguments, env=environ)
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


def test_a_refusal_counts_the_hosts_of_each_step(client: Run):
    refused = client("lease", "create", "big", "--hosts", "4", "--with", "vcpus>=100000", code=1)
    assert "Not enough hosts available" in refused.stderr
    assert "of those, match the properties       0" in refused.stderr
    assert "409 NotEnoughResources" in refused.stderr


def test_a_wrong_parameter_is_named(client: Run):
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
    assert "rack" not in {row["property"] for row in public}
    client("host", "unset", "sim-host-002", "--extra", "rack")
    client("host", "delete", "sim-host-005")
    assert len(document(client("host", "list", "-f", "json"))) == 4
    created = document(client("host", "create", "sim-host-005", "--extra", "gpu=a100", "-f", "json"))
    assert created["properties"]["gpu"] == "a100"


def test_a_member_sees_the_leases_of_the_own_project_only(client: Run):
    client("lease", "create", "theirs", *LEASES_OF_ONE_HOST)
    assert document(client("lease", "list", "-f", "json", cloud="tenure-demo")) == []
    client("lease", "show", "theirs", cloud="tenure-demo", code=1)
    assert "403" in client("host", "list", cloud="tenure-demo", code=1).stderr


def register(client: Run, *last: int) -> list[str]:
    """Make these addresses reservable; their ids."""
    return [
        document(client("floatingip", "create", PUBLIC_NETWORK, f"203.0.113.{number}", "-f", "json"))["id"]
        for number in last
    ]


@pytest.mark.parametrize("program", [["tenure"], ["openstack", "reservation"]], ids=" ".join)
def test_instances_a_flavor_and_addresses_in_one_lease(service: Standalone, program: list[str]):
    client = runner(service, *program)
    register(client, 20, 21)
    made = client(
        *("lease", "create", "lab", "--instances", "2", "--flavor", "3", "--anti-affinity"),
        *("--floating-ips", "1", "--network", PUBLIC_NETWORK, "--address", "203.0.113.21"),
        *("--reservation", "resource_type=virtual:instance,amount=1,vcpus=1,memory_mb=512,disk_gb=0"),
        *("--for", "2h", "--wait", "-f", "json"),
        cloud="tenure-demo",
    )
    lease = document(made)
    assert {reservation["resource_type"]: reservation["status"] for reservation in lease["reservations"]} == {
        "flavor:instance": "active",
        "virtual:floatingip": "active",
        "virtual:instance": "active",
    }
    listed = document(client("lease", "reservation", "list", "lab", "-f", "json", cloud="tenure-demo"))
    of_type = {reservation["resource_type"]: reservation for reservation in listed}
    assert of_type["flavor:instance"]["flavor_id"] == of_type["flavor:instance"]["id"]
    assert of_type["flavor:instance"]["server_group_id"] is not None
    assert of_type["virtual:instance"]["server_group_id"] is None
    [address] = document(client("lease", "floatingips", "lab", "-f", "json", cloud="tenure-demo"))
    assert (address["floating_ip_address"], address["status"]) == ("203.0.113.21", "held")


def test_a_reservation_is_added_to_a_running_lease_and_dropped(client: Run):
    register(client, 20)
    client("lease", "create", "bio", *LEASES_OF_ONE_HOST, "--wait")
    wanted = ("--floating-ips", "1", "--network", PUBLIC_NETWORK)
    added = document(client("lease", "reservation", "add", "bio", *wanted, "--wait", "-f", "json"))
    assert (added["resource_type"], added["status"]) == ("virtual:floatingip", "active")
    refused = client("lease", "reservation", "add", "bio", *wanted, code=1)
    assert "Not enough floating IPs available" in refused.stderr
    assert "field: amount\n  asked: 1 of virtual:floatingip\n" in refused.stderr
    client("lease", "reservation", "drop", "bio", added["id"])
    kinds = document(client("lease", "reservation", "list", "bio", "-f", "json", "-c", "status", "-c", "resource_type"))
    assert {reservation["resource_type"]: reservation["status"] for reservation in kinds} == {
        "physical:host": "active",
        "virtual:floatingip": "deleted",
    }


def test_instances_become_more_and_are_counted(client: Run):
    made = document(
        client(
            *("lease", "create", "web", "--instances", "1", "--vcpus", "2", "--ram", "4g", "--disk", "20"),
            *("--with", "vcpus>=8", "--before-end-action", "snapshot", "--wait", "-f", "json"),
        )
    )
    [reservation] = made["reservations"]
    assert (reservation["memory_mb"], reservation["before_end"]) == (4096, "snapshot")
    client("lease", "set", "web", "--reservation", f"id={reservation['id']},amount=3", "--wait")
    [changed] = document(client("lease", "show", "web", "-f", "json"))["reservations"]
    assert changed["amount"] == 3
    smaller = client("lease", "set", "web", "--reservation", f"id={reservation['id']},amount=1", code=1)
    assert "an active reservation doesn't allow to reduce" in smaller.stderr
    many = client("lease", "create", "many", "--instances", "9999", "--flavor", "3", code=1)
    assert "asked: 9999 of flavor:instance (number 1)" in many.stderr
    assert "instances that fit there" in many.stderr
    unknown = client("lease", "create", "none", "--instances", "1", "--flavor", "nope", code=1)
    assert "Flavor nope could not be found" in unknown.stderr
    assert "field: reservations[0].flavor_id" in unknown.stderr


def test_floating_ips_from_their_registration_to_their_end(client: Run):
    first, second = register(client, 20, 21)
    listed = document(client("floatingip", "list", "--network", PUBLIC_NETWORK, "-f", "json"))
    assert {row["id"] for row in listed} == {first, second}
    for address, reason in (
        ("203.0.113.150", "used in allocation_pools"),
        ("203.0.113.20", "is registered already"),
    ):
        refused = client("floatingip", "create", PUBLIC_NETWORK, address, code=1)
        assert reason in refused.stderr
        assert "field: floating_ip_address" in refused.stderr
    client("lease", "create", "web", "--floating-ips", "1", "--network", PUBLIC_NETWORK, "--address", "203.0.113.20")
    assert "409 Conflict" in client("floatingip", "delete", "203.0.113.20", code=1).stderr
    client("floatingip", "disable", "203.0.113.21", "--reason", "listed", "--yes")
    shown = document(client("floatingip", "show", "203.0.113.21", "-f", "json"))
    assert (shown["reservable"], shown["disabled_reason"]) == (False, "listed")
    [mine] = [
        allocation
        for allocation in document(client("allocation", "list", "floatingip", "-f", "json"))
        if allocation["reservations"]
    ]
    assert mine["resource_id"] == first
    client("floatingip", "enable", second, "--yes")
    client("floatingip", "delete", "203.0.113.21")
    seen = client("floatingip", "list", "-f", "value", "-c", "floating_ip_address", cloud="tenure-demo")
    assert seen.stdout == "203.0.113.20\n"
    assert "403" in client("floatingip", "delete", first, cloud="tenure-demo", code=1).stderr


def test_notifications_at_chosen_times_are_set_and_dropped(client: Run):
    client("lease", "create", "bio", *LEASES_OF_ONE_HOST, "--notify", "+30m", "half an hour", "--wait")
    client("lease", "set", "bio", "--notify", "+1h", "half time")
    events = document(client("lease", "show", "bio", "-f", "json", "-c", "events"))["events"]
    own = {event["message"]: event["id"] for event in events if event["event_type"] == "notify_lease"}
    assert own.keys() == {"half an hour", "half time"}
    client("lease", "set", "bio", "--drop-notify", own["half time"])
    assert "half time" not in client("lease", "show", "bio").stdout
    late = client("lease", "set", "bio", "--notify", "+9h", "too late", code=1)
    assert "events" in late.stderr


def test_volume_pools_and_a_lease_of_volumes(service: Standalone):
    client = runner(service, "openstack", "reservation")
    pool = "sim-storage@fast#nvme"
    made = document(client("volume", "pool", "create", pool, "1t", "-f", "json"))
    assert (made["capacity_gb"], made["reservable"]) == (1024, True)
    client("volume", "pool", "disable", pool, "--reason", "worn out", "--yes")
    asked = ("lease", "create", "data", "--volumes", "2", "--size", "10g", "--volume-type", "fast", "--for", "1h")
    assert "Not enough volumes" in client(*asked, code=1).stderr
    client("volume", "pool", "enable", pool, "--yes")
    lease = document(client(*asked, "--volumes-at-end", "keep", "--wait", "-f", "json", cloud="tenure-demo"))
    [reservation] = lease["reservations"]
    assert (len(reservation["volume_ids"]), reservation["at_end"]) == (2, "keep")
    assert document(client("volume", "pool", "list", "-f", "json"))[0]["name"] == pool
    client("lease", "delete", "data", "--wait", cloud="tenure-demo")
    assert "is reserved" in client("volume", "pool", "delete", pool, code=1).stderr
    assert document(client("volume", "pool", "show", pool, "-f", "json"))["health"] == "well"


def test_limits_and_usage_of_a_project_are_shown(service: Standalone):
    client = runner(service, "tenure")
    client("lease", "create", "counted", "--hosts", "1", "--for", "1h", cloud="tenure-demo")
    mine = {row["name"]: row for row in document(client("limits", "show", "-f", "json", cloud="tenure-demo"))}
    assert mine["leases"] == {"name": "leases", "limit": 1000, "used": mine["leases"]["used"]}
    assert mine["hosts"]["used"] >= 1
    others = runner(service, "openstack", "reservation")("limits", "show", "-f", "json")
    assert next(row for row in document(others) if row["name"] == "hosts")["used"] == 0
    assert "403" in client("limits", "show", "--project", "another", code=1, cloud="tenure-demo").stderr
