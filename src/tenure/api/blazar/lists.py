"""Lists at 1.0: they are whole, and their queries ignore unknown parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from pydantic import ConfigDict

from tenure.api.answers import LinkTo, document_of_many
from tenure.api.schemas.answers import Answer, AnswerAt, Document
from tenure.api.schemas.queries import Query
from tenure.api.versions import Version
from tenure.domain.request import LeaseQuery, Page

T = TypeVar("T")

#: How many items of a list are fetched at a time.
PAGE = 1000


class BlazarQuery(Query):
    model_config = ConfigDict(extra="ignore")


@cache
def ignoring_others(model: type[Query]) -> type[Query]:
    """Return the query with the same parameters that ignores all others."""
    if issubclass(model, BlazarQuery):
        return model
    # The configuration of the last base class would hold otherwise, which forbids unknown parameters.
    own = {"model_config": BlazarQuery.model_config, "__module__": __name__}
    return type(model.__name__, (BlazarQuery, model), own)


class LeaseList(BlazarQuery):
    def to_domain(self) -> LeaseQuery:
        return LeaseQuery(limit=PAGE)


@dataclass(frozen=True, slots=True)
class WholeList:
    """The document has the whole list under a key.

    It is written while the list is fetched: at most one page is in memory. The first page is fetched at once, so that
    an error of the request becomes an error answer.
    """

    key: str
    model: AnswerAt

    def render(self, value: Iterator[Page[Any]], version: Version, next_page: LinkTo) -> Document | Iterator[bytes]:
        show, first = self.model(version).show, next(value)
        if first.marker is not None:
            return _pieces(self.key, chain([first], value), show)
        return {self.key: [show(item) for item in first.items]}

    def document(self, version: Version) -> type[Answer]:
        return document_of_many(self.key, self.model(version), has_links=False)


def _pieces(key: str, pages: Iterable[Page[T]], show: Callable[[T], Document]) -> Iterator[bytes]:
    yield f"{{{json.dumps(key)}: [".encode()
    separator = ""
    for page in pages:
        if page.items:
            yield (separator + ", ".join(json.dumps(show(item)) for item in page.items)).encode()
            separator = ", "
    yield b"]}"
