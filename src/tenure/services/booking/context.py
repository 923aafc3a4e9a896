"""What requests that take resources use."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.leases.access import LeaseAccess
from tenure.services.limits.headroom import Headrooms
from tenure.services.planning.planning import Planning
from tenure.store.database import Database


@dataclass(frozen=True, slots=True)
class BookingContext:
    """What requests that take resources use."""

    db: Database
    types: ResourceTypes
    rules: Rules
    access: LeaseAccess
    planning: Planning
    headrooms: Headrooms
