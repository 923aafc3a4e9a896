"""Instances of a flavor of the cloud: ``flavor:instance``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, WithJsonSchema

from tenure.domain.allocation import Demand
from tenure.domain.errors import InvalidParameter
from tenure.domain.footprint import Footprint, footprint_of
from tenure.resources.additions import ZoneAdditions, expression_of, without_defaults
from tenure.resources.contract import Wanted
from tenure.resources.fields import (
    Affinity,
    BeforeEnd,
    Count,
    LenientAction,
    LenientActionChange,
    LenientAffinity,
    LenientCount,
)
from tenure.resources.servers import (
    InstancesType,
    check_amount,
    merged,
    refuse_changes,
    spread_of,
)

_FlavorId = Annotated[StrictStr, Field(min_length=1, max_length=255, description="The id of a flavor of the cloud.")]
_LenientAmount = Annotated[LenientCount, check_amount]
#: What the cloud has said of the flavor.
_KEPT = ("vcpus", "memory_mb", "disk_gb", "resource_properties")


def _number_as_text(value: object) -> object:
    """The text of a whole number, also of one that JSON writes as a fraction, such as 4.0; anything else as it is."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_LenientFlavorId = Annotated[
    _FlavorId,
    BeforeValidator(_number_as_text),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 255}, {"type": "integer", "minimum": 0}]}
    ),
]


class KeptFlavorReservation(BaseModel):
    """A reservation of instances of a flavor, as it is kept: with what any version can say."""

    model_config = ConfigDict(extra="ignore", title="FlavorReservation")

    resource_type: Literal["flavor:instance"]
    flavor_id: _LenientFlavorId
    amount: _LenientAmount
    affinity: LenientAffinity
    before_end: BeforeEnd = "default"


class _KeptInZone(ZoneAdditions, KeptFlavorReservation):
    pass


class LenientFlavorReservation(KeptFlavorReservation):
    """A reservation of instances of a flavor, as Blazar takes it."""

    before_end: LenientAction = "default"


class FlavorReservation(BaseModel):
    """A reservation of ``amount`` instances of a flavor."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Literal["flavor:instance"]
    flavor_id: _FlavorId
    amount: Count
    affinity: Affinity = None
    before_end: BeforeEnd = "default"


class LenientFlavorChange(BaseModel):
    """What may change in a reservation of instances of a flavor, as Blazar takes it."""

    model_config = ConfigDict(extra="ignore", title="FlavorChange")

    flavor_id: _LenientFlavorId | None = None
    amount: _LenientAmount | None = None
    affinity: LenientAffinity = None
    before_end: LenientActionChange | None = None


class FlavorChange(BaseModel):
    """What may change in a reservation of instances of a flavor; while it runs, only that there are more of them."""

    model_config = ConfigDict(extra="forbid")

    flavor_id: _FlavorId | None = None
    amount: Count | None = None
    affinity: Affinity = None
    before_end: BeforeEnd | None = None


#: How Blazar's clients know a flavor's ephemeral disk.
_EPHEMERAL = "OS-FLV-EXT-DATA:ephemeral"


def source_flavor(parameters: Mapping[str, object]) -> dict[str, Any]:
    """The flavor that a reservation was made with, as the cloud described it then."""
    flavor: dict[str, Any] = json.loads(str(parameters["resource_properties"]))
    return {"ephemeral" if name == _EPHEMERAL else name: value for name, value in flavor.items()}


def _shown(flavor: Mapping[str, object]) -> dict[str, object]:
    return {_EPHEMERAL if name == "ephemeral" else name: value for name, value in flavor.items()}


class FlavorType(InstancesType):
    """Instances of a flavor, which the cloud describes when the reservation is made.

    The flavor is kept as it was then, under ``resource_properties``, where Blazar's clients look for it, and its sizes
    beside it.
    """

    name = "flavor:instance"
    additions: type[BaseModel] | None = ZoneAdditions

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        return FlavorReservation if strict else LenientFlavorReservation

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        return FlavorChange if strict else LenientFlavorChange

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        after = without_defaults(ZoneAdditions, merged(_KeptInZone, self.name, current, change))
        if running:
            refuse_changes(current, after, but={"amount", "before_end"})
        if after["flavor_id"] == current.get("flavor_id"):
            after |= {name: current[name] for name in _KEPT if name in current}
        return after

    def wanted(self, parameters: Mapping[str, object]) -> Wanted | None:
        if "resource_properties" in parameters:
            return None
        return Wanted("flavor", str(parameters["flavor_id"]), "flavor_id")

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        _footprint(fact)  # what is wrong with it is told now
        sizes = {"vcpus": fact["vcpus"], "memory_mb": fact["ram"], "disk_gb": fact["disk"]}
        return {**parameters, **sizes, "resource_properties": json.dumps(_shown(fact), sort_keys=True)}

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = _KeptInZone.model_validate({**parameters, "resource_type": self.name})
        footprint = _footprint(source_flavor(parameters))
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.amount,
            maximum=reservation.amount,
            expression=expression_of(reservation),
            amounts=footprint.amounts,
            exclusive=False,
            spread=spread_of(reservation.affinity),
            required=footprint.required,
            forbidden=footprint.forbidden,
            portions=footprint.portions,
        )


def _footprint(flavor: Mapping[str, Any]) -> Footprint:
    try:
        return footprint_of(flavor)
    except ValueError as error:
        raise InvalidParameter(
            f"The flavor {flavor.get('id')} cannot be reserved: {error}", field="flavor_id"
        ) from None
