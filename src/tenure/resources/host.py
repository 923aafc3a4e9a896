"""Whole compute hosts: ``physical:host``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import InvalidParameter
from tenure.domain.requirement import parse_expression
from tenure.resources.additions import HostAdditions, expression_of, without_defaults
from tenure.resources.contract import NOTHING, Inventory, Wanted
from tenure.resources.fields import (
    BeforeEnd,
    Count,
    KeptExpression,
    LenientAction,
    LenientActionChange,
    LenientCount,
    LenientExpression,
    PropertyExpression,
    action_of,
    acts_as_owner,
)


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


class KeptHostReservation(_Ranged):
    """A reservation of hosts, as it is kept: with what any version can say."""

    model_config = ConfigDict(extra="ignore", title="HostReservation")

    resource_type: Literal["physical:host"]
    min: LenientCount
    max: LenientCount
    hypervisor_properties: KeptExpression
    resource_properties: KeptExpression
    before_end: BeforeEnd = "default"


class LenientHostReservation(KeptHostReservation):
    """A reservation of hosts, as Blazar takes it."""

    hypervisor_properties: LenientExpression
    resource_properties: LenientExpression
    before_end: LenientAction = "default"


class HostReservation(_Ranged):
    """A reservation of between ``min`` and ``max`` whole hosts."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Literal["physical:host"]
    min: Count
    max: Count
    hypervisor_properties: PropertyExpression = ""
    resource_properties: PropertyExpression = ""
    before_end: BeforeEnd = "default"


class LenientHostChange(_Ranged):
    """What may change in a reservation of hosts, as Blazar takes it."""

    model_config = ConfigDict(extra="ignore", title="HostChange")

    min: LenientCount | None = None
    max: LenientCount | None = None
    hypervisor_properties: LenientExpression | None = None
    resource_properties: LenientExpression | None = None
    before_end: LenientActionChange | None = None


class HostChange(_Ranged):
    """What may change in a reservation of hosts."""

    model_config = ConfigDict(extra="forbid")

    min: Count | None = None
    max: Count | None = None
    hypervisor_properties: PropertyExpression | None = None
    resource_properties: PropertyExpression | None = None
    before_end: BeforeEnd | None = None


class _KeptWithAdditions(HostAdditions, KeptHostReservation):
    pass


class HostAnswer(BaseModel):
    """What is shown of a reservation of hosts."""

    min: int
    max: int
    hypervisor_properties: str
    resource_properties: str
    before_end: str = "default"


class HostType:
    """Whole compute hosts, handed to one project for the period."""

    name = "physical:host"
    noun = "hosts"
    inventory = "physical:host"
    stock = Inventory(
        "physical:host",
        noun="host",
        reference="name",
        rules="blazar:oshosts",
        missing="Object with {{'host_id': '{id}'}} not found",
        unknown="Host '{reference}' not found!",
        occupied="Servers found for host {reference}: {error}",
    )
    growing = frozenset({"min", "max"})
    additions: type[BaseModel] | None = HostAdditions

    def __init__(self, default_before_end: str = "") -> None:
        self._default_before_end = default_before_end

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        return HostReservation if strict else LenientHostReservation

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        return HostChange if strict else LenientHostChange

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        return HostAnswer

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        given = {name: value for name, value in change.items() if value is not None}
        try:
            merged = _KeptWithAdditions.model_validate({**current, **given, "resource_type": self.name})
        except ValidationError as error:
            raise InvalidParameter(error.errors()[0]["msg"], field="max") from None
        return without_defaults(HostAdditions, merged.model_dump(exclude={"resource_type"}))

    def wanted(self, parameters: Mapping[str, object]) -> Wanted | None:
        return None

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        return parameters

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        return NOTHING

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        return False

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        return "before_end" if acts_as_owner(self.before_end(parameters)) else None

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = _KeptWithAdditions.model_validate({**parameters, "resource_type": self.name})
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.min,
            maximum=reservation.max,
            expression=parse_expression(reservation.hypervisor_properties, field="hypervisor_properties")
            & parse_expression(reservation.resource_properties, field="resource_properties")
            & expression_of(reservation),
            amounts=Capacity({WHOLE: 1}),
            exclusive=True,
            parameter="min",
        )

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        return action_of(parameters, self._default_before_end)
