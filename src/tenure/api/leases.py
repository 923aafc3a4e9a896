"""The operations of leases."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TypeVar

from pydantic import BaseModel

from tenure.api.answers import Pages, TaggedLease, Whole, pages
from tenure.api.operations import MEMBERS, READERS, DryRun, Operation, Request, Rule
from tenure.api.schemas.answers import ModelAt
from tenure.api.schemas.availability import AlternativeDocument
from tenure.api.schemas.lease_models import LeaseListQuery, LeaseListQueryOf13
from tenure.api.schemas.leases import LeaseSchemas, SchemasAt
from tenure.api.versions import Version, by_version
from tenure.domain.actor import Actor
from tenure.domain.availability import Alternative
from tenure.domain.dry_run import DryRunOutcome
from tenure.domain.errors import NotEnoughResources, TenureError
from tenure.domain.lease import Lease
from tenure.domain.request import FlexibleRequest, LeaseChange, LeaseRequest, Page, ReservationRequest

LOG = logging.getLogger(__name__)
R = TypeVar("R")

#: The prefix of the fields of a reservation in the body of a lease.
_OF_RESERVATION = re.compile(r"^reservations\[\d+\]\.?")


#: The rule of everything that shows a lease, also of its resources.
SEE = Rule("blazar:leases:get", READERS, "List leases, and see one with its history and its resources.")
_MAKE = Rule("blazar:leases:post", MEMBERS, "Make a lease.")
_CHANGE = Rule("blazar:leases:put", MEMBERS, "Change a lease, add a reservation to it, or drop one.")
_DELETE = Rule("blazar:leases:delete", MEMBERS, "Delete a lease.")


def lease_operations(schemas: SchemasAt) -> tuple[Operation, ...]:
    """Return the operations of leases, with the schemas of each version."""

    def body(model: Callable[[LeaseSchemas], type[BaseModel]]) -> ModelAt:
        return lambda version: model(schemas(version))

    leases, lease = "/v1/leases", "/v1/leases/{lease_id}"
    reservations = f"{lease}/reservations"
    use, v1_1, v1_2 = _UseCases(schemas), Version.V1_1, Version.V1_2
    lease_list = by_version(LeaseListQuery, LeaseListQuery, LeaseListQuery, LeaseListQueryOf13)
    shown = TaggedLease("lease", lambda version: schemas(version).answer)
    listed = Pages("leases", shown.model)
    previewed = Whole(lambda version: schemas(version).dry_run)
    create = body(lambda schemas: schemas.create_model)
    update = body(lambda schemas: schemas.update_model)
    confirm = body(lambda schemas: schemas.confirm_model)
    add = body(lambda schemas: schemas.add_model)
    return (
        Operation("GET", leases, "List leases", use.list, listed, query=lease_list, rules=(SEE,)),
        Operation(
            "POST",
            leases,
            "Make a lease",
            use.create,
            shown,
            status=201,
            body=create,
            dry_run=DryRun(use.dry_run_create, previewed),
            rules=(_MAKE,),
            is_repeatable=True,
        ),
        Operation("GET", lease, "Show a lease", use.get, shown, rules=(SEE,)),
        Operation(
            "PUT",
            lease,
            "Change a lease",
            use.update,
            shown,
            body=update,
            dry_run=DryRun(use.dry_run_update, previewed),
            rules=(_CHANGE,),
            is_conditional=True,
        ),
        Operation("DELETE", lease, "Delete a lease", use.delete, None, rules=(_DELETE,), is_conditional=True),
        Operation(
            "POST",
            f"{lease}/confirm",
            "Keep a held lease",
            use.confirm,
            shown,
            body=confirm,
            since=v1_2,
            rules=(_CHANGE,),
            is_conditional=True,
        ),
        Operation(
            "POST",
            reservations,
            "Add a reservation",
            use.add,
            shown,
            status=201,
            body=add,
            since=v1_1,
            dry_run=DryRun(use.dry_run_add, previewed),
            rules=(_CHANGE,),
            is_repeatable=True,
            is_conditional=True,
        ),
        Operation(
            "DELETE",
            f"{reservations}/{{reservation_id}}",
            "Drop a reservation",
            use.drop,
            None,
            since=v1_1,
            dry_run=DryRun(use.dry_run_drop, previewed),
            rules=(_CHANGE,),
            is_conditional=True,
        ),
    )


class _UseCases:
    """The calls of the manager, one for each operation."""

    def __init__(self, schemas: SchemasAt) -> None:
        self._schemas = schemas

    def list(self, request: Request) -> Iterator[Page[Lease]]:
        query = request.query.to_domain()
        return pages(partial(request.manager.leases.list, request.actor), query, attrgetter("id"))

    def create(self, request: Request) -> Lease:
        requested = self._requested(request)
        with _alternatives(request, partial(request.manager.alternatives.to_lease, request.actor, requested)):
            return request.manager.leases.create(request.actor, requested, repeatable=request.repeatable())

    def dry_run_create(self, request: Request) -> DryRunOutcome:
        requested = self._requested(request)
        with _alternatives(request, partial(request.manager.alternatives.to_lease, request.actor, requested)):
            return request.manager.dry_runs.create(request.actor, requested)

    def _requested(self, request: Request) -> LeaseRequest | FlexibleRequest:
        return self._schemas(request.version).read_request(request.body())

    def get(self, request: Request) -> Lease:
        look_ahead = request.version >= Version.V1_3
        return request.manager.leases.get(request.actor, request.lease_id, look_ahead=look_ahead)

    def _find(self, request: Request) -> Lease:
        return request.manager.leases.get(request.actor, request.lease_id)

    def update(self, request: Request) -> Lease:
        lease_id, change = request.lease_id, self._change(request)
        with _alternatives(request, partial(request.manager.alternatives.to_change, request.actor, lease_id, change)):
            return request.manager.leases.update(request.actor, lease_id, change, if_version=request.versions())

    def dry_run_update(self, request: Request) -> DryRunOutcome:
        lease_id, change = request.lease_id, self._change(request)
        with _alternatives(request, partial(request.manager.alternatives.to_change, request.actor, lease_id, change)):
            return request.manager.dry_runs.update(request.actor, lease_id, change, if_version=request.versions())

    def _change(self, request: Request) -> LeaseChange:
        return self._schemas(request.version).read_change(request.body(), partial(self._find, request))

    def delete(self, request: Request) -> None:
        request.manager.leases.delete(request.actor, request.lease_id, if_version=request.versions())

    def confirm(self, request: Request) -> Lease:
        lease_id = request.lease_id
        changes = self._schemas(request.version).read_confirmation(request.body(), partial(self._find, request))
        find = partial(request.manager.alternatives.to_confirmation, request.actor, lease_id, changes)
        with _alternatives(request, find):
            return request.manager.leases.confirm(request.actor, lease_id, changes, if_version=request.versions())

    def add(self, request: Request) -> Lease:
        add = partial(
            request.manager.leases.add_reservation, repeatable=request.repeatable(), if_version=request.versions()
        )
        return self._add(request, add)

    def dry_run_add(self, request: Request) -> DryRunOutcome:
        return self._add(request, partial(request.manager.dry_runs.add_reservation, if_version=request.versions()))

    def _add(self, request: Request, carry_out: Callable[[Actor, str, ReservationRequest], R]) -> R:
        lease_id = request.lease_id
        requested = self._schemas(request.version).read_reservation(request.body())
        find = partial(request.manager.alternatives.to_reservation, request.actor, lease_id, requested)
        with _errors_of_reservation(), _alternatives(request, lambda _lacking: find()):
            return carry_out(request.actor, lease_id, requested)

    def drop(self, request: Request) -> None:
        reservation_id = request.path_parameter("reservation_id")
        lease_id = request.lease_id
        request.manager.leases.drop_reservation(request.actor, lease_id, reservation_id, if_version=request.versions())

    def dry_run_drop(self, request: Request) -> DryRunOutcome:
        lease_id, reservation_id = request.lease_id, request.path_parameter("reservation_id")
        drop = request.manager.dry_runs.drop_reservation
        return drop(request.actor, lease_id, reservation_id, if_version=request.versions())


@contextmanager
def _alternatives(request: Request, find: Callable[[int], Sequence[Alternative]]) -> Iterator[None]:
    """Add to a refusal for lack of resources, from 1.3 on, whether it is certain, and what could be had instead.

    ``find`` returns that, by the position of the reservation for which there is no room.
    """
    try:
        yield
    except NotEnoughResources as error:
        if request.version >= Version.V1_3:
            error.additions["proven"] = error.is_proven
            if not request.prefers_minimum:
                _add_alternatives(error, find)
        raise


def _add_alternatives(error: NotEnoughResources, find: Callable[[int], Sequence[Alternative]]) -> None:
    """Add to a refusal what ``find`` returns. The refusal is the answer, whatever the search raises."""
    try:
        shown = [AlternativeDocument.show(alternative) for alternative in find(error.shortfall.reservation)]
    except TenureError as failure:
        LOG.info("no alternatives were sought: %s", failure)
    except Exception:
        LOG.exception("the search for alternatives failed")
    else:
        if shown:
            error.additions["alternatives"] = shown


@contextmanager
def _errors_of_reservation() -> Iterator[None]:
    """Let errors name fields as they are in a body that consists of a single reservation."""
    try:
        yield
    except TenureError as error:
        error.field = _below_reservation(error.field)
        if isinstance(error, NotEnoughResources):
            error.shortfall = replace(error.shortfall, reservation=0)  # the only reservation in the body
        raise


def _below_reservation(field: str | None) -> str | None:
    """Return the name of a field of a reservation for a body that consists of this reservation."""
    return (_OF_RESERVATION.sub("", field) or None) if field else None
