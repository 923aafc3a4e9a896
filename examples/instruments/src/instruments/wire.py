"""Instruments over the API: how an instrument is registered and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from instruments.resource_type import INSTRUMENT
from tenure.api.schemas.answers import Answer, From, LeasedAnswer, Rfc3339Text, Standing, fact
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import Registration, WireInventory
from tenure.api.schemas.texts import ExternalId
from tenure.api.versions import Version, by_version


class InstrumentCreate(BaseModel):
    """An instrument that can be reserved from now on, by its name or its id in the laboratory."""

    model_config = ConfigDict(extra="forbid")

    name: ExternalId


class InstrumentListQuery(ResourceListQuery):
    FACTS = ("kind",)

    kind: ExternalId | None = None


class _Described(Answer):
    """What the laboratory says of an instrument."""

    id: Annotated[str, From("external_id")]
    name: str
    kind: Annotated[str, fact("kind")]
    room: Annotated[str, fact("room")]
    resolution_nm: Annotated[int, fact("resolution_nm")]


class Instrument(_Described):
    """An instrument that can be reserved."""

    reservable: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class InstrumentOf12(Standing, Instrument):
    """An instrument from 1.2 on: also whether the operator has enabled it, and what the laboratory says of it."""


class LeasedInstrument(LeasedAnswer, _Described):
    """An instrument as the owner of a lease sees it."""


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given: InstrumentCreate = check(InstrumentCreate, body, version)
    return Registration(given.name)


INSTRUMENTS = WireInventory(
    resource_type=INSTRUMENT,
    path="/v1/instruments",
    one="instrument",
    many="instruments",
    noun="instrument",
    nouns="instruments",
    query=InstrumentListQuery,
    registration=by_version(InstrumentCreate),
    read_registration=read_registration,
    answer=by_version(Instrument, Instrument, InstrumentOf12),
    leased_answer=LeasedInstrument,
    is_for_readers=True,
)
