"""The common part of all inventories on the wire: their descriptions, and the bodies of common operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, create_model

from tenure.api.schemas.answers import AnswerAt, LeasedAnswer, ModelAt
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import Identifier, Reason, RegionName
from tenure.api.versions import OLDEST, Version
from tenure.domain.capacity import Capacity
from tenure.resources.contract import Inventory, ResourceType


@dataclass(frozen=True, slots=True)
class Registration:
    """A resource to be registered: its name or id in the cloud, its properties, and its capacity."""

    reference: str
    properties: Mapping[str, str] = field(default_factory=dict)
    #: The amounts that are lent to reservations, if the operator decides them.
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class WireProperties:
    """The reader of properties that an operator gives to resources of an inventory."""

    models: ModelAt
    read: Callable[[Mapping[str, Any], Version], Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class WireLending:
    """The reader of the amounts of a resource that are lent to reservations."""

    model: type[BaseModel]
    #: Takes an instance of the model.
    read: Callable[[Any], Capacity]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireInventory:
    """An inventory on the wire: its URLs, names, and models of requests and answers.

    Everything else is the same for all inventories, see ``tenure.api.inventories``.
    """

    #: The type of its resources, such as ``physical:host``.
    resource_type: str
    #: Its URL, such as ``/v1/os-hosts``.
    path: str
    #: The keys of a single resource and of a list in documents.
    one: str
    many: str
    #: The singular and the plural in sentences.
    noun: str
    nouns: str
    query: type[ResourceListQuery]
    #: The models of a registration, and the function that reads it.
    registration: ModelAt
    read_registration: Callable[[Mapping[str, Any], Version], Registration]
    #: The models of a resource in answers.
    answer: AnswerAt
    #: The models of a resource in the answer to its registration, if they differ.
    answer_new: AnswerAt | None = None
    #: The model of a resource of a lease, as the owner of the lease sees it.
    leased_answer: type[LeasedAnswer]
    #: None if operators cannot give properties to its resources.
    properties: WireProperties | None = None
    #: None if operators do not decide how much of a resource is lent. Ignored if there are ``properties``.
    lending: WireLending | None = None
    #: Whether readers of a project may list its resources; otherwise only administrators may.
    is_for_readers: bool = False
    #: The first version that serves the allocations of its resources.
    allocations_since: Version = OLDEST
    #: The first version that serves the inventory.
    since: Version = OLDEST

    @property
    def path_parameter(self) -> str:
        """The name of the id of a resource in URLs."""
        return f"{self.one}_id"

    @property
    def resource_path(self) -> str:
        """The URL of a resource."""
        return f"{self.path}/{{{self.path_parameter}}}"

    @property
    def leased_path(self) -> str:
        """The URL of the resources of a lease."""
        return f"/v1/leases/{{lease_id}}/{self.many}"


@cache
def _installed_inventories() -> tuple[WireInventory, ...]:
    points = sorted(entry_points(group="tenure.inventories"), key=lambda point: point.name)
    return tuple(point.load() for point in points)


def served_inventories(resource_types: Iterable[ResourceType]) -> Sequence[tuple[WireInventory, Inventory]]:
    """Return the installed inventories of these types on the wire, each with its texts and rules."""
    inventories = {
        resource_type.own_inventory.name: resource_type.own_inventory
        for resource_type in resource_types
        if resource_type.own_inventory is not None
    }
    return [
        (wire, inventories[wire.resource_type])
        for wire in _installed_inventories()
        if wire.resource_type in inventories
    ]


class Disable(BaseModel):
    """Closes a resource to new reservations, with a reason. With ``dry_run`` only the effects are shown."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""
    dry_run: StrictBool = False


class Enable(BaseModel):
    """Opens a resource to reservations again. With ``dry_run`` only the effects are shown."""

    model_config = ConfigDict(extra="forbid")

    dry_run: StrictBool = False


class Reallocate(BaseModel):
    """Moves reservations to other resources: those of a lease or of all leases, and with ``running`` also active ones.

    With ``dry_run`` only the effects are shown.
    """

    model_config = ConfigDict(extra="forbid")

    lease_id: Identifier | None = None
    running: StrictBool = False
    dry_run: StrictBool = False


class PropertyUpdate(BaseModel):
    """Whether a property is private, that is, hidden from ordinary users."""

    model_config = ConfigDict(extra="forbid")

    private: StrictBool


class InRegion(BaseModel):
    """The region of a resource to be made reservable."""

    region: Annotated[
        RegionName | None, Field(description="The region of the resource; the home region of the service by default.")
    ] = None


def read_region(body: Mapping[str, Any], version: Version) -> tuple[Mapping[str, Any], str]:
    """Return the body of a registration without its region, and the region, which is empty if not given."""
    if version < Version.V1_2:
        return body, ""
    given = {name: value for name, value in body.items() if name == "region"}
    rest = {name: value for name, value in body.items() if name != "region"}
    return rest, check(InRegion, given, version).region or ""


def registration_models(models: ModelAt) -> ModelAt:
    """Return the models of a registration, with the region from 1.2 on."""
    return lambda version: models(version) if version < Version.V1_2 else _in_region(models(version))


@cache
def _in_region(model: type[BaseModel]) -> type[BaseModel]:
    return create_model(model.__name__, __base__=(InRegion, model), __doc__=model.__doc__)
