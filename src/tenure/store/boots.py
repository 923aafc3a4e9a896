"""The requests of servers that are made at the start of their leases."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import and_, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from tenure.domain.boot import Boot, PlannedServerQuery
from tenure.domain.errors import InvalidParameter
from tenure.domain.lease import Lease, ReservationStatus
from tenure.store.tables import BootRow, LeaseRow, ReservationRow

#: What is kept of a request that is not needed any more.
_EMPTY = "{}"


class BootStore:
    """The table of kept requests, one for a lease."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, lease: Lease, boot: Boot) -> None:
        """Keep the request of a lease."""
        row = {
            "lease_id": lease.id,
            "project_id": lease.project_id,
            "microversion": boot.microversion,
            "request": json.dumps(boot.body),
        }
        self._session.execute(insert(BootRow), [row])

    def page(self, query: PlannedServerQuery) -> list[str]:
        """Return the reservations whose servers are still to be made, one more than ``query.limit`` at most.

        Raises ``InvalidParameter`` for a marker that is no reservation of ``query.project_id``, if that is given.
        """
        named, made = ReservationRow.parameters["server_name"], ReservationRow.effects["server_id"]
        statement = (
            select(ReservationRow.id)
            .join(BootRow, BootRow.lease_id == ReservationRow.lease_id)
            .where(
                named.as_string() != "",
                made.as_string().is_(None),
                ReservationRow.status != ReservationStatus.DELETED.value,
            )
        )
        if query.project_id is not None:
            statement = statement.where(BootRow.project_id == query.project_id)
        if query.marker is not None:
            marker = self._session.get(ReservationRow, query.marker)
            lease = None if marker is None else self._session.get(LeaseRow, marker.lease_id)
            if marker is None or lease is None or query.project_id not in {None, lease.project_id}:
                raise InvalidParameter(
                    f"marker: there is no server {query.marker} that a list could go on after.", field="marker"
                )
            earlier = and_(ReservationRow.created_at == marker.created_at, ReservationRow.id < marker.id)
            statement = statement.where(or_(ReservationRow.created_at < marker.created_at, earlier))
        ordered = statement.order_by(ReservationRow.created_at.desc(), ReservationRow.id.desc())
        return list(self._session.execute(ordered.limit(query.limit + 1)).scalars())

    def of_leases(self, lease_ids: Collection[str]) -> dict[str, Boot]:
        """Return the kept requests of these leases that are not emptied, by lease id."""
        rows = self._session.execute(
            select(BootRow.lease_id, BootRow.request, BootRow.microversion).where(BootRow.lease_id.in_(lease_ids))
        )
        return {
            lease_id: Boot(json.loads(request), microversion)
            for lease_id, request, microversion in rows
            if request != _EMPTY
        }

    def empty(self, lease_id: str) -> None:
        """Delete what the request of a lease says, and keep that there was one."""
        self._session.execute(
            update(BootRow)
            .where(BootRow.lease_id == lease_id)
            .values(request=_EMPTY)
            .execution_options(synchronize_session=False)
        )

    def delete(self, lease_id: str) -> None:
        """Delete the request of a lease, if there is one."""
        self._session.execute(
            delete(BootRow).where(BootRow.lease_id == lease_id).execution_options(synchronize_session=False)
        )
