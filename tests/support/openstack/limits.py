"""The small OpenStack's unified limits: the limits of projects in Keystone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final, Protocol

from tenure.drivers.simulated.openstack.service import Answer, ApiRequest, Caller, Refused, Route

#: What limits are registered for.
SERVICE: Final = "reservation-service"
REGION: Final = "r1"
ENDPOINT: Final = "endpoint-of-the-reservation-service"


class HasUrl(Protocol):
    url: str


class FakeLimits:
    """The part of Keystone that oslo.limit asks."""

    def __init__(self, cloud: HasUrl) -> None:
        self._cloud = cloud
        #: The default of each limit that is registered.
        self.registered: dict[str, int] = {}
        #: Limits of projects, by the project and the name.
        self.limits: dict[tuple[str, str], int] = {}
        #: How limits of projects in trees come together.
        self.limit_model = "flat"

    def discovery(self, path: str) -> Answer:
        """The public list of versions of Keystone."""
        version = {
            "id": "v3.14",
            "status": "stable",
            "updated": "2020-04-07T00:00:00Z",
            "links": [{"rel": "self", "href": f"{self._cloud.url}/identity/v3/"}],
            "media-types": [],
        }
        return (200, {"version": version}) if path.startswith("/v3") else (300, {"versions": {"values": [version]}})

    def _list_services(self, request: ApiRequest, caller: Caller) -> Answer:
        _only_services(caller)
        services = [{"id": SERVICE, "type": "reservation", "name": "tenure", "enabled": True}]
        return 200, {
            "services": [service for service in services if request.params.get("type") in (None, service["type"])]
        }

    def _list_endpoints(self, request: ApiRequest, caller: Caller) -> Answer:
        _only_services(caller)
        endpoint = {"id": ENDPOINT, "service_id": SERVICE, "region_id": REGION, "interface": "public", "url": "x"}
        return 200, {"endpoints": [endpoint] if _is_about(request, endpoint) else []}

    def _show_endpoint(self, request: ApiRequest, caller: Caller, endpoint_id: str) -> Answer:
        _only_services(caller)
        if endpoint_id != ENDPOINT:
            raise Refused(404, f"Could not find endpoint: {endpoint_id}.")
        return 200, {"endpoint": {"id": ENDPOINT, "service_id": SERVICE, "region_id": REGION, "interface": "public"}}

    def _show_region(self, request: ApiRequest, caller: Caller, region_id: str) -> Answer:
        if region_id != REGION:
            raise Refused(404, f"Could not find region: {region_id}.")
        return 200, {"region": {"id": REGION, "parent_region_id": None, "description": ""}}

    def _show_model(self, request: ApiRequest, caller: Caller) -> Answer:
        return 200, {"model": {"name": self.limit_model, "description": ""}}

    def _list_registered(self, request: ApiRequest, caller: Caller) -> Answer:
        found = [
            {"id": uuid.uuid4().hex, **_scope(), "resource_name": name, "default_limit": limit, "description": None}
            for name, limit in self.registered.items()
        ]
        return 200, {"registered_limits": [limit for limit in found if _is_about(request, limit)], "links": {}}

    def _list_limits(self, request: ApiRequest, caller: Caller) -> Answer:
        found = [
            {"id": uuid.uuid4().hex, **_scope(), "resource_name": name, "resource_limit": limit, "project_id": project}
            for (project, name), limit in self.limits.items()
            if {"admin", "service"} & caller.roles or project == caller.project_id
        ]
        return 200, {"limits": [limit for limit in found if _is_about(request, limit)], "links": {}}

    @property
    def routes(self) -> Sequence[Route]:
        return (
            ("identity", "GET", "/services", self._list_services),
            ("identity", "GET", "/endpoints", self._list_endpoints),
            ("identity", "GET", "/endpoints/([^/]+)", self._show_endpoint),
            ("identity", "GET", "/regions/([^/]+)", self._show_region),
            ("identity", "GET", "/limits/model", self._show_model),
            ("identity", "GET", "/registered_limits", self._list_registered),
            ("identity", "GET", "/limits", self._list_limits),
        )


def _scope() -> dict[str, str]:
    return {"service_id": SERVICE, "region_id": REGION}


def _only_services(caller: Caller) -> None:
    if not caller.is_admin:
        raise Refused(403, "You are not authorized to perform the requested action.")


def _is_about(request: ApiRequest, limit: dict[str, Any]) -> bool:
    return all(limit.get(name) == value for name, value in request.params.items())
