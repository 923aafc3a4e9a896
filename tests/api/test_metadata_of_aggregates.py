"""Hosts that are chosen by the metadata of the operator's aggregates, as ``AggregateInstanceExtraSpecsFilter`` does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.api.rig import HOSTS, Api, open_api

SCOPE = "aggregate_instance_extra_specs"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """Four hosts. The first two have fast disks, the second and the third belong to two tiers, the fourth to none."""
    with open_api(tmp_path) as opened:
        instances = opened.world.cloud.world.instances
        instances.add_aggregate("fast-disks", "1", "2", ssd="true")
        instances.add_aggregate("tiers", "2", "3", tier="gold, silver")
        instances.add_aggregate("more-tiers", "2", tier="bronze", ssd="nvme")
        opened.world.service.refresh.run()
        yield opened.using(version="1.4")


def names(api: Api, *numbers: str) -> list[str]:
    return sorted(api.world.cloud.world.host(number).name for number in numbers)


def flavor(api: Api, **specs: str) -> dict[str, Any]:
    """Return a request for instances of a new flavor with these extra specs, each on a host of its own."""
    scoped = {f"{SCOPE}:{key}": value for key, value in specs.items()}
    api.world.cloud.world.instances.add_flavor("choosy", vcpus=1, ram=512, disk=1, extra_specs=scoped)
    return {"resource_type": "flavor:instance", "flavor_id": "choosy", "affinity": False}


def matching(api: Api, reservation: dict[str, Any]) -> int:
    """Return how many hosts match a reservation."""
    asked = {"min": 99, "max": 99} if "min" in reservation else {"amount": 99}
    refused = api.post("/v1/leases", api.lease_body(start=50, reservations=[{**reservation, **asked}]))
    assert refused.status_code == 409, refused.text
    return int(refused.json["details"]["stages"][1]["count"])


@pytest.mark.parametrize(
    ("specs", "hosts"),
    [
        ({"ssd": "true"}, ("1", "2")),
        ({"ssd": "nvme"}, ("2",)),
        ({"ssd": "<or> true <or> nvme"}, ("1", "2")),
        ({"tier": "silver"}, ("2", "3")),
        ({"tier": "bronze"}, ("2",)),
        ({"tier": "gold", "ssd": "true"}, ("2",)),
        ({"tier": "s!= gold"}, ("2", "3")),
        ({"tier": "gold, silver"}, ()),
        ({"rack": "1"}, ()),
    ],
)
def test_flavors_and_requests_choose_hosts_by_the_metadata_of_their_aggregates(
    api: Api, specs: dict[str, str], hosts: tuple[str, ...]
) -> None:
    scoped = {f"{SCOPE}:{key}": value for key, value in specs.items()}
    asked = flavor(api, **specs)
    assert matching(api, {**HOSTS, "extra_specs": scoped}) == len(hosts)
    assert matching(api, asked) == len(hosts)
    if not hosts:
        return
    lease = api.book(start=1, hours=1, reservations=[{**asked, "amount": len(hosts)}])
    api.world.pass_time(timedelta(hours=1.1))
    [reservation] = api.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"]
    instances = api.world.cloud.world.instances
    for _ in hosts:
        instances.boot("demo-project", reservation["id"], group=reservation["server_group_id"])
    booted = sorted(api.world.cloud.world.host(server.host).name for server in api.world.cloud.world.servers())
    assert booted == names(api, *hosts)


def test_changed_metadata_choose_other_hosts_once_hosts_are_read_again(api: Api) -> None:
    asked = flavor(api, ssd="true")
    instances = api.world.cloud.world.instances
    instances.add_to_aggregate("fast-disks", "4")
    instances.change_metadata("tiers", ssd="true")
    assert matching(api, asked) == 2
    api.world.service.refresh.run()
    assert matching(api, asked) == 4
    instances.take_from_aggregate("fast-disks", "1")
    instances.delete_aggregate("tiers")
    api.world.service.refresh.run()
    assert matching(api, asked) == 2


def test_a_host_keeps_the_metadata_of_its_aggregates_while_it_is_reserved(api: Api) -> None:
    """A lease takes it out of an aggregate with a zone; the pool and the aggregate of the lease say nothing of it."""
    instances, asked = api.world.cloud.world.instances, flavor(api, ssd="true")
    zoned = {"ssd": "true", "availability_zone": "az-9"}
    api.world.cloud.world.change_host("4", facts={"availability_zone": "az-9"})
    instances.change_metadata("az-9", **zoned)
    api.world.service.refresh.run()
    assert matching(api, asked) == 3
    api.book(start=0, hours=9, reservations=[{**HOSTS, "min": 4, "max": 4}])
    api.world.pass_time(timedelta(minutes=5))
    api.world.service.refresh.run()
    assert matching(api, asked) == 3


def test_the_metadata_of_the_service_s_own_aggregates_are_no_condition(api: Api) -> None:
    refused = api.post(
        "/v1/leases", api.lease_body(reservations=[{**HOSTS, "extra_specs": {f"{SCOPE}:filter_tenant_id": "x"}}])
    )
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].extra_specs")
