"""The parsed requests of the fake server, and the pages of its lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from tenureclient.testing.stock import Refusal
from tenureclient.wire import JsonObject, JsonValue, Version

T = TypeVar("T")
Outcome = tuple[int, JsonObject | None]


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed request."""

    method: str
    parts: tuple[str, ...]
    query: Mapping[str, str]
    body: JsonValue
    version: Version
    base: str

    @property
    def fields(self) -> JsonObject:
        if not isinstance(self.body, Mapping):
            raise Refusal(400, "InvalidParameter", "The body is not a JSON object")
        return self.body


def one_page(
    call: Call,
    size: int,
    items: str,
    resources: Sequence[T],
    mark: Callable[[T], str],
    document: Callable[[T], JsonObject],
) -> JsonObject:
    """Return one page of a list, with a link to the next page if there is one."""
    limit = min(int(call.query.get("limit") or size), size)
    marks = [mark(item) for item in resources]
    marker = call.query.get("marker")
    if marker is not None and marker not in marks:
        raise Refusal(400, "InvalidParameter", f"Unknown marker {marker}", field="marker")
    begin = 0 if marker is None else marks.index(marker) + 1
    page = resources[begin : begin + limit]
    answer: dict[str, JsonValue] = {items: [document(item) for item in page]}
    if begin + limit < len(resources):
        query = {**call.query, "limit": str(limit), "marker": marks[begin + limit - 1]}
        path = "/".join(call.parts[1:])
        answer[f"{items}_links"] = [{"rel": "next", "href": f"{call.base}/{path}?{urlencode(query)}"}]
    return answer
