"""The contract of a resource type. Pure: no cloud, no database, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from pydantic import BaseModel

from tenure.domain.allocation import Demand
from tenure.domain.errors import Conflict, InvalidParameter, NotFound, TenureError

#: The action before the end that only sends a notification; the cloud does nothing.
NOTIFY = "notify"
#: The action of a cloud that makes an image of each server, before the end and of those without one at the end.
SNAPSHOT = "snapshot"
#: The action at the end itself: an image of each server.
LAST_SNAPSHOT = "last_snapshot"
#: An empty answer.
NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FactReference:
    """A fact of the cloud that is needed to check a request, such as ``flavor`` and its id.

    ``field`` is the parameter that names it.
    """

    kind: str
    reference: str
    field: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The texts and policy rules for the resources of a type.

    ``noun`` names one resource, ``reference`` is the field of a registration that names it, and ``rules`` the prefix of
    the policy rules. ``refusal`` is the error when the cloud refuses a registration. ``missing`` is the text for an
    unknown ``id``, ``unknown`` for a ``reference`` that the cloud does not know, ``occupied`` for a resource that
    others use; ``error`` in these texts is the cloud's message.
    """

    name: str
    noun: str
    reference: str
    rules: str
    refusal: type[TenureError] = Conflict
    #: Whether reasons for the owner of a lease name the resource.
    is_named: bool = True
    #: Whether the cloud lists all resources, so that their changes are discovered.
    is_listed: bool = True
    #: The facts that tell single resources apart, beside ``id`` and ``reference``, such as their names.
    identifying: frozenset[str] = frozenset()
    missing: str = "{Noun} {id} not found."
    unknown: str = "{error}"
    occupied: str = "{error}"

    @property
    def apart(self) -> frozenset[str]:
        """All attributes that tell single resources apart."""
        return self.identifying | {"id", self.reference}

    def say(self, text: str, **facts: object) -> str:
        """Return one of these texts, or another, with the noun: ``{noun}``, or ``{Noun}`` at the beginning."""
        return text.format(noun=self.noun, Noun=self.noun[:1].upper() + self.noun[1:], **facts)


class ResourceType(Protocol):
    """A resource type, as leases name it."""

    #: The name in the API, such as ``physical:host``.
    name: str
    #: The noun for several of them.
    noun: str
    #: The resource type whose resources serve it; its own name if it has its own inventory.
    inventory: str
    #: The parameters that may grow in a running lease.
    growing: frozenset[str]
    #: The resource class in which its availability is shown; empty for the first that its resources have.
    counted: str

    @property
    def own_inventory(self) -> Inventory | None:
        """Its own inventory, or None."""

    @property
    def additions(self) -> type[BaseModel] | None:
        """The model of further parameters from API 1.2 on, for requests, changes and answers; None for no parameters.

        Every field has a default that asks for nothing.
        """

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        """Return the model of a new reservation; with ``strict``, of microversion 1.1 and later."""

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        """Return the model of a change of a reservation (all optional), without its ``id`` and ``resource_type``."""

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        """Return the model of the type's fields in answers: of its parameters and its effects.

        An effect hides a parameter of the same name. A field's default stands for an unknown value. Nothing is
        validated: parameters may be those of an earlier release.
        """

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        """Return the parameters after a change.

        Raises ``InvalidParameter`` if they contradict each other, and ``InvalidState`` if a ``running`` reservation
        cannot be changed so.
        """

    def required_fact(self, parameters: Mapping[str, object]) -> FactReference | None:
        """Return the fact of the cloud that is still needed, or None."""

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        """Return the parameters with the required fact. Raises ``InvalidParameter`` if it does not fit."""

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        """Return the reservation's demand. Raises ``InvalidParameter``."""

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        """Return what clients see of a new reservation's cloud resources."""

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        """Whether something is created or changed in the cloud as soon as the lease exists."""

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        """Return the parameter that needs a trust of the owner, or None.

        ``resource_type`` if the type always needs one.
        """

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        """Return the action before the end: one of the cloud's, or ``NOTIFY``, or None.

        ``LAST_SNAPSHOT`` runs at the end itself.
        """


@runtime_checkable
class GrownType(Protocol):
    """What a resource type also has if requests can name more parameters of it since a version after 1.2."""

    @property
    def later_additions(self) -> Mapping[str, type[BaseModel]]:
        """The models of these parameters, each as ``additions``, by the microversion in which they came."""


class ResourceTypes:
    """The resource types of this process, by name, and which of them can be booked.

    Iteration and indexing include types that cannot be booked: what was booked of them earlier is kept until its end.
    """

    def __init__(self, types: tuple[ResourceType, ...], *, enabled: Collection[str] | None = None) -> None:
        """``enabled`` are the names of the types that can be booked; None for all."""
        self._types = {resource_type.name: resource_type for resource_type in types}
        if len(self._types) != len(types):
            raise ValueError("two resource types have the same name")
        self._enabled = frozenset(self._types if enabled is None else enabled)
        if unknown := sorted(self._enabled - self._types.keys()):
            raise ValueError(f"there is no resource type {unknown[0]}")

    @property
    def enabled(self) -> tuple[ResourceType, ...]:
        """The types that can be booked."""
        return tuple(resource_type for resource_type in self if resource_type.name in self._enabled)

    @property
    def inventories(self) -> frozenset[str]:
        """The names of the inventories of the types that can be booked."""
        return frozenset(resource_type.inventory for resource_type in self.enabled)

    def only(self, enabled: Collection[str]) -> ResourceTypes:
        """Return the same types, of which only these can be booked. Raises ``ValueError`` for an unknown name."""
        return ResourceTypes(tuple(self), enabled=enabled)

    def bookable(self, name: str) -> ResourceType:
        """Return the type with that name; raise ``InvalidParameter`` if there is none, or if it cannot be booked."""
        if name not in self._enabled:
            raise _unsupported(name)
        return self._types[name]

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types.values())

    def inventory(self, name: str) -> Inventory:
        """Return the inventory with that name; raise ``NotFound`` if there is none."""
        for resource_type in self:
            if resource_type.own_inventory is not None and resource_type.own_inventory.name == name:
                return resource_type.own_inventory
        raise NotFound(f"There is no inventory of {name}.")

    def __getitem__(self, name: str) -> ResourceType:
        """Return the type with that name; raise ``InvalidParameter`` if there is none."""
        try:
            return self._types[name]
        except KeyError:
            raise _unsupported(name) from None


def _unsupported(name: str) -> InvalidParameter:
    return InvalidParameter(f"The {name} resource type is not supported", field="resource_type")


def load_types(settings: Mapping[str, Mapping[str, object]] = MappingProxyType({})) -> ResourceTypes:
    """Return the installed resource types, ours and third-party ones, from their entry points.

    ``settings`` are arguments for their constructors, by entry point name.
    """
    installed = sorted(entry_points(group="tenure.resource_types"), key=lambda entry_point: entry_point.name)
    return ResourceTypes(tuple(entry_point.load()(**settings.get(entry_point.name, {})) for entry_point in installed))
