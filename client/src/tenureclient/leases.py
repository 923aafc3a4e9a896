"""Operations on leases."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, Unpack, overload

from tenureclient import errors
from tenureclient.documents import Document, LooseText, document
from tenureclient.inventory import Inventory, L
from tenureclient.lease_watch import LeaseWatch, WaitProgress
from tenureclient.models import (
    HOLD_FEATURE,
    SORT_KEYS,
    DryRun,
    Lease,
    LeaseChange,
    LeaseFilter,
    NewLease,
    matches,
)
from tenureclient.reservation_request import ReservationChange, ReservationRequest
from tenureclient.resources.floatingips import FloatingIPs, LeaseFloatingIP
from tenureclient.resources.hosts import Hosts, LeaseHost
from tenureclient.resources.volumes import LeaseVolumePool, VolumePools
from tenureclient.sent import Arguments
from tenureclient.transport import Answer, Body, Transport
from tenureclient.wire import Feature, JsonObject, Version

ACTIVE = frozenset({"ACTIVE"})
SETTLED = frozenset({"PENDING", "ACTIVE", "TERMINATED"})

_DRY_RUN = Feature("a dry run of a request for a lease", Version.V1_3)
_LOOK_AHEAD = Feature("the latest possible end of a lease", Version.V1_3)
_ADDING = Feature("adding a reservation to a lease")
_DROPPING = Feature("dropping one reservation of a lease")
#: What ids of Keystone look like.
_ID = re.compile(r"[0-9a-f]{32}([0-9a-f]{32})?")
_OVER = frozenset({"TERMINATED", "DELETED"})
_FINAL = frozenset({"ERROR", "TERMINATED", "DELETED"})


@document("a history entry", kw_only=True)
class HistoryEntry(Document):
    """One entry of a lease's history: who did what, when and why."""

    at: datetime
    actor: str | None
    action: LooseText
    from_status: str | None
    to_status: str | None
    reason: str | None
    detail: str | None = None
    """For administrators: the full reason, if ``reason`` leaves something out."""
    request_id: str | None


class Leases:
    """The leases of the caller's project, or of all projects for an administrator."""

    def __init__(self, transport: Transport, *, clock: Callable[[], datetime], sleep: Callable[[float], None]) -> None:
        self._transport = transport
        self._watch = LeaseWatch(self.get, clock=clock, sleep=sleep)

    @overload
    def create(self, name: str, *, dry_run: Literal[False] = False, **fields: Unpack[NewLease]) -> Lease: ...
    @overload
    def create(self, name: str, *, dry_run: Literal[True], **fields: Unpack[NewLease]) -> DryRun: ...
    def create(self, name: str, *, dry_run: bool = False, **fields: Unpack[NewLease]) -> Lease | DryRun:
        """Book all the reservations, or none, from ``start`` to ``end``, or in the first period of a window.

        With ``any_of`` in place of ``reservations``, the first of these choices that fits is booked; the
        ``choice`` of the lease says which. ``events`` are the moments at which a notification is sent. With
        ``hold_for`` (whole seconds) the booking lasts that long only, unless ``confirm`` is called. Both need
        API 1.2, and so does a reservation with a region, a zone or extra specs; a window and choices need API
        1.3. ``dry_run`` books nothing, and needs API 1.3.

        With ``wait_if_full``, a lease that does not fit is put on the waiting list: its status is WAITING, it
        holds nothing until there is room. With ``confirm_within`` (whole seconds) it is held for so long
        then, and must be confirmed. Both need API 1.3.

        With ``boot``, the servers of the reservations with a ``server_name`` are made at the start, by this
        request. The service keeps it until then, and no answer shows it. This needs API 1.4, and so does a
        reservation with resource classes.

        Raises ``NotEnoughResources`` if resources are not free; its ``shortfall`` says why, and its
        ``alternatives`` what is possible instead, if the server knows API 1.3. Raises ``ValueError`` unless
        there are both dates or a window.
        """
        arguments = Arguments(NewLease, fields)
        has_window = "window" in arguments.given
        if any((name in arguments.given) is has_window for name in ("start", "end")):
            raise ValueError("A lease needs a start and an end, or a window in place of both.")

        def body(version: Version) -> JsonObject:
            document = {"name": name, "reservations": [], **arguments.to_wire(version)}
            if "any_of" in document:
                del document["reservations"]
            return document

        answer = self._change("POST", "leases", body=body, feature=arguments.needs, makes=True, dry_run=dry_run)
        return _lease_or_dry_run(answer, dry_run=dry_run)

    def confirm(self, lease_id: str, *, reservations: Iterable[ReservationChange] = ()) -> Lease:
        """Confirm a held lease, and set reservation parameters that are known only now.

        Repeating the call is harmless. Raises ``NotFound`` if the lease was not confirmed in time, and
        ``NotEnoughResources`` as ``create`` does; its ``alternatives`` are other changes, and the lease stays
        held then.
        """
        changes = Arguments(LeaseChange, {"reservations": reservations})
        return _lease(
            self._transport.call("POST", "leases", lease_id, "confirm", body=changes.to_wire, feature=HOLD_FEATURE)
        )

    def get(self, lease_id: str) -> Lease:
        return _lease(self._transport.call("GET", "leases", lease_id))

    def look_ahead(self, lease_id: str) -> Lease:
        """Return the lease as ``get`` does, but raise ``NeedsNewerServer`` below API 1.3.

        So a ``may_end_at`` of None means that nothing limits the end, if the lease is PENDING or ACTIVE.
        """
        return _lease(self._transport.call("GET", "leases", lease_id, feature=_LOOK_AHEAD))

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
        self, *, sort_key: str = "created_at", descending: bool = False, **filters: Unpack[LeaseFilter]
    ) -> Iterator[Lease]:
        """Yield the matching leases; further pages are fetched as needed.

        A project and a user are given by id or by name. Raises ``BadRequest`` for an unknown one. A server of
        API 1.0 knows only ids: there it is raised for what is no id and what no lease has.
        """
        if sort_key not in SORT_KEYS:
            raise ValueError(f"Leases can be sorted by {', '.join(SORT_KEYS)}, not by {sort_key}.")
        arguments = Arguments(LeaseFilter, filters)

        def fitting(leases: Sequence[Lease]) -> Sequence[Lease]:
            _check_ids(leases, filters)
            return [lease for lease in leases if matches(lease, arguments.given)]

        yield from self._transport.listed(
            "leases",
            items="leases",
            filters=arguments.to_wire(Version.V1_1),
            sort_key=sort_key,
            descending=descending,
            read=Lease.from_wire,
            fitting=fitting,
        )

    @overload
    def update(
        self,
        lease_id: str,
        *,
        if_match: str | None = None,
        dry_run: Literal[False] = False,
        **fields: Unpack[LeaseChange],
    ) -> Lease: ...
    @overload
    def update(
        self, lease_id: str, *, if_match: str | None = None, dry_run: Literal[True], **fields: Unpack[LeaseChange]
    ) -> DryRun: ...
    def update(
        self, lease_id: str, *, if_match: str | None = None, dry_run: bool = False, **fields: Unpack[LeaseChange]
    ) -> Lease | DryRun:
        """Change the given fields; absent fields stay. An end of ``NOW`` ends the lease.

        ``events`` replaces all the moments at which a notification is sent. With ``if_match``, the ``etag``
        of the lease that was read, the change is made only if the lease has not changed since; otherwise
        ``PreconditionFailed`` is raised. ``dry_run`` changes nothing, and
        needs API 1.3. Raises ``NotEnoughResources`` as ``create`` does; its ``alternatives`` are other
        changes, and the lease does not change then.
        """
        arguments = Arguments(LeaseChange, fields)
        body, feature = arguments.to_wire, arguments.needs
        answer = self._change("PUT", "leases", lease_id, body=body, feature=feature, if_match=if_match, dry_run=dry_run)
        return _lease_or_dry_run(answer, dry_run=dry_run)

    def delete(self, lease_id: str, *, if_match: str | None = None) -> None:
        """Delete the lease; ``if_match`` as in ``update``."""
        self._change("DELETE", "leases", lease_id, if_match=if_match)

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
                feature=Feature("the history of a lease"),
            )
        )

    def resources(self, lease_id: str, inventory: type[Inventory[Any, L]]) -> tuple[L, ...]:
        """Return the resources of a type, such as ``Hosts``, that the lease has, had or is planned to have."""
        declared = inventory.resource_type
        feature = declared.feature or Feature(f"the list of a lease's {declared.noun}s for its owner")
        answer = self._transport.call("GET", "leases", lease_id, declared.list_key, feature=feature)
        return answer.read_items(declared.of_lease.from_wire, declared.list_key)

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
        self, lease_id: str, reservation: ReservationRequest, *, if_match: str | None = None, dry_run: Literal[True]
    ) -> DryRun: ...
    def add_reservation(
        self, lease_id: str, reservation: ReservationRequest, *, if_match: str | None = None, dry_run: bool = False
    ) -> Lease | DryRun:
        """Book one more reservation for the rest of the lease's time, and return the changed lease.

        ``if_match`` as in ``update``. ``dry_run`` books nothing, and needs API 1.3. Raises
        ``NotEnoughResources`` as ``create`` does; its ``alternatives`` are other reservations, and the lease
        does not change then.
        """
        path, body = ("leases", lease_id, "reservations"), reservation.to_wire
        feature = Arguments(NewLease, {"reservations": [reservation]}).needs or _ADDING
        answer = self._change("POST", *path, body=body, feature=feature, if_match=if_match, makes=True, dry_run=dry_run)
        return _lease_or_dry_run(answer, dry_run=dry_run)

    @overload
    def drop_reservation(
        self, lease_id: str, reservation_id: str, *, if_match: str | None = None, dry_run: Literal[False] = False
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
        path = ("leases", lease_id, "reservations", reservation_id)
        answer = self._change("DELETE", *path, feature=_DROPPING, if_match=if_match, dry_run=dry_run)
        return answer.read(DryRun.from_wire) if dry_run else None

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
                raise _failure(lease, f"went to {lease.status}")
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
                raise _failure(lease, "could not be deleted")

    def _change(
        self,
        method: str,
        *path: str,
        body: Body | None = None,
        feature: Feature | None = None,
        if_match: str | None = None,
        makes: bool = False,
        dry_run: bool = False,
    ) -> Answer:
        """Make or change a lease, or only try. An older server must not get a dry run: it might carry it out."""
        headers = {} if if_match is None else {"If-Match": if_match}
        if not dry_run:
            return self._transport.call(method, *path, body=body, feature=feature, headers=headers, makes=makes)
        self._transport.require(_DRY_RUN)
        query = {"dry_run": "true"}
        return self._transport.call(method, *path, query=query, body=body, feature=_DRY_RUN, headers=headers)


def _failure(lease: Lease, text: str) -> errors.LeaseFailed:
    reason = f": {lease.status_reason}" if lease.status_reason else ""
    return errors.LeaseFailed(f"Lease {lease.name} {text}{reason}")


def _lease(answer: Answer) -> Lease:
    return replace(answer.read(Lease.from_wire, "lease"), etag=answer.etag)


def _lease_or_dry_run(answer: Answer, *, dry_run: bool) -> Lease | DryRun:
    return answer.read(DryRun.from_wire) if dry_run else _lease(answer)


def _check_ids(leases: Sequence[Lease], filters: LeaseFilter) -> None:
    """Raise ``BadRequest`` for a user or a project that is no id and that no lease has.

    API 1.0 shows ids only: a name would find nothing.
    """
    for owner, requested, known in (
        ("user", filters.get("user_id"), {lease.user_id for lease in leases}),
        ("project", filters.get("project_id"), {lease.project_id for lease in leases}),
    ):
        if requested is not None and requested not in known and not _ID.fullmatch(requested):
            message = f"No lease is of the {owner} '{requested}'. This server knows ids only, not names."
            raise errors.BadRequest(message, code=400, name="InvalidParameter")


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
