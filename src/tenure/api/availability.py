"""The operations of availability: capacity over time, and offers."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from tenure.api.answers import Whole
from tenure.api.operations import READERS, Operation, Request, Rule
from tenure.api.schemas.answers import ModelAt
from tenure.api.schemas.availability import (
    AvailabilityDocument,
    AvailabilityListQuery,
    LargestDocument,
    LongestDocument,
    OffersDocument,
    OfferSearchQuery,
)
from tenure.api.schemas.leases import LeaseSchemas, SchemasAt
from tenure.api.versions import Version, by_version
from tenure.domain.availability import Availability, LargestOffer, LongestOffer, Offers

_RULES = (
    Rule(
        "tenure:availability:get",
        READERS,
        "See how much is free, over time, and when a lease fits; resources and projects are for administrators only.",
    ),
)


def availability_operations(schemas: SchemasAt) -> tuple[Operation, ...]:
    """Return the operations of availability, with the schemas of reservations at each version."""

    def body(model: Callable[[LeaseSchemas], type[BaseModel]]) -> ModelAt:
        return lambda version: model(schemas(version))

    offers, since, use = "/v1/offers", Version.V1_3, _UseCases(schemas)
    found = Whole(by_version(OffersDocument))
    search = body(lambda schemas: schemas.search_model)
    return (
        Operation(
            "GET",
            "/v1/availability",
            "Show how much is free, over time",
            use.show,
            Whole(by_version(AvailabilityDocument)),
            query=by_version(AvailabilityListQuery),
            since=since,
            rules=_RULES,
        ),
        Operation(
            "GET",
            offers,
            "Find the first periods in which a lease fits",
            use.find,
            found,
            query=by_version(OfferSearchQuery),
            since=since,
            rules=_RULES,
            refused_with=(),
        ),
        Operation(
            "POST",
            offers,
            "Find the first periods in which a lease fits",
            use.search,
            found,
            body=search,
            since=since,
            rules=_RULES,
            refused_with=(),
        ),
        Operation(
            "POST",
            f"{offers}/longest",
            "Find the longest lease from a start",
            use.longest,
            Whole(by_version(LongestDocument)),
            body=body(lambda schemas: schemas.longest_model),
            since=since,
            rules=_RULES,
            refused_with=(409,),
        ),
        Operation(
            "POST",
            f"{offers}/largest",
            "Find the largest amount of a reservation in a period",
            use.largest,
            Whole(by_version(LargestDocument)),
            body=body(lambda schemas: schemas.largest_model),
            since=since,
            rules=_RULES,
            refused_with=(),
        ),
    )


class _UseCases:
    """The calls of the manager, one for each operation."""

    def __init__(self, schemas: SchemasAt) -> None:
        self._schemas = schemas

    def show(self, request: Request) -> Availability:
        return request.manager.availability.show(request.actor, request.query.to_domain())

    def find(self, request: Request) -> Offers:
        search = self._schemas(request.version).read_search(request.query.document())
        return request.manager.offers.first(request.actor, search)

    def search(self, request: Request) -> Offers:
        return request.manager.offers.first(request.actor, self._schemas(request.version).read_search(request.body()))

    def longest(self, request: Request) -> LongestOffer:
        return request.manager.offers.longest(
            request.actor, *self._schemas(request.version).read_longest(request.body())
        )

    def largest(self, request: Request) -> LargestOffer:
        return request.manager.offers.largest(
            request.actor, *self._schemas(request.version).read_largest(request.body())
        )
