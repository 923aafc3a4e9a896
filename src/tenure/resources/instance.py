"""Instances of a size of their own: ``virtual:instance``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from tenure.domain.allocation import Demand
from tenure.domain.capacity import Capacity
from tenure.domain.requirement import parse_expression
from tenure.resources.additions import PlaceAdditions, expression_of, without_defaults
from tenure.resources.contract import Wanted
from tenure.resources.fields import (
    MAX_AMOUNT,
    Affinity,
    BeforeEnd,
    Count,
    KeptExpression,
    LenientAction,
    LenientActionChange,
    LenientAffinity,
    LenientAmount,
    LenientCount,
    LenientExpression,
    PropertyExpression,
)
from tenure.resources.servers import (
    InstancesType,
    check_amount,
    merged,
    refuse_changes,
    spread_of,
)

_Size = Annotated[StrictInt, Field(ge=1, le=MAX_AMOUNT)]
_Disk = Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)]
_LenientSize = Annotated[LenientCount, Field(ge=1)]
_LenientDisk = Annotated[LenientAmount, Field(ge=0)]
_LenientAmount = Annotated[LenientCount, check_amount]


class KeptInstanceReservation(BaseModel):
    """A reservation of instances, as it is kept: with what any version can say."""

    model_config = ConfigDict(extra="ignore", title="InstanceReservation")

    resource_type: Literal["virtual:instance"]
    amount: _LenientAmount
    vcpus: _LenientSize
    memory_mb: _LenientSize
    disk_gb: _LenientDisk
    affinity: LenientAffinity
    resource_properties: KeptExpression
    before_end: BeforeEnd = "default"


class _KeptWithAdditions(PlaceAdditions, KeptInstanceReservation):
    pass


class LenientInstanceReservation(KeptInstanceReservation):
    """A reservation of instances, as Blazar takes it."""

    resource_properties: LenientExpression
    before_end: LenientAction = "default"


class InstanceReservation(BaseModel):
    """A reservation of ``amount`` instances of a size."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Literal["virtual:instance"]
    amount: Count
    vcpus: _Size
    memory_mb: _Size
    disk_gb: _Disk
    affinity: Affinity = None
    resource_properties: PropertyExpression = ""
    before_end: BeforeEnd = "default"


class LenientInstanceChange(BaseModel):
    """What may change in a reservation of instances, as Blazar takes it."""

    model_config = ConfigDict(extra="ignore", title="InstanceChange")

    amount: _LenientAmount | None = None
    vcpus: _LenientSize | None = None
    memory_mb: _LenientSize | None = None
    disk_gb: _LenientDisk | None = None
    affinity: LenientAffinity = None
    resource_properties: LenientExpression | None = None
    before_end: LenientActionChange | None = None


class InstanceChange(BaseModel):
    """What may change in a reservation of instances; while it runs, only that there are more of them."""

    model_config = ConfigDict(extra="forbid")

    amount: Count | None = None
    vcpus: _Size | None = None
    memory_mb: _Size | None = None
    disk_gb: _Disk | None = None
    affinity: Affinity = None
    resource_properties: PropertyExpression | None = None
    before_end: BeforeEnd | None = None


class InstanceType(InstancesType):
    """Instances of a size, on hosts that serve others as well."""

    name = "virtual:instance"
    additions: type[BaseModel] | None = PlaceAdditions

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        return InstanceReservation if strict else LenientInstanceReservation

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        return InstanceChange if strict else LenientInstanceChange

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        after = without_defaults(PlaceAdditions, merged(_KeptWithAdditions, self.name, current, change))
        if running:
            refuse_changes(current, after, but={"amount", "before_end"})
        return after

    def wanted(self, parameters: Mapping[str, object]) -> Wanted | None:
        return None

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        return parameters

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = _KeptWithAdditions.model_validate({**parameters, "resource_type": self.name})
        sizes = {"VCPU": reservation.vcpus, "MEMORY_MB": reservation.memory_mb, "DISK_GB": reservation.disk_gb}
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.amount,
            maximum=reservation.amount,
            expression=parse_expression(reservation.resource_properties, field="resource_properties")
            & expression_of(reservation),
            amounts=Capacity(sizes),
            exclusive=False,
            spread=spread_of(reservation.affinity),
        )
