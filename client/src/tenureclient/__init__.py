"""The client of the Tenure reservation service.

    >>> from tenureclient import Client
    >>> client = Client(session)                      # a keystoneauth session
    >>> for lease in client.leases.list(status="ACTIVE"):
    ...     print(lease.name, lease.end_date)

It speaks microversion 1.1, and 1.2 or 1.3 for features that need it. It falls back to 1.0 if the server is
Blazar.
"""

from tenureclient.addresses import FloatingIP, LeaseFloatingIP
from tenureclient.client import Client
from tenureclient.errors import (
    ApiError,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Denied,
    Forbidden,
    InvalidState,
    LeaseBusy,
    LeaseFailed,
    NeedsNewerServer,
    NotEnoughResources,
    NotFound,
    NotUnique,
    OverQuota,
    ServerError,
    Shortfall,
    Stage,
    TenureError,
    Unauthorized,
    UnexpectedAnswer,
    WaitTimedOut,
)
from tenureclient.leases import WaitProgress
from tenureclient.limits import Limit, ProjectLimits
from tenureclient.models import (
    AffectedReservation,
    Allocation,
    Event,
    HistoryEntry,
    Host,
    HostProperty,
    Lease,
    LeaseHost,
    Reservation,
    ReservedPeriod,
    ResourceChange,
)
from tenureclient.moments import NOW
from tenureclient.reservation_request import OwnEvent, ReservationChange, ReservationRequest
from tenureclient.volumepools import LeaseVolumePool, VolumePool
from tenureclient.wire import Version

__version__ = "0.1.0"

__all__ = [
    "NOW",
    "AffectedReservation",
    "Allocation",
    "ApiError",
    "BadRequest",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Denied",
    "Event",
    "FloatingIP",
    "Forbidden",
    "HistoryEntry",
    "Host",
    "HostProperty",
    "InvalidState",
    "Lease",
    "LeaseBusy",
    "LeaseFailed",
    "LeaseFloatingIP",
    "LeaseHost",
    "LeaseVolumePool",
    "Limit",
    "NeedsNewerServer",
    "NotEnoughResources",
    "NotFound",
    "NotUnique",
    "OverQuota",
    "OwnEvent",
    "ProjectLimits",
    "Reservation",
    "ReservationChange",
    "ReservationRequest",
    "ReservedPeriod",
    "ResourceChange",
    "ServerError",
    "Shortfall",
    "Stage",
    "TenureError",
    "Unauthorized",
    "UnexpectedAnswer",
    "Version",
    "VolumePool",
    "WaitProgress",
    "WaitTimedOut",
]
