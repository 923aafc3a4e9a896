"""Query strings. Unknown parameters are refused, except by models that ignore them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import falcon
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, WithJsonSchema, create_model
from pydantic_core import PydanticCustomError

from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import ExternalId, Identifier, RegionName
from tenure.api.versions import Version, by_version
from tenure.domain.errors import InvalidParameter
from tenure.domain.request import BookingQuery, ResourceOrder, ResourceQuery

MAX_LIMIT = 1000
DEFAULT_LIMIT = 100


def _number(value: Any) -> Any:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 4):
        raise PydanticCustomError("limit", f"a number from 1 to {MAX_LIMIT} is needed")
    return int(value)


#: The texts for true and false; those with a capital are written by Python clients.
_TRUTHS = {"true": True, "True": True, "1": True, "yes": True, "false": False, "False": False, "0": False, "no": False}


def _truth(value: Any) -> Any:
    if value not in _TRUTHS:
        raise PydanticCustomError("truth", "true or false is needed")
    return _TRUTHS[value]


Limit = Annotated[
    StrictInt,
    BeforeValidator(_number),
    Field(ge=1, le=MAX_LIMIT),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}),
]
#: Described by a pattern: generators of clients make one name of ``true`` and ``True`` in an enumeration.
Truth = Annotated[
    bool, BeforeValidator(_truth), WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(_TRUTHS)})$"})
]
Direction = Literal["asc", "desc"]


class Query(BaseModel):
    """A query without parameters."""

    model_config = ConfigDict(extra="forbid")


#: The model of a query at each version.
QueryAt = Callable[[Version], type[Query]]
NO_QUERY: QueryAt = by_version(Query)


class DryRunQuery(Query):
    """With ``dry_run`` nothing is changed; the answer is what the request would do."""

    dry_run: Truth = False


class ResourceListQuery(Query):
    """The query of a list of resources; each inventory has its own term for their names, also in ``sort_key``."""

    #: The parameter for the name of a resource, and the parameters for facts that the cloud reports about it.
    NAME: ClassVar[str] = ""
    FACTS: ClassVar[tuple[str, ...]] = ()

    limit: Limit = DEFAULT_LIMIT
    marker: ExternalId | None = None
    sort_dir: Direction = "asc"
    reservable: Truth | None = None

    def to_domain(self, resource_type: str) -> ResourceQuery:
        given = self.model_dump(exclude_none=True)
        return ResourceQuery(
            resource_type=resource_type,
            limit=self.limit,
            marker=self.marker,
            order=ResourceOrder.ID if given.get("sort_key", "id") == "id" else ResourceOrder.NAME,
            descending=self.sort_dir == "desc",
            name=given.get(self.NAME),
            region=given.get("region"),
            reservable=self.reservable,
            facts={name: given[name] for name in self.FACTS if name in given},
        )


class _OfRegion(ResourceListQuery):
    """From 1.2 on: only resources of this region."""

    region: RegionName | None = None


def list_queries(model: type[ResourceListQuery]) -> QueryAt:
    """Return the query of a list of an inventory at each version."""
    return lambda version: model if version < Version.V1_2 else _with_region(model)


@cache
def _with_region(model: type[ResourceListQuery]) -> type[ResourceListQuery]:
    return create_model(model.__name__, __base__=(_OfRegion, model), __doc__=model.__doc__)


class AllocationQuery(Query):
    lease_id: Identifier | None = None
    reservation_id: Identifier | None = None


class AllocationListQuery(AllocationQuery):
    limit: Limit = DEFAULT_LIMIT
    marker: ExternalId | None = None

    def to_domain(self, resource_type: str) -> BookingQuery:
        filtered = self.lease_id is not None or self.reservation_id is not None
        return BookingQuery(
            resource_type, self.limit, self.marker, self.lease_id, self.reservation_id, only_booked=filtered
        )


class PropertyListQuery(Query):
    detail: Truth = False
    all: Truth = False


def query_of(req: falcon.Request, known: Collection[str] | None = None) -> Mapping[str, str]:
    """Return all parameters of the query, or the ``known`` ones. Raises ``InvalidParameter`` for repetitions."""
    query = {}
    for name, value in req.params.items():
        if known is not None and name not in known:
            continue
        shown = name[:80].replace("\0", "?")
        if not isinstance(value, str):
            raise InvalidParameter(f"{shown} is given more than once in the query.", field=shown)
        if "\0" in value or "\0" in name:
            raise InvalidParameter(f"{shown} holds a NUL character, which no text may.", field=shown)
        query[name] = value
    return query


def read_query(req: falcon.Request, model: type[Query], version: Version) -> Query:
    """Return the query as ``model``; if it ignores unknown parameters, nothing is wrong with these."""
    known = model.model_fields.keys() if model.model_config.get("extra") == "ignore" else None
    return check(model, query_of(req, known), version)
