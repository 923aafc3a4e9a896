"""Registered resources of any type, and the operations on them; for administrators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, TypedDict, TypeVar

from tenureclient import errors
from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.options import Option
from tenureclient.transport import Answer, Calls, Transport
from tenureclient.wire import Feature, Fields, JsonObject, JsonValue, Version

_REGIONS = Feature("regions", Version.V1_2)


@document("a resource", kw_only=True)
class Resource(Document):
    """A registered resource: what resources of all types have."""

    id: str
    reservable: SetFlag
    region: str | None = None
    """Its region. None if the service has no regions, or the server does not say."""
    enabled: bool | None = None
    """Whether the operator allows reservations. None if the server does not say."""
    disabled_reason: str | None = None
    health: str | None = None
    """Health as the cloud reports it: well, disabled, down or gone."""
    health_reason: str | None = None
    health_since: datetime | None = None
    created_at: datetime | None
    updated_at: datetime | None


@document("an affected reservation", kw_only=True)
class AffectedReservation(Document):
    """A reservation of a resource that is closed or emptied: where it moves to, or why it stays."""

    id: str
    lease_id: str
    status: str
    start_date: datetime
    end_date: datetime
    moves_to: str | None
    reason: str | None


R = TypeVar("R", bound=Resource)
L = TypeVar("L", bound=Document)


@dataclass(frozen=True, slots=True)
class ResourceChange(Generic[R]):
    """A resource after a change (or its preview), and what happens to its reservations."""

    resource: R
    dry_run: bool
    reservations: tuple[AffectedReservation, ...]


@document("an allocated reservation")
class ReservedPeriod(Document):
    """The reservation and the period that a resource is allocated for."""

    id: str
    lease_id: str
    start_date: datetime
    end_date: datetime


@document("an allocation")
class Allocation(Document):
    """The reservations of one resource."""

    resource_id: LooseText
    reservations: tuple[ReservedPeriod, ...]


class ResourceQuery(TypedDict, total=False):
    """Which resources to list, and in which order. What is None does not restrict the list."""

    region: Annotated[str | None, Option("--region", metavar="NAME", help="Only what is in this region of the service")]
    reservable: bool | None
    sort_key: str
    descending: bool


@dataclass(frozen=True, slots=True)
class Help:
    """The help of a command: its description, and pairs of the arguments of a command line and its purpose."""

    description: str
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType(Generic[R, L]):
    """A type of resources: its names in the API and on the command line, and what its commands show and take.

    ``resource`` is the model of its resources, and ``of_lease`` that of those that a lease has. Lists and the types
    of ``allocation list`` are in the order of ``position``.
    """

    resource: type[R]
    of_lease: type[L]
    #: The path of its resources, and the keys under which documents have one or several of them.
    path: str
    document_key: str
    list_key: str
    #: The field by which people identify a resource.
    name: str
    #: What errors call a resource.
    noun: str
    #: What older servers lack; None if all servers have the type.
    feature: Feature | None = None
    #: What older servers lack if they have the type, but not the list of its allocations.
    feature_of_allocations: Feature | None = None

    #: The word for the type in ``allocation list``, the words before the verb of its commands, and a placeholder.
    short: str
    words: str
    metavar: str
    position: int = 100
    #: What ``name`` is, and what some resources and closed ones are called in the help.
    name_or_id: str = "Name or id"
    some: str
    closed: str = "closed"
    #: What reservations that have started lose when they move to another resource.
    lost: str
    #: The columns of the list of resources, and of that of a lease.
    listed: Sequence[str]
    listed_of_lease: Sequence[str]
    #: The fields by which the list can be sorted, the one by which it is sorted otherwise, and the value to sort by.
    sortable: Sequence[str]
    sorted_by: str
    sort_value: Callable[[R, str], Any] = getattr
    #: What ``list`` takes: the fields of a ``ResourceQuery``.
    query: type[Any] = ResourceQuery
    #: What a registration takes, and what can be changed later, by the names of the fields in the API.
    registration: Sequence[Option]
    changes: Sequence[Option] = ()
    #: The help of each command, by its verb; there is a command for each of these verbs.
    help: Mapping[str, Help]


class Inventory(Calls, Generic[R, L]):
    """The registered resources of one type, which a subclass declares with the arguments of ``create`` and ``list``."""

    resource_type: ClassVar[ResourceType[Any, Any]]

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._type: ResourceType[R, L] = self.resource_type

    def get(self, resource_id: str) -> R:
        return self._read_resource(self._transport.call("GET", self._type.path, resource_id))

    def find(self, name_or_id: str) -> R:
        """Return the resource with this name, or else with this id."""
        noun = self._type.noun
        named = list(self._named(name_or_id))
        if len(named) > 1:
            ids = ", ".join(resource.id for resource in named)
            raise errors.NotUnique(f"Several {noun}s are named '{name_or_id}': {ids}. Give the id.")
        if named:
            return named[0]
        try:
            return self.get(name_or_id)
        except errors.NotFound as error:
            raise errors.NotFound(
                f"There is no {noun} '{name_or_id}'.", code=error.code, name=error.name, request_id=error.request_id
            ) from error

    def register(self, fields: Mapping[str, object]) -> R:
        """Register a resource with these fields of the API; what is None is not sent."""
        given = {name: value for name, value in fields.items() if value is not None}
        feature = self._type.feature or (_REGIONS if "region" in given else None)
        return self._read_resource(
            self._transport.call("POST", self._type.path, body=self._body(given), feature=feature, makes=True)
        )

    def change(self, resource_id: str, fields: Mapping[str, object]) -> R:
        """Change these fields of a resource."""
        body, feature = self._body(fields), self._type.feature
        return self._read_resource(
            self._transport.call("PUT", self._type.path, resource_id, body=body, feature=feature)
        )

    def matching(self, query: Mapping[str, Any]) -> Iterator[R]:
        """Yield the resources that match a query of the type; pages are fetched as needed."""
        declared = self._type
        if unknown := query.keys() - declared.query.__annotations__.keys():
            raise TypeError(f"{declared.noun.capitalize()}s cannot be listed by {', '.join(sorted(unknown))}.")
        filters = {name: value for name, value in query.items() if value is not None}
        sort_key, descending = filters.pop("sort_key", "id"), filters.pop("descending", False)
        keys = ("id", declared.name)
        if sort_key not in keys:
            raise ValueError(f"{declared.noun.capitalize()}s can be sorted by {', '.join(keys)}, not by {sort_key}.")

        def fitting(resources: Sequence[R]) -> Sequence[R]:
            return [
                resource
                for resource in resources
                if all(getattr(resource, name) == value for name, value in filters.items())
            ]

        yield from self._transport.listed(
            declared.path,
            items=declared.list_key,
            filters=filters,
            sort_key=sort_key,
            descending=descending,
            read=declared.resource.from_wire,
            fitting=fitting,
            feature=_REGIONS if "region" in filters else None,
        )

    def delete(self, resource_id: str) -> None:
        """Remove the resource from the reservation service. No lease may still need it."""
        self._transport.call("DELETE", self._type.path, resource_id)

    def disable(self, resource_id: str, *, reason: str = "", dry_run: bool = False) -> ResourceChange[R]:
        """Close the resource to new reservations; existing ones keep it. ``dry_run`` only previews."""
        return self._act(resource_id, "disable", {"reason": reason, "dry_run": dry_run})

    def enable(self, resource_id: str, *, dry_run: bool = False) -> ResourceChange[R]:
        """Open the resource to reservations again, as far as it is healthy. ``dry_run`` only previews."""
        return self._act(resource_id, "enable", {"dry_run": dry_run})

    def reallocate(
        self, resource_id: str, *, lease_id: str | None = None, running: bool = False, dry_run: bool = False
    ) -> ResourceChange[R]:
        """Move the resource's reservations, of one lease or of all, to other resources.

        ``dry_run`` only previews. Reservations that have started stay, unless ``running``: then they lose
        what runs on the resource.
        """
        return self._act(resource_id, "reallocate", {"lease_id": lease_id, "running": running, "dry_run": dry_run})

    def _body(self, fields: Mapping[str, Any]) -> Callable[[Version], JsonObject]:
        """Return the body of a registration, or of a change, in each version."""
        return lambda _version: fields

    def _named(self, name: str) -> Iterator[R]:
        """Yield the resources with this name."""
        return self.matching({self._type.name: name})

    def _act(self, resource_id: str, action: str, body: JsonObject) -> ResourceChange[R]:
        feature = Feature(f"closing and emptying {self._type.noun}s", Version.V1_2)
        answer = self._transport.call(
            "POST", self._type.path, resource_id, action, body=lambda _version: body, feature=feature
        )
        return answer.read(self._read_change)

    def _read_change(self, document: JsonValue) -> ResourceChange[R]:
        fields = Fields(document, f"the change of a {self._type.noun}")
        return ResourceChange(
            resource=self._type.resource.from_wire(fields.value(self._type.document_key)),
            dry_run=fields.flag("dry_run"),
            reservations=fields.items("reservations", AffectedReservation.from_wire),
        )

    def _read_resource(self, answer: Answer) -> R:
        return answer.read(self._type.resource.from_wire, self._type.document_key)
