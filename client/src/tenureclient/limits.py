"""How much a project may book, and how much it has booked."""

from __future__ import annotations

from datetime import datetime

from tenureclient.documents import Document, document
from tenureclient.transport import Transport, parsed
from tenureclient.wire import Version


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


class Limits:
    """The limits of the site."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def show(self, *, project_id: str | None = None) -> ProjectLimits:
        """Return the limits of the caller's project; an administrator may name another, by id or name."""
        query = {} if project_id is None else {"project_id": project_id}
        answer = self._transport.call("GET", "limits", query=query, feature="seeing limits", since=Version.V1_2)
        return parsed(ProjectLimits.from_wire, answer.body)
