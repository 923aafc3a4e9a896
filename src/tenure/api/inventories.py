"""The operations of inventories: their resources, the allocations of these, and their properties.

They are the same for hosts, addresses and all other resources. The differences are in ``WireInventory``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BaseModel, create_model

from tenure.api.answers import Many, One, Pages, Shape, Whole, pages
from tenure.api.leases import SEE as SEE_LEASES
from tenure.api.operations import ADMINISTRATORS, READERS, Operation, Request, Rule
from tenure.api.schemas import answers, as_shown
from tenure.api.schemas.answers import AffectedReservation, Answer, AnswerAt, From, ModelAt
from tenure.api.schemas.queries import (
    AllocationListQuery,
    AllocationQuery,
    PropertyListQuery,
    Query,
    QueryAt,
    list_queries,
)
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import (
    Disable,
    Enable,
    PropertyUpdate,
    Reallocate,
    WireInventory,
    WireLending,
    WireProperties,
    read_region,
    registration_models,
    served_inventories,
)
from tenure.api.versions import Version, by_version
from tenure.domain.json_text import JsonObject
from tenure.domain.request import AffectedAllocation, LeasedResource, Page, ResourceBookings, ResourceChange
from tenure.domain.resource import PropertySetting, Resource
from tenure.resources.contract import Inventory, ResourceType
from tenure.services.manager import Manager

#: Returns the method of a manager that changes a resource.
Verb = Callable[[Manager], Callable[..., ResourceChange]]


_SEE_PROPERTIES = Rule(
    "tenure:properties:get", READERS, "From 1.3 on: see the public properties that resources have, and their values."
)


def inventory_operations(resource_types: Iterable[ResourceType]) -> Iterator[Operation]:
    """Return the operations of all inventories of these types that the API serves."""
    for wire, inventory in served_inventories(resource_types):
        yield from InventoryOperations(wire, inventory).table()


@dataclass(frozen=True, slots=True)
class _Changed:
    """A resource after a change, or after the change that was tried, and the affected reservations."""

    resource: Resource
    dry_run: bool
    affected: tuple[AffectedAllocation, ...]


class InventoryOperations:
    """The operations of an inventory."""

    #: The shape of lists, and the models that are the same for all inventories.
    listed: Callable[[str, AnswerAt], Shape] = Pages
    allocations_query: type[Query] = AllocationListQuery
    properties_query: type[Query] = PropertyListQuery
    allocation: type[Answer] = answers.Allocation
    property_change: type[BaseModel] = PropertyUpdate
    property_setting: type[Answer] = answers.PropertySetting

    def __init__(self, wire: WireInventory, inventory: Inventory) -> None:
        self.wire = wire
        self._inventory = inventory
        self._type = wire.resource_type

    def table(self) -> Iterator[Operation]:
        """Return all operations, in the order of their description."""
        wire, noun, nouns, since = self.wire, self.wire.noun, self.wire.nouns, self.wire.since
        collection, resource = wire.path, wire.resource_path
        shown, listed = One(wire.one, wire.answer), self.listed(wire.many, wire.answer)
        registered = One(wire.one, wire.answer_new or wire.answer)
        query, registration = self.list_query(), registration_models(wire.registration)
        see = (self._rule("get", f"List {nouns}, and see one.", READERS if wire.is_for_readers else ADMINISTRATORS),)
        make = (self._rule("post", f"Make a {noun} reservable."),)
        take_back = (self._rule("delete", f"Take a {noun} back."),)
        summary = f"List {nouns}"
        yield Operation("GET", collection, summary, self.list, listed, query=query, since=since, rules=see)
        summary = f"Make a {noun} reservable"
        yield Operation(
            "POST",
            collection,
            summary,
            self.register,
            registered,
            status=201,
            body=registration,
            since=since,
            rules=make,
            is_repeatable=True,
        )
        yield Operation("GET", resource, f"Show a {noun}", self.get, shown, since=since, rules=see)
        summary = f"Take a {noun} back"
        yield Operation("DELETE", resource, summary, self.unregister, None, since=since, rules=take_back)
        if wire.properties is not None:
            yield self._change_of(
                resource, f"Change a {noun}'s properties", partial(self.update, wire.properties), wire.properties.models
            )
            yield from self._of_properties()
        elif wire.lending is not None:
            run, body = partial(self.lend, wire.lending), by_version(wire.lending.model)
            yield self._change_of(resource, f"Change how much of a {noun} is lent", run, body)
        yield from self._of_allocations(resource, max(since, wire.allocations_since))
        path, summary = wire.leased_path, f"List the {nouns} of a lease"
        leased = Many(wire.many, by_version(wire.leased_answer))
        yield Operation("GET", path, summary, self.leased, leased, since=max(since, Version.V1_1), rules=(SEE_LEASES,))
        yield from self._of_states(resource)

    def _rule(self, verb: str, description: str, default: str = ADMINISTRATORS) -> Rule:
        return Rule(f"{self._inventory.rules}:{verb}", default, description)

    def _change_of(self, resource: str, summary: str, run: Callable[[Request], object], body: ModelAt) -> Operation:
        """Return the operation that changes what an operator sets of a resource."""
        shown, rules = One(self.wire.one, self.wire.answer), (self._rule("put", f"{summary}."),)
        return Operation("PUT", resource, summary, run, shown, body=body, since=self.wire.since, rules=rules)

    def _of_states(self, resource: str) -> Iterator[Operation]:
        noun, since = self.wire.noun, max(self.wire.since, Version.V1_2)
        changed = Whole(cache(self._change_model))
        close = self._rule("disable", f"Close a {noun} to new reservations, or open it again.")
        empty = self._rule("reallocate", f"Move the reservations of a {noun} to others.")
        changes: Sequence[tuple[str, str, Verb, type[BaseModel], Rule]] = (
            ("disable", f"Close a {noun} to reservations", lambda manager: manager.resources.disable, Disable, close),
            ("enable", f"Open a {noun} again", lambda manager: manager.resources.enable, Enable, close),
            ("reallocate", f"Empty a {noun}", lambda manager: manager.resources.reallocate, Reallocate, empty),
        )
        for name, summary, verb, model, rule in changes:
            run, body, path = partial(self.change, verb), by_version(model), f"{resource}/{name}"
            yield Operation("POST", path, summary, run, changed, body=body, since=since, rules=(rule,))

    def _of_properties(self) -> Iterator[Operation]:
        path, nouns, since = f"{self.wire.path}/properties", self.wire.nouns, self.wire.since
        summary = f"List the properties that {nouns} have"
        shown, query = Many("resource_properties", by_version(answers.Property)), by_version(self.properties_query)
        see = (_SEE_PROPERTIES, self._rule("get_resource_properties", f"{summary}."))
        yield Operation("GET", path, summary, self.properties, shown, query=query, since=since, rules=see)
        summary = "Make a property private or public"
        yield Operation(
            "PATCH",
            f"{path}/{{property_name}}",
            summary,
            self.set_property,
            One("resource_property", by_version(self.property_setting)),
            body=by_version(self.property_change),
            since=since,
            rules=(self._rule("update_resource_properties", f"{summary}."),),
            refused_with=(404,),
        )

    def _of_allocations(self, resource: str, since: Version) -> Iterator[Operation]:
        path, nouns = f"{self.wire.path}/allocations", self.wire.nouns
        rules = (self._rule("get_allocations", f"See which reservations have a part in which {nouns}."),)
        model, query = by_version(self.allocation), by_version(self.allocations_query)
        listed, shown = self.listed("allocations", model), One("allocation", model)
        summary = f"List who has a part in which {nouns}"
        yield Operation("GET", path, summary, self.bookings, listed, query=query, since=since, rules=rules)
        path, summary = f"{resource}/allocation", f"Show who has a part in a {self.wire.noun}"
        query = by_version(AllocationQuery)
        yield Operation("GET", path, summary, self.bookings_of, shown, query=query, since=since, rules=rules)

    def list_query(self) -> QueryAt:
        """Return the query of the list of resources."""
        return list_queries(self.wire.query)

    def _change_model(self, version: Version) -> type[Answer]:
        """Return the model of ``_Changed``."""
        shown = self.wire.answer(version)
        fields: dict[str, Any] = {
            self.wire.one: (Annotated[shown, From("resource")], ...),
            "dry_run": (bool, ...),
            "reservations": (Annotated[list[AffectedReservation], From("affected")], ...),
        }
        return create_model(f"{shown.__name__}Change", __base__=Answer, **fields)

    def resource_id(self, request: Request) -> str:
        """Return the id in the URL. Raises ``NotFound`` if it is not a valid id."""
        return request.path_parameter(
            self.wire.path_parameter,
            lambda shown: self._inventory.say(self._inventory.missing, id=shown.replace("\0", "?")),
        )

    def list(self, request: Request) -> Iterator[Page[Resource]]:
        first = request.query.to_domain(self._type)
        return pages(partial(request.manager.resources.list, request.actor), first, attrgetter("external_id"))

    def register(self, request: Request) -> Resource:
        body, region = read_region(request.body(), request.version)
        given = self.wire.read_registration(body, request.version)
        return request.manager.resources.register(
            request.actor,
            self._type,
            given.reference,
            given.properties,
            given.capacity,
            region,
            repeatable=request.repeatable(),
        )

    def update(self, properties: WireProperties, request: Request) -> Resource:
        body = self.without_shown(request, properties.models)
        if body in ({}, {"properties": {}}):  # without what is as it is shown, nothing is left
            changed: Mapping[str, str | None] = {}
        else:
            changed = properties.read(request.body() if body is None else body, request.version)
        return request.manager.resources.update(request.actor, self._type, self.resource_id(request), changed)

    def lend(self, lending: WireLending, request: Request) -> Resource:
        body = self.without_shown(request, by_version(lending.model))
        given = check(lending.model, request.body() if body is None else body, request.version)
        return request.manager.resources.lend(request.actor, self._type, self.resource_id(request), lending.read(given))

    def without_shown(self, request: Request, models: ModelAt, *, is_strict: bool = True) -> JsonObject | None:
        """Return a body without what is as it is shown; None if it has no field that only the service sets.

        Raises ``InvalidParameter`` for another value of such a field, if ``is_strict``; otherwise the field stays.
        """
        version = request.version
        of_service = self.wire.answer(version).model_fields.keys() - models(version).model_fields.keys()
        if not self.accepts_as_shown(request) or of_service.isdisjoint(request.body()):
            return None
        shown = self.wire.answer(version).show(self.get(request))
        return as_shown.only_changes_of_resource(request.body(), shown, of_service, is_strict=is_strict)

    def accepts_as_shown(self, request: Request) -> bool:
        """Whether a change may have fields that only the service sets; before 1.3 it is refused for them."""
        return as_shown.accepts_as_shown(request.version)

    def get(self, request: Request) -> Resource:
        return request.manager.resources.get(request.actor, self._type, self.resource_id(request))

    def unregister(self, request: Request) -> None:
        request.manager.resources.unregister(request.actor, self._type, self.resource_id(request))

    def leased(self, request: Request) -> Sequence[LeasedResource]:
        return request.manager.leases.resources(request.actor, request.path_parameter("lease_id"), self._type)

    def change(self, verb: Verb, request: Request) -> _Changed:
        """Call the method of ``verb`` with the fields of the body as arguments."""
        given = request.given()
        change = verb(request.manager)(request.actor, self._type, self.resource_id(request), **given.model_dump())
        return _Changed(change.resource, given.dry_run, change.affected)

    def bookings(self, request: Request) -> Iterator[Page[ResourceBookings]]:
        first = request.query.to_domain(self._type)
        return pages(partial(request.manager.resources.bookings, request.actor), first, attrgetter("external_id"))

    def bookings_of(self, request: Request) -> ResourceBookings:
        query, external_id = request.query, self.resource_id(request)
        return request.manager.resources.bookings_of(
            request.actor, self._type, external_id, lease_id=query.lease_id, reservation_id=query.reservation_id
        )

    def properties(self, request: Request) -> Sequence[answers.Property]:
        query = request.query
        found = request.manager.resources.properties(
            request.actor, self._type, include_private=bool(query.all), for_members=request.version >= Version.V1_3
        )
        if not query.detail:
            return [answers.Property(property=values.name) for values in found]
        return [
            answers.Property(property=values.name, private=values.private, values=list(values.values))
            for values in found
        ]

    def set_property(self, request: Request) -> PropertySetting:
        private = request.given().private
        name = request.path_parameter("property_name", "Property {!r} not found".format)
        return request.manager.resources.set_property(request.actor, self._type, name, private=private)
