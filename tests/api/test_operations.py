"""The list of what the API may ask of the manager is what it asks, and what the manager can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import LATEST
from tenure.services.leases.service import LeaseService
from tenure.services.limits.service import LimitService
from tenure.services.manager import OPERATIONS, Manager
from tenure.services.resources.service import ResourceService
from tests.api.rig import ADDRESS, HOSTS, NETWORK, Api, open_api
from tests.support.world import ADMIN

SERVICES = {"leases": LeaseService, "resources": ResourceService, "limits": LimitService}
#: What the parts of a URL stand for, beside the lease and its reservation.
PARTS = {"host_id": "1", "floatingip_id": "none", "volume_pool_id": "none", "property_name": "rack"}
#: The bodies of requests that need one, by method and path.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("PUT", "/v1/leases/{lease_id}"): {"name": "renamed"},
    ("POST", "/v1/leases/{lease_id}/confirm"): {},
    ("POST", "/v1/leases/{lease_id}/reservations"): HOSTS,
    ("POST", "/v1/os-hosts"): {"name": "sim-host-001"},
    ("PUT", "/v1/os-hosts/{host_id}"): {"properties": {"rack": "r1"}},
    ("POST", "/v1/os-hosts/{host_id}/reallocate"): {},
    ("PATCH", "/v1/os-hosts/properties/{property_name}"): {"private": True},
    ("POST", "/v1/floatingips"): {"floating_network_id": NETWORK, "floating_ip_address": ADDRESS},
    ("POST", "/v1/floatingips/{floatingip_id}/reallocate"): {},
    ("POST", "/v1/volume-pools"): {"name": "pool", "capacity_gb": 1},
    ("PUT", "/v1/volume-pools/{volume_pool_id}"): {"capacity_gb": 1},
    ("POST", "/v1/volume-pools/{volume_pool_id}/reallocate"): {},
}


class Noted:
    """A service of the manager; notes which of its operations are asked for."""

    def __init__(self, service: object, name: str, asked: set[str]) -> None:
        self._service = service
        self._name = name
        self._asked = asked

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        self._asked.add(f"{self._name}.{verb}")
        operation: Callable[..., Any] = getattr(self._service, verb)
        return operation


@contextmanager
def open_noted(folder: Path) -> Iterator[tuple[Api, set[str]]]:
    """The API as an administrator calls it, and the operations that it has asked for."""
    asked: set[str] = set()

    @contextmanager
    def noted(manager: Manager) -> Iterator[Manager]:
        def health() -> Any:
            asked.add("health")
            return manager.health()

        yield Manager(
            leases=cast(LeaseService, Noted(manager.leases, "leases", asked)),
            resources=cast(ResourceService, Noted(manager.resources, "resources", asked)),
            limits=cast(LimitService, Noted(manager.limits, "limits", asked)),
            health=health,
        )

    with open_api(folder, reach=noted) as api:
        yield api.using("admin", LATEST.value), asked


def test_all_endpoints_together_ask_for_exactly_what_is_on_the_list(tmp_path: Path):
    with open_noted(tmp_path) as (api, asked):
        kinds = api.world.service.parts.types
        paths = describe(operations_of(tuple(kinds)), LATEST)["paths"]
        endpoints = [(method.upper(), path) for path, methods in paths.items() for method in methods]
        for method, path in endpoints:
            lease = api.world.book(1, start=1)
            url = path.format(**PARTS, lease_id=lease.id, reservation_id=lease.reservations[0].id)
            body = api.lease_body(start=5) if (method, path) == ("POST", "/v1/leases") else BODIES.get((method, path))
            answer = api.call(method, url, body)
            assert answer.status_code not in {400, 405, 500}, f"{method} {path}: {answer.text}"
            api.world.leases.delete(ADMIN, lease.id)
    assert asked == OPERATIONS


def test_the_manager_can_do_nothing_for_the_api_but_what_is_on_the_list(api: Api):
    """A handler that asks for anything else fails, as it would between processes."""
    manager = api.world.service.manager
    assert {f"{service}.{name}" for service in SERVICES for name in vars(getattr(manager, service))} == OPERATIONS - {
        "health"
    }
