"""Floating IP addresses: ``virtual:floatingip``."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictStr, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from tenure.domain.address import address_id
from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.requirement import Comparison, Expression
from tenure.resources import blazar
from tenure.resources.contract import Inventory
from tenure.resources.declared import DeclaredType
from tenure.resources.fields import Count, Notice
from tenure.resources.parameters import Forms, Parameters


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


class FloatingIPReservation(_Addressed, Parameters):
    """A reservation of ``amount`` addresses of an external network."""

    noun: ClassVar[str] = "floating IP addresses"
    while_it_runs: ClassVar[str] = "only that there are more of them"

    resource_type: Literal["virtual:floatingip"]
    network_id: _Network
    amount: Annotated[blazar.Amount, AfterValidator(_not_negative), Forms(strict=Count)]
    required_floatingips: _Addresses = Field(default_factory=list)
    before_end: Annotated[Notice, BeforeValidator(_no_image)] = "default"


class FloatingIPType(DeclaredType[FloatingIPReservation]):
    """Addresses of an external network, each handed to one project for the period."""

    name = "virtual:floatingip"
    noun = "floating IPs"
    inventory = "virtual:floatingip"
    own_inventory = Inventory(
        "virtual:floatingip",
        noun="floating IP",
        reference="floating_ip_address",
        rules="blazar:floatingips",
        refusal=InvalidParameter,
        is_listed=False,
    )
    counted = WHOLE
    growing = frozenset({"amount"})
    declaration = FloatingIPReservation
    stored = FloatingIPReservation

    def check_change(self, current: Mapping[str, object], after: Mapping[str, Any], *, running: bool) -> None:
        if after["network_id"] != current.get("network_id"):
            raise InvalidParameter("network_id cannot be changed", field="network_id")
        if after["required_floatingips"] not in ([], current.get("required_floatingips")):
            raise InvalidParameter("required_floatingips can only be made empty", field="required_floatingips")
        before = current.get("amount")
        if running and isinstance(before, int) and after["amount"] < before:
            raise InvalidState(
                f"The amount cannot be {after['amount']}: an active reservation keeps what it has.", field="amount"
            )

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = self.read(parameters)
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
