"""Instances of a given size: ``virtual:instance``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictInt

from tenure.domain.allocation import Demand
from tenure.domain.capacity import MAX_AMOUNT, Capacity
from tenure.domain.requirement import parse_expression
from tenure.resources import blazar
from tenure.resources.additions import ClassAdditions, PlaceAdditions, expression_of, footprint_of_size
from tenure.resources.fields import Requirements, Spreading
from tenure.resources.parameters import Forms, Parameters
from tenure.resources.servers import Amount, InstancesType, ServersAction, spread_of

_Size = Annotated[blazar.Count, Field(ge=1), Forms(strict=Annotated[StrictInt, Field(ge=1, le=MAX_AMOUNT)])]
_Disk = Annotated[blazar.Amount, Field(ge=0), Forms(strict=Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)])]


class InstanceReservation(Parameters):
    """A reservation of ``amount`` instances of a size."""

    noun: ClassVar[str] = "instances"
    while_it_runs: ClassVar[str] = "only that there are more of them"

    resource_type: Literal["virtual:instance"]
    amount: Amount
    vcpus: _Size
    memory_mb: _Size
    disk_gb: _Disk
    affinity: Spreading
    resource_properties: Requirements
    before_end: ServersAction = "default"


class _Stored(ClassAdditions, PlaceAdditions, InstanceReservation):
    """A reservation of instances, with what newer requests can name."""


class InstanceType(InstancesType[_Stored]):
    """Instances of a size, on hosts that serve others as well."""

    name = "virtual:instance"
    declaration = InstanceReservation
    stored = _Stored
    additions = PlaceAdditions
    later_additions = MappingProxyType({"1.4": ClassAdditions})

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = self.read(parameters)
        sizes = {"VCPU": reservation.vcpus, "MEMORY_MB": reservation.memory_mb, "DISK_GB": reservation.disk_gb}
        demand = Demand(
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
        if not reservation.resources:
            return demand
        footprint = footprint_of_size(sizes, reservation.resources, reservation.extra_specs)
        return replace(
            demand,
            expression=demand.expression & footprint.conditions,
            amounts=footprint.amounts,
            required=footprint.required,
            forbidden=footprint.forbidden,
            portions=footprint.portions,
        )
