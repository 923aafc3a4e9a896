"""Writing answers: documents, and lists of any length as a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import falcon

from tenure.domain.errors import InvalidParameter
from tenure.domain.request import Page

T = TypeVar("T")

#: How much of a long list is fetched at a time.
PAGE = 1000


def answer(resp: falcon.Response, document: Mapping[str, object], status: str = falcon.HTTP_OK) -> None:
    resp.status = status
    resp.content_type = "application/json"
    resp.data = json.dumps(document).encode()


def answer_nothing(resp: falcon.Response) -> None:
    resp.status = falcon.HTTP_NO_CONTENT


def answer_list(
    resp: falcon.Response,
    name: str,
    fetch: Callable[[str | None], Page[T]],
    show: Callable[[T], Mapping[str, object]],
    marker_of: Callable[[T], str],
) -> None:
    """Answer with the whole of a list, page by page: no more than one page is in memory.

    ``fetch`` gets the marker of the page before. The first page is fetched at once, so that what is wrong with the
    request becomes an answer.
    """
    first = fetch(None)
    resp.status = falcon.HTTP_OK
    resp.content_type = "application/json"
    if first.marker is None:
        resp.data = json.dumps({name: [show(item) for item in first.items]}).encode()
    else:
        resp.stream = _chunks(name, first, fetch, show, marker_of)


def _chunks(
    name: str,
    page: Page[T],
    fetch: Callable[[str | None], Page[T]],
    show: Callable[[T], Mapping[str, object]],
    marker_of: Callable[[T], str],
) -> Iterator[bytes]:
    yield f"{{{json.dumps(name)}: [".encode()
    separator = ""
    while True:
        if page.items:
            yield (separator + ", ".join(json.dumps(show(item)) for item in page.items)).encode()
            separator = ", "
        if page.marker is None:
            break
        page = _after(page, fetch, marker_of)
    yield b"]}"


def _after(page: Page[T], fetch: Callable[[str | None], Page[T]], marker_of: Callable[[T], str]) -> Page[T]:
    """The page after this one: after the last of its items that has not been taken out of the list meanwhile.

    Raises what ``fetch`` does where all of them have been.
    """
    *others, first = reversed(page.items)
    for item in others:
        try:
            return fetch(marker_of(item))
        except InvalidParameter as error:
            if error.field != "marker":
                raise
    return fetch(marker_of(first))
