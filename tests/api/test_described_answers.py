"""Answers of every operation at every version, with everything that can be reserved, held against the description."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tenure.api.versions import LATEST, Version
from tests.api.rig import HOSTS, Api, api_over
from tests.api.test_reserved_servers import TINY
from tests.support.regions import SOUTH, Regions, open_regions
from tests.support.samples import NEEDED_QUERIES, SEARCHES, reservations_at, sampled_inventories

VERSIONS = [version.value for version in Version]
#: The oldest and the newest; the others in a long run.
USUAL = [
    pytest.param(version, marks=[] if version in {VERSIONS[0], VERSIONS[-1]} else pytest.mark.long)
    for version in VERSIONS
]
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("PUT", "/v1/leases/{lease_id}"): {"name": "renamed"},
    ("POST", "/v1/leases/{lease_id}/reservations"): HOSTS,
    **{("POST", path): {**body} for path, body in SEARCHES.items()},
    **{("PATCH", f"{wire.path}/properties/{{property_name}}"): {"private": False} for wire, _ in sampled_inventories()},
}
#: Queries with which a list has other fields than without.
QUERIES = {
    "/v1/leases": "limit=1",
    "/v1/leases/{lease_id}/history": "limit=1",
    **{f"{wire.path}{rest}": "limit=1" for wire, _ in sampled_inventories() for rest in ("", "/allocations")},
    **{f"{wire.path}/properties": "detail=True" for wire, _ in sampled_inventories()},
}
#: The properties that resources have.
PROPERTIES = [samples.property_name for _, samples in sampled_inventories() if samples.property_name]


class Caller:
    """Calls operations as an administrator, each with the lease or the resource for which it succeeds."""

    def __init__(self, api: Api, world: Regions, version: str) -> None:
        self.api = api.using("admin", version)
        self.document = strict(self.api.get("/openapi.json").json)
        self.operations = [
            (method.upper(), path) for path, methods in self.document["paths"].items() for method in methods
        ]
        self._world = world
        self._version = version
        #: The ids of what was registered, by the URL of its inventory.
        self._registered: dict[str, str] = {}
        self._path_parameters = {"property_name": PROPERTIES[0]}
        latest = api.using("admin", LATEST.value)
        for wire, _ in sampled_inventories():
            [resource, *_] = latest.get(f"{wire.path}?region={SOUTH}").json[wire.many]
            self._path_parameters[wire.path_parameter] = resource["id"]

    def call(self, method: str, path: str, query: str = "") -> Any:
        path_parameters = dict(self._path_parameters)
        if "{lease_id}" in path:
            lease = book(self.api, hold_for=600 if path.endswith("/confirm") else None)
            path_parameters |= {"lease_id": lease["id"], "reservation_id": lease["reservations"][0]["id"]}
        elif "{reservation_id}" in path:
            path_parameters["reservation_id"] = book_server(self.api)["reservations"][0]["id"]
        inventory = path.rpartition("/")[0]
        if method == "DELETE" and inventory in self._registered:
            [parameter] = [parameter for parameter in path_parameters if f"{{{parameter}}}" in path]
            path_parameters[parameter] = self._registered[inventory]
        if method == "GET" and not query and path in NEEDED_QUERIES:
            query = f"?{NEEDED_QUERIES[path]}"
        answer = self.api.call(method, path.format(**path_parameters) + query, self._body(method, path))
        if method == "POST" and answer.status_code == 201 and not path.startswith("/v1/leases"):
            [document] = answer.json.values()
            self._registered[path] = document["id"]
        return answer

    def parameters(self, method: str, path: str) -> set[str]:
        """Return the names of the parameters of an operation."""
        return {parameter["name"] for parameter in self.document["paths"][path][method.lower()]["parameters"]}

    def _body(self, method: str, path: str) -> dict[str, Any] | None:
        version = Version(self._version)
        for wire, samples in sampled_inventories():
            if (method, path) == ("POST", wire.path):
                return dict(samples.registration(version).good)
            if (method, path) == ("PUT", wire.resource_path) and samples.change is not None:
                return dict(samples.change(version).good)
        if (method, path) == ("POST", "/v1/leases"):
            return self.api.lease_body(start=next(HOURS), reservations=reservations_at(version))
        if method == "POST" and path.endswith(("/disable", "/enable", "/reallocate")):
            return {"dry_run": True}
        return BODIES.get((method, path))

    def assert_described(self, method: str, path: str, answer: Any) -> None:
        """Fail unless the answer is what the served description says of this operation."""
        response = self.document["paths"][path][method.lower()]["responses"][str(answer.status_code)]
        if "content" not in response:
            assert answer.text == ""
            return
        schema = response["content"]["application/json"]["schema"]
        validator = jsonschema_rs.validator_for({**schema, "components": self.document["components"]})
        errors = [f"{list(error.instance_path)}: {error.message}" for error in validator.iter_errors(answer.json)]
        assert errors == [], f"{method} {path}"


#: When leases begin, so many hours from now; no two at the same time.
HOURS = count(10)


def strict(document: Any) -> Any:
    """Forbid all fields that the description does not name."""
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


def book(api: Api, *, hold_for: int | None = None, start: float | None = None) -> dict[str, Any]:
    """Book something of every type in the south, where there is an address and a pool."""
    reservations = [{**reservation, "region": SOUTH} for reservation in reservations_at()]
    fields = {"hold_for": hold_for} if hold_for else {}
    begins = next(HOURS) if start is None else start
    return api.using("demo", LATEST.value).book(start=begins, reservations=reservations, **fields)


def book_server(api: Api) -> dict[str, Any]:
    """Book a server that is made at the start."""
    made = {"resource_type": "virtual:server", "flavor_id": TINY, "server_name": "web", "region": SOUTH}
    boot = {"request": {"server": {"name": "web", "flavorRef": TINY}}}
    return api.using("demo", LATEST.value).book(start=next(HOURS), reservations=[made], boot=boot)


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Regions]]:
    """Two regions; in the south something of every type is registered, and a lease of all of it has started."""
    folder: Path = tmp_path_factory.mktemp("regions")
    with open_regions(folder) as world:
        admin = api_over(world, folder).using("admin", LATEST.value)
        for wire, samples in sampled_inventories():
            samples.prepare(world.cloud.world)
            admin.register_samples(wire, samples)
            [resource, *_] = admin.register_samples(wire, samples, SOUTH)
            if samples.property_name:
                path = wire.resource_path.format(**{wire.path_parameter: resource["id"]})
                changed = admin.put(path, {"properties": {samples.property_name: "r1"}})
                assert changed.status_code == 200, changed.text
        book(admin, start=0)
        book_server(admin)
        world.pass_time(timedelta(minutes=5))
        yield admin, world


@pytest.mark.parametrize("version", USUAL)
def test_every_operation_answers_as_it_is_described(regions: tuple[Api, Regions], version: str) -> None:
    caller = Caller(*regions, version)
    for method, path in caller.operations:
        answer = caller.call(method, path)
        assert answer.status_code in {200, 201, 204, 300}, f"{method} {path}: {answer.text}"
        caller.assert_described(method, path, answer)
        if method == "GET" and path not in NEEDED_QUERIES:
            assert all(answer.json.values()), f"{path} shows nothing: {answer.text}"
        if method == "GET" and path in QUERIES:
            caller.assert_described(method, path, caller.call(method, path, f"?{QUERIES[path]}"))


@pytest.mark.parametrize("version", VERSIONS)
def test_dry_runs_answer_as_they_are_described(regions: tuple[Api, Regions], version: str) -> None:
    caller = Caller(*regions, version)
    dry = [operation for operation in caller.operations if "dry_run" in caller.parameters(*operation)]
    assert bool(dry) == (version >= "1.3")
    for method, path in dry:
        answer = caller.call(method, path, "?dry_run=true")
        assert answer.status_code == 200, f"{method} {path}: {answer.text}"
        assert answer.json["dry_run"] is True
        caller.assert_described(method, path, answer)


@pytest.mark.parametrize("group_by", ["none", "kind", "zone", "resource", "project"])
@pytest.mark.parametrize("resource_type", ["physical:host", "virtual:instance", "virtual:floatingip", "virtual:volume"])
def test_availability_is_answered_as_it_is_described(
    regions: tuple[Api, Regions], resource_type: str, group_by: str
) -> None:
    caller = Caller(*regions, "1.3")
    answer = caller.call("GET", "/v1/availability", f"?resource_type={resource_type}&group_by={group_by}")
    assert answer.json["groups"]
    caller.assert_described("GET", "/v1/availability", answer)


@pytest.mark.parametrize("version", VERSIONS)
def test_reservations_of_every_type_are_shown_as_they_are_described(regions: tuple[Api, Regions], version: str) -> None:
    caller = Caller(*regions, version)
    answer = caller.api.get("/v1/leases")
    caller.assert_described("GET", "/v1/leases", answer)
    shown = [lease for lease in answer.json["leases"] if lease["status"] == "ACTIVE"]
    assert {reservation["resource_type"] for lease in shown for reservation in lease["reservations"]} == {
        resource_type.name for resource_type in caller.api.world.service.components.types
    }
