"""How much a project may book, and how much it has booked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenureclient.transport import Transport, parsed
from tenureclient.wire import Fields, JsonValue, Version


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a project may book of one kind of resource (-1: no limit), and how much it has booked."""

    name: str
    limit: int
    used: int

    @classmethod
    def from_wire(cls, document: JsonValue) -> Limit:
        fields = Fields(document, "a limit")
        return cls(name=fields.text("name"), limit=fields.number("limit"), used=fields.number("used"))


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """All limits of a project. Hours are counted from now until ``hours_until``."""

    project_id: str
    hours_until: datetime
    limits: tuple[Limit, ...]

    @classmethod
    def from_wire(cls, document: JsonValue) -> ProjectLimits:
        fields = Fields(document, "the limits")
        return cls(
            project_id=fields.text("project_id"),
            hours_until=fields.moment("hours_until"),
            limits=fields.each("limits", Limit.from_wire),
        )


class Limits:
    """The limits of the site."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def show(self, *, project_id: str | None = None) -> ProjectLimits:
        """Return the limits of the caller's project; an administrator may name another, by id or name."""
        query = {} if project_id is None else {"project_id": project_id}
        answer = self._transport.call("GET", "limits", query=query, feature="seeing limits", since=Version.V1_2)
        return parsed(ProjectLimits.from_wire, answer.body)
