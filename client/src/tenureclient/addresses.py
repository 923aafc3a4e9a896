"""Floating IP addresses as the server describes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenureclient.models import standing
from tenureclient.wire import Fields, JsonValue


@dataclass(frozen=True, slots=True)
class LeaseFloatingIP:
    """An address of a lease, as its owner sees it. ``status`` is ``planned``, ``held`` or ``released``."""

    id: str
    floating_ip_address: str
    floating_network_id: str
    subnet_id: str
    reservation_id: str
    start_date: datetime
    end_date: datetime
    status: str

    @classmethod
    def from_wire(cls, document: JsonValue) -> LeaseFloatingIP:
        fields = Fields(document, "a floating IP of a lease")
        return cls(
            id=fields.text("id"),
            floating_ip_address=fields.text("floating_ip_address"),
            floating_network_id=fields.loose_text("floating_network_id"),
            subnet_id=fields.loose_text("subnet_id"),
            reservation_id=fields.text("reservation_id"),
            start_date=fields.moment("start_date"),
            end_date=fields.moment("end_date"),
            status=fields.loose_text("status"),
        )


@dataclass(frozen=True, slots=True)
class FloatingIP:
    """An address of an external network that can be reserved."""

    id: str
    floating_ip_address: str
    floating_network_id: str
    subnet_id: str
    reservable: bool
    created_at: datetime | None
    updated_at: datetime | None
    #: Whether the operator allows reservations, and if not, why. None if the server does not say.
    enabled: bool | None = None
    disabled_reason: str | None = None
    #: Health as the cloud reports it: well, disabled, down or gone; since when, and why.
    health: str | None = None
    health_reason: str | None = None
    health_since: datetime | None = None
    #: The region of the address. None if the service has no regions, or the server does not say.
    region: str | None = None

    @classmethod
    def from_wire(cls, document: JsonValue) -> FloatingIP:
        fields = Fields(document, "a floating IP")
        return cls(
            id=fields.text("id"),
            floating_ip_address=fields.text("floating_ip_address"),
            floating_network_id=fields.loose_text("floating_network_id"),
            subnet_id=fields.loose_text("subnet_id"),
            reservable=fields.flag("reservable", default=True),
            created_at=fields.maybe_moment("created_at"),
            updated_at=fields.maybe_moment("updated_at"),
            **(standing(fields) if "health" in fields else {}),
        )
