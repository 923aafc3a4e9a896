"""The form of errors on the wire. Only this module knows their HTTP statuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenure.domain.errors import (
    Busy,
    Conflict,
    Denied,
    Forbidden,
    InvalidParameter,
    InvalidState,
    LeaseBusy,
    MissingParameter,
    NotEnoughResources,
    NotFound,
    NotPermitted,
    OverQuota,
    PreconditionFailed,
    TenureError,
    TooManyConflicts,
    Unavailable,
)


class Refusal(TenureError):
    """A request that is refused before the manager is called."""

    #: Whether such an answer has the version headers at 1.0.
    tells_version = False


class UnknownUrl(Refusal):
    """The URL is not served, or not at this version."""

    name = "NotFound"

    def __init__(self) -> None:
        super().__init__("The requested URL was not found on the server.")


class MethodNotAllowed(Refusal):
    """The URL is served, but not for this method."""

    name = "MethodNotAllowed"

    def __init__(self) -> None:
        super().__init__("The method is not allowed for the requested URL.")


class MalformedVersion(Refusal):
    """The version header names this service without a valid version."""

    name = "InvalidParameter"

    def __init__(self, version: str) -> None:
        super().__init__(
            f"API Version String {version[:40]} is of invalid format. Must be of format MajorNum.MinorNum.",
            field="OpenStack-API-Version",
        )


class VersionNotSupported(Refusal):
    """A version that this server does not support."""

    name = "NotAcceptable"

    def __init__(self, version: str, oldest: str, latest: str) -> None:
        super().__init__(
            f"Version {version[:40]} is not supported by the API. Minimum is {oldest} and maximum is {latest}.",
            field="OpenStack-API-Version",
        )


class Unauthorized(Refusal):
    """The caller is not authenticated."""

    name = "Unauthorized"

    def __init__(self) -> None:
        super().__init__("The request you have made requires authentication.")


class NoProject(TenureError):
    """The token of the caller has no project."""

    name = "Forbidden"

    def __init__(self) -> None:
        super().__init__("Not authorized: a token of a project is needed.")


class UnsupportedMediaType(Refusal):
    """The content type of the body is not JSON."""

    name = "UnsupportedMediaType"
    tells_version = True

    def __init__(self, content_type: str) -> None:
        super().__init__(f"Content type '{content_type[:80]}' isn't supported", field="Content-Type")


class TooLarge(Refusal):
    """The body is larger than the limit."""

    name = "TooLarge"
    tells_version = True

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than {limit} bytes.", field="body")


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The answer for an error; ``tells_version`` is whether it has the version headers."""

    status: int
    document: Mapping[str, object]
    tells_version: bool = True


#: After how many seconds a request may be repeated that was refused since too many others were being served.
RETRY_AFTER_SECONDS = 1


def headers_of(error: TenureError) -> dict[str, str]:
    """Return the headers of an error: when to try again if nothing was done, and only the load was the reason."""
    return {"Retry-After": str(RETRY_AFTER_SECONDS)} if isinstance(error, Busy) else {}


#: The status of each error; the most specific listed class decides.
STATUS: Mapping[type[TenureError], int] = {
    InvalidParameter: 400,
    MissingParameter: 400,
    Denied: 400,
    MalformedVersion: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotPermitted: 403,
    OverQuota: 403,
    NoProject: 403,
    NotFound: 404,
    UnknownUrl: 404,
    MethodNotAllowed: 405,
    VersionNotSupported: 406,
    Conflict: 409,
    NotEnoughResources: 409,
    LeaseBusy: 409,
    InvalidState: 409,
    PreconditionFailed: 412,
    TooLarge: 413,
    UnsupportedMediaType: 415,
    TenureError: 500,
    TooManyConflicts: 503,
    Unavailable: 503,
}
#: The names of errors.
ERROR_NAMES = tuple(sorted({kind.name for kind in STATUS}))
#: The names of errors whose status comes from the framework or the authentication: the first with the status.
_NAMES: Mapping[int, str] = {status: kind.name for kind, status in reversed([*STATUS.items()])}


def status_of(error: TenureError, table: Mapping[type[TenureError], int]) -> int:
    """Return the status of an error in a table by the classes of errors."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def error_answer(error: TenureError) -> ErrorAnswer:
    """Return an error with a stable name, the wrong field, and the reasons as data."""
    status = status_of(error, STATUS)
    text = f"{error.message}: {error.explanation}" if error.explanation else error.message
    document = _document(status, error.name, text)
    if error.field is not None:
        document["field"] = error.field
    if error.details:
        document["details"] = dict(error.details)
    return ErrorAnswer(status, document)


def _document(status: int, name: str, text: str) -> dict[str, object]:
    """Return an error; ``error`` repeats it where keystoneauth and openstacksdk look for its text."""
    return {
        "error_code": status,
        "error_name": name,
        "error_message": text,
        "error": {"code": status, "title": name, "message": text},
    }


def error_answer_without_version(error: TenureError) -> ErrorAnswer:
    """Return an error of a request whose version is unknown, readable as 1.0 and as 1.1."""
    answer = error_answer(error)
    return ErrorAnswer(answer.status, {**answer.document, "error": answer.status}, tells_version=False)


_LATER = "The service is not available right now; try again later."


def foreign_error_answer(status: int) -> ErrorAnswer:
    """Return an error in the form of 1.1 for a status that another part of the process has chosen."""
    known: Mapping[int, TenureError] = {401: Unauthorized(), 503: Unavailable(_LATER), 404: UnknownUrl()}
    if status in known:
        return error_answer(known[status])
    name = _NAMES.get(status, "InvalidParameter" if status < 500 else "Internal")
    text = "The request is not valid HTTP." if status < 500 else "Internal Server Error"
    return ErrorAnswer(status, _document(status, name, text))


#: The answer for unexpected errors; the log has the details.
INTERNAL = foreign_error_answer(500)
