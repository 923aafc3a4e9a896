"""The resource type: what can be asked for, and what that means for the ledger. Pure: no laboratory, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.requirement import Comparison, Expression, parse_expression
from tenure.resources.contract import Inventory, Wanted

INSTRUMENT = "lab:instrument"

_Kind = Annotated[StrictStr, Field(min_length=1, max_length=64, description="What sort: `microscope`, `spectrometer`.")]
_Amount = Annotated[StrictInt, Field(ge=1, le=1000, description="How many of them.")]
_Properties = Annotated[
    StrictStr,
    Field(max_length=16384, description='Conditions as JSON text, such as `["<=", "$resolution_nm", "200"]`.'),
]


class InstrumentReservation(BaseModel):
    """A reservation of instruments of one sort."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Literal["lab:instrument"]
    kind: _Kind
    amount: _Amount = 1
    resource_properties: _Properties = ""


class InstrumentChange(BaseModel):
    """What may change in a reservation of instruments; while it runs, only that there are more of them."""

    model_config = ConfigDict(extra="forbid")

    kind: _Kind | None = None
    amount: _Amount | None = None
    resource_properties: _Properties | None = None


class InstrumentAnswer(BaseModel):
    """What is shown of a reservation of instruments."""

    kind: str
    amount: int
    resource_properties: str = ""


class InstrumentType:
    """Instruments of a laboratory, each for one project at a time."""

    name = INSTRUMENT
    noun = "instruments"
    #: They are resources of their own, not parts of something that another type has.
    inventory = INSTRUMENT
    stock = Inventory(INSTRUMENT, noun="instrument", reference="name", rules="lab:instruments")
    #: A running reservation may ask for more of them.
    growing = frozenset({"amount"})
    #: It is new, so nothing had to be added to it at a later version.
    additions: type[BaseModel] | None = None

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        return InstrumentReservation

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        return InstrumentChange

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        return InstrumentAnswer

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        given = {name: value for name, value in change.items() if value is not None}
        after = self._read({**current, **given}).model_dump(exclude={"resource_type"})
        if running:
            _refuse_less(current, after)
        return after

    def wanted(self, parameters: Mapping[str, object]) -> Wanted | None:
        return None  # nothing of the laboratory must be known to judge a request

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        return parameters

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        asked = self._read(parameters)
        conditions = parse_expression(asked.resource_properties, field="resource_properties")
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=asked.amount,
            maximum=asked.amount,
            expression=Expression((Comparison("==", "kind", asked.kind),)) & conditions,
            amounts=Capacity({WHOLE: 1}),
            exclusive=True,
        )

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        return {}  # no id of anything that clients would have to know

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        return False  # nothing is made in the laboratory before the start

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        return None  # the laboratory does not ask in whose name

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        return None

    def _read(self, parameters: Mapping[str, object]) -> InstrumentReservation:
        """The parameters as they were stored, by this release or an earlier one."""
        try:
            return InstrumentReservation.model_validate({**parameters, "resource_type": self.name})
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidParameter(first["msg"], field=str(first["loc"][-1])) from None


def _refuse_less(current: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """A running reservation keeps what it has."""
    for name in ("kind", "resource_properties"):
        if after[name] != current.get(name, ""):
            raise InvalidState(f"{name} cannot be changed while the reservation runs.", field=name)
    if after["amount"] < current.get("amount", 1):
        raise InvalidState("A running reservation keeps the instruments that it has.", field="amount")
