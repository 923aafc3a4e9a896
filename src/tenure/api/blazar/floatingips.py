"""Floating IP addresses at 1.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from tenure.api.blazar.moments import WithBlank, WithT
from tenure.api.schemas.floatingips import FLOATING_IPS, AddressFields
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import Registration
from tenure.api.schemas.texts import Address, NetworkId
from tenure.api.versions import Version, by_version


class LenientFloatingIPCreate(BaseModel):
    """A floating IP to be made reservable, as in Blazar."""

    model_config = ConfigDict(extra="ignore", title="FloatingIPCreate")

    floating_network_id: NetworkId
    floating_ip_address: Address


class FloatingIPOf10(AddressFields):
    reservable: bool
    created_at: WithBlank
    updated_at: WithBlank | None


class NewFloatingIPOf10(AddressFields):
    """A floating IP in the answer to its registration, where dates have another form, as in Blazar."""

    reservable: bool
    created_at: WithT
    updated_at: WithT | None


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given = check(LenientFloatingIPCreate, body, version)
    return Registration(f"{given.floating_network_id}/{given.floating_ip_address}")


#: The inventory of floating IPs.
BLAZAR_FLOATING_IPS = replace(
    FLOATING_IPS,
    registration=by_version(LenientFloatingIPCreate),
    read_registration=read_registration,
    answer=by_version(FloatingIPOf10),
    answer_new=by_version(NewFloatingIPOf10),
)
