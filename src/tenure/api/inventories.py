"""The handlers of inventories: their resources, who has a part in them, and the properties that they have.

They are the same for hosts, for addresses and for whatever else can be booked. What differs is a ``WireInventory``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

import falcon

from tenure.api.answers import PAGE, answer, answer_list, answer_nothing
from tenure.api.bodies import read_object
from tenure.api.context import actor_of, version_of
from tenure.api.links import Links
from tenure.api.schemas.leases import ReservationKind
from tenure.api.schemas.queries import (
    AllocationListQuery,
    AllocationQuery,
    LenientPropertyListQuery,
    PropertyListQuery,
    list_query,
    query_of,
    read_query,
    refuse_query,
)
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import (
    Disable,
    Enable,
    Reallocate,
    WireInventory,
    WireLending,
    WireProperties,
    read_private,
    read_region,
    show_allocation,
    show_change,
    show_property,
    show_property_setting,
)
from tenure.api.schemas.texts import MAX_EXTERNAL_ID
from tenure.api.versions import OLDEST, Version
from tenure.domain.errors import NotFound
from tenure.domain.request import BookingQuery, ResourceQuery
from tenure.resources.contract import Inventory
from tenure.services.manager import Manager


@dataclass(frozen=True, slots=True)
class Served:
    """An inventory that is served: how it is on the wire, and how it is spoken of."""

    wire: WireInventory
    stock: Inventory

    def possible(self, where: Mapping[str, str]) -> str:
        """The id that a URL names, as far as one can be like that."""
        [external_id] = where.values()
        if not external_id or len(external_id) > MAX_EXTERNAL_ID or "\0" in external_id:
            shown = external_id[:MAX_EXTERNAL_ID].replace("\0", "?")
            raise NotFound(self.stock.say(self.stock.missing, id=shown))
        return external_id


@cache
def installed_inventories() -> tuple[WireInventory, ...]:
    """The inventories that are on the wire where their type is installed, ours and others', by their entry points."""
    return tuple(one.load() for one in sorted(entry_points(group="tenure.inventories"), key=lambda one: one.name))


def served_inventories(kinds: Iterable[ReservationKind]) -> tuple[Served, ...]:
    """The inventories of these types that are on the wire."""
    known = {kind.stock.name: kind.stock for kind in kinds if kind.stock is not None}
    wires = installed_inventories()
    return tuple(Served(wire, known[wire.resource_type]) for wire in wires if wire.resource_type in known)


def inventory_routes(served: Served, manager: Manager, links: Links) -> Mapping[str, object]:
    """What is served of an inventory under which URL."""
    path, one = served.wire.path, f"{served.wire.path}/{{{served.wire.part}}}"
    routes: dict[str, object] = {
        path: Resources(served, manager, links),
        one: OneResource(served, manager),
        f"{path}/allocations": Allocations(served, manager, links),
        f"{one}/allocation": OneAllocation(served, manager),
        f"{one}/disable": DisabledResource(served, manager),
        f"{one}/enable": EnabledResource(served, manager),
        f"{one}/reallocate": EmptiedResource(served, manager),
    }
    if served.wire.properties is not None:
        routes |= {
            one: ChangeableResource(served, manager, served.wire.properties),
            f"{path}/properties": Properties(served, manager),
            f"{path}/properties/{{property_name}}": OneProperty(served, manager),
        }
    elif served.wire.lending is not None:
        routes[one] = LentResource(served, manager, served.wire.lending)
    return routes


class _Handler:
    """What every handler has: its inventory, and the manager to ask."""

    #: From when on this is served of any inventory.
    first = OLDEST

    def __init__(self, served: Served, manager: Manager) -> None:
        self._served = served
        self._wire = served.wire
        self._type = served.wire.resource_type
        self._resources = manager.resources
        self.since = max(served.wire.since, self.first, key=list(Version).index)


class Resources(_Handler):
    """All resources of a type that can be reserved."""

    def __init__(self, served: Served, manager: Manager, links: Links) -> None:
        super().__init__(served, manager)
        self._links = links

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor, version, many = actor_of(req), version_of(req), self._wire.many
        if version is OLDEST:
            answer_list(
                resp,
                many,
                lambda marker: self._resources.list(actor, ResourceQuery(self._type, PAGE, marker)),
                lambda resource: self._wire.show(resource, version),
                lambda resource: resource.external_id,
            )
            return
        page = self._resources.list(actor, read_query(req, list_query(self._wire.query, version)).to_domain(self._type))
        document: dict[str, object] = {many: [self._wire.show(resource, version) for resource in page.items]}
        if page.marker is not None:
            document[self._wire.links] = self._links.next_page(req, query_of(req), page.marker)
        answer(resp, document)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor, version = actor_of(req), version_of(req)
        refuse_query(req)
        body, region = read_region(read_object(req), version)
        given = self._wire.read_registration(body, version)
        resource = self._resources.register(
            actor, self._type, given.reference, given.properties, given.capacity, region
        )
        answer(resp, {self._wire.one: self._wire.show_new(resource, version)}, falcon.HTTP_CREATED)


class OneResource(_Handler):
    """A resource by its id."""

    def on_get(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        resource = self._resources.get(actor, self._type, self._served.possible(where))
        answer(resp, {self._wire.one: self._wire.show(resource, version_of(req))})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        self._resources.unregister(actor, self._type, self._served.possible(where))
        answer_nothing(resp)


class ChangeableResource(OneResource):
    """A resource with properties of its own, by its id."""

    def __init__(self, served: Served, manager: Manager, properties: WireProperties) -> None:
        super().__init__(served, manager)
        self._properties = properties

    def on_put(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        changed = self._properties.read(read_object(req), version_of(req))
        resource = self._resources.update(actor, self._type, self._served.possible(where), changed)
        answer(resp, {self._wire.one: self._wire.show(resource, version_of(req))})


class LentResource(OneResource):
    """A resource of which an operator lends as much as he likes, by its id."""

    def __init__(self, served: Served, manager: Manager, lending: WireLending) -> None:
        super().__init__(served, manager)
        self._lending = lending

    def on_put(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        capacity = self._lending.read(read_object(req), version_of(req))
        resource = self._resources.lend(actor, self._type, self._served.possible(where), capacity)
        answer(resp, {self._wire.one: self._wire.show(resource, version_of(req))})


class DisabledResource(_Handler):
    """Closes a resource to new reservations."""

    first = Version.V1_2

    def on_post(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        asked = check(Disable, read_object(req), version_of(req))
        external_id = self._served.possible(where)
        done = self._resources.disable(actor, self._type, external_id, reason=asked.reason, dry_run=asked.dry_run)
        answer(resp, show_change(self._wire, done, version_of(req), dry_run=asked.dry_run))


class EnabledResource(_Handler):
    """Opens a resource to reservations again."""

    first = Version.V1_2

    def on_post(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        asked = check(Enable, read_object(req), version_of(req))
        done = self._resources.enable(actor, self._type, self._served.possible(where), dry_run=asked.dry_run)
        answer(resp, show_change(self._wire, done, version_of(req), dry_run=asked.dry_run))


class EmptiedResource(_Handler):
    """Moves what is booked on a resource to others."""

    first = Version.V1_2

    def on_post(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        asked = check(Reallocate, read_object(req), version_of(req))
        done = self._resources.reallocate(
            actor,
            self._type,
            self._served.possible(where),
            lease_id=asked.lease_id,
            running=asked.running,
            dry_run=asked.dry_run,
        )
        answer(resp, show_change(self._wire, done, version_of(req), dry_run=asked.dry_run))


class Allocations(_Handler):
    """Which reservations have a part in which resources."""

    def __init__(self, served: Served, manager: Manager, links: Links) -> None:
        super().__init__(served, manager)
        self._links = links
        self.since = max(served.wire.since, served.wire.allocations_since, key=list(Version).index)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor, version = actor_of(req), version_of(req)
        query = read_query(req, AllocationListQuery)
        if version is OLDEST:
            answer_list(
                resp,
                "allocations",
                lambda marker: self._resources.bookings(
                    actor, BookingQuery(self._type, PAGE, marker, query.lease_id, query.reservation_id)
                ),
                lambda allocation: show_allocation(allocation, version),
                lambda allocation: allocation.external_id,
            )
            return
        filtered = query.lease_id is not None or query.reservation_id is not None
        asked = BookingQuery(self._type, query.limit, query.marker, query.lease_id, query.reservation_id, filtered)
        page = self._resources.bookings(actor, asked)
        document: dict[str, object] = {"allocations": [show_allocation(one, version) for one in page.items]}
        if page.marker is not None:
            document["allocations_links"] = self._links.next_page(req, query_of(req), page.marker)
        answer(resp, document)


class OneAllocation(_Handler):
    """Which reservations have a part in one resource."""

    def __init__(self, served: Served, manager: Manager) -> None:
        super().__init__(served, manager)
        self.since = max(served.wire.since, served.wire.allocations_since, key=list(Version).index)

    def on_get(self, req: falcon.Request, resp: falcon.Response, **where: str) -> None:
        actor = actor_of(req)
        query = read_query(req, AllocationQuery)
        found = self._resources.bookings_of(
            actor,
            self._type,
            self._served.possible(where),
            lease_id=query.lease_id,
            reservation_id=query.reservation_id,
        )
        answer(resp, {"allocation": show_allocation(found, version_of(req))})


class Properties(_Handler):
    """The properties that resources of a type have."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor = actor_of(req)
        query: LenientPropertyListQuery | PropertyListQuery = (
            read_query(req, LenientPropertyListQuery)
            if version_of(req) is OLDEST
            else read_query(req, PropertyListQuery)
        )
        found = self._resources.properties(actor, self._type, include_private=bool(query.all))
        shown = [show_property(values, detail=bool(query.detail)) for values in found]
        answer(resp, {"resource_properties": shown})


class OneProperty(_Handler):
    """A property that resources of a type have."""

    def on_patch(self, req: falcon.Request, resp: falcon.Response, property_name: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        private = read_private(read_object(req), version_of(req))
        if not property_name or len(property_name) > MAX_EXTERNAL_ID or "\0" in property_name:
            raise NotFound(f"Property {property_name[:MAX_EXTERNAL_ID]!r} not found")
        setting = self._resources.set_property(actor, self._type, property_name, private=private)
        answer(resp, {"resource_property": show_property_setting(setting, version_of(req))})
