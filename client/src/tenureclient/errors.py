"""The errors of the client: one small tree."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tenureclient.documents import Document, LooseText, document
from tenureclient.wire import Fields, JsonObject, JsonValue, MalformedDocument


@document("a stage")
class Stage(Document):
    """How many resources were left after one step of the selection."""

    stage: LooseText
    count: int


@document("a shortfall")
class Shortfall(Document):
    """Why a request cannot be met: the requested amount, and the count that each selection step left."""

    resource_type: LooseText
    requested: int
    stages: tuple[Stage, ...]
    reservation: int | None = None
    unknown_properties: tuple[str, ...] = ()


@document("an alternative")
class Alternative(Document):
    """A request that would be met in place of a refused one.

    ``change`` is the only point that differs: ``start`` (of the same length), ``end`` (an earlier one),
    ``amount`` or ``kind``. The last two are of the reservation at the position ``reservation`` of the request
    (0 for one that is added to a lease), which is to have this ``amount``, or these ``resource_properties``.
    The dates are those of the lease.
    """

    change: str
    start_date: datetime
    end_date: datetime
    reservation: int | None = None
    amount: int | None = None
    resource_properties: str | None = None


class TenureError(Exception):
    """Base class of all errors of this client.

    ``code`` is the HTTP status if a server answered. ``name`` is a stable word for the kind of error.
    ``field`` is the field of the request that is wrong. ``details`` holds the reasons as data.
    ``request_id`` lets an operator find the request in the server's log.
    """

    default_name = "Error"

    def __init_subclass__(cls) -> None:
        if TenureError in cls.__bases__:  # the refusals of a server have the server's names
            cls.default_name = cls.__name__

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        name: str | None = None,
        field: str | None = None,
        details: JsonObject | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.name = name or self.default_name
        self.field = field
        self.details: JsonObject = details or {}
        self.request_id = request_id


class ConnectionFailed(TenureError):
    """No answer: the service cannot be found or reached, or the sign-in failed before that."""


class UnexpectedAnswer(TenureError):
    """The answer is not from the reservation API: often a proxy answered, or the address is wrong."""


class EmptyText(TenureError):
    """A name or an id is empty, and so names nothing. ``field`` says which. Raised before any request."""


class NeedsNewerServer(TenureError):
    """The server's API is too old for the requested feature. The server may be Blazar."""


class NotUnique(TenureError):
    """Several resources have the requested name."""


class WaitTimedOut(TenureError):
    """The timeout passed before the lease reached the wanted status."""


class LeaseFailed(TenureError):
    """While waiting, the lease reached a status from which it cannot reach the wanted one."""


class ApiError(TenureError):
    """The server refused the request; the subclass says why."""


class BadRequest(ApiError):
    """400: the request is invalid. From API 1.1 on, ``field`` names the invalid field."""


class Unauthorized(ApiError):
    """401: the token was not accepted."""


class Forbidden(ApiError):
    """403: the policy forbids the request."""


class NotFound(ApiError):
    """404: the resource does not exist."""


class Conflict(ApiError):
    """409: the request conflicts with the stored data."""


class PreconditionFailed(ApiError):
    """412: the lease has changed since it was read, so that the change is not made."""


class LeaseBusy(Conflict):
    """The lease is being started, ended or changed. Retry later."""


class InvalidState(Conflict):
    """The status of the lease does not allow the operation."""


class NotEnoughResources(ApiError):
    """Not enough resources are free. From API 1.1 on, ``shortfall`` says why.

    The code is 409 at API 1.1, and 400 or 500 at 1.0.
    """

    @property
    def shortfall(self) -> Shortfall | None:
        try:
            return Shortfall.from_wire(self.details) if "stages" in self.details else None
        except MalformedDocument:  # the refusal itself is what matters
            return None

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Up to three requests that would be met instead, from API 1.3 on."""
        try:
            return Fields(self.details, "the details").items("alternatives", Alternative.from_wire)
        except MalformedDocument:
            return ()

    @property
    def is_proven(self) -> bool | None:
        """Whether it is certain that there is no room; None if the server does not say so."""
        proven = self.details.get("proven")
        return proven if isinstance(proven, bool) else None


class Denied(BadRequest):
    """A rule of the site forbids the request; the message says which. Sent from API 1.1 on."""


class OverQuota(Forbidden):
    """The project's limit would be exceeded.

    ``details`` has ``resource``, ``limit``, ``used`` and ``requested``. Sent from API 1.1 on; 1.0 sends
    ``BadRequest`` instead.
    """


class ServerError(ApiError):
    """5xx: the server failed, or is unavailable."""


_BY_NAME: Mapping[str, type[ApiError]] = {
    error.__name__: error for error in (NotEnoughResources, LeaseBusy, InvalidState, Denied, OverQuota)
}
#: The error of each status, and its name unless the server says it.
_BY_CODE: Mapping[int, tuple[type[ApiError], str]] = {
    400: (BadRequest, "InvalidParameter"),
    401: (Unauthorized, "Unauthorized"),
    403: (Forbidden, "Forbidden"),
    404: (NotFound, "NotFound"),
    405: (ApiError, "MethodNotAllowed"),
    406: (ApiError, "NotAcceptable"),
    409: (Conflict, "Conflict"),
    412: (PreconditionFailed, "PreconditionFailed"),
    413: (ApiError, "TooLarge"),
    415: (ApiError, "UnsupportedMediaType"),
    500: (ServerError, "Internal"),
    503: (ServerError, "Unavailable"),
}
# API 1.0 has no error names: clients recognize these errors by their text.
_BY_TEXT: Mapping[str, str] = {
    "Not enough hosts available": "NotEnoughResources",
    "Not enough floating IPs available": "NotEnoughResources",
    "Invalid lease status.": "LeaseBusy",
}


def error_from_answer(code: int, body: JsonValue, request_id: str | None) -> ApiError:
    """Build the error for an answer with status 400 or above, whatever the form of its body."""
    facts = body if isinstance(body, Mapping) else {}
    message = _message(code, facts)
    name = facts.get("error_name")
    if not isinstance(name, str) or name == "INTERNAL_SERVER_ERROR":
        name = next((word for text, word in _BY_TEXT.items() if message.startswith(text)), None)
    field = facts.get("field")
    details = facts.get("details")
    of_status, usual_name = _BY_CODE.get(code, (ServerError if code >= 500 else ApiError, None))
    return _BY_NAME.get(name or "", of_status)(
        message,
        code=code,
        name=name or usual_name,
        field=field if isinstance(field, str) else None,
        details=details if isinstance(details, Mapping) else None,
        request_id=request_id,
    )


def _message(code: int, facts: JsonObject) -> str:
    text = facts.get("error_message")
    if isinstance(text, str) and text:
        return text
    inner = facts.get("error")  # the format of keystonemiddleware
    if isinstance(inner, Mapping) and isinstance(inner.get("message"), str):
        return str(inner["message"])
    return f"The server answered {code}."
