"""What all reservations of servers have in common, whatever says how large these are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from tenure.domain.allocation import Spread
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.resources.contract import Inventory
from tenure.resources.fields import action_of, acts_as_owner


def _at_least_one(amount: int) -> int:
    if amount < 1:
        raise PydanticCustomError("amount", "amount must be >= 1")
    return amount


check_amount = AfterValidator(_at_least_one)


class ServersAnswer(BaseModel):
    """What is shown of a reservation of servers, by Blazar as well.

    ``flavor_id`` is the flavor to boot them with, and ``server_group_id`` the group to name where there is a rule.
    """

    vcpus: int
    memory_mb: int
    disk_gb: int
    amount: int
    affinity: bool | None = None
    resource_properties: str = ""
    flavor_id: str
    aggregate_id: int | None = None
    server_group_id: str | None = None


class StrictServersAnswer(ServersAnswer):
    """What is shown of a reservation of servers from 1.1 on."""

    before_end: str = "default"


def spread_of(affinity: bool | None) -> Spread:
    if affinity is None:
        return Spread.ANY
    return Spread.TOGETHER if affinity else Spread.APART


def merged(
    model: type[BaseModel], name: str, current: Mapping[str, object], change: Mapping[str, object]
) -> dict[str, Any]:
    """The parameters after a change, judged as a new request is. Raises ``InvalidParameter``."""
    try:
        after = model.model_validate({**current, **change, "resource_type": name})
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidParameter(first["msg"], field=str(first["loc"][-1]) if first["loc"] else None) from None
    return after.model_dump(exclude={"resource_type"})


def refuse_changes(current: Mapping[str, object], after: Mapping[str, object], *, but: Collection[str]) -> None:
    """Raise ``InvalidState`` where a running reservation would become another, or smaller."""
    for name, value in after.items():
        if name not in but and value != current.get(name):
            raise InvalidState(
                f"{name} cannot be changed: an active reservation doesn't allow to reduce/replace what it has.",
                field=name,
            )
    before, amount = current.get("amount"), after.get("amount")
    if isinstance(before, int) and isinstance(amount, int) and amount < before:
        raise InvalidState(
            f"The amount cannot be {amount}: an active reservation doesn't allow to reduce/replace what it has "
            f"({before}).",
            field="amount",
        )


class InstancesType:
    """What types of instances have in common: hosts serve several of them, and a flavor of their own lets them in."""

    noun = "instances"
    inventory = "physical:host"
    stock: Inventory | None = None
    growing = frozenset({"amount"})
    additions: type[BaseModel] | None = None

    def __init__(self, default_before_end: str = "") -> None:
        self._default_before_end = default_before_end

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        return StrictServersAnswer if strict else ServersAnswer

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        """What is known from the beginning: the flavor that servers are to be booted with has the reservation's id."""
        return {"flavor_id": reservation_id, "aggregate_id": None, "server_group_id": None}

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        return parameters.get("affinity") is not None

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        if acts_as_owner(self.before_end(parameters)):
            return "before_end"
        return "affinity" if parameters.get("affinity") is not None else None  # the server group is the owner's

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        return action_of(parameters, self._default_before_end)
