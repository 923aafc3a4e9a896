"""Long lists of Nova's, in small pages that come side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.drivers.contract import CloudBusy, CloudError
from tenure.drivers.openstack.requests import BadRequest, Calls, Request

LOG = logging.getLogger(__name__)

#: How many hypervisors a page has. Nova takes ten milliseconds for each, and more under load.
PAGE: Final = 100
#: How often a page is asked for that does not arrive.
_ATTEMPTS: Final = 2

Item = Mapping[str, Any]


@dataclass(slots=True)
class PageStarts:
    """Behind which hypervisors the pages begin: those that ended a page when all of them were read last.

    Nova tells where the next page begins only with the page before. What is remembered here, or is known to the ledger,
    lets pages come side by side. It need not be right: a hypervisor that is gone begins no page, and the page before
    goes on where it would have begun.
    """

    markers: tuple[str, ...] = ()

    def remember(self, ids: Sequence[str]) -> None:
        self.markers = starts_among(ids)


def starts_among(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids behind which pages begin, where Nova lists these in the order of their numbers."""
    numbers = sorted(int(number) for number in ids if number.isascii() and number.isdigit())
    return tuple(str(number) for number in numbers[PAGE - 1 :: PAGE])


@dataclass(slots=True)
class _Reading:
    """How far a list was read."""

    #: Behind which hypervisors pages were begun without knowing the page before.
    starts: frozenset[str]
    found: dict[str, Item] = field(default_factory=dict)
    #: Where pages are still to be asked for; None is the beginning of the list.
    pending: list[str | None] = field(default_factory=list)
    asked: set[str | None] = field(default_factory=set)
    #: The starts that are not there any more.
    gone: set[str] = field(default_factory=set)
    #: Behind what pages did not arrive, and why.
    failed: dict[str | None, CloudError] = field(default_factory=dict)


def read_pages(
    calls: Calls, request: Callable[[Mapping[str, str]], Request], starts: Sequence[str]
) -> tuple[dict[str, Item], dict[str | None, CloudError]]:
    """All hypervisors by id, and behind which ids pages are missing, with the reason of each.

    As many as there may be calls at a time are asked for side by side; what does not arrive is asked for once more.
    Raises ``CloudError`` where nothing arrives.
    """
    reading = _Reading(frozenset(starts), pending=[None, *starts])
    for attempt in range(_ATTEMPTS):
        if attempt:
            reading.pending = list(reading.failed)
            reading.asked.difference_update(reading.failed)
            reading.failed.clear()
        while reading.pending:
            round_of = reading.pending[: calls.concurrency]
            del reading.pending[: calls.concurrency]
            _read_round(calls, request, reading, round_of)
        if not reading.failed:
            break
    for marker in reading.gone & reading.found.keys():  # it went in between: the page behind it was not read
        reading.failed.setdefault(marker, CloudBusy(f"Nova has no host {marker} any more."))
    return reading.found, reading.failed


def _read_round(
    calls: Calls,
    request: Callable[[Mapping[str, str]], Request],
    reading: _Reading,
    markers: Sequence[str | None],
) -> None:
    """Read some pages side by side; raise ``CloudError`` where none of them arrives."""
    fresh = [marker for marker in markers if marker not in reading.asked]
    reading.asked.update(fresh)
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
    """Keep a page, and go on behind it unless another page begins in it."""
    items = {str(item["id"]): item for item in page["hypervisors"]}
    reading.found.update(items)
    has_next = any(link.get("rel") == "next" for link in page.get("hypervisors_links") or ())
    if items and has_next and reading.starts.isdisjoint(items):
        reading.pending.append(next(reversed(items)))
