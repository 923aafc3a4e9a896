"""The commands for instances, flavors and floating IPs, in this process against a fake server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import Run
from tenureclient.testing import FakeServer

NETWORK = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001"


def sent(server: FakeServer) -> Any:
    """Return the body of the last request that had a body."""
    return next(request.body for request in reversed(server.requests) if request.body is not None)


@pytest.fixture
def stocked(server: FakeServer) -> FakeServer:
    """Two hosts, a flavor and two addresses."""
    for number in (1, 2):
        server.add_host(f"c{number}", vcpus=8)
        server.add_floatingip(f"203.0.113.2{number}", network_id=NETWORK)
    server.add_flavor("3", name="m1.medium", vcpus=2, memory_mb=4096)
    return server


def test_several_types_are_booked_in_one_lease(stocked: FakeServer, tenure: Run) -> None:
    outcome = tenure(
        *("lease", "create", "lab", "--instances", "2", "--flavor", "3", "--anti-affinity"),
        *("--floating-ips", "2", "--network", NETWORK, "--address", "203.0.113.22"),
        *("--before-end-action", "notify", "--reservation"),
        "resource_type=virtual:instance,amount=1,vcpus=1,memory_mb=512,disk_gb=0,affinity=None",
        *("--wait", "-f", "json"),
    )
    assert outcome.code == 0, outcome.errors
    assert sent(stocked)["reservations"] == [
        {
            "resource_type": "flavor:instance",
            "flavor_id": "3",
            "amount": 2,
            "affinity": False,
            "before_end": "notify",
        },
        {
            "resource_type": "virtual:floatingip",
            "network_id": NETWORK,
            "amount": 2,
            "required_floatingips": ["203.0.113.22"],
            "before_end": "notify",
        },
        {
            "resource_type": "virtual:instance",
            "amount": 1,
            "vcpus": 1,
            "memory_mb": 512,
            "disk_gb": 0,
            "affinity": None,
        },
    ]
    lease = json.loads(outcome.output)
    assert lease["status"] == "ACTIVE"
    listed = json.loads(tenure("lease", "reservation", "list", "lab", "-f", "json").output)
    assert [reservation["flavor_id"] for reservation in listed] == [listed[0]["id"], None, listed[2]["id"]]
    assert [reservation["server_group_id"] is None for reservation in listed] == [False, True, True]
    aggregates = tenure("lease", "reservation", "list", "lab", "-f", "value", "-c", "aggregate_id")
    assert [number.isdecimal() for number in aggregates.output.split()] == [True, False, True]
    held = tenure("lease", "floatingips", "lab", "-f", "value", "-c", "floating_ip_address", "-c", "status")
    assert sorted(held.output.splitlines()) == ["203.0.113.21 held", "203.0.113.22 held"]


def test_hosts_and_addresses_are_registered_and_listed_by_region(two_regions: FakeServer, tenure: Run) -> None:
    where = ("--os-endpoint", two_regions.url)
    for number in (1, 2):
        two_regions.add_host(f"c{number}")
        two_regions.add_floatingip(f"203.0.113.2{number}", network_id=NETWORK)
    two_regions.add_hypervisor("c9", region="south")
    assert tenure(*where, "host", "create", "c9", "--region", "south").code == 0
    assert sent(two_regions) == {"name": "c9", "region": "south"}
    address = ("203.0.113.29", "--region", "south")
    assert tenure(*where, "floatingip", "create", NETWORK, *address).code == 0
    assert sent(two_regions)["region"] == "south"
    for noun, column, name in (
        ("host", "hypervisor_hostname", "c9"),
        ("floatingip", "floating_ip_address", "203.0.113.29"),
    ):
        columns = ("-f", "value", "-c", column, "-c", "region")
        listed = tenure(*where, noun, "list", "--region", "south", *columns)
        assert listed.output == f"{name} south\n"
        assert len(tenure(*where, noun, "list", "-f", "value").output.splitlines()) == 3


def test_what_is_booked_can_be_narrowed_down(stocked: FakeServer, tenure: Run) -> None:
    outcome = tenure(
        *("lease", "create", "lab", "--hosts", "1", "--region", "south", "--reservation"),
        "resource_type=physical:host,min=1,max=1,region=north,availability_zone=az-1,vcpus=2,"
        'extra_specs={"capabilities:hypervisor_type": "QEMU"}',
    )
    assert sent(stocked)["reservations"] == [
        {"resource_type": "physical:host", "min": 1, "max": 1, "resource_properties": "", "region": "south"},
        {
            "resource_type": "physical:host",
            "min": 1,
            "max": 1,
            "region": "north",
            "availability_zone": "az-1",
            "vcpus": 2,
            "extra_specs": {"capabilities:hypervisor_type": "QEMU"},
        },
    ], outcome.errors


def test_zone_and_extra_specs_apply_to_hosts_and_sized_instances(server: FakeServer, tenure: Run) -> None:
    for name in ("c1", "c2"):
        server.add_host(name, availability_zone="az-1", properties={"gpu": "a100"})
    specs = ("--extra-spec", "capabilities:vcpus=>= 2", "--extra-spec", " gpu = <or> a100 <or> v100")
    of_hosts = tenure("lease", "create", "lab", "--hosts", "1", "--zone", "az-1", *specs)
    assert sent(server)["reservations"] == [
        {
            "resource_type": "physical:host",
            "min": 1,
            "max": 1,
            "resource_properties": "",
            "availability_zone": "az-1",
            "extra_specs": {"capabilities:vcpus": ">= 2", "gpu": "<or> a100 <or> v100"},
        }
    ], of_hosts.errors
    sized = ("--instances", "1", "--vcpus", "1", "--ram", "512")
    more = tenure("lease", "reservation", "add", "lab", *sized, "--with", "vcpus>1", *specs[:2])
    assert sent(server)["extra_specs"] == {"capabilities:vcpus": ">= 2"}, more.errors
    assert "availability_zone" not in sent(server)


def test_resource_classes_apply_to_hosts_and_sized_instances(stocked: FakeServer, tenure: Run) -> None:
    of_hosts = tenure(
        *("lease", "create", "lab", "--hosts", "1", "--resource", "VCPU=1", "--resource", " MEMORY_MB = 2")
    )
    [reservation] = sent(stocked)["reservations"]
    assert reservation["resources"] == {"VCPU": 1, "MEMORY_MB": 2}, of_hosts.errors
    assert of_hosts.code == 0
    sized = ("--instances", "1", "--vcpus", "1", "--ram", "512")
    more = tenure("lease", "reservation", "add", "lab", *sized, "--resource", "CUSTOM_GPU=2")
    assert sent(stocked)["resources"] == {"CUSTOM_GPU": 2}, more.errors
    assert "No resource has 2 CUSTOM_GPU: the most is 0." in more.errors
    server = 'resource_type=virtual:server,vcpus=1,memory_mb=512,disk_gb=1,resources={"VGPU": 1}'
    in_words = tenure("lease", "create", "room", "--reservation", server)
    assert sent(stocked)["reservations"][0]["resources"] == {"VGPU": 1}, in_words.errors


def test_zone_applies_to_everything_that_nova_runs(stocked: FakeServer, tenure: Run) -> None:
    outcome = tenure(
        *("lease", "create", "web", "--hosts", "1", "--instances", "1", "--flavor", "3", "--zone", "az-1"),
        *("--server-flavor", "3", "--floating-ips", "1", "--network", NETWORK),
    )
    asked = sent(stocked)["reservations"]
    assert {reservation["resource_type"]: reservation.get("availability_zone") for reservation in asked} == {
        "physical:host": "az-1",
        "flavor:instance": "az-1",
        "virtual:server": "az-1",
        "virtual:floatingip": None,
    }, outcome.errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--zone", "az-1"), "--zone: it is for --hosts, --instances, --server and --server-flavor;"),
        (
            ("--volumes", "1", "--size", "1", "--zone", "az-1"),
            "--zone: it is for --hosts, --instances, --server and --server-flavor;",
        ),
        (("--extra-spec", "gpu=a100"), "--extra-spec: say how many hosts with --hosts, or --instances."),
        (
            ("--hosts", "1", "--extra-spec", "gpu=a100", "--extra-spec", "gpu=v100"),
            "--extra-spec: gpu is given twice.",
        ),
        (
            ("--instances", "1", "--flavor", "3", "--extra-spec", "gpu=a"),
            "--extra-spec: the flavor itself says",
        ),
        (
            ("--hosts", "1", "--instances", "1", "--vcpus", "1", "--ram", "1", "--extra-spec", "gpu=a"),
            "--extra-spec: it is not clear whether it is for the hosts or for the instances",
        ),
        (("--hosts", "1", "--extra-spec", "gpu"), "'gpu' is not key=value."),
        (("--resource", "VGPU=1"), "--resource: say how many hosts with --hosts, or --instances."),
        (("--hosts", "1", "--resource", "VGPU"), "'VGPU' is not CLASS=AMOUNT"),
        (("--hosts", "1", "--resource", "VGPU=0"), "'VGPU=0' is not CLASS=AMOUNT"),
        (("--hosts", "1", "--resource", "VGPU=1", "--resource", "VGPU=2"), "--resource: VGPU is given twice."),
        (("--instances", "1", "--flavor", "3", "--resource", "VGPU=1"), "--resource: the flavor itself says"),
        (("--hosts", "1", "--extra-spec", "=a100"), "'=a100' is not key=value."),
        (("--hosts", "1", "--extra-spec", "gpu="), "'gpu=' is not key=value."),
    ],
)
def test_an_invalid_zone_extra_spec_or_resource_is_explained(
    stocked: FakeServer, tenure: Run, options: tuple[str, ...], said: str
) -> None:
    outcome = tenure("lease", "create", "lab", *options)
    assert outcome.code != 0
    assert said in outcome.errors
    assert stocked.requests == []


def test_a_size_is_written_with_or_without_its_unit(stocked: FakeServer, tenure: Run) -> None:
    outcome = tenure(
        *("lease", "create", "web", "--instances", "2", "--vcpus", "2", "--ram", "4g", "--disk", "20"),
        *("--with", "hypervisor_hostname=c1", "--affinity"),
    )
    assert outcome.code == 0, outcome.errors
    [reservation] = sent(stocked)["reservations"]
    assert reservation == {
        "resource_type": "virtual:instance",
        "amount": 2,
        "vcpus": 2,
        "memory_mb": 4096,
        "disk_gb": 20,
        "affinity": True,
        "resource_properties": '["==", "$hypervisor_hostname", "c1"]',
    }


def test_snapshots_are_of_servers_only(stocked: FakeServer, tenure: Run) -> None:
    outcome = tenure(
        *("lease", "create", "lab", "--hosts", "1", "--instances", "1", "--flavor", "3"),
        *("--floating-ips", "1", "--network", NETWORK, "--before-end-action", "snapshot"),
    )
    assert outcome.code == 0, outcome.errors
    actions = [reservation.get("before_end") for reservation in sent(stocked)["reservations"]]
    assert actions == ["snapshot", "snapshot", None]


def test_a_table_names_the_flavor_that_was_asked_for(stocked: FakeServer, tenure: Run) -> None:
    shown = tenure("lease", "create", "web", "--instances", "1", "--flavor", "3").output
    assert "flavor=m1.medium (3)" in shown
    assert "extra_specs" not in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--instances", "2"], "--instances: say of which size"),
        (["--instances", "2", "--vcpus", "2"], "--instances: say of which size"),
        (["--instances", "two"], "'two' is not a count"),
        (["--instances", "0", "--flavor", "3"], "'0' is not a count"),
        (["--flavor", "3"], "--flavor: say how many with --instances"),
        (["--affinity"], "--affinity: say how many with --instances"),
        (["--ram", "4x"], "'4x' is not a size"),
        (["--disk", "100m"], "'100m' is not a size"),
        (["--instances", "1", "--flavor", "3", "--vcpus", "2"], "--vcpus: the size is that of the flavor"),
        (["--instances", "1", "--flavor", "3", "--with", "a=1"], "--with: the flavor itself says"),
        (
            ["--instances", "1", "--vcpus", "1", "--ram", "1g", "--hosts", "1", "--with", "a=1"],
            "--with: it is not clear",
        ),
        (["--affinity", "--anti-affinity"], "not allowed with"),
        (["--floating-ips", "1"], "--network"),
        (["--network", "x"], "--network: say how many with --floating-ips"),
        (["--address", "203.0.113.21"], "--network"),
        (["--network", "x", "--floating-ips", "1", "--address", "a", "--address", "b"], "less than"),
        (["--before-end-action", "snapshot"], "--before-end-action: it is for"),
        (
            ["--network", "x", "--floating-ips", "1", "--before-end-action", "snapshot"],
            "--before-end-action: addresses have no snapshot",
        ),
        (["--before-end-action", "shout", "--hosts", "1"], "invalid choice"),
        (["--hosts", "1", "--notify", "now", "x"], "--notify: 'now' is not possible"),
        (["--hosts", "1", "--notify", "soonish", "x"], "--notify: 'soonish' is not a date"),
    ],
)
def test_mistakes_are_reported_with_the_option(tenure: Run, arguments: list[str], complaint: str) -> None:
    outcome = tenure("lease", "create", "bio", *arguments)
    assert outcome.code != 0
    assert complaint in outcome.errors


def test_a_shortfall_of_instances_is_shown_by_its_stages(stocked: FakeServer, tenure: Run) -> None:
    outcome = tenure("lease", "create", "web", "--instances", "9", "--flavor", "3")
    assert outcome.code == 1
    lines = [" ".join(line.split()) for line in outcome.errors.splitlines()]
    assert lines[1:7] == [
        "field: reservations[0].amount",
        "asked: 9 of flavor:instance (number 1)",
        "can be reserved at all 2",
        "of those, match the properties 2",
        "of those, with room for the whole period 2",
        "instances that fit there 8",
    ]


def test_a_reservation_is_added_shown_and_dropped(stocked: FakeServer, tenure: Run) -> None:
    assert tenure("lease", "create", "lab", "--hosts", "1").code == 0
    added = tenure(
        *("lease", "reservation", "add", "lab", "--floating-ips", "1", "--network", NETWORK),
        *("--wait", "-f", "json"),
    )
    assert added.code == 0, added.errors
    reservation = json.loads(added.output)
    assert (reservation["resource_type"], reservation["status"]) == ("virtual:floatingip", "active")
    assert reservation["parameters"]["network_id"] == NETWORK
    refused = tenure("lease", "reservation", "add", "lab", "--floating-ips", "2", "--network", NETWORK)
    assert refused.code == 1
    assert "field: amount\n  asked: 2 of virtual:floatingip\n" in refused.errors
    for nothing in ([], ["--hosts", "1", "--floating-ips", "1", "--network", NETWORK]):
        outcome = tenure("lease", "reservation", "add", "lab", *nothing)
        assert outcome.code == 1
        assert "Say one thing to add" in outcome.errors
    assert tenure("lease", "reservation", "drop", "lab", reservation["id"]).code == 0
    listed = tenure("lease", "reservation", "list", "lab", "-f", "value", "-c", "status")
    assert listed.output == "active\ndeleted\n"


def test_number_of_instances_can_grow(stocked: FakeServer, tenure: Run) -> None:
    made = tenure("lease", "create", "web", "--instances", "1", "--flavor", "3", "-f", "json")
    [reservation] = json.loads(made.output)["reservations"]
    changed = tenure("lease", "set", "web", "--reservation", f"id={reservation['id']},amount=3,affinity=none")
    assert changed.code == 0, changed.errors
    assert sent(stocked)["reservations"] == [{"id": reservation["id"], "amount": 3, "affinity": None}]


def test_floating_ips(server: FakeServer, tenure: Run) -> None:
    made = tenure("floatingip", "create", NETWORK, "203.0.113.21", "-f", "json")
    new = json.loads(made.output)
    assert new["floating_ip_address"] == "203.0.113.21"
    assert (new["enabled"], new["health"]) == (True, "well")
    server.add_floatingip("203.0.113.20", network_id=NETWORK)
    server.add_floatingip("198.51.100.7", network_id="another")
    listed = tenure(*("floatingip", "list", "--sort-by", "floating_ip_address", "--network", NETWORK, "-f", "json"))
    rows = json.loads(listed.output)
    assert [row["floating_ip_address"] for row in rows] == ["203.0.113.20", "203.0.113.21"]
    assert list(rows[0]) == ["id", "floating_ip_address", "floating_network_id"]
    shown = json.loads(tenure("floatingip", "show", "203.0.113.21", "-f", "json").output)
    assert (shown["enabled"], shown["health"]) == (True, "well")
    again = tenure("floatingip", "create", NETWORK, "203.0.113.21")
    assert again.code == 1
    assert "is registered already.\n  field: floating_ip_address\n" in again.errors
    deleted = tenure("floatingip", "delete", "203.0.113.20", shown["id"])
    assert deleted.output == f"Deleted floating IP: 203.0.113.20\nDeleted floating IP: {shown['id']}\n"
    assert "no floating IP" in tenure("floatingip", "show", "203.0.113.21").errors


def test_a_floating_ip_is_closed_emptied_and_opened(server: FakeServer, tenure: Run) -> None:
    server.add_floatingip("203.0.113.21", network_id=NETWORK)
    tenure("lease", "create", "web", "--floating-ips", "1", "--network", NETWORK)
    server.add_floatingip("203.0.113.22", network_id=NETWORK)
    asked = tenure("floatingip", "disable", "203.0.113.21", "--reason", "listed")
    assert asked.code == 1
    assert "203.0.113.21 takes no new reservations; those that have a part in it keep it: 1." in asked.errors
    assert tenure("floatingip", "disable", "203.0.113.21", "--reason", "listed", "--yes").code == 0
    closed = tenure("floatingip", "list", "--not-reservable", "-f", "value", "-c", "disabled_reason")
    assert closed.output == "listed\n"
    warned = tenure("floatingip", "reallocate", "203.0.113.21", "--lease", "web", "--running")
    assert "1 move to other floating IPs. 1 of them run, and lose their connections there." in warned.errors
    assert tenure("floatingip", "reallocate", "203.0.113.21", "--running", "--yes").code == 0
    held = tenure("lease", "floatingips", "web", "-f", "value", "-c", "floating_ip_address")
    assert held.output == "203.0.113.22\n"
    assert tenure("floatingip", "enable", "203.0.113.21", "--yes").code == 0


def test_allocations_of_floating_ips(server: FakeServer, tenure: Run) -> None:
    server.add_floatingip("203.0.113.21", network_id=NETWORK)
    tenure("lease", "create", "web", "--floating-ips", "1", "--network", NETWORK)
    server.add_floatingip("203.0.113.22", network_id=NETWORK)
    (lease,) = server.leases.values()
    mine = json.loads(tenure("allocation", "list", "floatingip", "--lease-id", lease.id, "-f", "json").output)
    assert [allocation["reservations"][0]["lease_id"] for allocation in mine] == [lease.id]
    shown = tenure("allocation", "show", "floatingip", "203.0.113.22", "-f", "json")
    assert json.loads(shown.output)["reservations"] == []


def test_notify_option_adds_an_event(stocked: FakeServer, tenure: Run) -> None:
    made = tenure("lease", "create", "bio", "--hosts", "1", "--notify", "14:00", "eat")
    assert made.code == 0, made.errors
    assert sent(stocked)["events"] == [{"time": "2027-03-01T13:00:00Z", "message": "eat"}]
    assert "2027-03-01 14:00 CET notify_lease UNDONE: eat" in tenure("lease", "show", "bio").output
    assert tenure("lease", "set", "bio", "--notify", "15:00", "work").code == 0
    first, second = sent(stocked)["events"]
    assert (first["message"], "id" in first, second) == (
        "eat",
        True,
        {"time": "2027-03-01T14:00:00Z", "message": "work"},
    )
    assert tenure("lease", "set", "bio", "--drop-notify", first["id"]).code == 0
    assert [event["message"] for event in sent(stocked)["events"]] == ["work"]
    missing = tenure("lease", "set", "bio", "--drop-notify", first["id"])
    assert missing.code == 1
    assert "has no such event" in missing.errors


def test_a_lease_is_held_by_a_script_that_confirms_it(tenure: Run, stocked: FakeServer) -> None:
    made = tenure("lease", "create", "held", "--hosts", "1", "--hold", "2m", "-f", "json")
    assert (made.code, json.loads(made.output)["status"]) == (0, "CREATING")
    assert json.loads(made.output)["hold_until"]
    kept = tenure("lease", "confirm", "held", "-f", "json")
    assert "hold_until" not in json.loads(kept.output)
    assert tenure("lease", "create", "x", "--hosts", "1", "--hold", "2m", "--wait").code != 0


def test_a_server_is_reserved_or_room_for_one_that_is_named_later(stocked: FakeServer, tenure: Run) -> None:
    stocked.add_hypervisor("general-use")
    server_id = stocked.boot_server()
    outcome = tenure("lease", "create", "mine", "--server", server_id, "--at-end", "shelve", "--in-place")
    assert sent(stocked)["reservations"] == [
        {"resource_type": "virtual:server", "server_id": server_id, "at_end": "shelve", "in_place": True}
    ]
    assert outcome.code == 0, outcome.errors

    assert tenure(*("lease", "create", "later", "--server-flavor", "3")).code == 0
    assert sent(stocked)["reservations"] == [{"resource_type": "virtual:server", "flavor_id": "3"}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at-end", "stop"), "--at-end: say which server"),
        (("--in-place", "--server-flavor", "3"), "--in-place: only a server that is there"),
        (("--server", "1", "--server-flavor", "3"), "--server-flavor: a server that exists has a flavor"),
        (("--server", "1", "--before-end-action", "notify"), "--before-end-action"),
    ],
)
def test_invalid_server_options_are_explained(
    stocked: FakeServer, tenure: Run, options: tuple[str, ...], said: str
) -> None:
    outcome = tenure("lease", "create", "mine", *options)
    assert outcome.code != 0
    assert said in outcome.errors


def test_a_region_is_named_in_the_version_that_knows_it(two_regions: FakeServer, tenure: Run) -> None:
    where = ("--os-endpoint", two_regions.url, "lease")
    for name in ("c1", "c2"):
        two_regions.add_host(name, region="south")
    there = tenure(*where, "create", "there", "--hosts", "1", "--region", "south")
    assert there.code == 0, there.errors
    assert sent(two_regions)["reservations"][0]["region"] == "south"
    more = tenure(*where, "reservation", "add", "there", "--hosts", "1", "--region", "south")
    assert more.code == 0, more.errors
    assert sent(two_regions)["region"] == "south"


POOL = "storage-1@lvm#lvm"
IN_AN_HOUR = ("--volume-type", "fast", "--start", "+1h", "--for", "1h")


def test_volumes_are_booked_and_the_lent_capacity_changes(server: FakeServer, tenure: Run) -> None:
    server.add_volume_pool(POOL, capacity_gb=100)
    booked = tenure(
        *("lease", "create", "scratch", "--volumes", "2", "--size", "40", "--volume-type", "fast"),
        *("--for", "1h", "--wait", "-f", "json"),
    )
    assert booked.code == 0, booked.errors
    listed = tenure("lease", "reservation", "list", "scratch", "-f", "json", "-c", "parameters").output
    [volumes] = [reservation["parameters"] for reservation in json.loads(listed)]
    assert (volumes["amount"], volumes["size_gb"], len(volumes["volume_ids"])) == (2, 40, 2)
    again = (
        *("lease", "create", "more", "--volumes", "1", "--size", "40", "--volume-type", "fast"),
        *("--for", "1h"),
    )
    assert tenure(*again).code != 0
    too_little = tenure("volume", "pool", "set", POOL, "79")
    assert (too_little.code != 0, "no less can be lent" in too_little.errors) == (True, True)
    lent = tenure("volume", "pool", "set", POOL, "120", "-f", "value", "-c", "capacity_gb")
    assert (lent.output, sent(server)) == ("120\n", {"capacity_gb": 120})
    assert tenure(*again).code == 0
    assert tenure("volume", "pool", "delete", POOL).code != 0


def test_a_pool_is_lent_shown_closed_and_taken_back(two_regions: FakeServer, tenure: Run) -> None:
    two_regions.add_storage_pool(POOL, region="south")
    where = ("--os-endpoint", two_regions.url, "volume", "pool")
    made = tenure(*where, "create", POOL, "2t", "--region", "south", "-f", "json")
    assert made.code == 0, made.errors
    assert sent(two_regions) == {"name": POOL, "capacity_gb": 2048, "region": "south"}
    assert tenure(*where, "create", POOL, "1", "--region", "south").code != 0
    assert tenure(*where, "disable", POOL, "--reason", "old disks", "--yes").code == 0
    shown = json.loads(tenure(*where, "show", POOL, "-f", "json").output)
    assert (shown["reservable"], shown["disabled_reason"], shown["region"]) == (False, "old disks", "south")
    assert tenure(*where, "enable", POOL, "--yes").code == 0
    listed = tenure(*where, "list", "--reservable", "-f", "value", "-c", "name")
    assert listed.output == f"{POOL}\n"
    assert tenure(*where, "delete", POOL).code == 0
    assert two_regions.volume_pools == {}


def test_pools_of_a_lease_and_their_allocations_are_shown(server: FakeServer, tenure: Run) -> None:
    server.add_volume_pool(POOL, capacity_gb=100)
    made = tenure("lease", "create", "disks", "--volumes", "2", "--size", "10", *IN_AN_HOUR)
    assert made.code == 0, made.errors
    shown = tenure("lease", "volume", "pools", "disks", "-f", "value", "-c", "name", "-c", "status")
    assert (shown.code, shown.output) == (0, f"{POOL} planned\n"), shown.errors
    lease_id = next(iter(server.leases))
    listed = tenure("allocation", "list", "volumepool", "-f", "json")
    [row] = json.loads(listed.output)
    assert row["reservations"][0]["lease_id"] == lease_id
    one = json.loads(tenure("allocation", "show", "volumepool", POOL, "-f", "json").output)
    assert one == row
    filtered = tenure("allocation", "list", "volumepool", "--lease-id", "no-such", "-f", "value")
    assert filtered.output == ""


def test_volumes_of_a_pool_are_asked_to_move(server: FakeServer, tenure: Run) -> None:
    """A type that can be reserved leads to one pool, so they stay; the list says so."""
    server.add_volume_pool(POOL, capacity_gb=100)
    made = tenure("lease", "create", "disks", "--volumes", "1", "--size", "10", *IN_AN_HOUR)
    assert made.code == 0, made.errors
    for how in ("--dry-run", "--yes"):
        plan = tenure("volume", "pool", "reallocate", POOL, "--lease", "disks", how, "-f", "json")
        assert plan.code == 0, plan.errors
        [row] = json.loads(plan.output)
        assert (row["moves_to"], row["reason"]) == (None, "No other resource is free for it.")
    assert tenure("volume", "pool", "reallocate", POOL, "--lease", "other", "--yes").code == 1
