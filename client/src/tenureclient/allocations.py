"""The reservations of each resource; for administrators."""

from __future__ import annotations

from collections.abc import Iterator

from tenureclient.inventory import Allocation
from tenureclient.resources import INVENTORIES
from tenureclient.transport import Transport, parsed

_PAGE = 500


class Allocations:
    """The allocations of resources: ``resource_type`` is ``host``, ``floatingip``, ``volumepool`` and so on."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, resource_type: str = "host", lease_id: str | None = None, reservation_id: str | None = None
    ) -> Iterator[Allocation]:
        """Yield the allocations of each host; with a filter, only of hosts with matching reservations."""
        declared = INVENTORIES[resource_type].resource_type
        pages = self._transport.pages(
            declared.path,
            "allocations",
            items="allocations",
            query={"limit": str(_PAGE), **_filter(lease_id, reservation_id)},
            read=Allocation.from_wire,
            feature=declared.feature_of_allocations or declared.feature,
            since=declared.since,
        )
        filtered = lease_id is not None or reservation_id is not None
        for allocation in pages:
            # A server of API 1.0 also lists the other hosts, without reservations.
            if allocation.reservations or not filtered:
                yield allocation

    def get(
        self,
        resource_id: str,
        *,
        resource_type: str = "host",
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> Allocation:
        declared = INVENTORIES[resource_type].resource_type
        answer = self._transport.call(
            "GET",
            declared.path,
            resource_id,
            "allocation",
            query=_filter(lease_id, reservation_id),
            feature=declared.feature_of_allocations or declared.feature,
            since=declared.since,
        )
        return parsed(Allocation.from_wire, answer.body.get("allocation"))


def _filter(lease_id: str | None, reservation_id: str | None) -> dict[str, str]:
    named = {"lease_id": lease_id, "reservation_id": reservation_id}
    return {key: value for key, value in named.items() if value is not None}
