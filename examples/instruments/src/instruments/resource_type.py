"""The resource type: what can be asked for, and what that means for the ledger. Pure: no laboratory, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictInt, StrictStr

from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import InvalidState
from tenure.domain.requirement import Comparison, Expression, parse_expression
from tenure.resources.contract import Inventory
from tenure.resources.declared import DeclaredType
from tenure.resources.parameters import Parameters

INSTRUMENT = "lab:instrument"

_Kind = Annotated[StrictStr, Field(min_length=1, max_length=64, description="What sort: `microscope`, `spectrometer`.")]
_Amount = Annotated[StrictInt, Field(ge=1, le=1000, description="How many of them.")]
_Properties = Annotated[
    StrictStr,
    Field(max_length=16384, description='Conditions as JSON text, such as `["<=", "$resolution_nm", "200"]`.'),
]


class InstrumentReservation(Parameters):
    """A reservation of instruments of one sort."""

    noun: ClassVar[str] = "instruments"
    while_it_runs: ClassVar[str] = "only that there are more of them"
    is_known_to_blazar: ClassVar[bool] = False

    resource_type: Literal["lab:instrument"]
    kind: _Kind
    amount: _Amount = 1
    resource_properties: _Properties = ""


class InstrumentType(DeclaredType[InstrumentReservation]):
    """Instruments of a laboratory, each for one project at a time."""

    name = INSTRUMENT
    noun = "instruments"
    #: They are resources of their own, not parts of something that another type has.
    inventory = INSTRUMENT
    own_inventory = Inventory(INSTRUMENT, noun="instrument", reference="name", rules="lab:instruments")
    #: A running reservation may ask for more of them.
    growing = frozenset({"amount"})
    declaration = InstrumentReservation
    stored = InstrumentReservation

    def check_change(self, current: Mapping[str, Any], after: Mapping[str, Any], *, running: bool) -> None:
        """A running reservation keeps what it has."""
        if not running:
            return
        for name in ("kind", "resource_properties"):
            if after[name] != current.get(name, ""):
                raise InvalidState(f"{name} cannot be changed while the reservation runs.", field=name)
        if after["amount"] < current.get("amount", 1):
            raise InvalidState("A running reservation keeps the instruments that it has.", field="amount")

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = self.read(parameters)
        conditions = parse_expression(reservation.resource_properties, field="resource_properties")
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.amount,
            maximum=reservation.amount,
            expression=Expression((Comparison("==", "kind", reservation.kind),)) & conditions,
            amounts=Capacity({WHOLE: 1}),
            exclusive=True,
        )

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        return None
