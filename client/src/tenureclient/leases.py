"""Operations on leases."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, overload

from tenureclient import errors
from tenureclient.dry_run import DryRun
from tenureclient.inventory import Inventory, L
from tenureclient.lease_filter import SORT_KEYS, LeaseFilter, sort_value
from tenureclient.lease_watch import LeaseWatch, WaitProgress
from tenureclient.models import HistoryEntry, Lease
from tenureclient.moments import Moment
from tenureclient.offers import StartWindow
from tenureclient.reservation_request import OwnEvent, ReservationChange, ReservationRequest
from tenureclient.resources.floatingips import FloatingIPs, LeaseFloatingIP
from tenureclient.resources.hosts import Hosts, LeaseHost
from tenureclient.resources.volumes import LeaseVolumePool, VolumePools
from tenureclient.transport import Answer, Body, Transport, parsed
from tenureclient.wire import Fields, JsonObject, JsonValue, Version, moment_to_wire

ACTIVE = frozenset({"ACTIVE"})
SETTLED = frozenset({"PENDING", "ACTIVE", "TERMINATED"})

_EVENTS_FEATURE = "notifications at moments of your choice"
_HOLD_FEATURE = "holding a lease until it is confirmed"
_FLEXIBLE_FEATURE = "a lease with an open start, or with choices"
_WAITING_FEATURE = "the waiting list"
_DRY_RUN_FEATURE = "a dry run of a request for a lease"
_LOOK_AHEAD_FEATURE = "the latest possible end of a lease"
_PLACE_FEATURE = "naming a region, a zone or a kind of hosts"
_PAGE = 500
_OVER = frozenset({"TERMINATED", "DELETED"})
_FINAL = frozenset({"ERROR", "TERMINATED", "DELETED"})


class Leases:
    """The leases of the caller's project, or of all projects for an administrator."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Callable[[], datetime],
        sleep: Callable[[float], None],
    ) -> None:
        self._transport = transport
        self._watch = LeaseWatch(self.get, clock=clock, sleep=sleep)

    @overload
    def create(
        self,
        name: str,
        *,
        start: Moment | None = None,
        end: datetime | None = None,
        window: StartWindow | None = None,
        reservations: Iterable[ReservationRequest] = (),
        any_of: Iterable[Iterable[ReservationRequest]] = (),
        before_end: datetime | None = None,
        events: Iterable[OwnEvent] = (),
        hold_for: timedelta | None = None,
        wait_if_full: bool = False,
        confirm_within: timedelta | None = None,
        dry_run: Literal[False] = False,
    ) -> Lease: ...
    @overload
    def create(
        self,
        name: str,
        *,
        start: Moment | None = None,
        end: datetime | None = None,
        window: StartWindow | None = None,
        reservations: Iterable[ReservationRequest] = (),
        any_of: Iterable[Iterable[ReservationRequest]] = (),
        before_end: datetime | None = None,
        events: Iterable[OwnEvent] = (),
        hold_for: timedelta | None = None,
        wait_if_full: bool = False,
        confirm_within: timedelta | None = None,
        dry_run: Literal[True],
    ) -> DryRun: ...
    def create(
        self,
        name: str,
        *,
        start: Moment | None = None,
        end: datetime | None = None,
        window: StartWindow | None = None,
        reservations: Iterable[ReservationRequest] = (),
        any_of: Iterable[Iterable[ReservationRequest]] = (),
        before_end: datetime | None = None,
        events: Iterable[OwnEvent] = (),
        hold_for: timedelta | None = None,
        wait_if_full: bool = False,
        confirm_within: timedelta | None = None,
        dry_run: bool = False,
    ) -> Lease | DryRun:
        """Book all the reservations, or none, from ``start`` to ``end``, or in the first period of a window.

        With ``any_of`` in place of ``reservations``, the first of these choices that fits is booked; the
        ``choice`` of the lease says which. ``events`` are the moments at which a notification is sent. With
        ``hold_for`` (whole seconds) the booking lasts that long only, unless ``confirm`` is called. Both need
        API 1.2, and so does a reservation with a region, a zone or extra specs; a window and choices need API
        1.3. ``dry_run`` books nothing, and needs API 1.3.

        With ``wait_if_full``, a lease that does not fit is put on the waiting list: its status is WAITING, it
        holds nothing until there is room. With ``confirm_within`` (whole seconds) it is held for so long
        then, and must be confirmed. Both need API 1.3.

        Raises ``NotEnoughResources`` if resources are not free; its ``shortfall`` says why, and its
        ``alternatives`` what is possible instead, if the server knows API 1.3. Raises ``ValueError`` unless
        there are both dates or a window.
        """
        requests, own = tuple(reservations), tuple(events)
        choices = tuple(tuple(choice) for choice in any_of)
        dates = {"start_date": start, "end_date": end}
        if any((moment is None) is (window is None) for moment in dates.values()):
            raise ValueError("A lease needs a start and an end, or a window in place of both.")

        def body(version: Version) -> JsonObject:
            document: dict[str, JsonValue] = {"name": name, "reservations": _wired(requests, version)}
            if window is not None:
                document |= window.to_wire()
            document |= {key: moment_to_wire(moment, version) for key, moment in dates.items() if moment}
            if choices:
                del document["reservations"]
                document["any_of"] = [{"reservations": _wired(choice, version)} for choice in choices]
            if before_end is not None:
                document["before_end_date"] = moment_to_wire(before_end, version)
            if own:
                document["events"] = [event.to_wire(version) for event in own]
            if hold_for is not None:
                document["hold_for"] = int(hold_for.total_seconds())
            if wait_if_full:
                document["if_full"] = "wait"
            if confirm_within is not None:
                document["confirm_within"] = int(confirm_within.total_seconds())
            return document

        feature, since = _place_feature(requests), Version.V1_2
        if hold_for is not None or own:
            feature = _HOLD_FEATURE if hold_for is not None else _EVENTS_FEATURE
        if window is not None or choices:
            feature, since = _FLEXIBLE_FEATURE, Version.V1_3
        if wait_if_full or confirm_within is not None:
            feature, since = _WAITING_FEATURE, Version.V1_3
        if dry_run:
            return self._dry_run("POST", "leases", body=body)
        return _lease(self._write("POST", "leases", body=body, feature=feature, since=since, makes=True))

    def confirm(self, lease_id: str, *, reservations: Iterable[ReservationChange] = ()) -> Lease:
        """Confirm a held lease, and set reservation parameters that are known only now.

        Repeating the call is harmless. Raises ``NotFound`` if the lease was not confirmed in time, and
        ``NotEnoughResources`` as ``create`` does; its ``alternatives`` are other changes, and the lease stays
        held then.
        """
        changes = tuple(reservations)

        def body(version: Version) -> JsonObject:
            return {"reservations": [change.to_wire() for change in changes]} if changes else {}

        return _lease(self._write("POST", "leases", lease_id, "confirm", body=body, feature=_HOLD_FEATURE))

    def get(self, lease_id: str) -> Lease:
        return _lease(self._transport.call("GET", "leases", lease_id))

    def look_ahead(self, lease_id: str) -> Lease:
        """Return the lease as ``get`` does, but raise ``NeedsNewerServer`` below API 1.3.

        So a ``may_end_at`` of None means that nothing limits the end, if the lease is PENDING or ACTIVE.
        """
        return _lease(self._transport.call("GET", "leases", lease_id, feature=_LOOK_AHEAD_FEATURE, since=Version.V1_3))

    def find(self, name_or_id: str) -> Lease:
        """Return the lease with this id, or else the only one with this name.

        A lease that has ended keeps its name, but does not stand in the way of another one: it is found
        only if no other lease has the name.
        """
        if _is_uuid(name_or_id):
            try:
                return self.get(name_or_id)
            except errors.NotFound:
                pass  # a name may look like an id
        named = list(self.list(name=name_or_id))
        if not named:
            raise errors.NotFound(f"There is no lease '{name_or_id}'.", code=404, name="NotFound")
        found = [lease for lease in named if lease.status not in _OVER] or named
        if len(found) > 1:
            ids = ", ".join(lease.id for lease in found[:2]) + (", ..." if len(found) > 2 else "")
            raise errors.NotUnique(f"Several leases are named '{name_or_id}': {ids}. Give the id.")
        return found[0]

    def list(
        self,
        *,
        name: str | None = None,
        status: str | None = None,
        user_id: str | None = None,
        project_id: str | None = None,
        starts_before: datetime | None = None,
        ends_after: datetime | None = None,
        sort_key: str = "created_at",
        descending: bool = False,
    ) -> Iterator[Lease]:
        """Yield the matching leases; further pages are fetched as needed.

        A project and a user are given by id or by name. Raises ``BadRequest`` for an unknown one. A server of
        API 1.0 knows only ids: there it is raised for what is no id and what no lease has.
        """
        if sort_key not in SORT_KEYS:
            raise ValueError(f"Leases can be sorted by {', '.join(SORT_KEYS)}, not by {sort_key}.")
        chosen = LeaseFilter(name, status, user_id, project_id, starts_before, ends_after)
        query = {
            "limit": str(_PAGE),
            "sort_key": sort_key,
            "sort_dir": "desc" if descending else "asc",
            **chosen.to_query(),
        }
        pages = self._transport.pages("leases", items="leases", query=query, read=Lease.from_wire)
        first = next(pages, None)
        if first is None:
            return
        if self._transport.version is Version.V1_0:
            shown = [first, *pages]
            chosen.check_ids(shown)
            fitting = [lease for lease in shown if chosen.holds_for(lease)]
            yield from sorted(fitting, key=lambda lease: sort_value(lease, sort_key), reverse=descending)
            return
        yield first
        yield from pages

    @overload
    def update(
        self,
        lease_id: str,
        *,
        name: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        before_end: datetime | None = None,
        reservations: Iterable[ReservationChange] = (),
        events: Iterable[OwnEvent] | None = None,
        if_match: str | None = None,
        dry_run: Literal[False] = False,
    ) -> Lease: ...
    @overload
    def update(
        self,
        lease_id: str,
        *,
        name: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        before_end: datetime | None = None,
        reservations: Iterable[ReservationChange] = (),
        events: Iterable[OwnEvent] | None = None,
        if_match: str | None = None,
        dry_run: Literal[True],
    ) -> DryRun: ...
    def update(
        self,
        lease_id: str,
        *,
        name: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        before_end: datetime | None = None,
        reservations: Iterable[ReservationChange] = (),
        events: Iterable[OwnEvent] | None = None,
        if_match: str | None = None,
        dry_run: bool = False,
    ) -> Lease | DryRun:
        """Change the given fields; absent fields stay. An end of ``NOW`` ends the lease.

        ``events`` replaces all the moments at which a notification is sent. With ``if_match``, the ``etag``
        of the lease that was read, the change is made only if the lease has not changed since; otherwise
        ``PreconditionFailed`` is raised. ``dry_run`` changes nothing, and
        needs API 1.3. Raises ``NotEnoughResources`` as ``create`` does; its ``alternatives`` are other
        changes, and the lease does not change then.
        """
        changes = tuple(reservations)
        own = None if events is None else tuple(events)

        def body(version: Version) -> JsonObject:
            dates = {"start_date": start, "end_date": end, "before_end_date": before_end}
            document: dict[str, JsonValue] = {
                key: moment_to_wire(moment, version) for key, moment in dates.items() if moment is not None
            }
            if name is not None:
                document["name"] = name
            if changes:
                document["reservations"] = [change.to_wire() for change in changes]
            if own is not None:
                document["events"] = [event.to_wire(version) for event in own]
            return document

        if dry_run:
            return self._dry_run("PUT", "leases", lease_id, body=body, headers=_condition(if_match))
        feature = _place_feature(changes) if own is None else _EVENTS_FEATURE
        return _lease(self._write("PUT", "leases", lease_id, body=body, feature=feature, headers=_condition(if_match)))

    def delete(self, lease_id: str, *, if_match: str | None = None) -> None:
        """Delete the lease; ``if_match`` as in ``update``."""
        self._transport.call("DELETE", "leases", lease_id, headers=_condition(if_match))

    def history(self, lease_id: str) -> tuple[HistoryEntry, ...]:
        """Return what happened to the lease, oldest first."""
        return tuple(
            self._transport.pages(
                "leases",
                lease_id,
                "history",
                items="history",
                query={},
                read=HistoryEntry.from_wire,
                feature="the history of a lease",
            )
        )

    def resources(self, lease_id: str, inventory: type[Inventory[Any, L]]) -> tuple[L, ...]:
        """Return the resources of a type, such as ``Hosts``, that the lease has, had or is planned to have."""
        kind = inventory.resource_type
        answer = self._transport.call(
            "GET",
            "leases",
            lease_id,
            kind.list_key,
            feature=kind.feature or f"the list of a lease's {kind.noun}s for its owner",
            since=kind.since,
        )
        return parsed(lambda body: Fields(body, "the answer").each(kind.list_key, kind.of_lease.from_wire), answer.body)

    def hosts(self, lease_id: str) -> tuple[LeaseHost, ...]:
        """Return the hosts that the lease has, had or is planned to have."""
        return self.resources(lease_id, Hosts)

    def floatingips(self, lease_id: str) -> tuple[LeaseFloatingIP, ...]:
        """Return the addresses that the lease has, had or is planned to have."""
        return self.resources(lease_id, FloatingIPs)

    def volume_pools(self, lease_id: str) -> tuple[LeaseVolumePool, ...]:
        """Return the pools that hold the lease's volumes, held them, or are planned to."""
        return self.resources(lease_id, VolumePools)

    @overload
    def add_reservation(
        self,
        lease_id: str,
        reservation: ReservationRequest,
        *,
        if_match: str | None = None,
        dry_run: Literal[False] = False,
    ) -> Lease: ...
    @overload
    def add_reservation(
        self,
        lease_id: str,
        reservation: ReservationRequest,
        *,
        if_match: str | None = None,
        dry_run: Literal[True],
    ) -> DryRun: ...
    def add_reservation(
        self,
        lease_id: str,
        reservation: ReservationRequest,
        *,
        if_match: str | None = None,
        dry_run: bool = False,
    ) -> Lease | DryRun:
        """Book one more reservation for the rest of the lease's time, and return the changed lease.

        ``if_match`` as in ``update``. ``dry_run`` books nothing, and needs API 1.3. Raises
        ``NotEnoughResources`` as ``create`` does; its ``alternatives`` are other reservations, and the lease
        does not change then.
        """
        if dry_run:
            return self._dry_run(
                "POST",
                "leases",
                lease_id,
                "reservations",
                body=reservation.to_wire,
                headers=_condition(if_match),
            )
        place_feature = _place_feature([reservation])
        answer = self._transport.call(
            "POST",
            "leases",
            lease_id,
            "reservations",
            body=reservation.to_wire,
            feature=place_feature or "adding a reservation to a lease",
            since=Version.V1_2 if place_feature else Version.V1_1,
            headers=_condition(if_match),
            makes=True,
        )
        return _lease(answer)

    @overload
    def drop_reservation(
        self,
        lease_id: str,
        reservation_id: str,
        *,
        if_match: str | None = None,
        dry_run: Literal[False] = False,
    ) -> None: ...
    @overload
    def drop_reservation(
        self, lease_id: str, reservation_id: str, *, if_match: str | None = None, dry_run: Literal[True]
    ) -> DryRun: ...
    def drop_reservation(
        self, lease_id: str, reservation_id: str, *, if_match: str | None = None, dry_run: bool = False
    ) -> DryRun | None:
        """Give one reservation back; the others stay. Repeating the call is harmless.

        ``if_match`` as in ``update``. ``dry_run`` changes nothing, and needs API 1.3.
        """
        if dry_run:
            return self._dry_run(
                "DELETE", "leases", lease_id, "reservations", reservation_id, headers=_condition(if_match)
            )
        self._transport.call(
            "DELETE",
            "leases",
            lease_id,
            "reservations",
            reservation_id,
            feature="dropping one reservation of a lease",
            headers=_condition(if_match),
        )
        return None

    def wait(
        self,
        lease_id: str,
        statuses: Collection[str] = ACTIVE,
        *,
        timeout: timedelta | None = None,
        on_progress: Callable[[WaitProgress], None] | None = None,
    ) -> Lease:
        """Return the lease once it has one of these statuses.

        Raises ``LeaseFailed`` if the lease can no longer reach them, and ``WaitTimedOut`` when the timeout
        has passed. A server that is briefly unreachable does not end the wait.
        """
        for lease in self._watch.until(lease_id, timeout, on_progress, ", ".join(sorted(statuses))):
            if lease is None:
                raise errors.LeaseFailed(f"Lease {lease_id} was deleted.")
            if lease.status in statuses:
                return lease
            if lease.status in _FINAL:
                reason = f": {lease.status_reason}" if lease.status_reason else ""
                raise errors.LeaseFailed(f"Lease {lease.name} went to {lease.status}{reason}")
        raise AssertionError("a watch ends by an error only")

    def wait_deleted(
        self,
        lease_id: str,
        *,
        timeout: timedelta | None = None,
        on_progress: Callable[[WaitProgress], None] | None = None,
    ) -> None:
        """Return when the lease is gone."""
        for lease in self._watch.until(lease_id, timeout, on_progress, "deleted"):
            if lease is None or lease.status == "DELETED":
                return
            if lease.status == "ERROR":
                reason = f": {lease.status_reason}" if lease.status_reason else ""
                raise errors.LeaseFailed(f"Lease {lease.name} could not be deleted{reason}")

    def _write(
        self,
        method: str,
        *path: str,
        body: Body,
        feature: str | None,
        since: Version = Version.V1_2,
        headers: Mapping[str, str] | None = None,
        makes: bool = False,
    ) -> Answer:
        """Create or change a lease, in the version ``since`` at least if a feature needs it."""
        return self._transport.call(
            method,
            *path,
            body=body,
            feature=feature,
            since=Version.V1_1 if feature is None else since,
            headers=headers,
            makes=makes,
        )

    def _dry_run(
        self,
        method: str,
        *path: str,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> DryRun:
        """Make a request as a dry run. An older server must not get it: it might carry it out."""
        self._transport.require(_DRY_RUN_FEATURE, Version.V1_3)
        answer = self._transport.call(
            method,
            *path,
            query={"dry_run": "true"},
            body=body,
            feature=_DRY_RUN_FEATURE,
            since=Version.V1_3,
            headers=headers,
        )
        return parsed(DryRun.from_wire, answer.body)


def _wired(requests: Iterable[ReservationRequest], version: Version) -> list[JsonValue]:
    return [request.to_wire(version) for request in requests]


def _lease(answer: Answer) -> Lease:
    return replace(parsed(Lease.from_wire, answer.body.get("lease")), etag=answer.etag)


def _condition(if_match: str | None) -> Mapping[str, str]:
    return {} if if_match is None else {"If-Match": if_match}


def _place_feature(asked: Iterable[ReservationRequest | ReservationChange]) -> str | None:
    """Return the feature of the newest version that the requests use, in words; None if they use none."""
    return _PLACE_FEATURE if any(request.names_a_place for request in asked) else None


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
