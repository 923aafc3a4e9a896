"""The reservations of each resource; for administrators."""

from __future__ import annotations

from collections.abc import Iterator

from tenureclient.inventory import Allocation
from tenureclient.resources import INVENTORIES
from tenureclient.sent import query_of
from tenureclient.transport import PAGE, Calls


class Allocations(Calls):
    """The allocations of resources: ``resource_type`` is ``host``, ``floatingip``, ``volumepool`` and so on."""

    def list(
        self, *, resource_type: str = "host", lease_id: str | None = None, reservation_id: str | None = None
    ) -> Iterator[Allocation]:
        """Yield the allocations of each host; with a filter, only of hosts with matching reservations."""
        declared = INVENTORIES[resource_type].resource_type
        pages = self._transport.pages(
            declared.path,
            "allocations",
            items="allocations",
            query=query_of(limit=PAGE, lease_id=lease_id, reservation_id=reservation_id),
            read=Allocation.from_wire,
            feature=declared.feature_of_allocations or declared.feature,
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
            query=query_of(lease_id=lease_id, reservation_id=reservation_id),
            feature=declared.feature_of_allocations or declared.feature,
        )
        return answer.read(Allocation.from_wire, "allocation")
