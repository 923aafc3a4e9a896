"""The listed operations equal the calls of the API, and the operations of the manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import LATEST
from tenure.services.manager import OPERATIONS, SERVICES, Manager
from tests.api.rig import HOSTS, Api, open_api
from tests.support.samples import NEEDED_QUERIES, SEARCHES, sampled_inventories
from tests.support.world import ADMIN

LEASE = "/v1/leases/{lease_id}"
#: What the path parameters stand for, beside the lease and its reservation.
PATH_PARAMETERS = {"property_name": "rack", **{wire.path_parameter: "1" for wire, _ in sampled_inventories()}}


def bodies() -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """Yield the bodies of requests that need one, with method and path."""
    yield ("PUT", LEASE), {"name": "renamed"}
    yield from ((("POST", path), body) for path, body in SEARCHES.items())
    yield ("POST", f"{LEASE}/confirm"), {}
    yield ("POST", f"{LEASE}/reservations"), HOSTS
    for wire, samples in sampled_inventories():
        yield ("POST", wire.path), samples.registration(LATEST).good
        yield ("POST", f"{wire.resource_path}/reallocate"), {}
        yield ("PATCH", f"{wire.path}/properties/{{property_name}}"), {"private": True}
        if samples.change is not None:
            yield ("PUT", wire.resource_path), samples.change(LATEST).good


BODIES = dict(bodies())


class Noted:
    """A service of the manager; notes which of its operations are called."""

    def __init__(self, service: object, name: str, asked: set[str]) -> None:
        self._service = service
        self._name = name
        self._asked = asked

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        operation: Callable[..., Any] = getattr(self._service, verb)

        def noted(*positional: Any, **named: Any) -> Any:
            self._asked.add(f"{self._name}.{verb}")
            return operation(*positional, **named)

        return noted


@contextmanager
def open_noted(folder: Path) -> Iterator[tuple[Api, set[str]]]:
    """The API as an administrator calls it, and the operations that it has asked for."""
    asked: set[str] = set()

    @contextmanager
    def noted(manager: Manager) -> Iterator[Manager]:
        def health() -> Any:
            asked.add("health")
            return manager.health()

        yield Manager.of(lambda name: Noted(getattr(manager, name), name, asked), health)

    with open_api(folder, reach=noted) as api:
        yield api.using("admin", LATEST.value), asked


def refused_requests(api: Api) -> Iterator[tuple[str, str, Any]]:
    """Yield requests for which there is no room: a lease, a change, an added reservation, a confirmation."""
    nine = {"min": 9, "max": 9}
    yield "POST", "/v1/leases", api.lease_body(reservations=[{**HOSTS, **nine}])
    lease, held = api.book(), api.book(hold_for=600)
    yield "PUT", f"/v1/leases/{lease['id']}", {"reservations": [{"id": lease["reservations"][0]["id"], **nine}]}
    yield "POST", f"/v1/leases/{lease['id']}/reservations", {**HOSTS, **nine}
    yield (
        "POST",
        f"/v1/leases/{held['id']}/confirm",
        {"reservations": [{"id": held["reservations"][0]["id"], **nine}]},
    )


@pytest.mark.slow
def test_all_endpoints_together_call_exactly_the_listed_operations(tmp_path: Path):
    with open_noted(tmp_path) as (api, asked):
        types = api.world.service.components.types
        paths = describe(operations_of(tuple(types)), LATEST)["paths"]
        endpoints = [
            (method.upper(), path, query)
            for path, methods in paths.items()
            for method, described in methods.items()
            for query in ("", "?dry_run=true")
            if not query or any(parameter["name"] == "dry_run" for parameter in described["parameters"])
        ]
        for method, path, query in endpoints:
            lease = api.world.book(1, start=1)
            url = path.format(**PATH_PARAMETERS, lease_id=lease.id, reservation_id=lease.reservations[0].id) + query
            if method == "GET" and path in NEEDED_QUERIES:
                url += f"?{NEEDED_QUERIES[path]}"
            body = api.lease_body(start=5) if (method, path) == ("POST", "/v1/leases") else BODIES.get((method, path))
            answer = api.call(method, url, body)
            assert answer.status_code not in {400, 405, 500}, f"{method} {path}: {answer.text}"
            api.world.leases.delete(ADMIN, lease.id)
        for method, path, body in refused_requests(api):  # which ask for alternatives
            assert api.call(method, path, body).status_code == 409, path
    assert asked == OPERATIONS


def test_the_manager_offers_the_api_only_the_listed_operations(api: Api):
    """A handler that asks for anything else fails, as it would between processes."""
    manager = api.world.service.manager
    assert {f"{service}.{name}" for service in SERVICES for name in vars(getattr(manager, service))} == OPERATIONS - {
        "health"
    }
