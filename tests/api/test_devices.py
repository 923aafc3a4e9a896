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
        for host, cards in (("2", ("gpu-1", "gpu-2")), ("general", ("gpu-3", "gpu-4", "gpu-5"))):
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
