"""Floating IP addresses on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from tenure.api.schemas import answers
from tenure.api.schemas.moments import show_maybe_rfc3339, show_with_blank, show_with_t
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import (
    Document,
    ModelsOfRequest,
    Registration,
    WireInventory,
    show_part,
    show_standing,
)
from tenure.api.schemas.texts import Address, NetworkId
from tenure.api.versions import OLDEST, Version
from tenure.domain.request import LeasedResource, ResourceOrder
from tenure.domain.resource import Resource


class LenientFloatingIPCreate(BaseModel):
    """An address to be made reservable, as Blazar takes it."""

    model_config = ConfigDict(extra="ignore", title="FloatingIPCreate")

    floating_network_id: NetworkId
    floating_ip_address: Address


class FloatingIPCreate(BaseModel):
    """An address of an external network to be made reservable: in one of its subnets, and in none of their pools."""

    model_config = ConfigDict(extra="forbid")

    floating_network_id: NetworkId
    floating_ip_address: Address


class FloatingIPSortKey(StrEnum):
    ID = "id"
    FLOATING_IP_ADDRESS = "floating_ip_address"


class FloatingIPListQuery(ResourceListQuery):
    sort_key: FloatingIPSortKey = FloatingIPSortKey.ID
    floating_ip_address: Address | None = None
    floating_network_id: NetworkId | None = None

    @property
    def order(self) -> ResourceOrder:
        return ResourceOrder.ID if self.sort_key is FloatingIPSortKey.ID else ResourceOrder.NAME

    @property
    def named(self) -> str | None:
        return self.floating_ip_address

    @property
    def facts(self) -> Mapping[str, str]:
        return {} if self.floating_network_id is None else {"floating_network_id": self.floating_network_id}


class LeasedFloatingIP(answers.Answer):
    id: str
    floating_network_id: str
    subnet_id: str
    floating_ip_address: str
    reservation_id: str
    start_date: answers.Rfc3339Text
    end_date: answers.Rfc3339Text
    status: answers.ALLOCATION_STATES


class FloatingIPOf10(answers.Answer):
    id: str
    floating_network_id: str
    subnet_id: str
    floating_ip_address: str
    reservable: bool
    created_at: answers.WithBlank
    updated_at: answers.WithBlank | None


class NewFloatingIPOf10(FloatingIPOf10):
    """A floating IP that was registered just now: its dates have another form then, as in Blazar."""

    created_at: answers.WithT
    updated_at: answers.WithT | None


class FloatingIP(answers.Answer):
    id: str
    floating_network_id: str
    subnet_id: str
    floating_ip_address: str
    reservable: bool
    created_at: answers.Rfc3339Text
    updated_at: answers.Rfc3339Text | None


class FloatingIPOf12(FloatingIP):
    """A floating IP from 1.2 on: also whether the operator has enabled it, and what the cloud says of it."""

    region: str | None
    enabled: bool
    disabled_reason: str | None
    health: answers.HEALTHS
    health_reason: str | None
    health_since: answers.Rfc3339Text | None


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    model = LenientFloatingIPCreate if version is OLDEST else FloatingIPCreate
    given: Any = check(model, body, version)
    return Registration(f"{given.floating_network_id}/{given.floating_ip_address}")


def show_floatingip(floatingip: Resource, version: Version) -> Document:
    """An address; from 1.2 on with what makes it reservable, or not."""
    if version is OLDEST:
        return _shown(floatingip, show_with_blank)
    return {**_shown(floatingip, show_maybe_rfc3339), **show_standing(floatingip, version)}


def show_new_floatingip(floatingip: Resource, version: Version) -> Document:
    """An address that was registered just now; Blazar has its dates with ``T`` then, and only then."""
    if version is OLDEST:
        return _shown(floatingip, lambda moment: show_with_t(moment) if moment else None)
    return show_floatingip(floatingip, version)


def _shown(floatingip: Resource, show: Callable[[datetime | None], str | None]) -> Document:
    return {
        "id": floatingip.external_id,
        **_place(floatingip),
        "reservable": floatingip.reservable,
        "created_at": show(floatingip.created_at),
        "updated_at": show(floatingip.updated_at),
    }


def _place(floatingip: Resource) -> Document:
    return {
        "floating_network_id": floatingip.facts.get("floating_network_id", ""),
        "subnet_id": floatingip.facts.get("subnet_id", ""),
        "floating_ip_address": floatingip.name,
    }


def show_leased_floatingip(leased: LeasedResource) -> Document:
    """An address as the owner of a lease of it sees it."""
    return {"id": leased.resource.external_id, **_place(leased.resource), **show_part(leased)}


def _answer(version: Version) -> type[BaseModel]:
    if version is OLDEST:
        return FloatingIPOf10
    return FloatingIP if version < Version.V1_2 else FloatingIPOf12


def _answer_new(version: Version) -> type[BaseModel]:
    return NewFloatingIPOf10 if version is OLDEST else _answer(version)


FLOATING_IPS = WireInventory(
    resource_type="virtual:floatingip",
    path="/v1/floatingips",
    part="floatingip_id",
    one="floatingip",
    many="floatingips",
    links="floatingips_links",
    noun="floating IP",
    nouns="floating IPs",
    query=FloatingIPListQuery,
    registration=ModelsOfRequest(LenientFloatingIPCreate, FloatingIPCreate),
    read_registration=read_registration,
    show=show_floatingip,
    show_new=show_new_floatingip,
    show_leased=show_leased_floatingip,
    answer=_answer,
    answer_new=_answer_new,
    leased_answer=LeasedFloatingIP,
    allocations_since=Version.V1_1,
)
