"""Floating IP addresses: ``virtual:floatingip``."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictStr,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tenure.domain.address import address_id
from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.requirement import Comparison, Expression
from tenure.resources.contract import NOTHING, Inventory, Wanted
from tenure.resources.fields import Count, LenientAmount, action_of
from tenure.resources.servers import merged


def _address(value: str) -> str:
    try:
        if "%" in value:
            raise ValueError
        return str(ip_address(value))
    except ValueError:
        raise PydanticCustomError(
            "malformed_address",
            "IP address {value} is invalid form.",
            {"value": value[:80]},
        ) from None


def _distinct(value: list[str]) -> list[str]:
    if len(set(value)) != len(value):
        raise PydanticCustomError("addresses", "An address is named twice in required_floatingips")
    return value


def _not_negative(amount: int) -> int:
    if amount < 0:
        raise PydanticCustomError("amount", "Malformed parameter amount (must be greater than or equal to 0)")
    return amount


_Network = Annotated[StrictStr, Field(min_length=1, max_length=64, description="The id of an external network.")]
_Address = Annotated[
    StrictStr,
    Field(max_length=64),
    AfterValidator(_address),
    WithJsonSchema({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
]
_Addresses = Annotated[
    list[_Address], Field(max_length=4096, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct)
]
_LenientAmount = Annotated[LenientAmount, AfterValidator(_not_negative)]


class _Addressed(BaseModel):
    @model_validator(mode="after")
    def _not_more_than_asked_for(self) -> _Addressed:
        amount, required = getattr(self, "amount", None), getattr(self, "required_floatingips", None)
        if amount is not None and required is not None and len(required) > amount:
            raise PydanticCustomError(
                "addresses",
                "Invalid values for required_floatingips and amount. "
                "The amount must be equal to or longer than length of required_floatingips.",
            )
        return self


def _no_image(value: object) -> object:
    if value == "snapshot":
        raise PydanticCustomError("no_snapshot", "An address has no snapshot: before_end is none or notify")
    return value


_BeforeEnd = Annotated[
    Literal["default", "notify", "none", ""],
    BeforeValidator(_no_image),
    Field(description="What is done before the end: `notify` (a notification); nothing for every other."),
]


class LenientAddressReservation(_Addressed):
    """A reservation of floating IP addresses, as Blazar takes it."""

    model_config = ConfigDict(extra="ignore", title="FloatingIPReservation")

    resource_type: Literal["virtual:floatingip"]
    network_id: _Network
    amount: _LenientAmount
    required_floatingips: _Addresses = Field(default_factory=list)


class KeptAddressReservation(LenientAddressReservation):
    """A reservation of floating IP addresses, as it is kept: with what any version can say."""

    before_end: _BeforeEnd = "default"


class FloatingIPReservation(_Addressed):
    """A reservation of ``amount`` addresses of an external network."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Literal["virtual:floatingip"]
    network_id: _Network
    amount: Count
    required_floatingips: _Addresses = Field(default_factory=list)
    before_end: _BeforeEnd = "default"


class LenientAddressChange(_Addressed):
    """What may change in a reservation of floating IP addresses, as Blazar takes it."""

    model_config = ConfigDict(extra="ignore", title="FloatingIPChange")

    network_id: _Network | None = None
    amount: _LenientAmount | None = None
    required_floatingips: _Addresses | None = None


class FloatingIPChange(_Addressed):
    """What may change in a reservation of addresses; while it runs, only that there are more of them."""

    model_config = ConfigDict(extra="forbid")

    network_id: _Network | None = None
    amount: Count | None = None
    required_floatingips: _Addresses | None = None
    before_end: _BeforeEnd | None = None


class FloatingIPAnswer(BaseModel):
    """What is shown of a reservation of floating IP addresses."""

    network_id: str
    amount: int
    required_floatingips: list[str] = Field(default_factory=list)


class StrictFloatingIPAnswer(FloatingIPAnswer):
    """What is shown of a reservation of floating IP addresses from 1.1 on."""

    before_end: str = "default"


class FloatingIPType:
    """Addresses of an external network, each handed to one project for the period."""

    name = "virtual:floatingip"
    noun = "floating IPs"
    inventory = "virtual:floatingip"
    stock = Inventory(
        "virtual:floatingip",
        noun="floating IP",
        reference="floating_ip_address",
        rules="blazar:floatingips",
        refusal=InvalidParameter,
        is_listed=False,
    )
    growing = frozenset({"amount"})
    additions: type[BaseModel] | None = None

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        return FloatingIPReservation if strict else LenientAddressReservation

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        return FloatingIPChange if strict else LenientAddressChange

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        return StrictFloatingIPAnswer if strict else FloatingIPAnswer

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        after: dict[str, Any] = merged(KeptAddressReservation, self.name, current, change)
        if after["network_id"] != current.get("network_id"):
            raise InvalidParameter("network_id cannot be changed", field="network_id")
        if after["required_floatingips"] not in ([], current.get("required_floatingips")):
            raise InvalidParameter("required_floatingips can only be made empty", field="required_floatingips")
        before = current.get("amount")
        if running and isinstance(before, int) and after["amount"] < before:
            raise InvalidState(
                f"The amount cannot be {after['amount']}: an active reservation keeps what it has.", field="amount"
            )
        return after

    def wanted(self, parameters: Mapping[str, object]) -> Wanted | None:
        return None

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        return parameters

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = KeptAddressReservation.model_validate({**parameters, "resource_type": self.name})
        network = reservation.network_id
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=reservation.amount,
            maximum=reservation.amount,
            expression=Expression((Comparison("==", "floating_network_id", network),)),
            names_are_asked=False,
            amounts=Capacity({WHOLE: 1}),
            exclusive=True,
            named=tuple(address_id(network, address) for address in reservation.required_floatingips),
            naming="required_floatingips",
        )

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        return NOTHING

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        return False

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        return None

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        return action_of(parameters)
