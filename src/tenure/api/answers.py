"""The shapes of answers: they build the document of an answer from the result of an operation.

A shape has the model of the objects that it shows; the model writes an object (``Answer.show``) and describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeVar

from pydantic import Field, create_model

from tenure.api.schemas.answers import Answer, AnswerAt, Document, Link
from tenure.api.versions import Version
from tenure.domain.boot import PlannedServerQuery
from tenure.domain.errors import InvalidParameter
from tenure.domain.request import BookingQuery, LeaseQuery, Page, ResourceQuery

T = TypeVar("T")
Q = TypeVar("Q", LeaseQuery, ResourceQuery, BookingQuery, PlannedServerQuery)

#: Makes the link to the page behind a marker.
LinkTo = Callable[[str], list[Mapping[str, str]]]


class Shape(Protocol):
    """The form of the document of an answer."""

    def render(self, value: Any, version: Version, next_page: LinkTo) -> Document | Iterator[bytes]:
        """Return the document, or the pieces of its text if it is long."""

    def document(self, version: Version) -> type[Answer]:
        """Return the model of the document."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The object itself is the document."""

    model: AnswerAt

    def render(self, value: Any, version: Version, next_page: LinkTo) -> Document:
        return self.model(version).show(value)

    def document(self, version: Version) -> type[Answer]:
        return self.model(version)


@dataclass(frozen=True, slots=True)
class One:
    """The document has a single object under a key."""

    key: str
    model: AnswerAt

    def render(self, value: Any, version: Version, next_page: LinkTo) -> Document:
        return {self.key: self.model(version).show(value)}

    def document(self, version: Version) -> type[Answer]:
        return _document_of_one(self.key, self.model(version))


@dataclass(frozen=True, slots=True)
class TaggedLease(One):
    """A lease; the answer has its ``ETag``."""

    def tag(self, lease: Any) -> str:
        return f'"{lease.version}"'


@dataclass(frozen=True, slots=True)
class Many:
    """The document has a whole list under a key."""

    key: str
    model: AnswerAt

    def render(self, value: Iterable[Any], version: Version, next_page: LinkTo) -> Document:
        show = self.model(version).show
        return {self.key: [show(item) for item in value]}

    def document(self, version: Version) -> type[Answer]:
        return document_of_many(self.key, self.model(version), has_links=False)


@dataclass(frozen=True, slots=True)
class Pages:
    """The document has a page of a list under a key, and a link to the next page."""

    key: str
    model: AnswerAt

    def render(self, value: Iterator[Page[Any]], version: Version, next_page: LinkTo) -> Document:
        show, first = self.model(version).show, next(value)
        document: Document = {self.key: [show(item) for item in first.items]}
        if first.marker is not None:
            document[f"{self.key}_links"] = next_page(first.marker)
        return document

    def document(self, version: Version) -> type[Answer]:
        return document_of_many(self.key, self.model(version), has_links=True)


@cache
def _document_of_one(key: str, model: type[Answer]) -> type[Answer]:
    fields: dict[str, Any] = {key: (model, ...)}
    return create_model(f"{model.__name__}Document", __base__=Answer, **fields)


@cache
def document_of_many(key: str, model: type[Answer], *, has_links: bool) -> type[Answer]:
    """Return the model of a document with a list under a key."""
    fields: dict[str, Any] = {key: (list[model], ...)}  # type: ignore[valid-type]  # known at run time only
    if has_links:
        fields[f"{key}_links"] = (list[Link], Field(default_factory=list))
    return create_model(f"{model.__name__}List", __base__=Answer, **fields)


def pages(fetch: Callable[[Q], Page[T]], first: Q, marker_of: Callable[[T], str]) -> Iterator[Page[T]]:
    """Return the pages of a list, starting with that of the query ``first``; each is fetched on demand."""
    page = fetch(first)
    yield page
    while page.marker is not None:
        page = _page_after(page, fetch, first, marker_of)
        yield page


def _page_after(page: Page[T], fetch: Callable[[Q], Page[T]], query: Q, marker_of: Callable[[T], str]) -> Page[T]:
    """Return the page after the last item of this one that is still in the list.

    Raises what ``fetch`` does if all items of this page have been deleted in the meantime.
    """
    *others, first = reversed(page.items)
    for item in others:
        try:
            return fetch(replace(query, marker=marker_of(item)))
        except InvalidParameter as error:
            if error.field != "marker":
                raise
    return fetch(replace(query, marker=marker_of(first)))
