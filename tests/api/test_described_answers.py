"""Answers of every kind of resource, each in a region, held against the description that is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.api.rig import ADDRESS, HOSTS, NETWORK, Api, api_over
from tests.support.regions import SOUTH, open_regions

POOL = {"name": "sim-storage@fast#nvme", "capacity_gb": 100, "region": SOUTH}
FLOATING_IP = {"floating_network_id": NETWORK, "floating_ip_address": ADDRESS, "region": SOUTH}
RESERVATIONS = [
    {**HOSTS, "region": SOUTH},
    {"resource_type": "virtual:floatingip", "network_id": NETWORK, "amount": 1, "region": SOUTH},
    {"resource_type": "virtual:volume", "amount": 1, "size_gb": 10, "volume_type": "fast", "region": SOUTH},
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Two regions; in the south something of every kind is registered and booked."""
    folder: Path = tmp_path_factory.mktemp("regions")
    with open_regions(folder) as regions:
        admin = api_over(regions, folder).using("admin", version="1.2")
        for path, body in (("volume-pools", POOL), ("floatingips", FLOATING_IP)):
            made = admin.post(f"/v1/{path}", body)
            assert made.status_code == 201, made.text
        admin.using("demo").book(reservations=RESERVATIONS)
        yield admin


def assert_described(api: Api, method: str, path: str, answer: Any) -> None:
    """Fail unless the answer is what the served description says of this operation."""
    document = api.get("/openapi.json").json
    responses = document["paths"][path][method]["responses"]
    schema = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    assert [f"{list(error.instance_path)}: {error.message}" for error in validator.iter_errors(answer.json)] == []


@pytest.mark.parametrize(
    ("kind", "parameter", "version"),
    [
        *(("os-hosts", "host_id", version) for version in ("1.0", "1.1", "1.2")),
        *(("floatingips", "floatingip_id", version) for version in ("1.0", "1.1", "1.2")),
        ("volume-pools", "volume_pool_id", "1.2"),
    ],
)
def test_resources_of_a_region_are_shown_as_they_are_described(
    api: Api, kind: str, parameter: str, version: str
) -> None:
    asked = api.using(version=version)
    path = f"/v1/{kind}"
    listed = asked.get(path)
    assert_described(asked, "get", path, listed)
    ids = [found["id"] for documents in listed.json.values() for found in documents if "id" in found]
    [external_id] = [found for found in ids if found.startswith(f"{SOUTH}:")][:1]
    assert_described(asked, "get", f"{path}/{{{parameter}}}", asked.get(f"{path}/{external_id}"))
    if version == "1.2":
        for change in ("disable", "enable", "reallocate"):
            answer = asked.post(f"{path}/{external_id}/{change}", {"dry_run": True})
            assert answer.status_code == 200, answer.text
            assert_described(asked, "post", f"{path}/{{{parameter}}}/{change}", answer)
        for parts in (f"{path}/allocations", f"{path}/{external_id}/allocation"):
            answer = asked.get(parts)
            assert_described(asked, "get", parts.replace(external_id, f"{{{parameter}}}"), answer)


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_leases_of_a_region_are_shown_as_they_are_described(api: Api, version: str) -> None:
    asked = api.using(version=version)
    listed = asked.get("/v1/leases")
    assert_described(asked, "get", "/v1/leases", listed)
    lease_id = listed.json["leases"][0]["id"]
    below = ["", "/history", "/hosts", "/floatingips", *(["/volume_pools"] if version == "1.2" else [])]
    for part in below:
        answer = asked.get(f"/v1/leases/{lease_id}{part}")
        assert answer.status_code == 200, answer.text
        assert_described(asked, "get", f"/v1/leases/{{lease_id}}{part}", answer)
