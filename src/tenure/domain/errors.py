"""What can go wrong, said once.

Every error carries its facts as attributes and builds its text once. Which HTTP status an error becomes is known
to ``api/errors.py`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.domain.shortfall import Shortfall


class TenureError(Exception):
    """The root of all our errors. Never raised itself."""

    #: A stable word for programs.
    name = "Internal"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    @property
    def details(self) -> Mapping[str, object]:
        return {}


class InvalidParameter(TenureError):
    """Something in the request is wrong: its type, its range, or that it contradicts something else."""

    name = "InvalidParameter"


class MissingParameter(TenureError):
    """Something that must be in the request is not."""

    name = "MissingParameter"

    def __init__(self, *fields: str) -> None:
        super().__init__(f"Missing parameter {', '.join(fields)}", field=fields[0] if len(fields) == 1 else None)
        self.fields = fields


class OutOfLease(InvalidParameter):
    """The moment before the end lies outside the lease."""

    def __init__(self, field: str = "before_end_date") -> None:
        super().__init__("Datetime is out of lease limits", field=field)


class InvalidHost(InvalidParameter):
    """A host was to be registered, and the request does not say which."""


class NotFound(TenureError):
    """There is no such thing, or none that the caller may know of."""

    name = "NotFound"


class Forbidden(TenureError):
    """The policy does not allow it."""

    name = "Forbidden"

    def __init__(self, rule: str) -> None:
        super().__init__(f"Policy doesn't allow {rule} to be performed")
        self.rule = rule


class NotPermitted(TenureError):
    """A rule of the site forbids it, whatever the caller's role."""

    name = "Forbidden"


class Denied(TenureError):
    """A filter of the site, or the service that it asks, has denied the request; the text is theirs."""

    name = "Denied"


class OverQuota(TenureError):
    """The project would have more of something than it may."""

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
    """A request that cannot be met; ``shortfall`` says why."""

    name = "NotEnoughResources"

    def __init__(self, shortfall: Shortfall, *, field: str | None = None) -> None:
        super().__init__(shortfall.message, field=field)
        self.shortfall = shortfall

    @property
    def details(self) -> Mapping[str, object]:
        shortfall = self.shortfall
        return {
            "resource_type": shortfall.resource_type,
            "reservation": shortfall.reservation,
            "requested": shortfall.requested,
            "stages": [{"stage": stage.stage, "count": stage.count} for stage in shortfall.stages],
            "unknown_properties": list(shortfall.unknown_properties),
        }


class LeaseBusy(TenureError):
    """The lease is being started, ended, changed or deleted right now."""

    name = "LeaseBusy"

    def __init__(self, status: str) -> None:
        super().__init__(f"Invalid lease status. The lease is {status} now; try again when that is done.")
        self.status = status


class InvalidState(TenureError):
    """What was asked is not possible in the state the thing is in."""

    name = "InvalidState"


class Conflict(TenureError):
    """What was asked contradicts something that exists."""

    name = "Conflict"


class TooManyConflicts(TenureError):
    """A transaction was taken back, as a rule because others kept changing the same things; asking again is right.

    The transaction wrote nothing, but a request may have made others before it.
    """

    name = "Unavailable"

    def __init__(self, message: str = "Too many others are changing the same things right now; try again.") -> None:
        super().__init__(message)


class Unavailable(TenureError):
    """A part that is needed for the answer does not work now; asking again later is right."""

    name = "Unavailable"
