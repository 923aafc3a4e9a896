"""Projects: serializing their bookings, and counting what they have booked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tenure.domain.lease import LeaseStatus
from tenure.domain.period import ENDLESS, Period
from tenure.store.conditions import IS_PAST
from tenure.store.conflict import Overtaken
from tenure.store.statements import run
from tenure.store.tables import AllocationRow, LeaseRow, ProjectRow, ReservationRow
from tenure.store.writing import count_changed

#: The statuses of leases that promise nothing, yet or any more.
_IDLE = (LeaseStatus.WAITING, LeaseStatus.TERMINATED, LeaseStatus.ERROR, LeaseStatus.DELETING, LeaseStatus.DELETED)
_LEASES = select(func.count()).where(
    LeaseRow.project_id == bindparam("project_id"),
    LeaseRow.deleted_at.is_(None),
    LeaseRow.status.not_in([status.value for status in _IDLE]),
)
_BOOKED = (
    select(ReservationRow.resource_type, LeaseRow.starts_at, LeaseRow.ends_at, func.sum(AllocationRow.units))
    .join(ReservationRow, ReservationRow.lease_id == LeaseRow.id)
    .join(AllocationRow, AllocationRow.reservation_id == ReservationRow.id)
    .where(
        LeaseRow.project_id == bindparam("project_id"),
        LeaseRow.deleted_at.is_(None),
        LeaseRow.ends_at > bindparam("after"),
        LeaseRow.starts_at < bindparam("before"),
        LeaseRow.id != bindparam("without"),
        ~IS_PAST,
    )
    .group_by(ReservationRow.resource_type, LeaseRow.starts_at, LeaseRow.ends_at)
)


@dataclass(frozen=True, slots=True)
class Booked:
    """Units of a resource type that a project has booked for a period."""

    resource_type: str
    period: Period
    units: int


class ProjectStore:
    """The rows of projects, and the sums over their leases."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def lock(self, project_id: str) -> None:
        """Block other transactions that count what the project has until this one ends.

        Call it before anything is read, so that what is read includes the writes of the transaction before.
        """
        taken = count_changed(
            self._session,
            update(ProjectRow)
            .where(ProjectRow.id == project_id)
            .values(version=ProjectRow.version + 1)
            .execution_options(synchronize_session=False),
        )
        if taken == 0:
            try:
                self._session.execute(insert(ProjectRow), [{"id": project_id, "version": 1}])
            except IntegrityError as error:
                raise Overtaken from error

    def has_had_leases(self, *, project_id: str | None = None, user_id: str | None = None) -> bool:
        """Whether there is a lease of the project, of the user, or of both, also a deleted one."""
        found = select(LeaseRow.id).limit(1)
        if project_id is not None:
            found = found.where(LeaseRow.project_id == project_id)
        if user_id is not None:
            found = found.where(LeaseRow.user_id == user_id)
        return self._session.execute(found).first() is not None

    def count_leases(self, project_id: str) -> int:
        """Count the leases of the project that are not over, without those that wait for room."""
        counted: int = run(self._session, _LEASES, {"project_id": project_id}).scalar_one()
        return counted

    def booked(
        self, project_id: str, *, after: datetime, before: datetime = ENDLESS, without: str = ""
    ) -> list[Booked]:
        """Return what the project's leases have booked, by type and period, of leases that last into this time.

        ``without`` is the id of a lease that does not count. The database adds up the leases of a period: a project may
        have very many, and they are counted while others wait.
        """
        times = {"after": after, "before": before}
        rows = run(self._session, _BOOKED, {"project_id": project_id, "without": without, **times})
        return [
            Booked(resource_type, Period(starts_at, ends_at), int(units))
            for resource_type, starts_at, ends_at, units in rows
        ]
