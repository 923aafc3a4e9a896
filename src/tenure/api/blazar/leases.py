"""The models of leases at 1.0, which are Blazar's.

The models of requests ignore unknown fields. Their fields have the names and the values of those from 1.1 on, so that
one reader reads both (``tenure.api.schemas.leases``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from tenure.api.blazar.fields import MinuteOrNow, Name, WithBlank, WithT
from tenure.api.schemas.answers import Answer, From
from tenure.api.schemas.lease_models import (
    DEFERRED,
    OPTIONAL,
    RESERVATION_STATUSES,
    STATUSES_BEFORE_13,
    EventDocument,
    LeaseForms,
    example,
    shown_events,
    status_before_13,
)
from tenure.api.schemas.texts import MAX_ID
from tenure.api.versions import OLDEST


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class LenientLeaseCreate(_Lenient):
    """A new lease, as in Blazar. ``events`` are accepted and ignored: the service creates the events."""

    model_config = ConfigDict(json_schema_extra=example("2090-03-01 09:30", "2090-03-04 18:00"))

    name: Name
    end_date: MinuteOrNow
    start_date: MinuteOrNow
    before_end_date: MinuteOrNow | None = None
    events: list[dict[str, Any]] | None = None


class LenientLeaseUpdate(_Lenient):
    """A change of a lease, as in Blazar."""

    name: Name = OPTIONAL
    end_date: MinuteOrNow = OPTIONAL
    start_date: MinuteOrNow = OPTIONAL
    before_end_date: MinuteOrNow | None = None
    events: list[dict[str, Any]] | None = None


class LenientReservationId(BaseModel):
    id: Annotated[StrictStr, Field(max_length=MAX_ID, json_schema_extra={"minLength": 1})]


class EventOf10(EventDocument):
    time: Annotated[WithT, From("due_at")]
    created_at: WithBlank
    updated_at: WithBlank | None


class ReservationOf10(Answer):
    model_config = DEFERRED

    id: str
    lease_id: str
    resource_id: Annotated[str, From("id")]
    resource_type: str
    status: RESERVATION_STATUSES
    missing_resources: bool
    resources_changed: bool
    created_at: WithBlank
    updated_at: WithBlank | None


class LeaseOf10(Answer):
    model_config = DEFERRED

    id: str
    name: str
    user_id: str
    project_id: str
    start_date: Annotated[WithT, From("starts_at")]
    end_date: Annotated[WithT, From("ends_at")]
    trust_id: Annotated[Literal[""], From(lambda _: "")]
    status: Annotated[STATUSES_BEFORE_13, From(status_before_13)]
    degraded: bool
    created_at: WithBlank
    updated_at: WithBlank | None
    reservations: list[Any]
    events: Annotated[list[EventOf10], From(shown_events)]


#: The models of leases.
LEASE_FORMS = LeaseForms(
    version=OLDEST,
    create=LenientLeaseCreate,
    update=LenientLeaseUpdate,
    identified=LenientReservationId,
    lease=LeaseOf10,
    reservation=ReservationOf10,
    is_strict=False,
    is_placed=False,
)
