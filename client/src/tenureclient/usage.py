"""What projects have had in a period, in resource-hours."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from tenureclient.documents import Document, document, sent_as
from tenureclient.transport import Transport, parsed
from tenureclient.wire import Version, moment_to_wire


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


class Usage:
    """The accounts of projects. They need API 1.3."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def show(
        self, *, start: datetime, end: datetime, project_id: str | None = None, resource_type: str | None = None
    ) -> PeriodUsage:
        """Return what the caller's project has had in a period; for an administrator, what each has had.

        An administrator may name a project, by id or name. The period may lie in the future: leases to come
        are booked.
        """
        filters = {"project_id": project_id, "resource_type": resource_type}
        query = {
            "start_date": moment_to_wire(start, Version.V1_3),
            "end_date": moment_to_wire(end, Version.V1_3),
            **{name: value for name, value in filters.items() if value is not None},
        }
        answer = self._transport.call("GET", "usage", query=query, feature="seeing what was used", since=Version.V1_3)
        return parsed(PeriodUsage.from_wire, answer.body)
