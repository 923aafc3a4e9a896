"""The handlers of leases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import falcon

from tenure.api.answers import PAGE, answer, answer_list, answer_nothing
from tenure.api.bodies import read_object
from tenure.api.context import actor_of, version_of
from tenure.api.links import Links
from tenure.api.schemas.leases import LeaseSchemas
from tenure.api.schemas.queries import HistoryQuery, LeaseListQuery, query_of, read_query, refuse_query
from tenure.api.schemas.resources import WireInventory
from tenure.api.schemas.texts import MAX_ID
from tenure.api.versions import OLDEST, Version
from tenure.domain.errors import NotEnoughResources, NotFound, TenureError
from tenure.domain.request import LeaseQuery
from tenure.services.manager import Manager

#: How a field of one of a lease's reservations begins.
_OF_RESERVATION = re.compile(r"^reservations\[\d+\]\.?")

Schemas = Mapping[Version, LeaseSchemas]


def _possible(lease_id: str) -> str:
    """A lease's id, as far as one can be like that."""
    if not lease_id or len(lease_id) > MAX_ID or "\0" in lease_id:
        raise NotFound(f"Object with {{'lease_id': {lease_id[:MAX_ID]!r}}} not found")
    return lease_id


def _below_reservation(field: str | None) -> str | None:
    """A field of a reservation, as the body of a request calls it that is nothing but this reservation."""
    return (_OF_RESERVATION.sub("", field) or None) if field else None


class Leases:
    """All leases that the caller may see."""

    def __init__(self, manager: Manager, schemas: Schemas, links: Links) -> None:
        self._manager = manager
        self._schemas = schemas
        self._links = links

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor, show = actor_of(req), self._schemas[version_of(req)].show
        if version_of(req) is OLDEST:
            answer_list(
                resp,
                "leases",
                lambda marker: self._manager.leases.list(actor, LeaseQuery(limit=PAGE, marker=marker)),
                show,
                lambda lease: lease.id,
            )
            return
        page = self._manager.leases.list(actor, read_query(req, LeaseListQuery).to_domain())
        document: dict[str, object] = {"leases": [show(lease) for lease in page.items]}
        if page.marker is not None:
            document["leases_links"] = self._links.next_page(req, query_of(req), page.marker)
        answer(resp, document)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor = actor_of(req)
        refuse_query(req)
        schemas = self._schemas[version_of(req)]
        lease = self._manager.leases.create(actor, schemas.read_request(read_object(req)))
        answer(resp, {"lease": schemas.show(lease)}, falcon.HTTP_CREATED)


class OneLease:
    """A lease by its id."""

    def __init__(self, manager: Manager, schemas: Schemas) -> None:
        self._manager = manager
        self._schemas = schemas

    def on_get(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        lease = self._manager.leases.get(actor, _possible(lease_id))
        answer(resp, {"lease": self._schemas[version_of(req)].show(lease)})

    def on_put(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        schemas, known = self._schemas[version_of(req)], _possible(lease_id)
        change = schemas.read_change(read_object(req), lambda: self._manager.leases.get(actor, known))
        answer(resp, {"lease": schemas.show(self._manager.leases.update(actor, known, change))})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        self._manager.leases.delete(actor, _possible(lease_id))
        answer_nothing(resp)


class LeaseConfirmation:
    """The word that a lease which is held is wanted."""

    since = Version.V1_2

    def __init__(self, manager: Manager, schemas: Schemas) -> None:
        self._manager = manager
        self._schemas = schemas

    def on_post(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        schemas, known = self._schemas[version_of(req)], _possible(lease_id)
        changes = schemas.read_confirmation(read_object(req), lambda: self._manager.leases.get(actor, known))
        answer(resp, {"lease": schemas.show(self._manager.leases.confirm(actor, known, changes))})


class LeaseHistory:
    """What happened to a lease."""

    since = Version.V1_1

    def __init__(self, manager: Manager, schemas: Schemas, links: Links) -> None:
        self._manager = manager
        self._schemas = schemas
        self._links = links

    def on_get(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        actor, show = actor_of(req), self._schemas[version_of(req)].show_history_entry
        query = read_query(req, HistoryQuery)
        entries = self._manager.leases.history(actor, _possible(lease_id), limit=query.limit + 1, marker=query.marker)
        shown = entries[: query.limit]
        document: dict[str, object] = {"history": [show(entry) for entry in shown]}
        if len(entries) > query.limit:
            document["history_links"] = self._links.next_page(req, query_of(req), shown[-1].id)
        answer(resp, document)


class LeaseResources:
    """The resources of a lease that are of one inventory, for its owner."""

    def __init__(self, manager: Manager, wire: WireInventory) -> None:
        self._manager = manager
        self._wire = wire
        self.since = max(Version.V1_1, wire.since, key=list(Version).index)

    def on_get(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        found = self._manager.leases.resources(actor, _possible(lease_id), self._wire.resource_type)
        answer(resp, {self._wire.many: [self._wire.show_leased(one) for one in found]})


class LeaseReservations:
    """The reservations of a lease, to which more can be added."""

    since = Version.V1_1

    def __init__(self, manager: Manager, schemas: Schemas) -> None:
        self._manager = manager
        self._schemas = schemas

    def on_post(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        schemas = self._schemas[version_of(req)]
        request = schemas.read_reservation(read_object(req))
        try:
            lease = self._manager.leases.add_reservation(actor, _possible(lease_id), request)
        except TenureError as error:
            error.field = _below_reservation(error.field)
            if isinstance(error, NotEnoughResources):
                error.shortfall = replace(error.shortfall, reservation=0)  # the body has this one alone
            raise
        answer(resp, {"lease": schemas.show(lease)}, falcon.HTTP_CREATED)


class LeaseReservation:
    """One reservation of a lease."""

    since = Version.V1_1

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_delete(self, req: falcon.Request, resp: falcon.Response, lease_id: str, reservation_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        if not reservation_id or len(reservation_id) > MAX_ID or "\0" in reservation_id:
            raise NotFound(f"Object with {{'reservation_id': {reservation_id[:MAX_ID]!r}}} not found")
        self._manager.leases.drop_reservation(actor, _possible(lease_id), reservation_id)
        answer_nothing(resp)
