"""Answers at 1.0: lists without pages, and the models of what resources of all types have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, TypeVar

from pydantic import Field

from tenure.api.answers import LinkTo, document_of_many
from tenure.api.blazar.moments import WithT
from tenure.api.schemas.answers import Answer, AnswerAt, Document, From, Written
from tenure.api.schemas.texts import MAX_PROPERTY_NAME
from tenure.api.versions import Version
from tenure.domain.request import Page

T = TypeVar("T")


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


class BookingOf10(Answer):
    id: Annotated[str, From("reservation_id")]
    lease_id: str
    start_date: Annotated[WithT, From("starts_at")]
    end_date: Annotated[WithT, From("ends_at")]


class AllocationOf10(Answer):
    resource_id: Annotated[str, From("external_id")]
    reservations: Annotated[list[BookingOf10], From("bookings")]


class PropertySettingOf10(Answer):
    id: Annotated[str, Written(str)]
    resource_type: str
    property_name: Annotated[str, Field(max_length=4 * MAX_PROPERTY_NAME), From("name")]
    private: bool
    created_at: WithT  # unlike most such dates
    updated_at: WithT | None
