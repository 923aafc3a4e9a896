"""Samples of every installed resource type, for the suites that run over all types.

Each type has a module ``tests/types/test_<entry point>.py``: the contract of types, and ``SAMPLES``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

from tenure.api.schemas.resources import WireInventory, served_inventories
from tenure.api.versions import LATEST, OLDEST, Version
from tenure.resources.contract import load_types
from tests.support.simulated import World

#: An id that nothing has.
UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"

#: What a field must not be: a kind of ``test_bad_input.WRONG``, or the values themselves.
Kind = str | tuple[object, ...]
#: The path of a field from the body down.
FieldPath = tuple[str | int, ...]

#: A flavor as the cloud describes it to the types that ask for one.
M1_SMALL: dict[str, object] = {
    "id": "m1.small",
    "name": "m1.small",
    "vcpus": 2,
    "ram": 1024,
    "swap": 0,
    "disk": 10,
    "ephemeral": 0,
    "extra_specs": {},
}


@dataclass(frozen=True)
class Bad:
    """A request that is wrong in one way: what replaces the endpoint's body or path, and the field that is named."""

    field: str
    body: object = None
    path: str = ""
    status: int = 400
    #: What 1.0 says where it does not name the field.
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Body:
    """A right body, and all that can be wrong with it."""

    good: Mapping[str, Any]
    fields: Mapping[FieldPath, Kind]
    required: Sequence[FieldPath] = ()
    #: The objects in which an unknown field is refused.
    closed: Sequence[FieldPath] = ((),)
    also: Sequence[Bad] = ()


@dataclass(frozen=True)
class Unfit:
    """What is wrong with a reservation though each parameter may be so: the words, and the path from 1.1 on."""

    said: str
    wrong: Mapping[str, object]
    field: str = ""
    #: From 1.1 on; at 1.0 it is 400 in any case.
    status: int = 409
    #: Whether it is so in a change as well.
    changing: bool = True

    def bad(self, version: Version, body: object, path: str) -> Bad:
        if version is OLDEST or self.status == 409:
            return Bad(self.said, body, status=400 if version is OLDEST else self.status)
        return Bad(".".join(filter(None, (path, self.field))), body, status=self.status)


@dataclass(frozen=True, kw_only=True)
class ParameterSamples:
    """The kinds of a type's parameters by version, those that are required, and what is wrong with them together."""

    kinds: Callable[[Version], Mapping[str, Kind]]
    required: Callable[[Version], Sequence[str]]
    unfit: Sequence[Unfit] = ()
    #: What a change refuses, and a request does not.
    fixed: Sequence[Unfit] = ()


@dataclass(frozen=True, kw_only=True)
class InventorySamples:
    """Requests for the inventory of a type."""

    #: The resources that the suites register at first; none where the simulated cloud has registered ones.
    registered: Sequence[Mapping[str, Any]] = ()
    #: A resource that can be registered beside these.
    registration: Callable[[Version], Body]
    #: A change of a resource; None where there are none.
    change: Callable[[Version], Body] | None = None
    #: Makes in a new simulated cloud what ``registration`` names, if it is not there.
    prepare: Callable[[World], object] = lambda _world: None
    #: A property that a resource can get; empty for inventories without properties.
    property_name: str = ""
    #: What is no id of a resource, beside what is none of any inventory, and the words in the refusal.
    bad_ids: Sequence[str] = ()
    missing: str = ""
    #: A field by which the list is not sorted, and what is no value of the field that names a resource.
    unsorted: str = "created_at"
    bad_names: Sequence[str] = ()
    #: The refusals with 400 that a registration and a change may meet although they fit the schema, as patterns.
    refusals: Sequence[str] = ()
    change_refusals: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class TypeSamples:
    """Requests for a resource type."""

    #: A reservation that can be booked.
    reservation: Mapping[str, Any]
    #: The first version at which it can be.
    since: Version = OLDEST
    #: None for a type whose bad parameters are the concern of its own tests.
    parameters: ParameterSamples | None = None
    inventory: InventorySamples | None = None
    #: The refusals with 400 that a reservation may meet although it fits the schema, as patterns.
    refusals: Sequence[str] = ()


def sample_modules() -> Mapping[str, str]:
    """Return the module of samples of each installed type, by the name of its entry point."""
    return {point.name: f"tests.types.test_{point.name}" for point in entry_points(group="tenure.resource_types")}


@cache
def installed_samples() -> Mapping[str, TypeSamples]:
    """Return the samples of installed types, by the names of their entry points; types without samples are left out."""
    modules = {name: import_module(module) for name, module in sample_modules().items() if find_spec(module)}
    return {name: module.SAMPLES for name, module in sorted(modules.items()) if hasattr(module, "SAMPLES")}


@cache
def sampled_inventories() -> tuple[tuple[WireInventory, InventorySamples], ...]:
    """Return the inventories on the wire with their samples."""
    samples = {sample.reservation["resource_type"]: sample.inventory for sample in installed_samples().values()}
    return tuple(
        (wire, inventory)
        for wire, _ in served_inventories(load_types())
        if (inventory := samples.get(wire.resource_type)) is not None
    )


def reservations_at(version: Version = LATEST) -> list[Mapping[str, Any]]:
    """Return a reservation of every type that can be booked at a version."""
    return [samples.reservation for samples in installed_samples().values() if not version < samples.since]


_HOST = {
    "resource_type": "physical:host",
    "min": 1,
    "max": 1,
    "hypervisor_properties": "",
    "resource_properties": "",
}
#: The queries without which a request is refused, by path.
NEEDED_QUERIES = {
    "/v1/availability": "resource_type=physical:host",
    "/v1/usage": "start_date=2030-01-01T00:00:00Z&end_date=2030-02-01T00:00:00Z",
    "/v1/offers": urlencode({"duration": 3600, "reservations": json.dumps([_HOST])}),
}
#: The bodies of searches, by path.
SEARCHES: Mapping[str, Mapping[str, object]] = {
    "/v1/offers": {"reservations": [_HOST], "duration": 3600},
    "/v1/offers/longest": {"reservations": [_HOST]},
    "/v1/offers/largest": {"reservation": _HOST, "end_date": "2031-01-01T00:00:00Z"},
}
