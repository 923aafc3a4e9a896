"""The requests of servers that are made at the start of their leases."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from tenure.domain.boot import Boot
from tenure.store.tables import BootRow


class BootStore:
    """The table of kept requests, one for a lease."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, lease_id: str, boot: Boot) -> None:
        """Keep the request of a lease."""
        row = {"lease_id": lease_id, "microversion": boot.microversion, "request": json.dumps(boot.body)}
        self._session.execute(insert(BootRow), [row])

    def of_leases(self, lease_ids: Collection[str]) -> dict[str, Boot]:
        """Return the kept requests of these leases, by lease id."""
        rows = self._session.execute(
            select(BootRow.lease_id, BootRow.request, BootRow.microversion).where(BootRow.lease_id.in_(lease_ids))
        )
        return {lease_id: Boot(json.loads(request), microversion) for lease_id, request, microversion in rows}

    def delete(self, lease_id: str) -> None:
        """Delete the request of a lease, if there is one."""
        self._session.execute(
            delete(BootRow).where(BootRow.lease_id == lease_id).execution_options(synchronize_session=False)
        )
