"""Floating IP addresses on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from tenure.api.schemas.answers import Answer, From, LeasedAnswer, Rfc3339Text, Standing, fact
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import Registration, WireInventory
from tenure.api.schemas.texts import Address, NetworkId
from tenure.api.versions import Version, by_version


class FloatingIPCreate(BaseModel):
    """A floating IP to be made reservable: in a subnet of the external network, and outside its allocation pools."""

    model_config = ConfigDict(extra="forbid")

    floating_network_id: NetworkId
    floating_ip_address: Address


class FloatingIPListQuery(ResourceListQuery):
    NAME = "floating_ip_address"
    FACTS = ("floating_network_id",)

    sort_key: Literal["id", "floating_ip_address"] = "id"
    floating_ip_address: Address | None = None
    floating_network_id: NetworkId | None = None


class AddressFields(Answer):
    id: Annotated[str, From("external_id")]
    floating_network_id: Annotated[str, fact("floating_network_id", "")]
    subnet_id: Annotated[str, fact("subnet_id", "")]
    floating_ip_address: Annotated[str, From("name")]


class LeasedFloatingIP(LeasedAnswer, AddressFields):
    pass


class FloatingIP(AddressFields):
    reservable: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class FloatingIPOf12(Standing, FloatingIP):
    """A floating IP from 1.2 on, with its region, its health, and whether the operator has enabled it."""


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given = check(FloatingIPCreate, body, version)
    return Registration(f"{given.floating_network_id}/{given.floating_ip_address}")


FLOATING_IPS = WireInventory(
    resource_type="virtual:floatingip",
    path="/v1/floatingips",
    one="floatingip",
    many="floatingips",
    noun="floating IP",
    nouns="floating IPs",
    query=FloatingIPListQuery,
    registration=by_version(FloatingIPCreate),
    read_registration=read_registration,
    answer=by_version(FloatingIP, FloatingIP, FloatingIPOf12),
    leased_answer=LeasedFloatingIP,
    is_for_readers=True,
    allocations_since=Version.V1_1,
)
