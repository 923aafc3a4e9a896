"""The maximum size of a lease: it is read, written and sent many times."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.lease import Lease, ReservationStatus

#: The maximum number of reservations of a lease at a time, and of all that it ever had.
MAX_RESERVATIONS = 100
MAX_EVER = 500
#: The maximum length in JSON of a reservation's parameters, and of those of all reservations of a lease, in characters.
MAX_PARAMETERS = 64 * 1024
MAX_LEASE = 256 * 1024


def check_sizes(parameters: Collection[Mapping[str, object]]) -> None:
    """Raise ``InvalidParameter`` if the reservations of a lease, with these parameters, are too large."""
    sizes = [len(json.dumps(dict(values), default=str)) for values in parameters]
    for position, size in enumerate(sizes):
        if size > MAX_PARAMETERS:
            raise InvalidParameter(
                f"The reservation is too large: {size} characters, of {MAX_PARAMETERS} at most.",
                field=f"reservations[{position}]",
            )
    if sum(sizes) > MAX_LEASE:
        raise InvalidParameter(
            f"The reservations of the lease are too large: {sum(sizes)} characters, of {MAX_LEASE} at most.",
            field="reservations",
        )


def check_one_more(lease: Lease) -> None:
    """Raise ``InvalidState`` if the lease has the maximum number of reservations already."""
    live = [reservation for reservation in lease.reservations if reservation.status is not ReservationStatus.DELETED]
    if len(live) >= MAX_RESERVATIONS:
        raise InvalidState(f"The lease has {len(live)} reservations; no lease has more than {MAX_RESERVATIONS}.")
    if len(lease.reservations) >= MAX_EVER:
        raise InvalidState(f"The lease has had {len(lease.reservations)} reservations, and gets no more.")
