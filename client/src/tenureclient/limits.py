"""How much a project may book, and how much it has booked."""

from __future__ import annotations

from datetime import datetime

from tenureclient.documents import Document, document
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
