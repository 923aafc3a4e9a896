"""The small OpenStack's unified limits: what Keystone keeps of how much projects may have."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar, Final

from tests.support.openstack.answers import Refused, Route, Seen

#: What limits are registered for.
SERVICE: Final = "reservation-service"
REGION: Final = "r1"
ENDPOINT: Final = "endpoint-of-the-reservation-service"


class FakeLimits:
    """The part of Keystone that oslo.limit asks."""

    url: str

    def __init__(self) -> None:
        #: The default of each limit that is registered.
        self.registered: dict[str, int] = {}
        #: Limits of projects, by the project and the name.
        self.limits: dict[tuple[str, str], int] = {}
        #: How limits of projects in trees come together.
        self.limit_model = "flat"

    def discovery(self, path: str) -> tuple[int, Any]:
        """What anybody is told of the versions of Keystone."""
        version = {
            "id": "v3.14",
            "status": "stable",
            "updated": "2020-04-07T00:00:00Z",
            "links": [{"rel": "self", "href": f"{self.url}/identity/v3/"}],
            "media-types": [],
        }
        return (200, {"version": version}) if path.startswith("/v3") else (300, {"versions": {"values": [version]}})

    def _list_services(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        _only_services(token)
        services = [{"id": SERVICE, "type": "reservation", "name": "tenure", "enabled": True}]
        return 200, {"services": [one for one in services if seen.params.get("type") in (None, one["type"])]}

    def _list_endpoints(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        _only_services(token)
        endpoint = {"id": ENDPOINT, "service_id": SERVICE, "region_id": REGION, "interface": "public", "url": "x"}
        return 200, {"endpoints": [endpoint] if _is_about(seen, endpoint) else []}

    def _show_endpoint(self, seen: Seen, token: dict[str, Any], endpoint_id: str) -> tuple[int, Any]:
        _only_services(token)
        if endpoint_id != ENDPOINT:
            raise Refused(404, f"Could not find endpoint: {endpoint_id}.")
        return 200, {"endpoint": {"id": ENDPOINT, "service_id": SERVICE, "region_id": REGION, "interface": "public"}}

    def _show_region(self, seen: Seen, token: dict[str, Any], region_id: str) -> tuple[int, Any]:
        if region_id != REGION:
            raise Refused(404, f"Could not find region: {region_id}.")
        return 200, {"region": {"id": REGION, "parent_region_id": None, "description": ""}}

    def _show_model(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"model": {"name": self.limit_model, "description": ""}}

    def _list_registered(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        found = [
            {"id": uuid.uuid4().hex, **_scope(), "resource_name": name, "default_limit": limit, "description": None}
            for name, limit in self.registered.items()
        ]
        return 200, {"registered_limits": [one for one in found if _is_about(seen, one)], "links": {}}

    def _list_limits(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        found = [
            {"id": uuid.uuid4().hex, **_scope(), "resource_name": name, "resource_limit": limit, "project_id": project}
            for (project, name), limit in self.limits.items()
            if {"admin", "service"} & set(token["roles"]) or project == token["project"]
        ]
        return 200, {"limits": [one for one in found if _is_about(seen, one)], "links": {}}

    LIMITS: ClassVar[tuple[Route, ...]] = (
        ("identity", "GET", "/v3/services", _list_services),
        ("identity", "GET", "/v3/endpoints", _list_endpoints),
        ("identity", "GET", "/v3/endpoints/([^/]+)", _show_endpoint),
        ("identity", "GET", "/v3/regions/([^/]+)", _show_region),
        ("identity", "GET", "/v3/limits/model", _show_model),
        ("identity", "GET", "/v3/registered_limits", _list_registered),
        ("identity", "GET", "/v3/limits", _list_limits),
    )


def _scope() -> dict[str, str]:
    return {"service_id": SERVICE, "region_id": REGION}


def _only_services(token: dict[str, Any]) -> None:
    if "admin" not in token["roles"]:
        raise Refused(403, "You are not authorized to perform the requested action.")


def _is_about(seen: Seen, one: dict[str, Any]) -> bool:
    return all(one.get(name) == value for name, value in seen.params.items())
