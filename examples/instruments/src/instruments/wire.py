"""Instruments over the API: how one is registered, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from instruments.kind import INSTRUMENT
from tenure.api.schemas import answers
from tenure.api.schemas.moments import show_maybe_rfc3339
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
from tenure.api.schemas.texts import ExternalId
from tenure.api.versions import Version
from tenure.domain.request import LeasedResource
from tenure.domain.resource import Resource


class InstrumentCreate(BaseModel):
    """An instrument that can be reserved from now on, by its name or its id in the laboratory."""

    model_config = ConfigDict(extra="forbid")

    name: ExternalId


class InstrumentListQuery(ResourceListQuery):
    kind: ExternalId | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        return {} if self.kind is None else {"kind": self.kind}


class Instrument(answers.Answer):
    """An instrument that can be reserved."""

    id: str
    name: str
    kind: str
    room: str
    resolution_nm: int
    reservable: bool
    created_at: answers.Rfc3339Text
    updated_at: answers.Rfc3339Text | None


class InstrumentOf12(Instrument):
    """An instrument from 1.2 on: also whether the operator has enabled it, and what the laboratory says of it."""

    enabled: bool
    disabled_reason: str | None
    health: answers.HEALTHS
    health_reason: str | None
    health_since: answers.Rfc3339Text | None


class LeasedInstrument(answers.Answer):
    """An instrument as the owner of a lease sees it."""

    id: str
    name: str
    kind: str
    room: str
    resolution_nm: int
    reservation_id: str
    start_date: answers.Rfc3339Text
    end_date: answers.Rfc3339Text
    status: answers.ALLOCATION_STATES


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given: InstrumentCreate = check(InstrumentCreate, body, version)
    return Registration(given.name)


def show(instrument: Resource, version: Version) -> Document:
    return {
        **_described(instrument),
        "reservable": instrument.reservable,
        "created_at": show_maybe_rfc3339(instrument.created_at),
        "updated_at": show_maybe_rfc3339(instrument.updated_at),
        **show_standing(instrument, version),
    }


def show_leased(leased: LeasedResource) -> Document:
    return {**_described(leased.resource), **show_part(leased)}


def _described(instrument: Resource) -> Document:
    facts = {name: instrument.facts[name] for name in ("kind", "room", "resolution_nm")}
    return {"id": instrument.external_id, "name": instrument.name, **facts}


def _answer(version: Version) -> type[BaseModel]:
    return Instrument if version < Version.V1_2 else InstrumentOf12


INSTRUMENTS = WireInventory(
    resource_type=INSTRUMENT,
    path="/v1/instruments",
    part="instrument_id",
    one="instrument",
    many="instruments",
    links="instruments_links",
    noun="instrument",
    nouns="instruments",
    query=InstrumentListQuery,
    registration=ModelsOfRequest(InstrumentCreate, InstrumentCreate),
    read_registration=read_registration,
    show=show,
    show_new=show,
    show_leased=show_leased,
    answer=_answer,
    answer_new=_answer,
    leased_answer=LeasedInstrument,
)
