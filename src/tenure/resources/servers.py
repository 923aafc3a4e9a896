"""What all reservations of servers have in common, whatever says how large these are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from tenure.domain.allocation import Spread
from tenure.domain.errors import InvalidParameter, InvalidState


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


def answer_model_of_servers(*, strict: bool) -> type[BaseModel]:
    return StrictServersAnswer if strict else ServersAnswer


def spread_of(affinity: bool | None) -> Spread:
    if affinity is None:
        return Spread.ANY
    return Spread.TOGETHER if affinity else Spread.APART


def effects_of(reservation_id: str) -> dict[str, object]:
    """What is known from the beginning: the flavor that servers are to be booted with has the reservation's id."""
    return {"flavor_id": reservation_id, "aggregate_id": None, "server_group_id": None}


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
