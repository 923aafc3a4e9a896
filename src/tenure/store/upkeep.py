"""What the upkeep of the database records about itself."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tenure.store.conflict import Overtaken
from tenure.store.tables import UpkeepRow
from tenure.store.writing import count_changed

#: The row that the health check writes.
PROBE = "probe"
#: Ended leases before this moment may be missing.
LEASES_PURGED = "leases purged before"


class UpkeepStore:
    """Moments by name."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def at(self, name: str) -> datetime | None:
        """Return the moment that was recorded last; None if there was none."""
        return self._session.execute(select(UpkeepRow.at).where(UpkeepRow.name == name)).scalar_one_or_none()

    def record(self, name: str, at: datetime, *, padding: str | None = None) -> None:
        """Record a moment; raise ``Overtaken`` if another transaction records the first one."""
        values = {"at": at, "padding": padding}
        if count_changed(self._session, update(UpkeepRow).where(UpkeepRow.name == name).values(values)):
            return
        try:
            self._session.execute(insert(UpkeepRow), [{"name": name, **values}])
        except IntegrityError as error:
            raise Overtaken from error
