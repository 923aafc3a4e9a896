"""The handlers of hosts, their allocations and their properties."""

from __future__ import annotations

from collections.abc import Mapping

import falcon

from tenure.api.answers import PAGE, answer, answer_list, answer_nothing
from tenure.api.bodies import read_object
from tenure.api.context import actor_of, version_of
from tenure.api.links import Links
from tenure.api.schemas.hosts import (
    HostDisable,
    HostEnable,
    HostReallocate,
    read_private,
    read_properties,
    read_registration,
    show_allocation,
    show_allocation_1_0,
    show_host,
    show_host_1_0,
    show_host_change,
    show_property,
    show_property_setting,
)
from tenure.api.schemas.queries import (
    AllocationListQuery,
    AllocationQuery,
    HostListQuery,
    LenientPropertyListQuery,
    PropertyListQuery,
    query_of,
    read_query,
    refuse_query,
)
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import MAX_EXTERNAL_ID
from tenure.api.versions import OLDEST, Version
from tenure.domain.errors import NotFound
from tenure.domain.request import BookingQuery, ResourceQuery
from tenure.domain.resource import Resource
from tenure.services.manager import Manager

HOSTS = "physical:host"


def _possible(host_id: str) -> str:
    """A host's id, as far as one can be like that."""
    if not host_id or len(host_id) > MAX_EXTERNAL_ID or "\0" in host_id:
        raise NotFound(f"Object with {{'host_id': {host_id[:MAX_EXTERNAL_ID]!r}}} not found")
    return host_id


def _shown(host: Resource, version: Version) -> Mapping[str, object]:
    return {"host": show_host_1_0(host) if version is OLDEST else show_host(host, version)}


class Hosts:
    """All hosts that can be reserved."""

    def __init__(self, manager: Manager, links: Links) -> None:
        self._manager = manager
        self._links = links

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor = actor_of(req)
        if version_of(req) is OLDEST:
            answer_list(
                resp,
                "hosts",
                lambda marker: self._manager.resources.list(actor, ResourceQuery(HOSTS, PAGE, marker)),
                show_host_1_0,
                lambda host: host.external_id,
            )
            return
        page = self._manager.resources.list(actor, read_query(req, HostListQuery).to_domain(HOSTS))
        document: dict[str, object] = {"hosts": [show_host(host, version_of(req)) for host in page.items]}
        if page.marker is not None:
            document["hosts_links"] = self._links.next_page(req, query_of(req), page.marker)
        answer(resp, document)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor = actor_of(req)
        refuse_query(req)
        given = read_registration(read_object(req), version_of(req))
        host = self._manager.resources.register(actor, HOSTS, given.reference, given.properties)
        answer(resp, _shown(host, version_of(req)), falcon.HTTP_CREATED)


class OneHost:
    """A host by its id."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_get(self, req: falcon.Request, resp: falcon.Response, host_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        answer(resp, _shown(self._manager.resources.get(actor, HOSTS, _possible(host_id)), version_of(req)))

    def on_put(self, req: falcon.Request, resp: falcon.Response, host_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        properties = read_properties(read_object(req), version_of(req))
        host = self._manager.resources.update(actor, HOSTS, _possible(host_id), properties)
        answer(resp, _shown(host, version_of(req)))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, host_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        self._manager.resources.unregister(actor, HOSTS, _possible(host_id))
        answer_nothing(resp)


class DisabledHost:
    """Closes a host to new reservations."""

    since = Version.V1_2

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_post(self, req: falcon.Request, resp: falcon.Response, host_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        asked = check(HostDisable, read_object(req), version_of(req))
        done = self._manager.resources.disable(
            actor, HOSTS, _possible(host_id), reason=asked.reason, dry_run=asked.dry_run
        )
        answer(resp, show_host_change(done, version_of(req), dry_run=asked.dry_run))


class EnabledHost:
    """Opens a host to reservations again."""

    since = Version.V1_2

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_post(self, req: falcon.Request, resp: falcon.Response, host_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        asked = check(HostEnable, read_object(req), version_of(req))
        done = self._manager.resources.enable(actor, HOSTS, _possible(host_id), dry_run=asked.dry_run)
        answer(resp, show_host_change(done, version_of(req), dry_run=asked.dry_run))


class EmptiedHost:
    """Moves what is booked on a host to others."""

    since = Version.V1_2

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_post(self, req: falcon.Request, resp: falcon.Response, host_id: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        asked = check(HostReallocate, read_object(req), version_of(req))
        done = self._manager.resources.reallocate(
            actor,
            HOSTS,
            _possible(host_id),
            lease_id=asked.lease_id,
            running=asked.running,
            dry_run=asked.dry_run,
        )
        answer(resp, show_host_change(done, version_of(req), dry_run=asked.dry_run))


class HostAllocations:
    """Which reservations have a part in which hosts."""

    def __init__(self, manager: Manager, links: Links) -> None:
        self._manager = manager
        self._links = links

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor = actor_of(req)
        query = read_query(req, AllocationListQuery)
        if version_of(req) is OLDEST:
            answer_list(
                resp,
                "allocations",
                lambda marker: self._manager.resources.bookings(
                    actor, BookingQuery(HOSTS, PAGE, marker, query.lease_id, query.reservation_id)
                ),
                show_allocation_1_0,
                lambda allocation: allocation.external_id,
            )
            return
        filtered = query.lease_id is not None or query.reservation_id is not None
        asked = BookingQuery(HOSTS, query.limit, query.marker, query.lease_id, query.reservation_id, filtered)
        page = self._manager.resources.bookings(actor, asked)
        document: dict[str, object] = {"allocations": [show_allocation(allocation) for allocation in page.items]}
        if page.marker is not None:
            document["allocations_links"] = self._links.next_page(req, query_of(req), page.marker)
        answer(resp, document)


class HostAllocation:
    """Which reservations have a part in one host."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_get(self, req: falcon.Request, resp: falcon.Response, host_id: str) -> None:
        actor = actor_of(req)
        query = read_query(req, AllocationQuery)
        found = self._manager.resources.bookings_of(
            actor, HOSTS, _possible(host_id), lease_id=query.lease_id, reservation_id=query.reservation_id
        )
        show = show_allocation_1_0 if version_of(req) is OLDEST else show_allocation
        answer(resp, {"allocation": show(found)})


class HostProperties:
    """The properties that hosts have."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor = actor_of(req)
        query: LenientPropertyListQuery | PropertyListQuery = (
            read_query(req, LenientPropertyListQuery)
            if version_of(req) is OLDEST
            else read_query(req, PropertyListQuery)
        )
        found = self._manager.resources.properties(actor, HOSTS, include_private=bool(query.all))
        shown = [show_property(values, detail=bool(query.detail)) for values in found]
        answer(resp, {"resource_properties": shown})


class HostProperty:
    """A property that hosts have."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_patch(self, req: falcon.Request, resp: falcon.Response, property_name: str) -> None:
        actor = actor_of(req)
        refuse_query(req)
        private = read_private(read_object(req), version_of(req))
        if not property_name or len(property_name) > MAX_EXTERNAL_ID or "\0" in property_name:
            raise NotFound(f"Property {property_name[:MAX_EXTERNAL_ID]!r} not found")
        setting = self._manager.resources.set_property(actor, HOSTS, property_name, private=private)
        answer(resp, {"resource_property": show_property_setting(setting, version_of(req))})
