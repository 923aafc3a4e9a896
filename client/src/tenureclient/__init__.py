"""The client of the Tenure reservation service.

    >>> from tenureclient import Client
    >>> client = Client(session)                      # a keystoneauth session
    >>> for lease in client.leases.list(status="ACTIVE"):
    ...     print(lease.name, lease.end_date)

It speaks microversion 1.4, or the newest that the server knows. It falls back to 1.0 if the server is Blazar.
"""

from tenureclient.availability import CapacityGroup, CapacityStep, CapacityTimeline
from tenureclient.client import Client
from tenureclient.errors import (
    Alternative,
    ApiError,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Denied,
    EmptyText,
    Forbidden,
    InvalidState,
    LeaseBusy,
    LeaseFailed,
    NeedsNewerServer,
    NotEnoughResources,
    NotFound,
    NotUnique,
    OverQuota,
    PreconditionFailed,
    ServerError,
    Shortfall,
    Stage,
    TenureError,
    Unauthorized,
    UnexpectedAnswer,
    WaitTimedOut,
)
from tenureclient.inventory import AffectedReservation, Allocation, ReservedPeriod, ResourceChange
from tenureclient.lease_watch import WaitProgress
from tenureclient.leases import HistoryEntry
from tenureclient.models import Cost, DryRun, Event, ExpectedLimit, Lease, Reservation, Waiting
from tenureclient.moments import NOW
from tenureclient.offers import FirstOffers, LargestOffer, LongestOffer, Offer, StartWindow
from tenureclient.planned_servers import PlannedServer
from tenureclient.reservation_request import BootRequest, OwnEvent, ReservationChange, ReservationRequest
from tenureclient.resources.floatingips import FloatingIP, LeaseFloatingIP
from tenureclient.resources.hosts import Host, HostProperty, LeaseHost
from tenureclient.resources.volumes import LeaseVolumePool, VolumePool
from tenureclient.usage import Limit, PeriodUsage, ProjectLimits, UsageSum
from tenureclient.wire import Version

__version__ = "0.1.0"

__all__ = [
    "NOW",
    "AffectedReservation",
    "Allocation",
    "Alternative",
    "ApiError",
    "BadRequest",
    "BootRequest",
    "CapacityGroup",
    "CapacityStep",
    "CapacityTimeline",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Cost",
    "Denied",
    "DryRun",
    "EmptyText",
    "Event",
    "ExpectedLimit",
    "FirstOffers",
    "FloatingIP",
    "Forbidden",
    "HistoryEntry",
    "Host",
    "HostProperty",
    "InvalidState",
    "LargestOffer",
    "Lease",
    "LeaseBusy",
    "LeaseFailed",
    "LeaseFloatingIP",
    "LeaseHost",
    "LeaseVolumePool",
    "Limit",
    "LongestOffer",
    "NeedsNewerServer",
    "NotEnoughResources",
    "NotFound",
    "NotUnique",
    "Offer",
    "OverQuota",
    "OwnEvent",
    "PeriodUsage",
    "PlannedServer",
    "PreconditionFailed",
    "ProjectLimits",
    "Reservation",
    "ReservationChange",
    "ReservationRequest",
    "ReservedPeriod",
    "ResourceChange",
    "ServerError",
    "Shortfall",
    "Stage",
    "StartWindow",
    "TenureError",
    "Unauthorized",
    "UnexpectedAnswer",
    "UsageSum",
    "Version",
    "VolumePool",
    "WaitProgress",
    "WaitTimedOut",
    "Waiting",
]
