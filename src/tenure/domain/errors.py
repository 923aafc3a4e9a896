"""The errors of the service.

Every error carries its facts as attributes and builds its text once. Only ``api/errors.py`` knows the HTTP status of
an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.domain.shortfall import Shortfall


class TenureError(Exception):
    """Base class of all our errors. It is never raised itself."""

    #: A stable name for programs.
    name = "Internal"
    #: What is wrong, for texts that are Blazar's and do not say it; shown from 1.1 on.
    explanation = ""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    @property
    def details(self) -> Mapping[str, object]:
        return {}


class InvalidParameter(TenureError):
    """A field of the request is wrong: its type, its range, or it contradicts another field."""

    name = "InvalidParameter"


class MalformedRequirements(InvalidParameter):
    """An expression of the property language is invalid. The text is Blazar's, the explanation says what is wrong."""

    def __init__(self, expression: str, explanation: str = "", *, field: str | None = None) -> None:
        super().__init__(f"Malformed requirements {expression}", field=field)
        self.expression = expression
        self.explanation = explanation


class MissingParameter(TenureError):
    """A required field is missing from the request."""

    name = "MissingParameter"

    def __init__(self, *fields: str) -> None:
        super().__init__(f"Missing parameter {', '.join(fields)}", field=fields[0] if len(fields) == 1 else None)
        self.fields = fields


class OutOfLease(InvalidParameter):
    """The ``before_end`` moment lies outside the lease."""

    def __init__(self, field: str = "before_end_date") -> None:
        super().__init__("Datetime is out of lease limits", field=field)


class AlreadyOver(InvalidParameter):
    """The lease would end before now."""

    def __init__(self) -> None:
        super().__init__("End date must be later than current and start date", field="end_date")


class InvalidHost(InvalidParameter):
    """The registration of a host does not name the host."""


class NotFound(TenureError):
    """The resource does not exist, or the caller may not see it."""

    name = "NotFound"


class Forbidden(TenureError):
    """The policy forbids the operation."""

    name = "Forbidden"

    def __init__(self, rule: str) -> None:
        super().__init__(f"Policy doesn't allow {rule} to be performed")
        self.rule = rule


class PreconditionFailed(TenureError):
    """The lease is not as the request demands: it has changed since the caller read it."""

    name = "PreconditionFailed"


class NotPermitted(TenureError):
    """A rule of the site forbids the operation, whatever the caller's role."""

    name = "Forbidden"


class Denied(TenureError):
    """An enforcement filter, or the service that it calls, denied the request; the text is theirs."""

    name = "Denied"


class OverQuota(TenureError):
    """The project would exceed one of its limits."""

    name = "OverQuota"

    def __init__(self, resource: str, *, limit: int, used: int, requested: int) -> None:
        super().__init__(
            f"Quota exceeded for {resource.replace('_', ' ')}: {used} of {limit} used, {requested} more requested."
        )
        self.resource = resource
        self.limit = limit
        self.used = used
        self.requested = requested

    @property
    def details(self) -> Mapping[str, object]:
        return {"resource": self.resource, "limit": self.limit, "used": self.used, "requested": self.requested}


class NotEnoughResources(TenureError):
    """The request cannot be met; ``shortfall`` says why."""

    name = "NotEnoughResources"

    def __init__(
        self, shortfall: Shortfall, *, field: str | None = None, is_hopeless: bool = False, is_proven: bool = False
    ) -> None:
        super().__init__(shortfall.message, field=field)
        self.shortfall = shortfall
        #: Whether a count shows that there is too little room wherever plans move, so that no search can help.
        self.is_hopeless = is_hopeless
        #: Whether it is certain that no arrangement of plans admits the request.
        self.is_proven = is_proven or is_hopeless
        #: Whether the exact search was asked, and ended without an answer.
        self.is_undecided = False
        #: Further details, which the API adds.
        self.additions: dict[str, object] = {}

    def of_request(self, shortfall: Shortfall) -> NotEnoughResources:
        """Return the refusal of a request with several choices or starts, of which this one was refused."""
        refusal = NotEnoughResources(shortfall, field=self.field)
        refusal.is_undecided = self.is_undecided
        return refusal

    @property
    def details(self) -> Mapping[str, object]:
        shortfall = self.shortfall
        return {
            **self.additions,
            "resource_type": shortfall.resource_type,
            "reservation": shortfall.reservation,
            "requested": shortfall.requested,
            "stages": [{"stage": stage.stage, "count": stage.count} for stage in shortfall.shown_stages],
            "unknown_properties": list(shortfall.unknown_properties),
        }


class LeaseBusy(TenureError):
    """The lease is being started, ended, changed or deleted right now."""

    name = "LeaseBusy"

    def __init__(self, status: str) -> None:
        super().__init__(f"Invalid lease status. The lease is {status} now; try again when that is done.")
        self.status = status


class InvalidState(TenureError):
    """The current status of the resource does not allow the operation."""

    name = "InvalidState"


class Conflict(TenureError):
    """The request contradicts stored data."""

    name = "Conflict"


class TooManyConflicts(TenureError):
    """A transaction was rolled back, usually because of concurrent changes to the same rows. The caller should retry.

    The transaction wrote nothing, but the request may have committed others before it.
    """

    name = "Unavailable"

    def __init__(self, message: str = "Too many others are changing the same things right now; try again.") -> None:
        super().__init__(message)


class Unavailable(TenureError):
    """A part of the service that the request needs does not work. The caller should retry later."""

    name = "Unavailable"


class Busy(Unavailable):
    """There are too many requests like this one, of the project or in all. Nothing was done; retry in a moment."""

    def __init__(
        self,
        message: str = "Too many requests like this one are being served right now; try again in a moment.",
        *,
        field: str | None = None,
    ) -> None:
        super().__init__(message, field=field)
