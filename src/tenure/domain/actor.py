"""The caller of an operation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller: a user acting in a project, or Tenure itself.

    ``token`` is a secret for actions in the caller's name; it is never stored and never shown. The names are those that
    the identity service gives the ids; they may be empty.
    """

    user_id: str
    project_id: str
    roles: frozenset[str] = frozenset()
    request_id: str | None = None
    global_request_id: str | None = None
    token: str | None = field(default=None, repr=False, compare=False)
    user_name: str = field(default="", compare=False)
    project_name: str = field(default="", compare=False)


#: The actor of timed events.
ENGINE = Actor(user_id="tenure", project_id="")
