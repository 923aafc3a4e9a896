"""The servers that are made at the starts of leases, by requests that are kept until then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tenure.domain.boot import Boot, PlannedServer
from tenure.domain.errors import InvalidParameter
from tenure.domain.lease import Lease, Reservation, ReservationStatus
from tenure.domain.request import FlexibleRequest, LeaseRequest, ReservationRequest
from tenure.store.database import Transaction

R = TypeVar("R", bound=LeaseRequest | FlexibleRequest)

#: The parameter of a reservation whose server is made at the start: the name of the server.
SERVER_NAME = "server_name"


def with_flavor(request: R) -> R:
    """Return the request, in which the reservations for its boot have the flavor that the boot describes, if it does.

    A ``boot`` is for at least one reservation of each choice with a ``server_name``, all of the flavor that it names.
    Raises ``InvalidParameter`` if they do not belong together.
    """
    choices = request.choices if isinstance(request, FlexibleRequest) else (request.reservations,)
    _check(request.boot, choices)
    if request.boot is None or request.boot.flavor is None:
        return request
    fact = request.boot.flavor
    filled = tuple(
        tuple(replace(asked, fact=fact) if asked.parameters.get(SERVER_NAME) else asked for asked in choice)
        for choice in choices
    )
    if isinstance(request, FlexibleRequest):
        return replace(request, choices=filled)
    return replace(request, reservations=filled[0])


def _check(boot: Boot | None, choices: Iterable[Sequence[ReservationRequest]]) -> None:
    if boot is not None and not boot.flavor_id:
        raise InvalidParameter("The server has no flavorRef.", field="boot.request")
    if boot is not None and boot.flavor is not None and boot.flavor["id"] != boot.flavor_id:
        raise InvalidParameter(f"The request names flavor {boot.flavor_id[:64]}.", field="boot.flavor.id")
    for choice in choices:
        named = [(position, asked) for position, asked in enumerate(choice) if asked.parameters.get(SERVER_NAME)]
        if boot is not None and not named:
            raise InvalidParameter("No reservation has a server_name, so no server would be made.", field="boot")
        for position, asked in named:
            _check_one(boot, asked, f"reservations[{position}]")


def _check_one(boot: Boot | None, asked: ReservationRequest, field: str) -> None:
    if boot is None:
        raise InvalidParameter("A server can be made only with a boot of the lease.", field=f"{field}.{SERVER_NAME}")
    flavor_id = boot.flavor_id
    if asked.parameters.get("flavor_id") != flavor_id:
        raise InvalidParameter(f"The boot of the lease names flavor {flavor_id[:64]}.", field=f"{field}.flavor_id")


def check_addition(request: ReservationRequest) -> None:
    """Raise ``InvalidParameter`` for a reservation whose server would be made, in a lease that is booked already."""
    if request.parameters.get(SERVER_NAME):
        text = "Only servers of a new lease are made at its start; boot this one, and name it by its server_id."
        raise InvalidParameter(text, field=SERVER_NAME)


def boots_of(tx: Transaction, leases: Iterable[Lease]) -> Mapping[str, Boot]:
    """Return the kept requests, by the ids of the reservations whose servers are still to be made.

    Nothing is read if there is no such reservation.
    """
    waiting = [reservation for lease in leases for reservation in lease.reservations if is_to_be_made(reservation)]
    if not waiting:
        return {}
    boots = tx.boots.of_leases({reservation.lease_id for reservation in waiting})
    return {
        reservation.id: boots[reservation.lease_id].named(str(reservation.parameters[SERVER_NAME]))
        for reservation in waiting
        if reservation.lease_id in boots
    }


def is_to_be_made(reservation: Reservation) -> bool:
    """Whether a server is made for the reservation at its start, and is not made yet."""
    return bool(reservation.parameters.get(SERVER_NAME)) and not reservation.effects.get("server_id")


def planned_server(lease: Lease, reservation: Reservation) -> PlannedServer | None:
    """Return the server that is made, or was made, for the reservation at its start; None if there is none."""
    name, is_gone = reservation.parameters.get(SERVER_NAME), reservation.status is ReservationStatus.DELETED
    if not name or (is_gone and is_to_be_made(reservation)):
        return None
    made = reservation.effects.get("server_id")
    return PlannedServer(
        reservation_id=reservation.id,
        name=str(name),
        flavor_id=str(reservation.parameters.get("flavor_id")),
        flavor=_flavor(reservation),
        server_id=None if made is None else str(made),
        lease_id=lease.id,
        lease_name=lease.name,
        project_id=lease.project_id,
        user_id=lease.user_id,
        region=reservation.region,
        starts_at=lease.starts_at,
        ends_at=lease.ends_at,
        created_at=reservation.created_at,
        lease_status=lease.status.value,
        status_reason=lease.status_reason,
    )


def _flavor(reservation: Reservation) -> Mapping[str, object]:
    source = reservation.parameters.get("source")
    return source if isinstance(source, dict) else {}


def empty_boot(tx: Transaction, lease: Lease) -> None:
    """Empty the kept request of a lease that has failed: its servers are listed still, and made no more."""
    if any(is_to_be_made(reservation) for reservation in lease.reservations):
        tx.boots.empty(lease.id)


def forget_boot(tx: Transaction, lease: Lease) -> None:
    """Delete the kept request of a lease that is not needed any more."""
    if any(reservation.parameters.get(SERVER_NAME) for reservation in lease.reservations) or lease.waiting is not None:
        tx.boots.delete(lease.id)
