"""Placement: providers, inventories with generations, and resource classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tenure.drivers.simulated.openstack.effects import EffectKind
from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    expect,
    only_admins,
    version_is,
    whole,
)
from tenure.drivers.simulated.openstack.state import Provider, State, inventory

_VERSION: Final = "1.29"
#: The prefix of the names of reservations' resource classes; the id follows.
_OF_RESERVATION: Final = "CUSTOM_RESERVATION_"
#: The least value of each number of an inventory.
_LEAST: Final = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
_CONCURRENT: Final = "placement.concurrent_update"


class Placement:
    def __init__(self, state: State) -> None:
        self._state = state

    def list_providers(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _VERSION)
        state = self._state
        match request.params:
            case {"name": name}:
                found = [provider for provider in [state.provider_named(name)] if provider is not None]
            case {"in_tree": root}:
                found = state.tree_of(root)
            case _:
                found = list(state.providers.values())
        if "resources" in request.params:
            resource_class, _, amount = request.params["resources"].partition(":")
            if resource_class.startswith("CUSTOM_") and resource_class not in state.classes:
                raise Refused(400, f"Invalid resource class in resources parameter: {resource_class}")
            found = [provider for provider in found if state.left(provider, resource_class) >= int(amount)]
        return 200, {"resource_providers": [_shown(provider) for provider in found]}

    def make_provider(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _VERSION)
        expect(set(request.body), {"name", "parent_provider_uuid"})
        name, parent = request.body["name"], request.body["parent_provider_uuid"]
        if parent not in self._state.providers:
            raise Refused(400, "parent provider UUID provided does not exist")
        if self._state.provider_named(name) is not None:
            raise Refused(409, f"Conflicting resource provider name: {name} already exists.")
        made = Provider(name, parent)
        self._state.providers[made.uuid] = made
        self._state.record(EffectKind.PROVIDER_MADE, subject=name)
        return 200, _shown(made)

    def show_inventories(self, request: ApiRequest, caller: Caller, uuid: str) -> Answer:
        version_is(request, _VERSION)
        return 200, _inventories(self._provider(uuid))

    def set_inventories(self, request: ApiRequest, caller: Caller, uuid: str) -> Answer:
        version_is(request, _VERSION)
        only_admins(caller)
        provider = self._provider(uuid)
        expect(set(request.body), {"resource_provider_generation", "inventories"})
        inventories = request.body["inventories"]
        if request.body["resource_provider_generation"] != provider.generation:
            raise Refused(409, "resource provider generation conflict", _CONCURRENT)
        for resource_class, record in inventories.items():
            self._check(resource_class, record)
        for resource_class in provider.inventories.keys() - inventories.keys():
            if self._state.used(provider, resource_class):
                message = f"update conflict: Inventory for '{resource_class}' in use."
                raise Refused(409, message, "placement.inventory.inuse")
        changed = [
            name for name, record in inventories.items() if provider.inventories.get(name) != inventory(**record)
        ]
        provider.inventories = {name: inventory(**record) for name, record in inventories.items()}
        self._changed(provider, EffectKind.INVENTORY_SET, changed)
        return 200, _inventories(provider)

    def delete_inventory(self, request: ApiRequest, caller: Caller, uuid: str, resource_class: str) -> Answer:
        version_is(request, _VERSION)
        only_admins(caller)
        provider = self._provider(uuid)
        if resource_class not in provider.inventories:
            raise Refused(404, f"No inventory of class {resource_class} found for delete")
        if self._state.used(provider, resource_class):
            raise Refused(409, f"Unable to delete inventory of class {resource_class}: in use.", _CONCURRENT)
        del provider.inventories[resource_class]
        self._changed(provider, EffectKind.INVENTORY_REMOVED, [resource_class])
        return 204, None

    def show_traits(self, request: ApiRequest, caller: Caller, uuid: str) -> Answer:
        version_is(request, _VERSION)
        return 200, {"traits": list(self._provider(uuid).traits), "resource_provider_generation": 1}

    def show_usages(self, request: ApiRequest, caller: Caller, uuid: str) -> Answer:
        version_is(request, _VERSION)
        provider = self._provider(uuid)
        usages = {name: self._state.used(provider, name) for name in provider.inventories}
        return 200, {"usages": usages, "resource_provider_generation": provider.generation}

    def show_allocations(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        version_is(request, _VERSION)
        server = self._state.servers.get(server_id)
        found = self._state.allocated(server) if server is not None else {}
        return 200, {"allocations": {uuid: {"generation": 1, "resources": amounts} for uuid, amounts in found.items()}}

    def make_class(self, request: ApiRequest, caller: Caller, name: str) -> Answer:
        version_is(request, _VERSION)
        only_admins(caller)
        if not re.fullmatch(r"CUSTOM_[A-Z0-9_]{1,248}", name):
            raise Refused(400, f"JSON does not validate: {name}")
        expect(request.body, None)
        if name in self._state.classes:
            return 204, None
        self._state.classes[name] = True
        self._state.record(EffectKind.CLASS_MADE, reservation_of(name), subject=name)
        return 201, None

    def show_class(self, request: ApiRequest, caller: Caller, name: str) -> Answer:
        version_is(request, _VERSION)
        if name not in self._state.classes:
            raise Refused(404, f"No such resource class {name}.")
        return 200, {"name": name, "links": []}

    def delete_class(self, request: ApiRequest, caller: Caller, name: str) -> Answer:
        version_is(request, _VERSION)
        only_admins(caller)
        if name not in self._state.classes:
            raise Refused(404, f"No such resource class {name}.")
        if any(name in provider.inventories for provider in self._state.providers.values()):
            raise Refused(409, f"Error in delete resource class: Cannot delete resource class {name}: in use.")
        del self._state.classes[name]
        self._state.record(EffectKind.CLASS_REMOVED, reservation_of(name), subject=name)
        return 204, None

    def list_candidates(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _VERSION)
        expect(request.params["resources"], "VCPU:1")
        providers = self._state.providers.values()
        roots = {
            provider.uuid
            for provider in providers
            if provider.inventories.get("VCPU", {}).get("total") and provider.name not in self._state.full
        }
        summaries = {provider.uuid: _summary(provider) for provider in providers if _root(provider) in roots}
        return 200, {"allocation_requests": [], "provider_summaries": summaries}

    def _check(self, resource_class: str, record: dict[str, Any]) -> None:
        if not record.keys() <= {*_LEAST, "allocation_ratio"} or "total" not in record:
            raise Refused(400, f"JSON does not validate: {record}")
        for name in _LEAST.keys() & record.keys():
            whole(record[name], _LEAST[name])
        if resource_class.startswith("CUSTOM_") and resource_class not in self._state.classes:
            raise Refused(400, f"Unknown resource class in inventory: No such resource class {resource_class}.")
        if record.get("reserved", 0) > record["total"]:
            raise Refused(400, "Invalid inventory: The reserved value is greater than total.")

    def _provider(self, uuid: str) -> Provider:
        if uuid not in self._state.providers:
            raise Refused(404, f"No resource provider with uuid {uuid} found")
        return self._state.providers[uuid]

    def _changed(self, provider: Provider, kind: EffectKind, resource_classes: Iterable[str]) -> None:
        provider.generation += 1
        self._state.providers.save(provider.uuid)
        host = self._state.host_of(provider)
        key = host.key if host is not None else None
        for resource_class in resource_classes:
            self._state.record(kind, reservation_of(resource_class), host=key, subject=resource_class)

    @property
    def routes(self) -> Sequence[Route]:
        provider = "/resource_providers/([^/]+)"
        return (
            ("placement", "GET", "/resource_providers", self.list_providers),
            ("placement", "POST", "/resource_providers", self.make_provider),
            ("placement", "GET", f"{provider}/inventories", self.show_inventories),
            ("placement", "PUT", f"{provider}/inventories", self.set_inventories),
            ("placement", "DELETE", f"{provider}/inventories/([^/]+)", self.delete_inventory),
            ("placement", "GET", f"{provider}/traits", self.show_traits),
            ("placement", "GET", f"{provider}/usages", self.show_usages),
            ("placement", "GET", "/allocations/([^/]+)", self.show_allocations),
            ("placement", "GET", "/resource_classes/([^/]+)", self.show_class),
            ("placement", "PUT", "/resource_classes/([^/]+)", self.make_class),
            ("placement", "DELETE", "/resource_classes/([^/]+)", self.delete_class),
            ("placement", "GET", "/allocation_candidates", self.list_candidates),
        )


def class_of(reservation_id: str) -> str:
    """Return the resource class of a reservation's units."""
    return f"{_OF_RESERVATION}{reservation_id.upper().replace('-', '_')}"


def reservation_of(resource_class: str) -> str | None:
    """Return the reservation of a resource class, None for any other class."""
    if not resource_class.startswith(_OF_RESERVATION):
        return None
    return resource_class.removeprefix(_OF_RESERVATION).lower().replace("_", "-")


def _root(provider: Provider) -> str:
    return provider.parent or provider.uuid


def _inventories(provider: Provider) -> dict[str, Any]:
    records = {name: dict(record) for name, record in provider.inventories.items()}
    return {"inventories": records, "resource_provider_generation": provider.generation}


def _summary(provider: Provider) -> dict[str, Any]:
    return {
        "resources": {
            name: {"capacity": int((record["total"] - record["reserved"]) * record["allocation_ratio"]), "used": 0}
            for name, record in provider.inventories.items()
        },
        "traits": list(provider.traits),
        "root_provider_uuid": _root(provider),
        "parent_provider_uuid": provider.parent,
    }


def _shown(provider: Provider) -> dict[str, Any]:
    return {
        "uuid": provider.uuid,
        "name": provider.name,
        "generation": provider.generation,
        "parent_provider_uuid": provider.parent,
        "root_provider_uuid": _root(provider),
    }
