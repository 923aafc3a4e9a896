"""How much projects may book, and what they have had in a period, in resource-hours."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from tenureclient.documents import Document, document, sent_as
from tenureclient.sent import query_of
from tenureclient.transport import Calls
from tenureclient.wire import Feature, Version


@document("a limit")
class Limit(Document):
    """How much a project may book of one kind of resource (-1: no limit), and how much it has booked."""

    name: str
    limit: int
    used: int


@document("the limits")
class ProjectLimits(Document):
    """All limits of a project. Hours are counted from now until ``hours_until``."""

    project_id: str
    hours_until: datetime
    limits: tuple[Limit, ...]


class Limits(Calls):
    """The limits of the site."""

    def show(self, *, project_id: str | None = None) -> ProjectLimits:
        """Return the limits of the caller's project; an administrator may name another, by id or name."""
        query, feature = query_of(project_id=project_id), Feature("seeing limits", Version.V1_2)
        return self._transport.call("GET", "limits", query=query, feature=feature).read(ProjectLimits.from_wire)


@document("a row of the accounts")
class UsageSum(Document):
    """What a project has had of a resource class, in amounts multiplied by hours.

    ``booked_hours`` were promised to leases, ``held_hours`` had leases that had started. ``used_hours`` are
    those in which servers ran; None if the server does not know. ``WHOLE`` counts resources.
    """

    project_id: str
    resource_type: str
    region: str | None
    resource_class: str
    booked_hours: float
    held_hours: float
    used_hours: float | None


@document("the accounts")
class PeriodUsage(Document):
    """The accounts from ``start_date`` to ``end_date``.

    What lies before ``incomplete_before`` may lack leases that the operator has purged; None if
    nothing lacks.
    """

    start_date: datetime
    end_date: datetime
    sums: Annotated[tuple[UsageSum, ...], sent_as("usage", tuple[UsageSum, ...])]
    incomplete_before: datetime | None = None


class Usage(Calls):
    """The accounts of projects. They need API 1.3."""

    def show(
        self, *, start: datetime, end: datetime, project_id: str | None = None, resource_type: str | None = None
    ) -> PeriodUsage:
        """Return what the caller's project has had in a period; for an administrator, what each has had.

        An administrator may name a project, by id or name. The period may lie in the future: leases to come
        are booked.
        """
        query = query_of(start_date=start, end_date=end, project_id=project_id, resource_type=resource_type)
        feature = Feature("seeing what was used", Version.V1_3)
        return self._transport.call("GET", "usage", query=query, feature=feature).read(PeriodUsage.from_wire)
