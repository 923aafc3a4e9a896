"""Volumes of a size and a type: ``virtual:volume``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictStr
from pydantic_core import PydanticCustomError

from tenure.domain.allocation import Demand, Spread
from tenure.domain.capacity import Capacity
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.requirement import Comparison, Expression
from tenure.resources.contract import NOTHING, FactReference, Inventory
from tenure.resources.declared import DeclaredType, refuse_changes
from tenure.resources.fields import Count, Notice
from tenure.resources.parameters import Parameters


class AtEnd(StrEnum):
    """What happens to the volumes when the lease ends."""

    DELETE = "delete"
    SNAPSHOT = "snapshot"  # a snapshot is created; the volume is kept with it, detached
    KEEP = "keep"


def _no_image(value: object) -> object:
    if value == "snapshot":
        raise PydanticCustomError("no_snapshot", "before_end is none or notify; at_end says what becomes of volumes")
    return value


_Type = Annotated[
    StrictStr,
    Field(
        max_length=255,
        pattern=r"^[^\x00]*$",
        description="The name or id of a volume type; empty for the cloud's default.",
    ),
]
_AtEnd = Annotated[
    Literal["delete", "snapshot", "keep"],
    Field(
        description="What becomes of the volumes at the end: `delete`, `snapshot` (a snapshot of each, below which the "
        "volume stays, detached) or `keep`. What is kept goes on using the pool."
    ),
]
#: What is known of the type beside what was asked for.
_KNOWN = ("pool", "volume_type_id")


class VolumeReservation(Parameters):
    """A reservation of ``amount`` volumes of ``size_gb`` GiB each."""

    noun: ClassVar[str] = "volumes"
    while_it_runs: ClassVar[str] = "that there are more, and whether they are kept"
    is_known_to_blazar: ClassVar[bool] = False

    resource_type: Literal["virtual:volume"]
    amount: Count
    size_gb: Count
    volume_type: _Type = ""
    at_end: _AtEnd = "delete"
    before_end: Annotated[Notice, BeforeValidator(_no_image)] = "default"


class VolumeEffects(BaseModel):
    """The volumes, which are there once the reservation has started."""

    volume_ids: list[str] = Field(default_factory=list)


class VolumeType(DeclaredType[VolumeReservation]):
    """Volumes, which are made in the owner's project at the start, in the one pool that their type leads to."""

    name = "virtual:volume"
    noun = "volumes"
    inventory = "virtual:volume"
    own_inventory = Inventory(
        "virtual:volume",
        noun="volume pool",
        reference="name",
        rules="tenure:volumepools",
        identifying=frozenset({"pool"}),
        is_named=False,
        is_listed=False,
    )
    counted = "DISK_GB"
    growing = frozenset({"amount"})
    declaration = VolumeReservation
    stored = VolumeReservation
    effects_model = VolumeEffects

    def check_change(self, current: Mapping[str, object], after: Mapping[str, Any], *, running: bool) -> None:
        if running:
            refuse_changes(current, after, declared=self.stored.model_fields, but={"amount", "at_end", "before_end"})
            _refuse_other_end(current, after)

    def still_known(self, current: Mapping[str, object], after: Mapping[str, object]) -> Mapping[str, object]:
        if after["volume_type"] != current.get("volume_type"):
            return NOTHING
        return {name: current[name] for name in _KNOWN if name in current}

    def required_fact(self, parameters: Mapping[str, object]) -> FactReference | None:
        if "pool" in parameters:
            return None
        return FactReference("volume_type", str(parameters.get("volume_type", "")), "volume_type")

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        pools = fact.get("pools")
        names = [str(pool) for pool in pools] if isinstance(pools, list | tuple) else []
        if len(names) != 1:
            lies = "in any of several pools" if names else "in no pool at all"
            raise InvalidParameter(
                f"Volumes of the type {fact['name']} lie {lies}; only a type that leads to one pool can be reserved.",
                field="volume_type",
            )
        return {**parameters, "volume_type": fact["name"], "volume_type_id": fact["id"], "pool": names[0]}

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = self.read(parameters)
        at_end = AtEnd(reservation.at_end)
        # A snapshot may take as much room as its volume, which it needs.
        size = reservation.size_gb * (2 if at_end is AtEnd.SNAPSHOT else 1)
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.amount,
            maximum=reservation.amount,
            expression=Expression((Comparison("==", "pool", str(parameters.get("pool", ""))),)),
            names_are_asked=False,
            amounts=Capacity({"DISK_GB": size}),
            exclusive=False,
            spread=Spread.ANY,
            lasting=at_end is not AtEnd.DELETE,
        )

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        return {"volume_ids": []}

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        return "resource_type"  # volumes are always created as the owner


def _refuse_other_end(current: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Raise ``InvalidState`` if a running reservation would need another amount of room for each volume."""
    before, requested = current.get("at_end"), after["at_end"]
    if before != requested and AtEnd.SNAPSHOT in {before, requested}:
        raise InvalidState(
            f"at_end cannot become {requested}: a running reservation has room for {before} only.", field="at_end"
        )
