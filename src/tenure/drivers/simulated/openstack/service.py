"""The request that a service receives, and its refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

#: The highest value of a numeric parameter.
_HIGHEST: Final = 10**9

#: The status and the body of an answer; the body shares no objects with the state of the cloud.
Answer = tuple[int, Any]
#: The service, the method, a pattern of the path below the service's endpoint, and the handler.
Route = tuple[str, str, str, Callable[..., Answer]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The account that sends a request; ``trust_id`` is the trust by which it acts as another account."""

    user_id: str
    project_id: str
    roles: frozenset[str]
    trust_id: str | None = None

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to a service. ``query`` has all parameters; ``params`` has the last value of each."""

    service: str
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    microversion: str | None = None
    params: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", dict(self.query))

    def all_of(self, name: str) -> list[str]:
        """The values of a parameter that may be repeated."""
        return [value for key, value in self.query if key == name]


class Service(Protocol):
    """A service of the cloud, or a part of one.

    An entry point in ``tenure.simulated_services`` is called with the ``State`` of each cloud. Objects that no other
    service knows are in a table of its own, from ``state.objects.table``.
    """

    @property
    def routes(self) -> Sequence[Route]: ...


class Refused(Exception):
    """An answer with an error; ``code`` is Placement's."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        self.status = status
        self.code = code
        super().__init__(message)


def expect(found: object, expected: object) -> None:
    """Refuse a request that differs from what the service expects."""
    if found != expected:
        raise Refused(400, f"expected {expected}, got {found}")


def version_is(request: ApiRequest, version: str) -> None:
    """Refuse a request of another microversion."""
    expect(request.microversion, version)


def only_admins(caller: Caller) -> None:
    """Refuse the request of a caller who is no administrator."""
    if not caller.is_admin:
        raise Refused(403, "Policy doesn't allow this to be performed.")


def whole(value: object, least: int) -> None:
    """Refuse any value but an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refused(400, f"Invalid input: {repr(value)[:80]} is no whole number of at least {least}")


def text(value: object, longest: int = 255) -> None:
    """Refuse any value but a text that is neither empty nor too long."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise Refused(400, f"Invalid input: {repr(value)[:80]} is no text of 1 to {longest} characters")


def printable(value: object, longest: int = 255) -> None:
    """Refuse any value but a printable text on one line."""
    text(value, longest)
    if not str(value).isprintable():
        raise Refused(400, f"Invalid input: {repr(value)[:80]} has characters that cannot be printed")


def number(request: ApiRequest, name: str, default: int) -> int:
    """Return a parameter that is an integer of at least 0, cut to ``_HIGHEST``; refuse other values."""
    value = request.params.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit()):
        raise Refused(400, f"Invalid input for query parameters {name}: {value[:40]!r} is no number")
    return min(int(value), _HIGHEST) if len(value) <= len(str(_HIGHEST)) else _HIGHEST


def page_of(items: Sequence[T], request: ApiRequest, key: Callable[[T], str], limit: int) -> tuple[list[T], bool]:
    """Return the requested page of a list, and whether there are further pages."""
    begin = 0
    if (marker := request.params.get("marker")) is not None:
        begin = 1 + next((index for index, item in enumerate(items) if key(item) == marker), len(items))
        if begin > len(items):
            raise Refused(400, f"Marker {marker} could not be found.")
    limit = min(limit, number(request, "limit", limit))
    return list(items[begin : begin + limit]), begin + limit < len(items)


def page_from(items: Sequence[T], request: ApiRequest) -> Sequence[T]:
    """Return the items after the marker, at most ``limit`` of them, or all without a limit."""
    marker = request.params.get("marker")
    positions = [position for position, item in enumerate(items, start=1) if getattr(item, "id", None) == marker]
    if marker is not None and not positions:
        raise Refused(400, f"marker [{marker[:80]}] not found")
    begin = positions[0] if positions and marker is not None else 0
    return items[begin : begin + number(request, "limit", len(items))]


def next_link(name: str, has_more: bool) -> dict[str, Any]:
    """Return the link to the next page in the form of Nova and Neutron."""
    return {f"{name}_links": [{"rel": "next", "href": "next"}]} if has_more else {}


def error_body(service: str, refused: Refused) -> Any:
    """Return the body of a refusal in the form of the service."""
    message = str(refused)
    match service:
        case "compute":
            return {"conflictingRequest": {"code": refused.status, "message": message}}
        case "placement":
            return {"errors": [{"status": refused.status, "title": "x", "detail": message, "code": refused.code}]}
        case "network":
            return {"NeutronError": {"type": "x", "message": message, "detail": ""}}
        case "block-storage":
            return {"itemNotFound" if refused.status == 404 else "badRequest": {"message": message}}
        case "identity":
            return {"error": {"code": refused.status, "message": message, "title": "x"}}
        case _:
            return f"<html>{message}</html>"
