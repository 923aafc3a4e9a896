"""What is asked of the small OpenStack, and how its services refuse it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: What a service answers with: a status and a body.
Handler = Callable[..., tuple[int, Any]]
#: The service, the method, a pattern of the path, and what answers.
Route = tuple[str, str, str, Handler]


@dataclass(frozen=True)
class Seen:
    """A request that came. ``query`` has all that came with the path, also what came more than once."""

    service: str
    method: str
    path: str
    params: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]
    query: tuple[tuple[str, str], ...] = ()

    def all_of(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]


class Refused(Exception):
    """An answer with an error; ``code`` is Placement's."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        self.status = status
        self.code = code
        super().__init__(message)


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Refused(400, f"expected {wanted}, got {found}")


def version_is(seen: Seen, version: str) -> None:
    expect(seen.headers.get("openstack-api-version"), version)


def only_admins(token: Mapping[str, Any]) -> None:
    if "admin" not in token["roles"]:
        raise Refused(403, "Policy doesn't allow this to be performed.")


def whole(value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refused(400, f"Invalid input: {value!r} is no whole number of at least {least}")


def text(value: object, longest: int = 255) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise Refused(400, f"Invalid input: {value!r} is no text")


def page_of(found: list[Any], seen: Seen, key: Callable[[Any], str], limit: int) -> tuple[list[Any], bool]:
    """The part of a list that is asked for, and whether there is more."""
    marker = seen.params.get("marker")
    begin = 0 if marker is None else 1 + [key(one) for one in found].index(marker)
    limit = min(limit, int(seen.params.get("limit", limit)))
    return found[begin : begin + limit], begin + limit < len(found)
