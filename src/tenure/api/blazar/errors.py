"""Errors at 1.0, in Blazar's forms and with its statuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from tenure.api.errors import STATUS, ErrorAnswer, Refusal, UnsupportedMediaType, status_of
from tenure.api.problems import SHOWN, fields_of, missing_fields
from tenure.api.schemas.answers import Answer, ErrorReason
from tenure.domain.errors import (
    InvalidHost,
    InvalidParameter,
    InvalidState,
    LeaseBusy,
    MissingParameter,
    NotEnoughResources,
    OutOfLease,
    OverQuota,
    TenureError,
)

#: The status of each error: those of Blazar, or those that its clients regard as final.
_STATUS: Mapping[type[TenureError], int] = {
    **STATUS,
    NotEnoughResources: 400,
    LeaseBusy: 400,
    OverQuota: 400,
    OutOfLease: 403,
    InvalidHost: 403,
    UnsupportedMediaType: 400,
}
#: The status that known clients regard as final for a lease; with another status they retry for ever.
_FINAL_FOR_LEASES = 400
_CONFLICT = 409
#: The answer for unexpected errors; the log has the details.
INTERNAL = ErrorAnswer(
    500, {"error_code": 500, "error_message": "Internal Server Error", "error_name": "INTERNAL_SERVER_ERROR"}
)
_BUILT_IN = frozenset(get_args(ErrorType))
#: Errors whose reason is added to the text; the others say only that the parameter is malformed.
_LIMITS = frozenset(
    {"string_too_long", "string_too_short", "too_long", "greater_than_equal", "less_than_equal", "bool_type"}
)


class ErrorOfRoute(Answer):
    """An error of 1.0, for a request that a handler received."""

    error_code: int
    error_message: str
    error_name: int | Literal["INTERNAL_SERVER_ERROR"]


class ErrorOfFramework(Answer):
    """An error of 1.0, for a request without a handler."""

    error: int
    error_message: str


class UnauthorizedDocument(Answer):
    """The error of the authentication, at 1.0."""

    error: ErrorReason


def error_answer(error: TenureError, method: str, path: str) -> ErrorAnswer:
    """Return an error in one of the two forms of Blazar: of a handled route, or of the framework around it."""
    status = status_of(error, _STATUS)
    may_be_final = method == "POST" or isinstance(error, InvalidState)
    if status == _CONFLICT and path.startswith("/v1/leases") and may_be_final:
        status = _FINAL_FOR_LEASES
    if not isinstance(error, Refusal):
        return ErrorAnswer(status, {"error_code": status, "error_message": error.message, "error_name": status})
    return ErrorAnswer(status, {"error": status, "error_message": error.message}, error.tells_version)


def refusal(problems: list[ErrorDetails], tags: Collection[str]) -> TenureError:
    """Return the refusal for the problems of a document, in Blazar's words.

    ``tags`` are the names of a union's members, which are no part of a field's path.
    """
    missing = missing_fields(problems)
    if missing:
        return MissingParameter(*(_name(problem["loc"], tags) for problem in missing))
    problem = problems[0]
    name = _name(problem["loc"], tags)
    if problem["type"] not in _BUILT_IN:
        return InvalidParameter(problem["msg"], field=name)
    reason = f" ({problem['msg']})" if problem["type"] in _LIMITS else ""
    return InvalidParameter(f"Malformed parameter {name}{reason}", field=name)


def _name(loc: tuple[int | str, ...], tags: Collection[str]) -> str:
    """Return the name of the field; for the id of a reservation it is the term of Blazar."""
    fields = fields_of(loc, tags)
    if len(fields) == 3 and fields[0] == "reservations" and fields[2] == "id":
        return "reservation ID"
    return next((field for field in reversed(fields) if isinstance(field, str)), "body")[:SHOWN]
