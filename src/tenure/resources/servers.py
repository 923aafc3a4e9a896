"""What all types of instances have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel
from pydantic_core import PydanticCustomError

from tenure.domain.allocation import Spread
from tenure.resources import blazar
from tenure.resources.declared import DeclaredType, Stored, refuse_changes
from tenure.resources.fields import BeforeEnd, Count, acts_as_owner
from tenure.resources.parameters import Forms


def _at_least_one(amount: int) -> int:
    if amount < 1:
        raise PydanticCustomError("amount", "amount must be >= 1")
    return amount


#: How many servers are reserved.
Amount = Annotated[blazar.Count, AfterValidator(_at_least_one), Forms(strict=Count)]
#: What is done before the end; answers at 1.0 do not show it.
ServersAction = Annotated[BeforeEnd, Forms(lenient=blazar.Action, lenient_change=blazar.ActionChange, new=True)]


class FlavorEffects(BaseModel):
    """What has been made for a reservation of servers.

    ``flavor_id`` is the flavor to boot them with, and ``server_group_id`` the group to name where there is a rule.
    """

    flavor_id: str
    aggregate_id: int | None = None
    server_group_id: str | None = None


def spread_of(affinity: bool | None) -> Spread:
    if affinity is None:
        return Spread.ANY
    return Spread.AFFINITY if affinity else Spread.ANTI_AFFINITY


class InstancesType(DeclaredType[Stored]):
    """What types of instances have in common: hosts serve several of them, and a flavor of their own lets them in."""

    noun = "instances"
    inventory = "physical:host"
    counted = "VCPU"
    growing = frozenset({"amount"})
    effects_model = FlavorEffects
    nullable = frozenset({"affinity"})

    def check_change(self, current: Mapping[str, object], after: Mapping[str, Any], *, running: bool) -> None:
        if running:
            refuse_changes(current, after, declared=self.stored.model_fields, but={"amount", "before_end"})

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        """Return what is known from the beginning: the reservation's flavor has its id."""
        return {"flavor_id": reservation_id, "aggregate_id": None, "server_group_id": None}

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        return parameters.get("affinity") is not None

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        if acts_as_owner(self.before_end(parameters)):
            return "before_end"
        return "affinity" if parameters.get("affinity") is not None else None  # the server group is the owner's
