"""The list of what the API may ask of the manager is what it asks, and what the manager can do."""

from __future__ import annotations

import re
from pathlib import Path

from tenure.services.leases import LeaseService
from tenure.services.limits import LimitService
from tenure.services.manager import OPERATIONS
from tenure.services.resources import ResourceService

API = Path(__file__).parents[1] / "src" / "tenure" / "api"
SERVICES = {"leases": LeaseService, "resources": ResourceService, "limits": LimitService}


def test_the_api_asks_only_for_what_is_on_the_list():
    asked = {
        name
        for path in API.rglob("*.py")
        for name in re.findall(r"_manager\.((?:leases|resources|limits)\.\w+|health)\b", path.read_text())
    } | {
        f"resources.{name}"
        for path in API.rglob("*.py")
        for name in re.findall(r"self\._resources\.(\w+)\(", path.read_text())
    }
    assert asked == OPERATIONS


def test_everything_on_the_list_can_be_done():
    for operation in OPERATIONS - {"health"}:
        service, _, name = operation.partition(".")
        assert callable(getattr(SERVICES[service], name))


def test_every_use_case_is_on_the_list():
    offered = {
        f"{service}.{name}" for service, kind in SERVICES.items() for name in vars(kind) if not name.startswith("_")
    }
    assert offered == OPERATIONS - {"health"}
