"""Subjects: things that exist in the cloud, such as servers, each of which has one live reservation at most."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.domain.allocation import Demand
from tenure.domain.errors import Conflict, InvalidParameter
from tenure.services.leases.default_leases import give_way, that_gives_way
from tenure.store.database import Transaction


def bind(tx: Transaction, reservation_id: str, demand: Demand, position: int) -> bool:
    """Bind the reservation to the subject of its demand; return False if it was bound to it already.

    A default lease of the subject gives way. Raises ``Conflict`` if another reservation is bound to the subject, and
    ``InvalidParameter`` if that reservation belongs to the same lease.
    """
    if demand.subject is None:
        return False
    try:
        give_way(tx, demand.subject, reservation_id)
        return tx.leases.bind(reservation_id, demand.subject)
    except (Conflict, InvalidParameter) as error:
        error.field = f"reservations[{position}]"
        raise


def check_unbound(tx: Transaction, demands: Iterable[tuple[int, str, Demand]]) -> None:
    """Raise what ``bind`` would raise for these demands, each with its position and the id of its reservation."""
    seen: set[str] = set()
    for position, reservation_id, demand in demands:
        if demand.subject is None:
            continue
        field = f"reservations[{position}]"
        if demand.subject in seen:
            raise InvalidParameter(f"The {demand.subject} is named twice in the lease.", field=field)
        seen.add(demand.subject)
        holder = tx.leases.bound(demand.subject)
        if holder is None or holder == reservation_id or that_gives_way(tx, demand.subject, holder) is not None:
            continue
        [held] = tx.leases.reservations_by_ids([holder]).values()
        raise Conflict(f"The {demand.subject} is reserved already, by the lease {held.lease_id}.", field=field)
