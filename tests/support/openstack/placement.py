"""The small OpenStack's Placement."""

from __future__ import annotations

import re
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tests.support.openstack.answers import Refused, Route, Seen, expect, only_admins, version_is, whole

_VERSION: Final = "placement 1.29"
_LIMITS: Final = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
_CONCURRENT: Final = "placement.concurrent_update"


@dataclass
class Provider:
    name: str
    parent: str | None = None
    inventories: dict[str, dict[str, Any]] = field(default_factory=dict)
    traits: list[str] = field(default_factory=list)
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    generation: int = 0


def inventory(total: int, **more: Any) -> dict[str, Any]:
    """What Nova writes of so much of something."""
    usual = {"reserved": 0, "min_unit": 1, "max_unit": total, "step_size": 1, "allocation_ratio": 1.0}
    return {"total": total, **usual, **more}


class FakePlacement:
    """Providers, inventories with generations, and resource classes."""

    lock: threading.RLock

    def __init__(self) -> None:
        self.providers: dict[str, Provider] = {}
        self.classes: set[str] = set()
        #: The names of hosts without room for another virtual CPU.
        self.full: set[str] = set()

    def used(self, provider: Provider, resource_class: str) -> int:
        """How much servers have of it there."""
        raise NotImplementedError

    def left(self, provider: Provider, resource_class: str) -> int:
        """How much of it further servers can have there."""
        had = provider.inventories.get(resource_class)
        return 0 if had is None else had["total"] - had["reserved"] - self.used(provider, resource_class)

    def provider(self, name: str) -> Provider:
        return next(one for one in self.providers.values() if one.name == name)

    def provide(self, provider: Provider) -> Provider:
        self.providers[provider.uuid] = provider
        return provider

    def units(self, reservation_id: str) -> dict[str, int]:
        """How many units of a reservation are open, by the hosts' names."""
        name = "CUSTOM_RESERVATION_" + reservation_id.upper().replace("-", "_")
        return {
            one.name.removeprefix("blazar_"): one.inventories[name]["total"] - one.inventories[name]["reserved"]
            for one in self.providers.values()
            if name in one.inventories
        }

    # Answering

    def _list_providers(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        found = [
            one
            for one in self.providers.values()
            if seen.params.get("name") in (None, one.name)
            and seen.params.get("in_tree") in (None, one.uuid, one.parent)
        ]
        if "resources" in seen.params:
            resource_class, _, amount = seen.params["resources"].partition(":")
            if resource_class.startswith("CUSTOM_") and resource_class not in self.classes:
                raise Refused(400, f"Invalid resource class in resources parameter: {resource_class}")
            found = [one for one in found if self.left(one, resource_class) >= int(amount)]
        return 200, {"resource_providers": [_shown(one) for one in found]}

    def _make_provider(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        expect(set(seen.body), {"name", "parent_provider_uuid"})
        if seen.body["parent_provider_uuid"] not in self.providers:
            raise Refused(400, "parent provider UUID provided does not exist")
        if seen.body["name"] in {one.name for one in self.providers.values()}:
            raise Refused(409, f"Conflicting resource provider name: {seen.body['name']} already exists.")
        made = self.provide(Provider(seen.body["name"], seen.body["parent_provider_uuid"]))
        return 200, _shown(made)

    def _show_inventories(self, seen: Seen, token: dict[str, Any], key: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        return 200, _stock(self._provider(key))

    def _set_inventories(self, seen: Seen, token: dict[str, Any], key: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        only_admins(token)
        provider = self._provider(key)
        expect(set(seen.body), {"resource_provider_generation", "inventories"})
        for resource_class, record in seen.body["inventories"].items():
            self._check(resource_class, record)
        if seen.body["resource_provider_generation"] != provider.generation:
            raise Refused(409, "resource provider generation conflict", _CONCURRENT)
        for gone in provider.inventories.keys() - seen.body["inventories"].keys():
            if self.used(provider, gone):
                raise Refused(409, f"update conflict: Inventory for '{gone}' in use.", "placement.inventory.inuse")
        provider.inventories = {name: inventory(**one) for name, one in seen.body["inventories"].items()}
        provider.generation += 1
        return 200, _stock(provider)

    def _check(self, resource_class: str, record: dict[str, Any]) -> None:
        if not record.keys() <= {*_LIMITS, "allocation_ratio"} or "total" not in record:
            raise Refused(400, f"JSON does not validate: {record}")
        for name in _LIMITS.keys() & record.keys():
            whole(record[name], _LIMITS[name])
        if resource_class.startswith("CUSTOM_") and resource_class not in self.classes:
            raise Refused(400, f"Unknown resource class in inventory: No such resource class {resource_class}.")
        if record.get("reserved", 0) > record["total"]:
            raise Refused(400, "Invalid inventory: The reserved value is greater than total.")

    def _drop_inventory(self, seen: Seen, token: dict[str, Any], key: str, resource_class: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        only_admins(token)
        provider = self._provider(key)
        if resource_class not in provider.inventories:
            raise Refused(404, f"No inventory of class {resource_class} found for delete")
        if self.used(provider, resource_class):
            raise Refused(409, f"Unable to delete inventory of class {resource_class}: in use.", _CONCURRENT)
        del provider.inventories[resource_class]
        provider.generation += 1
        return 204, None

    def _show_traits(self, seen: Seen, token: dict[str, Any], key: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        return 200, {"traits": self._provider(key).traits, "resource_provider_generation": 1}

    def _show_usages(self, seen: Seen, token: dict[str, Any], key: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        provider = self._provider(key)
        usages = {name: self.used(provider, name) for name in provider.inventories}
        return 200, {"usages": usages, "resource_provider_generation": provider.generation}

    def _have_class(self, seen: Seen, token: dict[str, Any], name: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        only_admins(token)
        if not re.fullmatch(r"CUSTOM_[A-Z0-9_]{1,248}", name):
            raise Refused(400, f"JSON does not validate: {name}")
        expect(seen.body, None)
        status = 204 if name in self.classes else 201
        self.classes.add(name)
        return status, None

    def _show_class(self, seen: Seen, token: dict[str, Any], name: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        if name not in self.classes:
            raise Refused(404, f"No such resource class {name}.")
        return 200, {"name": name, "links": []}

    def _drop_class(self, seen: Seen, token: dict[str, Any], name: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        only_admins(token)
        if name not in self.classes:
            raise Refused(404, f"No such resource class {name}.")
        if any(name in one.inventories for one in self.providers.values()):
            raise Refused(409, f"Error in delete resource class: Cannot delete resource class {name}: in use.")
        self.classes.remove(name)
        return 204, None

    def _list_candidates(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        expect(seen.params["resources"], "VCPU:1")
        roots = {
            one.uuid
            for one in self.providers.values()
            if one.inventories.get("VCPU", {}).get("total") and one.name not in self.full
        }
        return 200, {
            "allocation_requests": [],
            "provider_summaries": {
                one.uuid: {
                    "resources": {
                        name: {"capacity": int((had["total"] - had["reserved"]) * had["allocation_ratio"]), "used": 0}
                        for name, had in one.inventories.items()
                    },
                    "traits": one.traits,
                    "root_provider_uuid": one.parent or one.uuid,
                    "parent_provider_uuid": one.parent,
                }
                for one in self.providers.values()
                if (one.parent or one.uuid) in roots
            },
        }

    def _provider(self, key: str) -> Provider:
        if key not in self.providers:
            raise Refused(404, f"No resource provider with uuid {key} found")
        return self.providers[key]

    PLACEMENT: ClassVar[tuple[Route, ...]] = (
        ("placement", "GET", "/resource_providers", _list_providers),
        ("placement", "POST", "/resource_providers", _make_provider),
        ("placement", "GET", "/resource_providers/([^/]+)/inventories", _show_inventories),
        ("placement", "PUT", "/resource_providers/([^/]+)/inventories", _set_inventories),
        ("placement", "DELETE", "/resource_providers/([^/]+)/inventories/([^/]+)", _drop_inventory),
        ("placement", "GET", "/resource_providers/([^/]+)/traits", _show_traits),
        ("placement", "GET", "/resource_providers/([^/]+)/usages", _show_usages),
        ("placement", "GET", "/resource_classes/([^/]+)", _show_class),
        ("placement", "PUT", "/resource_classes/([^/]+)", _have_class),
        ("placement", "DELETE", "/resource_classes/([^/]+)", _drop_class),
        ("placement", "GET", "/allocation_candidates", _list_candidates),
    )


def _stock(one: Provider) -> dict[str, Any]:
    return {"inventories": one.inventories, "resource_provider_generation": one.generation}


def _shown(one: Provider) -> dict[str, Any]:
    return {
        "uuid": one.uuid,
        "name": one.name,
        "generation": one.generation,
        "parent_provider_uuid": one.parent,
        "root_provider_uuid": one.parent or one.uuid,
    }
