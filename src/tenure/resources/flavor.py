"""Instances of a flavor of the cloud: ``flavor:instance``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictStr, WithJsonSchema

from tenure.domain.allocation import Demand
from tenure.domain.errors import InvalidParameter
from tenure.domain.extra_specs import conditions_of_flavor
from tenure.domain.footprint import UNCOUNTED, Footprint, footprint_of, uncounted_specs
from tenure.domain.requirement import Expression
from tenure.resources.additions import ZoneAdditions, expression_of
from tenure.resources.contract import NOTHING, FactReference
from tenure.resources.fields import Spreading
from tenure.resources.instance import InstanceReservation
from tenure.resources.parameters import Forms, Parameters, answer_form
from tenure.resources.servers import Amount, FlavorEffects, InstancesType, ServersAction, spread_of

_FlavorId = Annotated[StrictStr, Field(min_length=1, max_length=255, description="The id of a flavor of the cloud.")]
#: What the cloud has said of the flavor.
_KNOWN = ("vcpus", "memory_mb", "disk_gb", "resource_properties")


def _number_as_text(value: object) -> object:
    """Return a whole number as text, also if JSON writes it as a fraction, such as 4.0; other values are unchanged."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_FlavorIdOrNumber = Annotated[
    _FlavorId,
    BeforeValidator(_number_as_text),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 255}, {"type": "integer", "minimum": 0}]}
    ),
]


class FlavorReservation(Parameters):
    """A reservation of ``amount`` instances of a flavor."""

    noun: ClassVar[str] = "instances of a flavor"
    while_it_runs: ClassVar[str] = "only that there are more of them"

    resource_type: Literal["flavor:instance"]
    flavor_id: Annotated[_FlavorIdOrNumber, Forms(strict=_FlavorId)]
    amount: Amount
    affinity: Spreading
    before_end: ServersAction = "default"


class _Stored(ZoneAdditions, FlavorReservation):
    """A reservation of instances of a flavor, with what newer requests can name."""


#: Blazar's name of a flavor's ephemeral disk.
_EPHEMERAL = "OS-FLV-EXT-DATA:ephemeral"


def source_flavor(parameters: Mapping[str, object]) -> dict[str, Any]:
    """Return the flavor of the reservation, as the cloud described it when it was made."""
    flavor: dict[str, Any] = json.loads(str(parameters["resource_properties"]))
    return {"ephemeral" if name == _EPHEMERAL else name: value for name, value in flavor.items()}


def _with_blazar_names(flavor: Mapping[str, object]) -> dict[str, object]:
    return {_EPHEMERAL if name == "ephemeral" else name: value for name, value in flavor.items()}


class FlavorType(InstancesType[_Stored]):
    """Instances of a flavor, which the cloud describes when the reservation is made.

    That description is stored as ``resource_properties``, where Blazar's clients expect it, and its sizes beside it.
    """

    name = "flavor:instance"
    declaration = FlavorReservation
    stored = _Stored
    additions = ZoneAdditions

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        return answer_form(InstanceReservation, FlavorEffects, strict=strict)  # with the sizes and the flavor made

    def still_known(self, current: Mapping[str, object], after: Mapping[str, object]) -> Mapping[str, object]:
        if after["flavor_id"] != current.get("flavor_id"):
            return NOTHING
        return {name: current[name] for name in _KNOWN if name in current}

    def required_fact(self, parameters: Mapping[str, object]) -> FactReference | None:
        if "resource_properties" in parameters:
            return None
        return FactReference("flavor", str(parameters["flavor_id"]), "flavor_id")

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        subject = f"flavor {fact.get('id')}"
        refuse_uncounted(fact, subject, field="flavor_id")
        requirements_of(fact, subject, field="flavor_id")  # raises errors now
        sizes = {"vcpus": fact["vcpus"], "memory_mb": fact["ram"], "disk_gb": fact["disk"]}
        return {**parameters, **sizes, "resource_properties": json.dumps(_with_blazar_names(fact), sort_keys=True)}

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = self.read(parameters)
        flavor = source_flavor(parameters)
        footprint, conditions = requirements_of(flavor, f"flavor {flavor.get('id')}", field="flavor_id")
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.amount,
            maximum=reservation.amount,
            expression=expression_of(reservation) & conditions,
            amounts=footprint.amounts,
            exclusive=False,
            spread=spread_of(reservation.affinity),
            required=footprint.required,
            forbidden=footprint.forbidden,
            portions=footprint.portions,
        )


def refuse_uncounted(flavor: Mapping[str, Any], subject: str, *, field: str) -> None:
    """Refuse a flavor of which more could be promised than there is. ``subject`` names it, or the server with it."""
    if names := uncounted_specs(flavor):
        reasons = dict(flavor.get(UNCOUNTED) or {})
        why = "".join(f" {name}: {reasons[name]}." for name in names if name in reasons)
        raise InvalidParameter(
            f"The {subject} cannot be reserved: reservations do not count yet what its extra specs ask for with "
            f"{', '.join(names)}.{why}",
            field=field,
        )


def extra_specs_of(flavor: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(flavor.get("extra_specs") or {}).items()}


def requirements_of(
    flavor: Mapping[str, Any], subject: str, *, field: str, in_place: bool = False
) -> tuple[Footprint, Expression]:
    """Return what a server of the flavor takes of its host, and the conditions on the host; raise ``InvalidParameter``.

    A server that stays in its place gets no host: it has no conditions.
    """
    try:
        footprint = footprint_of(flavor)
        if in_place:
            return footprint, Expression()
        return footprint, conditions_of_flavor(extra_specs_of(flavor)) & footprint.conditions
    except ValueError as error:
        raise InvalidParameter(f"The {subject} cannot be reserved: {error}", field=field) from None
