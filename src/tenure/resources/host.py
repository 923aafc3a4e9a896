"""Whole compute hosts: ``physical:host``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticCustomError

from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.requirement import parse_expression
from tenure.resources.additions import ClassAdditions, HostAdditions, expression_of, least_amounts
from tenure.resources.contract import Inventory
from tenure.resources.declared import DeclaredType
from tenure.resources.fields import Action, Number, Requirements, acts_as_owner
from tenure.resources.parameters import Parameters


def _check_range(minimum: int, maximum: int) -> None:
    if minimum < 1 or maximum < 1:
        raise PydanticCustomError("range", "Malformed parameter min and max (must be greater than or equal to 1)")
    if maximum < minimum:
        raise PydanticCustomError(
            "range", "Invalid values for min/max of hosts. Max must be equal to or larger than min."
        )


class _Ranged(BaseModel):
    @model_validator(mode="after")
    def _ordered(self) -> _Ranged:
        minimum, maximum = getattr(self, "min", None), getattr(self, "max", None)
        if minimum is not None and maximum is not None:
            _check_range(minimum, maximum)
        elif minimum is not None or maximum is not None:
            _check_range(minimum or maximum or 0, maximum or minimum or 0)
        return self


class HostReservation(_Ranged, Parameters):
    """A reservation of between ``min`` and ``max`` whole hosts."""

    noun: ClassVar[str] = "hosts"

    resource_type: Literal["physical:host"]
    min: Number
    max: Number
    hypervisor_properties: Requirements
    resource_properties: Requirements
    before_end: Action = "default"


class _Stored(ClassAdditions, HostAdditions, HostReservation):
    """A reservation of hosts, with what newer requests can name."""


class HostType(DeclaredType[_Stored]):
    """Whole compute hosts, handed to one project for the period."""

    name = "physical:host"
    noun = "hosts"
    inventory = "physical:host"
    own_inventory = Inventory(
        "physical:host",
        noun="host",
        reference="name",
        rules="blazar:oshosts",
        identifying=frozenset({"hypervisor_hostname", "service_name"}),
        missing="Object with {{'host_id': '{id}'}} not found",
        unknown="Host '{reference}' not found!",
        occupied="Servers found for host {reference}: {error}",
    )
    counted = WHOLE
    growing = frozenset({"min", "max"})
    declaration = HostReservation
    stored = _Stored
    additions = HostAdditions
    later_additions = MappingProxyType({"1.4": ClassAdditions})
    ruled = "max"

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        return "before_end" if acts_as_owner(self.before_end(parameters)) else None

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = self.read(parameters)
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.min,
            maximum=reservation.max,
            expression=parse_expression(reservation.hypervisor_properties, field="hypervisor_properties")
            & parse_expression(reservation.resource_properties, field="resource_properties")
            & expression_of(reservation)
            & least_amounts(reservation),
            amounts=Capacity({WHOLE: 1}),
            exclusive=True,
            parameter="min",
        )
