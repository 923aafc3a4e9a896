"""Query strings at 1.0: unknown parameters are ignored, and lists are whole."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import ConfigDict, Field, create_model

from tenure.api.schemas.queries import AllocationQuery, Query
from tenure.api.schemas.texts import PRINTABLE
from tenure.domain.request import BookingQuery, LeaseQuery, ResourceQuery

#: How many items of a list are fetched at a time.
PAGE = 1000
#: Any text that is not empty means true, even ``false``, as in Blazar.
Flag = Annotated[str, Field(max_length=255, pattern=PRINTABLE)]


class BlazarQuery(Query):
    model_config = ConfigDict(extra="ignore")


class LeaseList(BlazarQuery):
    def to_domain(self) -> LeaseQuery:
        return LeaseQuery(limit=PAGE)


class ResourceList(BlazarQuery):
    def to_domain(self, resource_type: str) -> ResourceQuery:
        return ResourceQuery(resource_type, PAGE)


class AllocationList(BlazarQuery, AllocationQuery):
    def to_domain(self, resource_type: str) -> BookingQuery:
        return BookingQuery(resource_type, PAGE, None, self.lease_id, self.reservation_id)


class PropertyList(BlazarQuery):
    detail: Flag = ""
    all: Flag = ""


@cache
def ignoring_others(model: type[Query]) -> type[Query]:
    """Return the query with the same parameters that ignores all others."""
    if issubclass(model, BlazarQuery):
        return model
    return create_model(model.__name__, __base__=(BlazarQuery, model))
