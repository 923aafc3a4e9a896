"""Reading Nova's long lists in small pages concurrently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.drivers.contract import CloudBusy, CloudError
from tenure.drivers.openstack.requests import BadRequest, Calls, Request

LOG = logging.getLogger(__name__)

#: The hypervisors per page. Nova needs ten milliseconds for each, and more under load.
PAGE: Final = 100
#: How often a missing page is requested.
_ATTEMPTS: Final = 2

Item = Mapping[str, Any]


@dataclass(slots=True)
class PageStarts:
    """The last hypervisors of the pages of the last complete reading: they are the markers of the next pages.

    Nova returns the next marker only with a page. Remembered markers, or those computed from ids in the ledger, allow
    concurrent requests. They may be wrong: a deleted hypervisor starts no page, and the page before it goes on.
    """

    markers: tuple[str, ...] = ()

    def remember(self, ids: Sequence[str]) -> None:
        self.markers = starts_among(ids)


def starts_among(ids: Sequence[str]) -> tuple[str, ...]:
    """Return the markers of pages among these ids; Nova lists hypervisors in the order of their ids."""
    numbers = sorted(int(number) for number in ids if number.isascii() and number.isdigit())
    return tuple(str(number) for number in numbers[PAGE - 1 :: PAGE])


@dataclass(slots=True)
class _Reading:
    """The state of reading a list."""

    #: The markers that were used without the page before.
    starts: frozenset[str]
    found: dict[str, Item] = field(default_factory=dict)
    #: The markers of pages that are still to be read; None is the beginning of the list.
    pending: list[str | None] = field(default_factory=list)
    requested: set[str | None] = field(default_factory=set)
    #: The markers that no longer exist.
    gone: set[str] = field(default_factory=set)
    #: The errors by marker of the missing page.
    failed: dict[str | None, CloudError] = field(default_factory=dict)


def read_pages(
    calls: Calls, request: Callable[[Mapping[str, str]], Request], starts: Sequence[str]
) -> tuple[dict[str, Item], dict[str | None, CloudError]]:
    """Return all hypervisors by id, and the errors of missing pages by marker.

    The pages are requested concurrently, as many as calls are allowed; missing pages are requested once more. Raises
    ``CloudError`` if no page arrives.
    """
    reading = _Reading(frozenset(starts), pending=[None, *starts])
    for attempt in range(_ATTEMPTS):
        if attempt:
            reading.pending = list(reading.failed)
            reading.requested.difference_update(reading.failed)
            reading.failed.clear()
        while reading.pending:
            round_of = reading.pending[: calls.concurrency]
            del reading.pending[: calls.concurrency]
            _read_round(calls, request, reading, round_of)
        if not reading.failed:
            break
    for marker in reading.gone & reading.found.keys():  # it was deleted meanwhile, and the page after it was not read
        reading.failed.setdefault(marker, CloudBusy(f"Nova has no host {marker} any more."))
    return reading.found, reading.failed


def _read_round(
    calls: Calls,
    request: Callable[[Mapping[str, str]], Request],
    reading: _Reading,
    markers: Sequence[str | None],
) -> None:
    """Read some pages concurrently; raise ``CloudError`` if none of them arrives."""
    fresh = [marker for marker in markers if marker not in reading.requested]
    reading.requested.update(fresh)
    beginnings = [{"limit": str(PAGE), **({} if marker is None else {"marker": marker})} for marker in fresh]
    answers = calls.send_all([request(params) for params in beginnings])
    failures = [answer for answer in answers if isinstance(answer, CloudError) and not isinstance(answer, BadRequest)]
    if fresh and len(failures) == len(fresh):
        if not reading.found:
            raise failures[0]
        reading.failed.update(zip(fresh, failures, strict=True))
        reading.failed.update(dict.fromkeys(reading.pending, failures[0]))  # Nova does not answer any more
        reading.pending.clear()
        return
    for marker, answer in zip(fresh, answers, strict=True):
        if isinstance(answer, BadRequest) and marker in reading.starts:
            reading.gone.add(marker)
        elif isinstance(answer, CloudError):
            reading.failed[marker] = answer
        else:
            _keep(reading, answer)


def _keep(reading: _Reading, page: Item) -> None:
    """Keep a page, and read the next one unless another page starts in it."""
    items = {str(item["id"]): item for item in page["hypervisors"]}
    reading.found.update(items)
    has_next = any(link.get("rel") == "next" for link in page.get("hypervisors_links") or ())
    if items and has_next and reading.starts.isdisjoint(items):
        reading.pending.append(next(reversed(items)))
