"""What all inventories have in common on the wire: what describes one, and the bodies that all of them take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, create_model

from tenure.api.schemas.answers import AnswerAt, LeasedAnswer, ModelAt
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import Identifier, Reason, RegionName
from tenure.api.versions import LATEST, OLDEST, Version, by_version
from tenure.domain.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Registration:
    """A resource to be registered: what it is called in the cloud, its own properties, how much of it is lent."""

    reference: str
    properties: Mapping[str, str] = field(default_factory=dict)
    #: How much of it is lent to reservations, where its operator says so.
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class WireProperties:
    """How the properties that an operator gives to resources of an inventory are read."""

    models: ModelAt
    read: Callable[[Mapping[str, Any], Version], Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class WireLending:
    """How it is read how much of a resource is lent to reservations."""

    model: type[BaseModel]
    #: Gets an instance of the model.
    read: Callable[[Any], Capacity]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireInventory:
    """An inventory on the wire: where it is, what things are called there, how a resource is read and shown.

    The rest is the same for all inventories, see ``tenure.api.inventories``.
    """

    #: The type of its resources, such as ``physical:host``.
    resource_type: str
    #: Its URL, such as ``/v1/os-hosts``.
    path: str
    #: The keys under which documents have one resource, and many.
    one: str
    many: str
    #: What one and many are called in a sentence.
    noun: str
    nouns: str
    query: type[ResourceListQuery]
    #: The models of a registration, and how one is read.
    registration: ModelAt
    read_registration: Callable[[Mapping[str, Any], Version], Registration]
    #: The models of a resource as it is shown.
    answer: AnswerAt
    #: The same in the answer to its registration, where that differs.
    answer_new: AnswerAt | None = None
    #: The model of a resource as the owner of a lease with a part in it sees it.
    leased_answer: type[LeasedAnswer]
    #: None where its resources have no properties of their own.
    properties: WireProperties | None = None
    #: None where how much is lent of its resources is not for their operator to say, or has ``properties``.
    lending: WireLending | None = None
    #: From when on it is shown who has a part in which of its resources.
    allocations_since: Version = OLDEST
    #: From when on there is anything of it.
    since: Version = OLDEST

    @property
    def part(self) -> str:
        """What the id of a resource is called in URLs."""
        return f"{self.one}_id"


class Disable(BaseModel):
    """What is to take no new reservations, and why; with ``dry_run`` nothing is done, and all is told."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""
    dry_run: StrictBool = False


class Enable(BaseModel):
    """What is to take reservations again."""

    model_config = ConfigDict(extra="forbid")

    dry_run: StrictBool = False


class Reallocate(BaseModel):
    """What is booked there, and is to move to others: of one lease or of all, also what runs or not."""

    model_config = ConfigDict(extra="forbid")

    lease_id: Identifier | None = None
    running: StrictBool = False
    dry_run: StrictBool = False


class LenientPropertyUpdate(BaseModel):
    """Whether ordinary users are kept from a property."""

    model_config = ConfigDict(extra="ignore", title="PropertyUpdate")

    private: StrictBool


class PropertyUpdate(BaseModel):
    """Whether ordinary users are kept from a property."""

    model_config = ConfigDict(extra="forbid")

    private: StrictBool


SETTING: ModelAt = by_version(LenientPropertyUpdate, PropertyUpdate)


class InRegion(BaseModel):
    """Where something is to be made reservable."""

    region: Annotated[
        RegionName | None, Field(description="The region it is in; the home region of the service unless it is named.")
    ] = None


def read_region(body: Mapping[str, Any], version: Version) -> tuple[Mapping[str, Any], str]:
    """A registration without the region that it names from 1.2 on, and that region; empty where it names none."""
    if version < Version.V1_2:
        return body, ""
    given = {name: value for name, value in body.items() if name == "region"}
    rest = {name: value for name, value in body.items() if name != "region"}
    return rest, check(InRegion, given, version).region or ""


def registration_models(models: ModelAt) -> ModelAt:
    """Return the models of a registration, with the region from 1.2 on."""
    strict = models(LATEST)
    placed = create_model(strict.__name__, __base__=(InRegion, strict), __doc__=strict.__doc__)
    return by_version(models(OLDEST), strict, placed)
