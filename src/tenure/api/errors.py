"""How errors look on the wire. Their HTTP statuses are known here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenure.domain.errors import (
    Conflict,
    Denied,
    Forbidden,
    InvalidHost,
    InvalidParameter,
    InvalidState,
    LeaseBusy,
    MissingParameter,
    NotEnoughResources,
    NotFound,
    NotPermitted,
    OutOfLease,
    OverQuota,
    TenureError,
    TooManyConflicts,
    Unavailable,
)


class Refusal(TenureError):
    """A request that is refused before anything is asked of the manager."""

    #: Whether 1.0 tells the version in such an answer.
    tells_version = False


class UnknownUrl(Refusal):
    """Nothing is served there, or not at this version."""

    name = "NotFound"

    def __init__(self) -> None:
        super().__init__("The requested URL was not found on the server.")


class MethodNotAllowed(Refusal):
    """The URL is served, but not for this method."""

    name = "MethodNotAllowed"

    def __init__(self) -> None:
        super().__init__("The method is not allowed for the requested URL.")


class MalformedVersion(Refusal):
    """The version header names this service, and no version."""

    name = "InvalidParameter"

    def __init__(self, asked: str) -> None:
        super().__init__(
            f"API Version String {asked[:40]} is of invalid format. Must be of format MajorNum.MinorNum.",
            field="OpenStack-API-Version",
        )


class VersionNotSupported(Refusal):
    """A version that this server does not speak."""

    name = "NotAcceptable"

    def __init__(self, asked: str, oldest: str, latest: str) -> None:
        super().__init__(
            f"Version {asked[:40]} is not supported by the API. Minimum is {oldest} and maximum is {latest}.",
            field="OpenStack-API-Version",
        )


class Unauthorized(Refusal):
    """The caller is not authenticated."""

    name = "Unauthorized"

    def __init__(self) -> None:
        super().__init__("The request you have made requires authentication.")


class NoProject(TenureError):
    """The caller's token is not one of a project."""

    name = "Forbidden"

    def __init__(self) -> None:
        super().__init__("Not authorized: a token of a project is needed.")


class UnsupportedMediaType(Refusal):
    """The body is said to be something else than JSON."""

    name = "UnsupportedMediaType"
    tells_version = True

    def __init__(self, content_type: str) -> None:
        super().__init__(f"Content type '{content_type[:80]}' isn't supported", field="Content-Type")


class TooLarge(Refusal):
    """The body is larger than any that makes sense."""

    name = "TooLarge"
    tells_version = True

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than {limit} bytes.", field="body")


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as it leaves: ``tells_version`` is whether the version headers belong to it."""

    status: int
    document: Mapping[str, object]
    tells_version: bool = True


#: The status of each error, the most specific class that is listed decides. From 1.1 on.
_STATUS: Mapping[type[TenureError], int] = {
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
    NotEnoughResources: 409,
    LeaseBusy: 409,
    InvalidState: 409,
    Conflict: 409,
    TooLarge: 413,
    UnsupportedMediaType: 415,
    TenureError: 500,
    TooManyConflicts: 503,
    Unavailable: 503,
}
#: The names of errors, from 1.1 on.
ERROR_NAMES = tuple(sorted({kind.name for kind in _STATUS}))
#: Where 1.0 differs: Blazar's codes, or those that its clients take as final.
_STATUS_1_0: Mapping[type[TenureError], int] = {
    **_STATUS,
    NotEnoughResources: 400,
    LeaseBusy: 400,
    OverQuota: 400,
    OutOfLease: 403,
    InvalidHost: 403,
    UnsupportedMediaType: 400,
}
#: What known clients take as final for a lease at 1.0; another code makes them try for ever.
_FINAL_FOR_LEASES = 400
_CONFLICT = 409

#: What a status stands for, where the framework or the authentication chose it.
_NAMES: Mapping[int, str] = {
    400: "InvalidParameter",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    500: "Internal",
    503: "Unavailable",
}


def _look_up(error: TenureError, table: Mapping[type[TenureError], int]) -> int:
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def error_answer_1_0(error: TenureError, *, of_lease: bool = False, creates: bool = False) -> ErrorAnswer:
    """An error in Blazar's two forms: of a handled route, and of the framework around it."""
    status = _look_up(error, _STATUS_1_0)
    if status == _CONFLICT and of_lease and (creates or isinstance(error, InvalidState)):
        status = _FINAL_FOR_LEASES
    if not isinstance(error, Refusal):
        return ErrorAnswer(status, {"error_code": status, "error_message": error.message, "error_name": status})
    return ErrorAnswer(status, {"error": status, "error_message": error.message}, error.tells_version)


def error_answer_1_1(error: TenureError) -> ErrorAnswer:
    """An error with a stable name, the field at fault, and the reasons as data."""
    status = _look_up(error, _STATUS)
    document: dict[str, object] = {
        "error_code": status,
        "error_name": error.name,
        "error_message": error.message,
    }
    if error.field is not None:
        document["field"] = error.field
    if error.details:
        document["details"] = dict(error.details)
    return ErrorAnswer(status, document)


def error_answer_without_version(error: TenureError) -> ErrorAnswer:
    """An error of a request whose version is unknown: it can be read as 1.0 and as 1.1."""
    answer = error_answer_1_1(error)
    return ErrorAnswer(answer.status, {"error": answer.status, **answer.document}, tells_version=False)


_LATER = "The service is not available right now; try again later."


def foreign_error_answer(status: int) -> ErrorAnswer:
    """An error that another part of the process decided on by its status, in the form of 1.1."""
    known: Mapping[int, TenureError] = {401: Unauthorized(), 503: Unavailable(_LATER), 404: UnknownUrl()}
    if status in known:
        return error_answer_1_1(known[status])
    name = _NAMES.get(status, "InvalidParameter" if status < 500 else "Internal")
    text = "The request is not valid HTTP." if status < 500 else "Internal Server Error"
    return ErrorAnswer(status, {"error_code": status, "error_name": name, "error_message": text})


#: What is said of an unexpected error; the log has the rest.
INTERNAL_1_0 = ErrorAnswer(
    500, {"error_code": 500, "error_message": "Internal Server Error", "error_name": "INTERNAL_SERVER_ERROR"}
)
INTERNAL_1_1 = foreign_error_answer(500)
