"""The resources and leases of the fake server, and its refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tenureclient.wire import JsonObject, JsonValue


class Refusal(Exception):
    """The fake server refuses a request, with the error of API 1.1."""

    def __init__(
        self,
        code: int,
        name: str,
        message: str,
        *,
        field: str | None = None,
        details: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.message = message
        self.field = field
        self.details = details


@dataclass(slots=True)
class FakeHost:
    """A compute host. A test may change its fields at any time."""

    id: str
    hypervisor_hostname: str
    vcpus: int
    memory_mb: int
    local_gb: int
    availability_zone: str
    reservable: bool
    properties: dict[str, str]
    created_at: datetime
    disabled_reason: str | None = None
    #: well, disabled, down or gone; unless it is well, set reservable to False too.
    health: str = "well"
    health_reason: str | None = None
    region: str | None = None

    def fact(self, key: str) -> str | None:
        own = self.properties.get(key)
        if own is not None or key not in HOST_FACTS:
            return own
        return str(getattr(self, key))


HOST_FACTS = frozenset(["id", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb", "availability_zone"])


@dataclass(slots=True)
class FakeFloatingIP:
    """An address of an external network. A test may change its fields at any time."""

    id: str
    floating_network_id: str
    subnet_id: str
    floating_ip_address: str
    reservable: bool
    created_at: datetime
    disabled_reason: str | None = None
    #: well or gone; unless it is well, set reservable to False too.
    health: str = "well"
    health_reason: str | None = None
    region: str | None = None


@dataclass(slots=True)
class FakeVolumePool:
    """A pool of volumes of one type. A test may change its fields at any time."""

    id: str
    name: str
    capacity_gb: int
    volume_type: str
    reservable: bool
    created_at: datetime
    disabled_reason: str | None = None
    #: well, down or gone; unless it is well, set reservable to False too.
    health: str = "well"
    health_reason: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class FakeFlavor:
    """A flavor of the cloud whose instances can be reserved."""

    id: str
    name: str
    vcpus: int
    memory_mb: int
    disk_gb: int


@dataclass(slots=True)
class FakeReservation:
    """A request inside a lease, and the resources that were selected for it."""

    id: str
    resource_type: str
    parameters: dict[str, JsonValue]
    #: For instances: one host id per instance.
    host_ids: list[str] = field(default_factory=list)
    floatingip_ids: list[str] = field(default_factory=list)
    #: For volumes: the pool that holds them.
    pool_id: str | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class FakeEvent:
    """A moment at which the owner of a lease gets a notification, and its message."""

    id: str
    time: datetime
    message: str


@dataclass(slots=True)
class FakeLease:
    """A lease. A test may change its fields; ``FakeServer.set_status`` also records the change."""

    id: str
    name: str
    start: datetime
    end: datetime
    before_end: datetime | None
    status: str
    status_reason: str | None
    degraded: bool
    created_at: datetime
    reservations: list[FakeReservation]
    history: list[JsonObject] = field(default_factory=list)
    #: The events that the owner has added: id, time and message.
    own_events: list[FakeEvent] = field(default_factory=list)
    #: The end of the hold, by which the lease must be confirmed.
    hold_until: datetime | None = None

    def holds(self, start: datetime, end: datetime) -> bool:
        """Whether it uses resources in that period."""
        return self.status in ("CREATING", "PENDING", "ACTIVE") and self.start < end and start < self.end
