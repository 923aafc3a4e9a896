"""Which resources are reserved for what; for administrators."""

from __future__ import annotations

from collections.abc import Iterator

from tenureclient.models import Allocation
from tenureclient.transport import Transport, parsed

_PAGE = 500


class Allocations:
    """The allocations of hosts."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, lease_id: str | None = None, reservation_id: str | None = None) -> Iterator[Allocation]:
        """Yield the allocations of each host; with a filter only of hosts that have a part in it."""
        query = {"limit": str(_PAGE), **_filter(lease_id, reservation_id)}
        filtered = lease_id is not None or reservation_id is not None
        pages = self._transport.pages(
            "os-hosts", "allocations", items="allocations", query=query, read=Allocation.from_wire
        )
        for allocation in pages:
            # A server of API 1.0 tells the other hosts as well, with nothing on them.
            if allocation.reservations or not filtered:
                yield allocation

    def get(
        self,
        host_id: str,
        *,
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> Allocation:
        answer = self._transport.call(
            "GET", "os-hosts", host_id, "allocation", query=_filter(lease_id, reservation_id)
        )
        return parsed(Allocation.from_wire, answer.body.get("allocation"))


def _filter(lease_id: str | None, reservation_id: str | None) -> dict[str, str]:
    named = {"lease_id": lease_id, "reservation_id": reservation_id}
    return {key: value for key, value in named.items() if value is not None}
