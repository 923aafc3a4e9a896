"""Devices in leases of servers and instances: counted as those of flavors, and refused with what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.drivers.openstack.pci_aliases import read_aliases
from tests.api.rig import Api, open_api

ALIASES = read_aliases(
    [
        '{"name": "gpu", "resource_class": "gpu", "traits": "fast"}',
        '{"name": "odd", "resource_class": "gpu", "numa_policy": "required"}',
        '{"name": "none", "resource_class": "none"}',
        '{"name": "slow", "resource_class": "gpu", "traits": "slow"}',
    ]
)
PROJECT = "demo-project"
ALIAS = "pci_passthrough:alias"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The API with three hosts for reservations, one of them with two GPUs, and another in general use with more."""
    with open_api(tmp_path, hosts=3, pci_aliases=ALIASES) as opened:
        cloud = opened.world.cloud.world
        cloud.add_host("general")
        for host, cards in (("2", ("gpu-1", "gpu-2")), ("general", ("gpu-3", "gpu-4", "gpu-5", "gpu-6"))):
            for card in cards:
                cloud.add_provider(host, card, {"CUSTOM_GPU": {"total": 1}}, ["CUSTOM_FAST"])
        opened.world.service.refresh.run()
        for name, alias in (("one", "gpu:1"), ("two", "gpu:2"), ("three", "gpu:3"), ("odd", "odd:1"), ("plain", "")):
            cloud.instances.add_flavor(name, vcpus=1, ram=512, disk=1, extra_specs={ALIAS: alias} if alias else {})
        yield opened.using(version="1.4")


def server(**fields: Any) -> dict[str, Any]:
    return {"resource_type": "virtual:server", **fields}


def instances(flavor: str, amount: int = 1, **fields: Any) -> dict[str, Any]:
    return {"resource_type": "flavor:instance", "flavor_id": flavor, "amount": amount, **fields}


def requested(api: Api, *reservations: dict[str, Any], start: float = 1) -> Any:
    return api.post("/v1/leases", api.lease_body(start=start, reservations=list(reservations)))


def host_of(api: Api, server_id: str) -> str:
    return next(known.host for known in api.world.cloud.world.servers() if known.id == server_id)


def boot(api: Api, flavor: str) -> str:
    return api.world.cloud.world.instances.boot(PROJECT, flavor, host="general")


def test_servers_with_devices_are_counted_and_start_where_the_devices_are(api: Api) -> None:
    first, second = boot(api, "one"), boot(api, "one")
    for server_id in (first, second):
        assert requested(api, server(server_id=server_id, at_end="stop")).status_code == 201
    refused = requested(api, instances("one"))
    assert refused.status_code == 409, refused.text
    api.world.pass_time(timedelta(hours=1.5))
    gpus = api.world.cloud.world.host("2")
    assert {host_of(api, first), host_of(api, second)} == {gpus.id}
    api.world.pass_time(timedelta(hours=1))
    assert requested(api, instances("two")).status_code == 201


def test_a_server_whose_devices_are_not_counted_is_refused_with_the_reason(api: Api) -> None:
    server_id = api.world.cloud.world.instances.boot(PROJECT, "plain", host="general")
    flavor = api.world.cloud.openstack.servers[server_id].flavor
    assert flavor is not None
    flavor.extra_specs = {ALIAS: "odd:1"}
    refused = requested(api, server(server_id=server_id))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].server_id")
    assert refused.json["error_message"].endswith(
        "the alias odd is not counted, as Placement does not know its numa_policy."
    )
    assert requested(api, server(server_id=server_id, in_place=True)).status_code == 201


def test_a_server_with_more_devices_than_were_booked_is_refused(api: Api) -> None:
    lease = api.book(start=1, hours=2, reservations=[server(flavor_id="one")])
    [reservation] = lease["reservations"]
    larger, fitting = boot(api, "two"), boot(api, "one")
    path = f"/v1/leases/{lease['id']}"
    refused = api.put(path, {"reservations": [{"id": reservation["id"], "server_id": larger}]})
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].server_id")
    assert "CUSTOM_GPU" in refused.json["error_message"]
    assert api.put(path, {"reservations": [{"id": reservation["id"], "server_id": fitting}]}).status_code == 200


def test_a_server_that_was_resized_to_more_devices_makes_its_lease_say_so(api: Api) -> None:
    server_id = boot(api, "one")
    lease = requested(api, server(server_id=server_id)).json["lease"]
    api.world.pass_time(timedelta(hours=1.5))
    api.world.cloud.world.instances.resize(server_id, "two")
    api.world.service.reconciler.run()
    shown = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert "2 CUSTOM_GPU instead of 1" in shown["status_reason"], shown


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ({ALIAS: "gpu:3"}, "No resource has 3 CUSTOM_GPU: the most is 2."),
        ({ALIAS: "none:1"}, "No resource has 1 CUSTOM_NONE: the most is 0."),
        ({"resources1:CUSTOM_GPU": "2"}, "No resource gives 2 CUSTOM_GPU at once: the most is 1."),
        ({ALIAS: "slow:1"}, "No resource has the trait CUSTOM_SLOW."),
    ],
)
def test_a_flavor_whose_devices_no_host_has_is_refused_with_what_is_missing(
    api: Api, specs: dict[str, str], reason: str
) -> None:
    api.world.cloud.world.instances.add_flavor("large", vcpus=1, ram=512, disk=1, extra_specs=specs)
    for asked in (instances("large"), server(flavor_id="large")):
        refused = requested(api, asked)
        assert refused.status_code == 409, refused.text
        assert refused.json["error_message"].endswith(reason)
    waiting = {**api.lease_body(reservations=[instances("large")]), "if_full": "wait"}
    assert api.post("/v1/leases", waiting).json["error_message"].endswith(reason)
    found = api.post("/v1/offers", {"duration": 3600, "reservations": [instances("large")]}).json
    assert (found["offers"], reason in found["reason"]) == ([], True)


def test_what_all_instances_on_one_host_take_is_compared_with_the_largest_host(api: Api) -> None:
    refused = requested(api, instances("one", 3, affinity=True))
    assert refused.json["error_message"].endswith("No resource has 3 CUSTOM_GPU: the most is 2.")
    refused = requested(api, instances("one", 3))
    assert "No resource has" not in refused.json["error_message"]


def sized(amount: int = 1, **fields: Any) -> dict[str, Any]:
    size = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    return {"resource_type": "virtual:instance", "amount": amount, **size, **fields}


FAST = {"trait:CUSTOM_FAST": "required"}


def test_instances_of_a_size_take_further_classes_and_start_where_these_are(api: Api) -> None:
    lease = api.book(reservations=[sized(2, resources={"CUSTOM_GPU": 1}, extra_specs=FAST)])
    [shown] = lease["reservations"]
    assert shown["resources"] == {"CUSTOM_GPU": 1}
    for asked in (sized(resources={"CUSTOM_GPU": 1}), instances("one"), server(flavor_id="one")):
        assert requested(api, asked).status_code == 409
    assert requested(api, sized(2)).status_code == 201
    api.world.pass_time(timedelta(hours=1.1))
    made = api.world.cloud.world.instances.flavors()[shown["id"]]
    assert made.extra_specs["resources:CUSTOM_GPU"] == "1"
    assert made.extra_specs["trait:CUSTOM_FAST"] == "required"
    for name in ("resources", "extra_specs"):
        dropped = api.put(f"/v1/leases/{lease['id']}", {"reservations": [{"id": shown["id"], name: {}}]})
        assert (dropped.status_code, dropped.json["field"]) == (409, f"reservations[0].{name}")
    gpus = api.world.cloud.world.host("2")
    for _ in range(2):
        assert host_of(api, api.world.cloud.world.instances.boot(PROJECT, shown["id"])) == gpus.id


def test_room_for_a_server_of_a_size_has_further_classes_and_traits(api: Api) -> None:
    size = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    lease = api.book(start=1, hours=2, reservations=[server(**size, resources={"CUSTOM_GPU": 1}, extra_specs=FAST)])
    [shown] = lease["reservations"]
    assert (shown["resources"], shown["extra_specs"]) == ({"CUSTOM_GPU": 1}, FAST)
    assert requested(api, instances("two")).status_code == 409
    path = f"/v1/leases/{lease['id']}"
    alike = {"resources:CUSTOM_GPU": "1", **FAST}
    api.world.cloud.world.instances.add_flavor("alike", vcpus=1, ram=512, disk=1, extra_specs=alike)
    larger, stricter, fitting = boot(api, "two"), boot(api, "one"), boot(api, "alike")
    for server_id, more in ((larger, "CUSTOM_GPU"), (stricter, "traits of one provider")):
        refused = api.put(path, {"reservations": [{"id": shown["id"], "server_id": server_id}]})
        assert (refused.status_code, more in refused.json["error_message"]) == (400, True), refused.text
    other = api.put(path, {"reservations": [{"id": shown["id"], "resources": {"CUSTOM_GPU": 2}}]})
    assert (other.status_code, other.json["field"]) == (400, "reservations[0].resources")
    named = api.put(path, {"reservations": [{"id": shown["id"], "server_id": fitting}]})
    assert named.status_code == 200, named.text
    api.world.pass_time(timedelta(hours=1.5))
    assert host_of(api, fitting) == api.world.cloud.world.host("2").id


def hosts(**fields: Any) -> dict[str, Any]:
    return {"resource_type": "physical:host", "min": 1, "max": 3, **fields}


def test_whole_hosts_are_chosen_by_how_much_of_a_class_they_have(api: Api) -> None:
    lease = api.book(reservations=[hosts(resources={"CUSTOM_GPU": 2, "VCPU": 1}, extra_specs=FAST)])
    found = api.get(f"/v1/leases/{lease['id']}/hosts").json["hosts"]
    assert [host["hypervisor_hostname"] for host in found] == [api.world.cloud.world.host("2").name]
    assert lease["reservations"][0]["resources"] == {"CUSTOM_GPU": 2, "VCPU": 1}
    refused = requested(api, hosts(resources={"CUSTOM_GPU": 3}))
    assert refused.status_code == 409
    assert refused.json["error_message"].endswith("No resource has 3 CUSTOM_GPU: the most is 2.")
    change = {"reservations": [{"id": lease["reservations"][0]["id"], "resources": {}, "extra_specs": {}}]}
    changed = api.put(f"/v1/leases/{lease['id']}", change)
    assert changed.status_code == 200, changed.text
    assert len(api.get(f"/v1/leases/{lease['id']}/hosts").json["hosts"]) == 3


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (sized(resources={"VCPU": 1}), "resources"),
        (sized(resources={"PCPU": 1}), "resources"),
        (sized(resources={"SRIOV_NET_VF": 1}), "resources"),
        (sized(resources={"CUSTOM_RESERVATION_A": 1}), "resources"),
        (sized(resources={"VGPU": 0}), "resources.VGPU"),
        (sized(resources={"VGPU": "1"}), "resources.VGPU"),
        (sized(resources=["VGPU"]), "resources"),
        (sized(resources={f"CUSTOM_{number}": 1 for number in range(17)}), "resources"),
        (server(flavor_id="one", resources={"CUSTOM_GPU": 1}), "resources"),
        (hosts(resources={"CUSTOM_GPU": None}), "resources.CUSTOM_GPU"),
        (instances("one", resources={"CUSTOM_GPU": 1}), "resources"),
    ],
)
def test_classes_that_cannot_be_named_are_refused(api: Api, asked: dict[str, Any], field: str) -> None:
    refused = requested(api, asked)
    assert (refused.status_code, refused.json["field"]) == (400, f"reservations[0].{field}"), refused.text


def test_further_classes_are_unknown_to_older_versions(api: Api) -> None:
    lease = api.book(reservations=[hosts(resources={"CUSTOM_GPU": 1})])
    older = api.using(version="1.3")
    assert "resources" not in older.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]
    for asked in (hosts(resources={"CUSTOM_GPU": 1}), sized(resources={"CUSTOM_GPU": 1})):
        refused = requested(older, asked)
        assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].resources")
